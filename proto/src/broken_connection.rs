//! Recognises calls whose connection breaks before an answer, for example at a port of another protocol.

use std::error::Error;

use tonic::{Code, ConnectError, Status, TimeoutExpired};

/// Whether the connection was made, and broke before an answer. A server's own answer has no cause. A deadline and a
/// port without a listener have their own causes.
///
/// The code of a broken connection depends on the moment. The other side's bytes are read as a wrong frame
/// (`Internal`), or the connection is reset (`Unknown`). Or the connection is gone before the call is sent
/// (`Cancelled`).
pub fn is_connection_broken(status: &Status) -> bool {
    if !matches!(
        status.code(),
        Code::Unknown | Code::Internal | Code::Cancelled
    ) {
        return false;
    }
    let mut cause = status.source();
    let is_transport = cause.is_some();
    while let Some(error) = cause {
        if error.is::<TimeoutExpired>() || error.is::<ConnectError>() {
            return false;
        }
        cause = error.source();
    }
    is_transport
}

/// Returns advice if a call without TLS failed in the way calls fail at a port that expects TLS.
pub fn tls_hint(url: &str, status: &Status) -> Option<&'static str> {
    (url.starts_with("http://") && is_connection_broken(status))
        .then_some("if the collector has TLS, its address begins with https://")
}
