//! The two tools: how each is asked the same thing.
//!
//! What must stay true: neither gets a file of the protocol; what they know they have from the
//! server's reflection. Each run has a bound, and a stream that does not end by itself is ended as
//! soon as it has shown what was wanted.

use std::{
    collections::BTreeSet,
    io::Write,
    net::SocketAddr,
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Deserializer, Value, json};

use crate::support::postgres::process::Owned;

/// After this many seconds `timeout` ends a tool: an answer takes far less.
const SECONDS_MAX: &str = "30";

/// Which of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `buf curl`, which speaks reflection v1.
    Buf,
    /// grpcurl 1.8.6, which speaks reflection v1alpha only.
    Grpcurl,
}

/// When a call has shown what was wanted.
#[derive(Clone, Copy)]
pub enum Ends {
    /// With its last message.
    Alone,
    /// With the first message that holds something at this JSON pointer; the stream would go on.
    With(&'static str),
}

/// A tool that is there, and the server it asks.
pub struct Tool {
    kind: Kind,
    program: String,
    address: SocketAddr,
}

impl Tool {
    /// The tool behind the variable that tests/run sets; `None`, aloud, where it is not there.
    pub fn find(kind: Kind, address: SocketAddr) -> Option<Tool> {
        let variable = match kind {
            Kind::Buf => "RECEIPTD_TEST_BUF",
            Kind::Grpcurl => "RECEIPTD_TEST_GRPCURL",
        };
        let Ok(program) = std::env::var(variable) else {
            // Past the test harness, which keeps what a passing test prints to itself.
            let text = format!("SKIPPED ({variable} is not set): tests/run fetches the tool\n");
            drop(std::io::stderr().write_all(text.as_bytes()));
            return None;
        };
        Some(Tool { kind, program, address })
    }

    /// Every method of every service that reflection lists, as `package.Service/Method`. Those of
    /// reflection itself are left out: each run of a tool calls them.
    pub fn methods(&self) -> BTreeSet<String> {
        let listed = match self.kind {
            Kind::Buf => self.run(&["--list-methods", &self.url("")]),
            Kind::Grpcurl => self
                .services()
                .iter()
                .map(|service| self.run(&[&self.address.to_string(), "list", service]))
                .collect(),
        };
        let methods = listed.lines().filter(|line| !line.starts_with("grpc.reflection."));
        methods.map(|line| self.slashed(line)).collect()
    }

    /// Every service that reflection lists.
    pub fn services(&self) -> BTreeSet<String> {
        let listed = match self.kind {
            Kind::Buf => self.run(&["--list-services", &self.url("")]),
            Kind::Grpcurl => self.run(&[&self.address.to_string(), "list"]),
        };
        listed.lines().map(str::to_owned).collect()
    }

    /// What grpcurl says of a method, a service or a message; buf has no such command.
    pub fn describe(&self, name: &str) -> String {
        assert!(self.kind == Kind::Grpcurl, "only grpcurl describes");
        self.run(&[&self.address.to_string(), "describe", name])
    }

    /// Calls a method; the messages of its answer.
    pub fn call(&self, method: &str, request: &Value, ends: Ends) -> Vec<Value> {
        let request = match self.kind {
            Kind::Buf => request.to_string(),
            Kind::Grpcurl => with_plain_mask(request).to_string(),
        };
        let (address, url) = (self.address.to_string(), self.url(&format!("/{method}")));
        let arguments = match self.kind {
            Kind::Buf => ["--data", &request, &url],
            Kind::Grpcurl => ["-d", &request, &address],
        };
        let mut arguments = arguments.to_vec();
        if self.kind == Kind::Grpcurl {
            arguments.push(method);
        }
        match ends {
            Ends::Alone => {
                let text = self.run(&arguments);
                let messages = Deserializer::from_str(&text).into_iter();
                messages.map(|message| message.expect("JSON")).collect()
            }
            Ends::With(pointer) => self.read_until(pointer, &arguments),
        }
    }

    /// Runs the tool to its end, which must be a good one.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("timeout is there");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} {arguments:?}:\n{text}\n{errors}", self.program);
        text
    }

    /// Reads messages while they come, and ends the tool with the one that was wanted.
    fn read_until(&self, pointer: &str, arguments: &[&str]) -> Vec<Value> {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        // `timeout` hands a signal on to the tool, and to whatever the tool has started.
        let mut process = Owned::start(&mut command, "TERM", None);
        let output = process.child().stdout.take().expect("standard output is a pipe");
        let mut messages = Vec::new();
        let mut is_there = false;
        for message in Deserializer::from_reader(output).into_iter::<Value>() {
            let message = message.expect("JSON");
            is_there = message.pointer(pointer).is_some();
            messages.push(message);
            if is_there {
                break;
            }
        }
        process.signal(Signal::TERM);
        assert!(process.wait(Duration::from_secs(10)).is_some(), "{arguments:?} ends when told");
        if !is_there {
            let errors = process.child().stderr.take().map(std::io::read_to_string);
            panic!("{arguments:?}: no {pointer} in {messages:?}\n{errors:?}");
        }
        messages
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args([SECONDS_MAX, &self.program]);
        match self.kind {
            Kind::Buf => command.args(["curl", "--protocol", "grpc", "--http2-prior-knowledge"]),
            Kind::Grpcurl => command.arg("-plaintext"),
        };
        command.args(arguments).stdin(Stdio::null());
        command
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// grpcurl lists `package.Service.Method`.
    fn slashed(&self, listed: &str) -> String {
        match (self.kind, listed.rsplit_once('.')) {
            (Kind::Grpcurl, Some((service, method))) => format!("{service}/{method}"),
            (Kind::Grpcurl, None) | (Kind::Buf, _) => listed.to_owned(),
        }
    }
}

/// The old tool reads a field mask as the message that it is, with the fields' names as the
/// protocol writes them, not in a mask's own form of JSON (`lockLimit` for `lock_limit`).
fn with_plain_mask(request: &Value) -> Value {
    let mut request = request.clone();
    if let Some(mask) = request.get_mut("updateMask") {
        let paths: Vec<String> =
            mask.as_str().unwrap_or_default().split(',').map(snake_case).collect();
        *mask = json!({ "paths": paths });
    }
    request
}

/// `lock_limit` of `lockLimit`.
fn snake_case(name: &str) -> String {
    let mut written = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            written.push('_');
        }
        written.push(letter.to_ascii_lowercase());
    }
    written
}
