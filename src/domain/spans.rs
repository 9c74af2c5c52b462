//! Spans of time as people write them: `500ms`, `6s`, `15m`, `24h`, `30d`.
//!
//! What must stay true: what is written is read back as the same span. Settings, flags and the
//! limits that refusals name are all written this way.

use std::time::{Duration, SystemTime};

use super::ids::{Invalid, Span, Timestamp};

/// Units from the longest, so that a span is shown in the longest that divides it.
const UNITS: [(i64, &str); 6] = [
    (86_400_000_000, "d"),
    (3_600_000_000, "h"),
    (60_000_000, "m"),
    (1_000_000, "s"),
    (1_000, "ms"),
    (1, "us"),
];

/// What a span looks like, for whoever wrote something else.
pub const WANTED: &str = "a span of time such as 500ms, 6s, 15m, 24h or 30d";

/// Reads a span.
///
/// # Errors
/// What would be right, without the text itself.
pub fn parse_span(text: &str) -> Result<Span, String> {
    let wrong = || format!("must be {WANTED}");
    let duration = humantime::parse_duration(text).map_err(|_| wrong())?;
    i64::try_from(duration.as_micros()).map(Span).map_err(|_| wrong())
}

/// Writes a span so that [`parse_span`] reads the same.
pub fn format_span(span: Span) -> String {
    let unit = UNITS.into_iter().find(|(micros, _)| span.0 % micros == 0 && span.0 != 0);
    match unit {
        Some((micros, name)) => format!("{}{name}", span.0 / micros),
        None => "0s".to_owned(),
    }
}

/// The last second that can be written: the end of the year 9999.
const SECONDS_MAX: u64 = 253_402_300_799;

/// Writes a time for people, in UTC with milliseconds; one before 1970 as its beginning.
pub fn format_time(time: Timestamp) -> String {
    let since = Duration::from_micros(u64::try_from(time.0).unwrap_or(0));
    let shown = SystemTime::UNIX_EPOCH + since.min(Duration::from_secs(SECONDS_MAX));
    humantime::format_rfc3339_millis(shown).to_string()
}

/// What is said of a span that is out of its range.
pub fn not_within(field: &str, least: Span, most: Span) -> Invalid {
    Invalid::new(field, format!("must be {} to {}", format_span(least), format_span(most)))
}

/// A span in a file, as text.
pub mod span_text {
    use std::fmt;

    use serde::{
        Deserializer, Serializer,
        de::{Error, Visitor},
    };

    use super::{Span, WANTED, format_span, parse_span};

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

    use super::{Span, format_span};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_as_people_write_them() {
        for (text, span) in [
            ("500ms", Span::millis(500)),
            ("6s", Span::seconds(6)),
            ("15m", Span::minutes(15)),
            ("24h", Span::days(1)),
            ("30d", Span::days(30)),
            ("1h 30m", Span::minutes(90)),
            ("0s", Span(0)),
        ] {
            assert_eq!(parse_span(text), Ok(span), "{text}");
            assert_eq!(parse_span(&format_span(span)), Ok(span), "{text}");
        }
        for wrong in ["", "6", "six seconds", "-1s", "99999999999999999y"] {
            assert!(parse_span(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(format_span(Span::minutes(90)), "90m");
        assert_eq!(format_span(Span::days(400)), "400d");
    }
}
