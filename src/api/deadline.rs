//! The caller's own time limit, so that its end need not be silence (contract section 4).

use std::time::Duration;

use tonic::metadata::MetadataMap;

/// The answer leaves at least this long before the caller gives up.
const MARGIN_LEAST: Duration = Duration::from_millis(50);
/// And never earlier than this.
const MARGIN_MOST: Duration = Duration::from_millis(100);

/// How long an answer may be held back: what was asked for, but no longer than shortly before the
/// caller gives up.
pub fn patience(metadata: &MetadataMap, wait: Duration) -> Duration {
    match grpc_timeout(metadata) {
        Some(timeout) => {
            let margin = (timeout / 10).clamp(MARGIN_LEAST, MARGIN_MOST);
            wait.min(timeout.saturating_sub(margin))
        }
        None => wait,
    }
}

/// The `grpc-timeout` of a call: at most eight digits and a unit.
fn grpc_timeout(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3_600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", text.parse().expect("ASCII"));
        metadata
    }

    #[test]
    fn the_callers_timeout_is_read_in_every_unit() {
        for (text, timeout) in [
            ("2H", Some(Duration::from_secs(7_200))),
            ("3M", Some(Duration::from_secs(180))),
            ("4S", Some(Duration::from_secs(4))),
            ("500m", Some(Duration::from_millis(500))),
            ("99999999u", Some(Duration::from_micros(99_999_999))),
            ("1n", Some(Duration::from_nanos(1))),
            ("", None),
            ("S", None),
            ("5", None),
            ("5x", None),
            ("-5S", None),
            ("123456789S", None),
        ] {
            assert_eq!(grpc_timeout(&with(text)), timeout, "{text}");
        }
    }

    #[test]
    fn the_answer_leaves_before_the_caller_gives_up() {
        let wait = Duration::from_secs(60);
        assert_eq!(patience(&MetadataMap::new(), wait), wait);
        assert_eq!(patience(&with("5S"), wait), Duration::from_millis(4_900));
        assert_eq!(patience(&with("600m"), wait), Duration::from_millis(540));
        assert_eq!(patience(&with("200m"), wait), Duration::from_millis(150));
        assert_eq!(patience(&with("10m"), wait), Duration::ZERO);
        assert_eq!(patience(&with("5S"), Duration::from_secs(1)), Duration::from_secs(1));
    }
}
