//! Spans of time in files and flags, for serde.

/// A span in a file, as text.
pub mod span_text {
    use std::fmt;

    use serde::{
        Deserializer, Serializer,
        de::{Error, Visitor},
    };

    use crate::domain::{
        ids::Span,
        spans::{WANTED, format_span, parse_span},
    };

    struct SpanVisitor;

    impl Visitor<'_> for SpanVisitor {
        type Value = Span;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(WANTED)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Span, E> {
            parse_span(text).map_err(E::custom)
        }
    }

    /// Writes the text.
    ///
    /// # Errors
    /// The serializer's own.
    pub fn serialize<S: Serializer>(span: &Span, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_span(*span))
    }

    /// Reads the text.
    ///
    /// # Errors
    /// What would be right.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        deserializer.deserialize_str(SpanVisitor)
    }
}

/// A span that a flag may leave out.
pub mod option_span_text {
    use serde::Serializer;

    use crate::domain::{ids::Span, spans::format_span};

    /// Writes the text; absent ones are skipped before this is called.
    ///
    /// # Errors
    /// The serializer's own.
    pub fn serialize<S: Serializer>(span: &Option<Span>, serializer: S) -> Result<S::Ok, S::Error> {
        match span {
            Some(span) => serializer.serialize_str(&format_span(*span)),
            None => serializer.serialize_none(),
        }
    }
}
