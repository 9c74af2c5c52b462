//! What a reader lets a stream send, in results and in bytes (contract section 7).
//!
//! What must stay true: a result that the stream shows for the first time is sent only while both
//! are above zero, so that bytes are overdrawn by one result at most; what it showed before costs
//! nothing. Deliberately not here: the window, which is the inbox row's.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::domain::policy::INLINE_PAYLOAD_BYTES_LIMIT;

/// No result is larger: names and texts at their limits, sixteen labels, all numbers, and the
/// largest body that travels along. A page is put in flight only as far as results of this size
/// are covered, because what is in flight and can't be sent would lose its time.
pub const RESULT_BYTES_MAX: i64 = 12 * 1024 + INLINE_PAYLOAD_BYTES_LIMIT as i64;

/// The credit of one stream; shared by the stream and whoever grants more.
#[derive(Debug)]
pub struct Credit {
    left: Mutex<Left>,
    granted: Notify,
}

/// What is left; absent: not bounded.
#[derive(Debug, Clone, Copy)]
struct Left {
    messages: Option<i64>,
    bytes: Option<i64>,
}

impl Credit {
    /// At the opening.
    pub fn new(messages: Option<i64>, bytes: Option<i64>) -> Self {
        Credit { left: Mutex::new(Left { messages, bytes }), granted: Notify::new() }
    }

    /// Adds to what is bounded.
    pub fn grant(&self, messages: i64, bytes: i64) {
        let mut left = self.left();
        left.messages = left.messages.map(|left| left.saturating_add(messages));
        left.bytes = left.bytes.map(|left| left.saturating_add(bytes));
        self.granted.notify_one();
    }

    /// Ends when more was granted since the last call.
    pub(super) async fn granted(&self) {
        self.granted.notified().await;
    }

    /// How many results may be sent, whatever their size.
    pub(super) fn room(&self) -> i64 {
        let Left { messages, bytes } = *self.left();
        let by_bytes = match bytes {
            None => i64::MAX,
            Some(left) if left <= 0 => 0,
            // The last one may overdraw.
            Some(left) => (left / RESULT_BYTES_MAX).max(1),
        };
        messages.unwrap_or(i64::MAX).min(by_bytes).max(0)
    }

    /// A result was sent.
    pub(super) fn spend(&self, bytes: i64) {
        let mut left = self.left();
        left.messages = left.messages.map(|left| left.saturating_sub(1));
        left.bytes = left.bytes.map(|left| left.saturating_sub(bytes));
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        // Each change is a single step, so that a panic elsewhere leaves nothing half done.
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_must_be_left_and_only_bytes_are_overdrawn() {
        for (messages, bytes, room) in [
            (None, None, i64::MAX),
            (Some(0), None, 0),
            (Some(3), None, 3),
            (None, Some(0), 0),
            (None, Some(-5), 0),
            (None, Some(1), 1),
            (Some(9), Some(2 * RESULT_BYTES_MAX), 2),
            (Some(9), Some(2 * RESULT_BYTES_MAX - 1), 1),
            (Some(1), Some(9 * RESULT_BYTES_MAX), 1),
            (Some(0), Some(9), 0),
        ] {
            assert_eq!(Credit::new(messages, bytes).room(), room, "{messages:?} {bytes:?}");
        }
    }

    #[test]
    fn spending_and_granting_touch_only_what_is_bounded() {
        let credit = Credit::new(Some(1), Some(10));
        credit.spend(25);
        assert_eq!(credit.room(), 0);
        credit.grant(5, 15);
        assert_eq!(credit.room(), 0, "the overdraft is paid first");
        credit.grant(0, 1);
        assert_eq!(credit.room(), 1);
        credit.grant(i64::MAX, i64::MAX);
        assert_eq!(credit.room(), i64::MAX / RESULT_BYTES_MAX);
        let unbounded = Credit::new(None, Some(1));
        unbounded.spend(1);
        unbounded.grant(7, 0);
        assert_eq!(unbounded.room(), 0);
    }

    #[tokio::test]
    async fn a_grant_before_the_wait_is_not_lost() {
        let credit = Credit::new(Some(0), None);
        credit.grant(1, 0);
        credit.granted().await;
        assert_eq!(credit.room(), 1);
    }
}
