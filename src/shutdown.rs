//! Ctrl-C and SIGTERM mean the same: finish the work that has begun, then end.

use tokio::signal::unix::{SignalKind, signal};

/// Returns when the process receives one of the two signals.
pub(crate) async fn requested() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}
