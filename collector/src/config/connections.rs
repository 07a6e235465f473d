//! What the port towards devices may cost, and the certificate it shows.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::server::tls;
use epwatch_server::{ByteSize, Period, Problems};

/// A certificate and its key. Both files are read again when they change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// PEM: the certificate, then those that sign it.
    pub cert_file: PathBuf,
    /// PEM: the certificate's private key.
    pub key_file: PathBuf,
}

/// Cost limits of connections. Beyond a limit the one who causes it is turned away, not the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConnectionsConfig {
    /// Connections open at once. One more takes the place of the one that has been idle longest.
    /// Fewer where the process may not open so many files.
    pub max: usize,
    /// A connection without a call under way is closed after this.
    pub idle_timeout: Period,
    /// Bodies that are being received or worked on, over all connections.
    pub max_body_bytes: ByteSize,
    /// For a TLS handshake, and for the head of an HTTP/1.1 request.
    #[serde(skip)]
    pub header_timeout: Period,
    /// For the body of a request, from its head to its last byte.
    #[serde(skip)]
    pub body_timeout: Period,
    /// Calls under way on one connection.
    #[serde(skip)]
    pub max_calls: u32,
}

impl Default for ConnectionsConfig {
    fn default() -> Self {
        Self {
            // Idle ones cost some 30 KiB each with TLS.
            max: 16_384,
            idle_timeout: Period(Duration::from_secs(120)),
            max_body_bytes: ByteSize(256 << 20),
            header_timeout: Period(Duration::from_secs(10)),
            // 4 MiB at 140 kB/s, a slow phone's upload.
            body_timeout: Period(Duration::from_secs(30)),
            max_calls: 256,
        }
    }
}

impl ConnectionsConfig {
    pub(super) fn check(&self, max_request_bytes: ByteSize, problems: &mut Problems) {
        problems.check_range("connections.max", &self.max, 1..=1 << 20);
        problems.check(
            "connections.max_body_bytes",
            self.max_body_bytes >= max_request_bytes,
            || format!("must be at least max_request_bytes ({max_request_bytes})"),
        );
        let periods = Period(Duration::from_millis(10))..=Period(Duration::from_secs(3600));
        problems.check_range("connections.idle_timeout", &self.idle_timeout, periods);
    }
}

impl TlsConfig {
    pub(super) fn check(&self, problems: &mut Problems) {
        if let Err(error) = tls::load(&self.cert_file, &self.key_file) {
            problems.push(format!("tls.{}", error.key), error.text);
        }
    }
}
