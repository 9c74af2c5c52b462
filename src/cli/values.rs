//! Readers of typed values, for those whose own words would not help whoever typed them.

use std::{net::SocketAddr, str::FromStr, time::Duration};

use crate::{
    config::ADDRESS_WANTED,
    domain::{ids::Span, spans::parse_span},
};

/// Reads a whole number.
///
/// # Errors
/// A sentence for the person who typed it.
pub fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| match text.parse::<i128>() {
        Ok(_) => "is out of range".to_owned(),
        Err(_) => "must be a whole number".to_owned(),
    })
}

/// Reads how many of something there may be.
///
/// # Errors
/// A sentence for the person who typed it.
pub fn at_least_one<T: FromStr + PartialOrd + From<u8>>(text: &str) -> Result<T, String> {
    match text.parse::<T>() {
        Ok(number) if number >= T::from(1) => Ok(number),
        Ok(_) | Err(_) => Err("must be a whole number from 1 on".to_owned()),
    }
}

/// Reads where to listen.
///
/// # Errors
/// A sentence for the person who typed it.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| ADDRESS_WANTED.to_owned())
}

/// Reads a span of time, written as in the settings.
///
/// # Errors
/// A sentence for the person who typed it.
pub fn duration(text: &str) -> Result<Duration, String> {
    parse_span(text).map(Span::to_std)
}

/// Reads a moment, written as RFC 3339 has it, in UTC.
///
/// # Errors
/// A sentence for the person who typed it.
pub fn moment(text: &str) -> Result<prost_types::Timestamp, String> {
    humantime::parse_rfc3339(text)
        .map(prost_types::Timestamp::from)
        .map_err(|_| "must be a moment in UTC such as 2026-03-01T12:00:00Z".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Cli;

    #[test]
    fn whoever_types_a_wrong_value_is_told_what_would_be_right() {
        let span = "must be a span of time such as 500ms, 6s, 15m, 24h or 30d";
        for (line, told) in [
            ("serve --retry-budget ten", "must be a whole number"),
            ("serve --lanes=-1", "is out of range"),
            ("serve --inbox-slots 99999999999999999999", "is out of range"),
            ("serve --listen localhost:7070", "must be IP:PORT"),
            ("dev --admin-listen 7071", "must be IP:PORT"),
            ("serve --ack-window 5", span),
            ("submit a b --wait 5", span),
            ("submit a b --start-deadline soon", span),
            ("get a --timeout 5", span),
            ("submit a b --expected-revision x", "must be a whole number"),
            ("inbox ack default x", "must be a whole number"),
            ("inbox stream --count x", "must be a whole number from 1 on"),
            ("inbox stream --count 0", "must be a whole number from 1 on"),
            ("inbox stream --window 0", "must be a whole number from 1 on"),
            ("inbox pull --max 0", "must be a whole number from 1 on"),
            ("inbox pull --wait 5", span),
            ("inbox extend default 1:1 --by 5", span),
            ("inbox defer default 1:1 --delay x", span),
            ("inbox redrive default x", "must be a whole number"),
            ("inbox list --limit 0", "must be a whole number from 1 on"),
            ("config evidence-floor yesterday --reason x", "such as 2026-03-01T12:00:00Z"),
            ("rehearse --cut-every x", "must be a whole number"),
            ("rehearse --kill-every x", "must be a whole number"),
        ] {
            let words = ["receiptd"].into_iter().chain(line.split(' '));
            let error = Cli::try_parse_from(words).expect_err(line).to_string();
            assert!(error.contains(told), "{line}: {error}");
        }
    }
}
