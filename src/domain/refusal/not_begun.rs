//! A request that never became a call of a service: what the transport found wrong with it.
//!
//! What must stay true: no rule has seen such a request, so that it had no effect for certain.

use crate::domain::advice::Advice;

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotBegun {
    /// It has more bytes than one request may have.
    TooLarge,
    /// It is not a message of the method.
    Undecodable,
    /// The server has no such service or method.
    NoSuchMethod,
    /// It is compressed in a way that the server does not know.
    Encoding,
}

impl NotBegun {
    pub(super) fn reason(self) -> &'static str {
        match self {
            NotBegun::TooLarge => "PAYLOAD_TOO_LARGE",
            NotBegun::Undecodable => "INVALID_FIELD",
            NotBegun::NoSuchMethod | NotBegun::Encoding => "UNIMPLEMENTED",
        }
    }

    /// With what the transport told, if it told anything.
    pub(super) fn text(self, told: &str) -> String {
        let text = match self {
            NotBegun::TooLarge => "the request is too large",
            NotBegun::Undecodable => "the request cannot be decoded",
            NotBegun::NoSuchMethod => "this server has no such service or method",
            NotBegun::Encoding => "this server does not know how the request is compressed",
        };
        match told {
            "" => text.to_owned(),
            told => format!("{text} ({told})"),
        }
    }

    pub(super) fn advice(self) -> Advice {
        match self {
            NotBegun::TooLarge => Advice::SendLess,
            NotBegun::Undecodable => Advice::Correct,
            NotBegun::NoSuchMethod => Advice::OtherName,
            NotBegun::Encoding => Advice::Uncompressed,
        }
    }
}
