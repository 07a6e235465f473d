//! Errors of a configuration.

use epwatch_proto::clipped;

/// A configuration that is not accepted. The text says how to correct it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A text is empty, too long, or contains control characters.
    #[error(
        "failed to accept {field}: expected 1 to {max_bytes} bytes of text without control characters, got {got:?}"
    )]
    Text {
        /// The text's name.
        field: &'static str,
        /// Its longest form.
        max_bytes: usize,
        /// The beginning of the given text.
        got: String,
    },
    /// The endpoint is not an `http://` or `https://` address of a host.
    #[error(
        "failed to accept endpoint {0:?}: expected https://HOST:PORT or http://127.0.0.1:PORT, with a port of 1 to 65535 \
         and no path or query"
    )]
    Endpoint(String),
    /// Reports and the app key would travel unencrypted over a network.
    #[error(
        "failed to accept endpoint {0:?}: plaintext leaves this device; use https, or allow plaintext to \
         other hosts in the configuration, for a test network"
    )]
    Plaintext(String),
    /// A public key for directives cannot be used.
    #[error("failed to accept directive key {key_id:?}: expected {problem}")]
    DirectiveKey {
        /// Id of the key.
        key_id: String,
        /// The requirement that the key does not meet.
        problem: &'static str,
    },
    /// A root certificate is not PEM text.
    #[error(
        "failed to accept a root certificate: expected PEM text with BEGIN CERTIFICATE and \
         END CERTIFICATE, not DER, a key or a path"
    )]
    RootCertificate,
    /// A client certificate is presented over TLS only.
    #[error("failed to accept a client certificate: it needs an endpoint of https://")]
    ClientCertificate,
    /// No root is trusted, so every certificate would be refused.
    #[error(
        "failed to accept no trusted roots: give a root certificate, or trust the bundled roots or the \
         system's"
    )]
    NoRoots,
    /// An interval or a limit is zero.
    #[error("failed to accept {0}: expected more than 0")]
    Zero(&'static str),
}

pub(super) fn text(
    field: &'static str,
    value: String,
    max_bytes: usize,
) -> Result<String, ConfigError> {
    let is_fine =
        !value.is_empty() && value.len() <= max_bytes && !value.chars().any(char::is_control);
    if is_fine {
        return Ok(value);
    }
    Err(ConfigError::Text {
        field,
        max_bytes,
        got: clipped(&value, 32),
    })
}
