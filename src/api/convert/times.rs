//! Points and spans of time, both ways.

use crate::domain::{
    ids::{Invalid, Span, Timestamp},
    spans::not_within,
};

/// The years 1 to 9999, which protobuf allows.
const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// A point in time for a caller.
pub fn timestamp(time: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: time.0.div_euclid(1_000_000),
        nanos: i32::try_from(time.0.rem_euclid(1_000_000) * 1_000).expect("below one second"),
    }
}

/// A span for a caller.
pub fn duration(span: Span) -> prost_types::Duration {
    prost_types::Duration {
        seconds: span.0 / 1_000_000,
        nanos: i32::try_from(span.0 % 1_000_000 * 1_000).expect("below one second"),
    }
}

/// A caller's point in time; digits below a microsecond are cut.
///
/// # Errors
/// [`Invalid`] outside the years 1 to 9999.
pub fn read_timestamp(field: &str, time: &prost_types::Timestamp) -> Result<Timestamp, Invalid> {
    let nanos = i64::from(time.nanos);
    if !SECONDS.contains(&time.seconds) || !(0..1_000_000_000).contains(&nanos) {
        return Err(Invalid::new(field, "must be a point in time in the years 1 to 9999"));
    }
    Ok(Timestamp(time.seconds * 1_000_000 + nanos / 1_000))
}

/// A caller's span between `least` and `most`.
///
/// # Errors
/// [`Invalid`] with the limits.
pub fn read_duration(
    field: &str,
    span: &prost_types::Duration,
    least: Span,
    most: Span,
) -> Result<Span, Invalid> {
    // Protobuf's own rule: less than a second of nanoseconds, with the sign of the seconds.
    let whole = span.nanos.unsigned_abs() < 1_000_000_000;
    let one_sign = span.seconds.signum() * i64::from(span.nanos.signum()) >= 0;
    if !whole || !one_sign {
        return Err(Invalid::new(
            field,
            "must have less than a second of nanos, with the sign of its seconds",
        ));
    }
    let micros = i128::from(span.seconds) * 1_000_000 + i128::from(span.nanos) / 1_000;
    match i64::try_from(micros) {
        Ok(micros) if (least.0..=most.0).contains(&micros) => Ok(Span(micros)),
        _ => Err(not_within(field, least, most)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_both_ways() {
        for micros in [0, 1, -1, 1_700_000_000_123_456, -1_000_001] {
            let time = timestamp(Timestamp(micros));
            assert_eq!(read_timestamp("t", &time), Ok(Timestamp(micros)));
        }
        let wrong = prost_types::Timestamp { seconds: i64::MAX, nanos: 0 };
        assert!(read_timestamp("t", &wrong).is_err());
        let wrong = prost_types::Timestamp { seconds: 0, nanos: -1 };
        assert!(read_timestamp("t", &wrong).is_err());
    }

    #[test]
    fn spans_have_limits() {
        let read = |seconds, nanos| {
            let span = prost_types::Duration { seconds, nanos };
            read_duration("wait", &span, Span(0), Span::seconds(60))
        };
        assert_eq!(read(60, 0), Ok(Span::seconds(60)));
        assert_eq!(read(0, 1_500), Ok(Span(1)));
        for (seconds, nanos) in [(1, -1), (-1, 1), (1, 1_000_000_000), (5, i32::MIN)] {
            assert!(read(seconds, nanos).is_err(), "{seconds} {nanos}");
        }
        assert!(read(60, 1_000).is_err() && read(-1, 0).is_err() && read(i64::MAX, 0).is_err());
    }
}
