//! What a test says beforehand to the fake service, and what it can ask afterwards.

use std::collections::VecDeque;

use tonic::Status;

use crate::proto::{Policy, stream_deliveries_response::Frame};

/// What the next calls come to, apart from their effect.
#[derive(Default)]
pub(crate) struct Script {
    /// The next submits are refused with these, without effect.
    pub(crate) refused_submits: VecDeque<Status>,
    /// The next submits have their effect, and then fail with these.
    pub(crate) lost_submits: VecDeque<Status>,
    /// The next streams are refused with these.
    pub(crate) refused_streams: VecDeque<Status>,
    /// The next stream begins with these, after `Opened`.
    pub(crate) frames: VecDeque<Frame>,
    /// While this is there, acks are refused with it.
    pub(crate) refused_acks: Option<Status>,
    /// While this is there, extensions are refused with it.
    pub(crate) refused_extensions: Option<Status>,
    /// What `Opened` says of the policy.
    pub(crate) policy: Option<Policy>,
    /// The next look-ups of several are refused with these.
    pub(crate) refused_look_ups: VecDeque<Status>,
}

/// What was asked so far.
#[derive(Default)]
pub(crate) struct Asked {
    /// The ids of all submits.
    pub(crate) submits: Vec<String>,
    /// The tokens of all streams.
    pub(crate) tokens: Vec<String>,
    /// Number and attempt of everything that was to be extended.
    pub(crate) extensions: Vec<(i64, i32)>,
    /// How many ids each look-up of several named.
    pub(crate) look_ups: Vec<usize>,
}
