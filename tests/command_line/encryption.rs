//! Certificates that do not fit: each is told by its flag, with the next step.

use crate::program::{Running, receiptd, receiptd_in, shell, tls_file};

fn encrypted(name: &str) -> Running {
    let (certificate, key) = (format!("{name}.pem"), format!("{name}-key.pem"));
    Running::dev(&["--tls-cert", &tls_file(&certificate), "--tls-key", &tls_file(&key)])
}

#[test]
fn the_lines_to_try_fit_a_server_with_a_certificate() {
    let server = encrypted("server");
    let lines = |word: &str| {
        let found = server.printed.iter().find(|line| line.contains(word));
        found.unwrap_or_else(|| panic!("no {word} in {:?}", server.printed))
    };
    assert!(server.endpoint().starts_with("https://"));
    let grpcurl = lines("grpcurl ");
    assert!(grpcurl.contains("-cacert ") && !grpcurl.contains("-plaintext"), "{grpcurl}");
    let submit = lines(" submit ");
    assert!(submit.contains("--endpoint https://") && submit.contains("--ca-file "), "{submit}");
    shell(&server.folder(), submit).expect(0, &["APPLIED", "ACKED"]);
}

#[test]
fn a_caller_whose_encryption_does_not_fit_is_told_the_next_step() {
    let (server, authority, plain) =
        (encrypted("server"), encrypted("authority"), Running::dev(&[]));
    let port = |server: &Running| server.endpoint().rsplit(':').next().expect("a port").to_owned();
    let ca = tls_file("server.pem");
    for (endpoint, ca, told) in [
        (format!("https://127.0.0.1:{}", port(&server)), None, "with --ca-file"),
        (format!("https://[::ffff:127.0.0.1]:{}", port(&server)), Some(&ca), "for other names"),
        (format!("https://127.0.0.1:{}", port(&plain)), Some(&ca), "write http:// in --endpoint"),
        (format!("http://127.0.0.1:{}", port(&server)), None, "write https:// in --endpoint"),
        (
            format!("https://127.0.0.1:{}", port(&authority)),
            Some(&tls_file("authority.pem")),
            "CA:FALSE",
        ),
    ] {
        let mut words = vec!["document", "list", "--timeout", "2s", "--endpoint", &endpoint];
        words.extend(ca.iter().flat_map(|file| ["--ca-file", file.as_str()]));
        receiptd(&words).expect(1, &[&endpoint, told]);
    }
}

#[test]
fn files_that_are_not_certificates_are_named_with_their_flag() {
    let (server, key) = (tls_file("server.pem"), tls_file("server-key.pem"));
    let other_key = tls_file("authority-key.pem");
    for (certificate, key, told) in [
        ("nowhere.pem", key.as_str(), "--tls-cert nowhere.pem: there is no such file"),
        (&server, "nowhere.pem", "--tls-key nowhere.pem: there is no such file"),
        (&key, &server, "holds no certificate in PEM; the private key belongs into --tls-key"),
        (&server, &server, "holds no private key in PEM; the certificate belongs into --tls-cert"),
        (&server, &other_key, "name the two that were made together"),
    ] {
        let ports = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
        let words = [&["dev", "--tls-cert", certificate, "--tls-key", key], &ports[..]].concat();
        let folder = tempfile::TempDir::new().expect("a temporary directory");
        receiptd_in(folder.path(), &[], &words).expect(1, &[told]);
        assert!(!folder.path().join("receiptd-data").exists(), "{told}: a store was created");
    }
    let folder = tempfile::TempDir::new().expect("a temporary directory");
    std::fs::write(folder.path().join("garbage.pem"), "garbage").expect("written");
    for (file, told) in [
        ("nowhere.pem", "--ca-file nowhere.pem: there is no such file"),
        ("garbage.pem", "--ca-file garbage.pem: holds no certificate in PEM"),
        (&key, "holds no certificate in PEM"),
    ] {
        let words = ["document", "list", "--endpoint", "https://127.0.0.1:1", "--ca-file", file];
        receiptd_in(folder.path(), &[], &words).expect(2, &[told]);
    }
}
