//! Canonical JSON (RFC 8785) behind a guard that refuses what the canonical form would blur.
//!
//! What must stay true: two texts with the same canonical form mean exactly the same value, so
//! that one intent digest never covers two intents (contract section 2).

use std::collections::BTreeSet;

use serde_json::Value;

/// Deepest nesting of arrays and objects that is accepted.
pub const DEPTH_MAX: usize = 64;

/// Parses `bytes` and returns the value with its canonical form.
///
/// # Errors
/// A sentence that says what is wrong: not JSON, a number that the canonical form would change, a
/// duplicate key, a lone surrogate, or more than [`DEPTH_MAX`] levels.
pub fn canonical(bytes: &[u8]) -> Result<(Value, Vec<u8>), String> {
    let value = checked(bytes)?;
    let canonical = serde_json_canonicalizer::to_vec(&value)
        .map_err(|_| "has no canonical form (RFC 8785)".to_owned())?;
    Ok((value, canonical))
}

/// Parses `bytes` behind the same guard, without making the canonical form.
///
/// # Errors
/// As [`canonical`].
pub fn checked(bytes: &[u8]) -> Result<Value, String> {
    let value = serde_json::from_slice(bytes).map_err(|error| refused(&error))?;
    guard(bytes)?;
    Ok(value)
}

/// What is JSON by its grammar and beyond what is accepted, is not called anything else.
fn refused(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!("(line {}, column {})", error.line(), error.column());
    if text.starts_with("recursion limit") {
        format!("is nested deeper than {DEPTH_MAX} levels")
    } else if text.starts_with("number out of range") {
        format!("holds a number beyond what a double can hold {place}; send it as a string")
    } else if text.contains("surrogate") || text.starts_with("unexpected end of hex escape") {
        format!("holds half of a surrogate pair, which is no Unicode text {place}")
    } else {
        format!("is not JSON: {}", without_input(error))
    }
}

/// serde_json's messages name the kind of fault and its place, never the input.
fn without_input(error: &serde_json::Error) -> String {
    match error.classify() {
        serde_json::error::Category::Eof => {
            format!("it ends too early (line {}, column {})", error.line(), error.column())
        }
        _ => error.to_string(),
    }
}

/// Where the walk stands inside an object or array.
enum Level {
    Array,
    Object { keys: BTreeSet<String>, at_key: bool },
}

/// Walks text that is known to be JSON, and refuses what parsing would silently blur.
fn guard(bytes: &[u8]) -> Result<(), String> {
    let mut levels: Vec<Level> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'{' => levels.push(Level::Object { keys: BTreeSet::new(), at_key: true }),
            b'[' => levels.push(Level::Array),
            b'}' | b']' => drop(levels.pop()),
            b',' => {
                if let Some(Level::Object { at_key, .. }) = levels.last_mut() {
                    *at_key = true;
                }
            }
            b'"' => {
                let end = string_end(bytes, at);
                note_key(&mut levels, &bytes[at..end])?;
                at = end;
                continue;
            }
            b'-' | b'0'..=b'9' => {
                let end = number_end(bytes, at);
                let token = std::str::from_utf8(&bytes[at..end]).unwrap_or_default();
                if !survives_canonical_form(token) {
                    return Err("holds a number whose canonical form (RFC 8785) is not exactly \
                                the same value; send it as a string"
                        .to_owned());
                }
                at = end;
                continue;
            }
            _ => {}
        }
        if levels.len() > DEPTH_MAX {
            return Err(format!("is nested deeper than {DEPTH_MAX} levels"));
        }
        at += 1;
    }
    Ok(())
}

/// Remembers `token` if it is a key, and refuses it if the object had it before.
fn note_key(levels: &mut [Level], token: &[u8]) -> Result<(), String> {
    let Some(Level::Object { keys, at_key }) = levels.last_mut() else { return Ok(()) };
    if !std::mem::replace(at_key, false) {
        return Ok(());
    }
    let key: String = serde_json::from_slice(token)
        .map_err(|_| "holds a key that is not Unicode text".to_owned())?;
    if keys.insert(key) { Ok(()) } else { Err("has a duplicate key in one object".to_owned()) }
}

/// One past the closing quote of the string that starts at `start`.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// One past the number that starts at `start`.
fn number_end(bytes: &[u8], start: usize) -> usize {
    let part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    start + bytes[start..].iter().take_while(|byte| part(byte)).count()
}

/// Whether the shortest form of the nearest double (what RFC 8785 writes) is the same decimal.
fn survives_canonical_form(token: &str) -> bool {
    match token.parse::<f64>() {
        Ok(number) if number.is_finite() => {
            decimal(token).is_some() && decimal(token) == decimal(&format!("{number:e}"))
        }
        _ => false,
    }
}

/// A decimal text as (negative, digits without outer zeros, exponent of the last digit). `None`
/// for an exponent beyond what any double has.
fn decimal(text: &str) -> Option<(bool, String, i64)> {
    let negative = text.starts_with('-');
    let unsigned = text.trim_start_matches('-');
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let trimmed = digits.trim_end_matches('0');
    let kept = trimmed.trim_start_matches('0');
    if kept.is_empty() {
        // Zero, whatever its sign and exponent.
        return Some((false, String::new(), 0));
    }
    let dropped = i64::try_from(digits.len() - trimmed.len()).ok()?;
    let exponent: i64 = exponent.parse().ok()?;
    let last = exponent.checked_sub(i64::try_from(fraction.len()).ok()?)?.checked_add(dropped)?;
    Some((negative, kept.to_owned(), last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(text: &str) -> Result<String, String> {
        canonical(text.as_bytes()).map(|(_, bytes)| String::from_utf8(bytes).expect("UTF-8"))
    }

    #[test]
    fn spelling_does_not_matter() {
        let expected = r#"{"line":"é","n":10,"o":{"a":1,"b":null}}"#;
        for text in [
            expected,
            r#"{"o":{"b":null,"a":1},"n":10,"line":"é"}"#,
            " { \"line\" : \"\\u00e9\",\n\"n\":1e1, \"o\": {\"a\":1.0,\"b\":null} } ",
        ] {
            assert_eq!(form(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_the_form_would_blur_is_refused() {
        let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
        for text in [
            "9007199254740993",
            "1152921504606846976",
            "0.1000000000000000055511151231257827",
            "1e400",
            "1e-400",
            "1e9223372036854775807",
            "10e-9223372036854775808",
            r#"{"a":1,"a":2}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#""\ud800""#,
            r#"{"\udc00":1}"#,
            "NaN",
            "{} {}",
            "",
            &deep,
        ] {
            assert!(form(text).is_err(), "{text}");
        }
    }

    #[test]
    fn neighbouring_doubles_stay_apart() {
        // The default parser of the library may be off by one unit in the last place.
        assert_ne!(form("0.9014274576114836"), form("0.9014274576114837"));
        assert_eq!(form("0.9014274576114836").as_deref(), Ok("0.9014274576114836"));
    }

    #[test]
    fn exact_numbers_pass() {
        let levels = format!("{}{}", "[".repeat(64), "]".repeat(64));
        for text in [
            "0e9223372036854775807",
            "0.0e-9223372036854775808",
            "0",
            "-0.0",
            "1.50",
            "1e21",
            "9007199254740992",
            "0.1",
            "-1.5e-7",
            "1e22",
            &levels,
        ] {
            assert!(form(text).is_ok(), "{text}");
        }
        assert!(form(r#"{"a":{"a":1},"b":[{"a":1},{"a":2}]}"#).is_ok());
    }

    #[test]
    fn what_is_beyond_the_limits_is_not_called_something_else() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        for (text, told) in [
            (deep.as_str(), "deeper than 64"),
            ("1e400", "beyond what a double"),
            (r#"{"line":"\ud800"}"#, "surrogate"),
            (r#""\ud800x""#, "surrogate"),
            (r#""\udc00""#, "surrogate"),
            ("{", "is not JSON"),
        ] {
            let error = canonical(text.as_bytes()).expect_err("refused");
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
