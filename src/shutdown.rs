//! Ctrl-C and SIGTERM, which both mean: finish the work in progress, then end.

use tokio::signal::unix::{SignalKind, signal};

/// Returns when the process receives one of the two signals.
pub(crate) async fn requested() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}
