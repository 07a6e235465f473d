//! Ctrl-C and SIGTERM mean the same: finish what was begun, then end.

use tokio::signal::unix::{SignalKind, signal};

/// Returns when the process is asked to end.
pub(crate) async fn requested() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}
