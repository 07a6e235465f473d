//! Limits of the device port, and its certificate.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::KeyKind;
use crate::server::tls::{self, TlsFiles};
use epwatch_server::{ByteSize, Period, Problems, read_config_file};

/// A certificate and its key, and the authorities of clients. All files are reloaded when they change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// PEM: the certificate, then its chain.
    pub cert_file: PathBuf,
    /// PEM: the certificate's private key.
    pub key_file: PathBuf,
    /// PEM: authorities that sign client certificates. Without it no client is asked for one.
    #[serde(default)]
    pub client_ca: Option<PathBuf>,
    /// Kinds of keys whose calls need a client certificate; other clients may present one. `own` if it is not set.
    #[serde(default)]
    pub client_cert_required: Option<Vec<KeyKind>>,
}

/// Limits on the cost of connections. A limit rejects the connection that exceeds it, not others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConnectionsConfig {
    /// Connections open at once. A further connection replaces the one that has been idle longest. The number is lower
    /// if the process may not open so many files.
    pub max: usize,
    /// Bytes of request bodies in memory, over all connections. The default has space for 64 of the largest requests.
    #[serde(skip)]
    pub max_body_bytes: ByteSize,
    /// A connection without a call under way is closed after this time.
    #[serde(skip)]
    pub idle_timeout: Period,
    /// The time limit of a TLS handshake, and of the head of an HTTP/1.1 request.
    #[serde(skip)]
    pub header_timeout: Period,
    /// The time limit of a request's body, from the end of the head to the last byte.
    #[serde(skip)]
    pub body_timeout: Period,
}

impl Default for ConnectionsConfig {
    fn default() -> Self {
        Self {
            // An idle connection with TLS costs some 30 KiB.
            max: 16_384,
            max_body_bytes: ByteSize(256 << 20),
            // Longer than the idle time of the usual load balancers, so that none sends into a closed connection.
            idle_timeout: Period(Duration::from_secs(120)),
            header_timeout: Period(Duration::from_secs(10)),
            // 4 MiB at 140 kB/s, a slow phone's upload.
            body_timeout: Period(Duration::from_secs(30)),
        }
    }
}

impl TlsConfig {
    pub(super) fn check(&self, problems: &mut Problems) {
        let files = [
            ("tls.cert_file", Some(&self.cert_file)),
            ("tls.key_file", Some(&self.key_file)),
            ("tls.client_ca", self.client_ca.as_ref()),
        ];
        let mut are_there = true;
        for (key, path) in files {
            // Each unreadable file is named here, because loading stops at the first one.
            if let Some(path) = path
                && let Err(error) = read_config_file(path)
            {
                problems.push(key, format!("{}: {error}", path.display()));
                are_there = false;
            }
        }
        if are_there && let Err(error) = tls::load(&self.files()) {
            problems.push(format!("tls.{}", error.key), error.text);
        }
        if self.client_ca.is_none() && self.client_cert_required.is_some() {
            let text = "needs tls.client_ca, the authorities that sign client certificates";
            problems.push("tls.client_cert_required", text);
        }
    }

    pub(crate) fn files(&self) -> TlsFiles {
        TlsFiles {
            cert_file: self.cert_file.clone(),
            key_file: self.key_file.clone(),
            client_ca: self.client_ca.clone(),
        }
    }

    /// Returns whether calls with a key of this kind need a client certificate.
    pub(crate) fn needs_client_certificate(&self, kind: KeyKind) -> bool {
        let required = self.client_cert_required.as_deref();
        self.client_ca.is_some() && required.unwrap_or(&[KeyKind::Own]).contains(&kind)
    }

    /// Returns why devices cannot connect with the certificate now or soon, with true if they already cannot. A server
    /// still starts with such a certificate, because its files are read again once they are renewed.
    #[must_use]
    pub fn validity_problem(&self, now: Timestamp) -> Option<(String, bool)> {
        let (problem, is_now) = tls::load(&self.files()).ok()?.validity?.problem(now)?;
        Some((format!("{}: {problem}", self.cert_file.display()), is_now))
    }

    /// Returns which authorities of `client_ca` have ended or will soon. Their clients may still connect.
    #[must_use]
    pub fn authority_problem(&self, now: Timestamp) -> Option<String> {
        let file = self.client_ca.as_ref()?;
        let problem = tls::load(&self.files()).ok()?.authority_problem(now)?;
        Some(format!("{}: {problem}", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_is_not_there_is_named() {
        let tls = TlsConfig {
            cert_file: "/no/cert.pem".into(),
            key_file: "/no/key.pem".into(),
            client_ca: Some("/no/ca.pem".into()),
            client_cert_required: None,
        };
        let mut problems = Problems::default();
        tls.check(&mut problems);
        let texts: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
        let missing = "No such file or directory (os error 2)";
        let expected = [
            format!("tls.cert_file: /no/cert.pem: {missing}"),
            format!("tls.key_file: /no/key.pem: {missing}"),
            format!("tls.client_ca: /no/ca.pem: {missing}"),
        ];
        assert_eq!(texts, expected);
    }
}
