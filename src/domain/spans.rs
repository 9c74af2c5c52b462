//! Spans of time as people write them: `500ms`, `6s`, `15m`, `24h`, `30d`.
//!
//! What must stay true: what is written is read back as the same span. Settings, flags and the
//! limits that refusals name are all written this way.

use super::ids::Span;

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
