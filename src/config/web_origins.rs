//! Which web pages may call, by their exact origins.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Serialize};

/// More pages than this need a proxy in front; each call compares with all of them.
const ORIGINS_MAX: usize = 100;

/// Origins as browsers send them, `https://app.example` or `http://localhost:5173`; none by
/// default, so that no web page may call. As text, they are separated by commas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WebOrigins(Vec<String>);

impl WebOrigins {
    /// The origins, each as a browser sends it.
    pub fn list(&self) -> &[String] {
        &self.0
    }

    /// The first one that is a page from another machine.
    pub fn first_beyond_loopback(&self) -> Option<&str> {
        self.0.iter().map(String::as_str).find(|origin| !is_loopback(origin))
    }
}

fn is_loopback(origin: &str) -> bool {
    let Ok(uri) = origin.parse::<http::Uri>() else { return false };
    let host = uri.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The origin, if a browser could send exactly this.
fn origin(text: &str) -> Result<String, String> {
    let wrong = |problem: &str| {
        format!(
            "web_origins: `{text}` {problem}; name each origin as https://HOST or http://HOST:PORT"
        )
    };
    if text.contains('*') {
        return Err(wrong("is a pattern, and only exact origins are taken"));
    }
    let uri: http::Uri = text.parse().map_err(|_| wrong("is no origin"))?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(wrong("has no scheme or no host"));
    };
    let default_port = match scheme {
        "https" => 443,
        "http" => 80,
        _ => return Err(wrong("is neither http nor https")),
    };
    if authority.port_u16() == Some(default_port) {
        return Err(wrong("names the default port, which browsers leave out"));
    }
    // A path, a user, an upper-case letter: a browser's header would never equal it.
    if format!("{scheme}://{}", authority.as_str().to_ascii_lowercase()) != text
        || authority.as_str().contains('@')
    {
        return Err(wrong("has more than scheme, host and port, or capital letters"));
    }
    Ok(text.to_owned())
}

impl FromStr for WebOrigins {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let origins = parts.map(origin).collect::<Result<Vec<_>, _>>()?;
        if origins.len() > ORIGINS_MAX {
            return Err(format!("web_origins names more than {ORIGINS_MAX} origins"));
        }
        Ok(WebOrigins(origins))
    }
}

impl TryFrom<String> for WebOrigins {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<WebOrigins> for String {
    fn from(origins: WebOrigins) -> String {
        origins.to_string()
    }
}

impl fmt::Display for WebOrigins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_browser_sends_is_an_origin() {
        let text = "https://app.example, http://localhost:5173,http://[::1]:8080";
        let origins: WebOrigins = text.parse().expect("good");
        let listed = ["https://app.example", "http://localhost:5173", "http://[::1]:8080"];
        assert_eq!(origins.list(), listed);
        assert_eq!(origins.to_string().parse::<WebOrigins>().as_ref(), Ok(&origins));
        assert_eq!("".parse(), Ok(WebOrigins::default()));
        for wrong in [
            "*",
            "https://*.app.example",
            "null",
            "app.example",
            "ftp://app.example",
            "https://app.example/",
            "https://app.example/page",
            "https://app.example?x",
            "https://APP.example",
            "https://me@app.example",
            "https://app.example:443",
            "http://app.example:80",
            "https://",
        ] {
            let error = wrong.parse::<WebOrigins>().expect_err(wrong);
            assert!(error.contains(wrong) && error.contains("web_origins"), "{error}");
        }
        let many = (0..=ORIGINS_MAX).map(|number| format!("https://app{number}.example"));
        many.collect::<Vec<_>>().join(",").parse::<WebOrigins>().expect_err("too many");
    }

    #[test]
    fn pages_of_other_machines_are_told_apart() {
        let first = |text: &str| {
            let origins: WebOrigins = text.parse().expect("good");
            origins.first_beyond_loopback().map(str::to_owned)
        };
        assert_eq!(first("http://localhost:5173,http://127.0.0.1:1,http://[::1]:8080"), None);
        let other = "http://localhost.evil.example";
        assert_eq!(first(&format!("http://localhost:5173,{other}")).as_deref(), Some(other));
    }
}
