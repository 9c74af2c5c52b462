//! A failed call as a command's failure: what is known, and what to do next.
//!
//! What must stay true: the service's own sentence is shown where there is one; whoever cannot reach
//! it is told the address and what to look at; an exit code says what is known of the effect.

use super::{
    EXIT_FAILURE, EXIT_USAGE, Failure,
    connection::{EXIT_CONFLICT, EXIT_UNKNOWN},
    output::recovery_word,
};
use crate::client::error::{self as client_error, FailureOutcome};

/// A failed call to a service as a command's failure.
pub fn call_failed(failure: &client_error::Failure, endpoint: &str) -> Failure {
    Failure::new(exit_of_failure(failure), told(failure, endpoint))
}

/// A failed call that was to change something: whoever can't know whether it did, is told so and
/// what settles it.
pub fn change_failed(failure: &client_error::Failure, endpoint: &str, settle: &str) -> Failure {
    match failure.outcome {
        FailureOutcome::Unknown => {
            let told = told(failure, endpoint);
            let text = format!("it is not known whether this took effect: {told}\n{settle}");
            Failure::new(EXIT_UNKNOWN, text)
        }
        FailureOutcome::NoEffect | FailureOutcome::NeverSent => call_failed(failure, endpoint),
    }
}

fn exit_of_failure(failure: &client_error::Failure) -> u8 {
    match failure.reason.as_deref() {
        Some("OPERATION_INTENT_MISMATCH") => EXIT_CONFLICT,
        // A submit may still arrive, as for a look-up.
        Some("NO_SUCH_OPERATION") => EXIT_UNKNOWN,
        Some("INVALID_FIELD" | "UNKNOWN_ACTION" | "CLOCK_SKEW" | "RESUME_TOKEN_INVALID") => {
            EXIT_USAGE
        }
        _ => EXIT_FAILURE,
    }
}

/// What went wrong and the next step, in sentences.
pub fn told(failure: &client_error::Failure, endpoint: &str) -> String {
    let Some(reason) = &failure.reason else {
        return format!("{failure} ({endpoint}). {}", transport_step(failure, endpoint));
    };
    let mut text = match failure.advice.is_empty() {
        true => failure.to_string(),
        false => format!("{reason}: {}", failure.advice),
    };
    if let (Some(holder), Some(until)) =
        (failure.metadata.get("holder"), failure.metadata.get("release_time"))
    {
        text.push_str(&format!(" It is {holder}, which holds it until {until} at the latest."));
    }
    if let Some(action) = failure.recovery {
        text.push_str(&format!(" (next step: {})", recovery_word(action)));
    }
    text
}

/// What to look at when no receiptd has answered, by what the layers below say.
const TRANSPORT_STEPS: [(&str, &str); 10] = [
    (
        "onnection refused",
        "Nothing listens there: start the service (receiptd dev), or name where it listens with \
         --endpoint.",
    ),
    ("dns error", "There is no machine of this name: correct --endpoint."),
    (
        "InvalidContentType",
        "The server does not speak TLS on this port: write http:// in --endpoint.",
    ),
    (
        "UnknownIssuer",
        "Nobody known here has signed the server's certificate: name the file of its authority \
         with --ca-file.",
    ),
    (
        "CaUsedAsEndEntity",
        "The server shows an authority's certificate as its own: give it one that is made for \
         servers (basicConstraints CA:FALSE).",
    ),
    (
        "not valid for name",
        "The server's certificate is for other names: write one of those in --endpoint, or give \
         the server a certificate for this one.",
    ),
    ("Expired", "The server's certificate has expired: give it a new one."),
    ("NotValidYet", "The server's certificate is not valid yet: look at both clocks."),
    ("BadSignature", "The server's certificate is not signed by what --ca-file names."),
    (
        "grpc-status header missing",
        "What answers there is not receiptd's gRPC port (7070 unless told otherwise): correct \
         --endpoint.",
    ),
];

fn transport_step(failure: &client_error::Failure, endpoint: &str) -> &'static str {
    let known = TRANSPORT_STEPS.into_iter().find(|(words, _)| failure.text.contains(words));
    match (known, failure.outcome) {
        (Some((_, step)), _) => step,
        (None, FailureOutcome::NeverSent) => {
            "Look whether the service runs there, and whether --endpoint is right."
        }
        // A server with a certificate hangs up on plain text, in as many ways as there are.
        (None, FailureOutcome::NoEffect | FailureOutcome::Unknown)
            if endpoint.starts_with("http:") =>
        {
            "Look whether the service runs there; where it has a certificate, write https:// in \
             --endpoint."
        }
        (None, FailureOutcome::NoEffect | FailureOutcome::Unknown) => {
            "Look whether the service runs there, then run the same command again."
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::ExitCode;

    use tonic::{Code, Status};

    use super::*;
    use crate::client::error::tests::refusal;

    const ENDPOINT: &str = "http://db:7070";

    #[test]
    fn a_change_in_doubt_has_an_exit_code_of_its_own() {
        for (status, code) in [
            (refusal(Code::Unknown, "COMMIT_UNKNOWN", "UNKNOWN"), EXIT_UNKNOWN),
            (Status::unavailable("gone"), EXIT_UNKNOWN),
            (Status::deadline_exceeded(""), EXIT_UNKNOWN),
            (refusal(Code::NotFound, "NO_SUCH_OPERATION", "NO_EFFECT"), EXIT_UNKNOWN),
            (refusal(Code::InvalidArgument, "INVALID_FIELD", "NO_EFFECT"), EXIT_USAGE),
        ] {
            let failure = client_error::Failure::from(status);
            let name = failure.to_string();
            let exit = change_failed(&failure, ENDPOINT, "look it up").exit_code();
            assert_eq!(format!("{exit:?}"), format!("{:?}", ExitCode::from(code)), "{name}");
        }
    }

    #[test]
    fn a_refusal_is_told_in_the_services_own_sentence() {
        let full = refusal(Code::ResourceExhausted, "INBOX_FULL", "NO_EFFECT");
        let failure = client_error::Failure::from(full);
        assert_eq!(
            told(&failure, ENDPOINT),
            "INBOX_FULL: What is known. Do this. (next step: SLOW_DOWN)"
        );
    }

    #[test]
    fn whoever_reaches_nobody_is_told_where_and_what_to_look_at() {
        let of = |text: &str| told(&Status::unavailable(text).into(), ENDPOINT);
        for (text, step) in [
            ("tcp connect error: Connection refused (os error 111)", "receiptd dev"),
            ("received corrupt message of type InvalidContentType", "write http://"),
            ("http2 error: frame with invalid size", "write https://"),
            ("invalid peer certificate: UnknownIssuer", "--ca-file"),
            ("something else", "runs there"),
        ] {
            let told = of(text);
            assert!(told.contains(ENDPOINT) && told.contains(text), "{told}");
            assert!(told.contains(step), "{told}");
        }
    }
}
