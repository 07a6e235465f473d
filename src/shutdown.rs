//! Signals that end a command: Ctrl-C, SIGTERM, and SIGHUP when the terminal is gone.
//!
//! Each command listens before it creates folders or processes, so that a signal at any moment leaves none behind. The
//! first signal asks for an orderly end. A second one, or the deadline of a stop, abandons the rest.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use crate::output::{INTERRUPTED, Interrupted};

/// Time of a server's stop after the drain of its WAL: enough to give the lease back and to end the engine. With the
/// default drain a stop takes 40 s at most, less than the 45 s that the units give.
const AFTER_DRAIN: Duration = Duration::from_secs(10);

/// Time from a signal to the end of a command that does not stop by itself.
const BLOCKED_COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

/// Listens for signals from its creation on.
#[derive(Debug)]
pub(crate) struct Shutdown {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    at_hangup: Hangup,
}

/// Meaning of SIGHUP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hangup {
    /// The terminal is gone, so the command ends as at Ctrl-C.
    Ends,
    /// The server reads its files again, which another listener does.
    ReadsAgain,
    /// The server has no file to read again.
    NothingToRead,
}

impl Shutdown {
    pub(crate) fn listen(at_hangup: Hangup) -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            at_hangup,
        })
    }

    /// Returns when the process receives a signal to end. Each call waits for another signal.
    pub(crate) async fn requested(&mut self) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => break,
                _ = self.terminate.recv() => break,
                _ = self.hangup.recv() => match self.at_hangup {
                    Hangup::Ends => break,
                    Hangup::ReadsAgain => {}
                    Hangup::NothingToRead => tracing::info!("SIGHUP: there is no file to read again"),
                },
            }
        }
        // A fetch blocks its thread, so it is interrupted by a flag that it polls.
        epwatch_engines::interrupt();
    }

    /// Runs a future to its end, or drops it at a signal.
    pub(crate) async fn unless_requested<T>(
        &mut self,
        future: impl Future<Output = T>,
    ) -> Result<T, Interrupted> {
        tokio::select! {
            done = future => Ok(done),
            () = self.requested() => Err(Interrupted),
        }
    }

    /// Waits for the orderly stop of a server that drains for at most `drain`. A second signal or the deadline abandons
    /// it, because all acknowledged reports are in the WAL.
    pub(crate) async fn stop(&mut self, stopping: impl Future<Output = ()>, drain: Duration) {
        let limit = drain + AFTER_DRAIN;
        tracing::info!(?limit, "stopping; a second signal abandons the rest");
        match self.unless_requested(timeout(limit, stopping)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => tracing::warn!(
                ?limit,
                "the stop took too long and was abandoned; the WAL holds the rest"
            ),
            Err(Interrupted) => {
                tracing::warn!("the stop was abandoned at a second signal; the WAL holds the rest")
            }
        }
    }
}

/// Time from a signal to the end of a command that removes its folders on other machines.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a command, or drops it at the first signal with the folders that it made. A command that computes or reads and
/// never waits cannot be dropped: its process ends all the same after [`BLOCKED_COMMAND_TIMEOUT`].
pub(crate) async fn until_interrupted<T>(
    command: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let mut shutdown = Shutdown::listen(Hangup::Ends)?;
    end_at_last(BLOCKED_COMMAND_TIMEOUT)?;
    shutdown.unless_requested(command).await?
}

/// Works like [`until_interrupted`] for a command that makes folders on other machines. They are removed after its end
/// or at the first signal. A second signal abandons the removal.
pub(crate) async fn until_interrupted_and_removed<T>(
    command: impl Future<Output = anyhow::Result<T>>,
    removal: impl Future<Output = ()>,
) -> anyhow::Result<T> {
    let mut shutdown = Shutdown::listen(Hangup::Ends)?;
    end_at_last(REMOVAL_TIMEOUT)?;
    let ended = shutdown.unless_requested(command).await;
    shutdown.unless_requested(removal).await?;
    ended?
}

/// Ends the process after `limit` from a signal. This runs on another thread, because the command may block its own.
fn end_at_last(limit: Duration) -> io::Result<()> {
    let mut last_resort = Shutdown::listen(Hangup::Ends)?;
    tokio::spawn(async move {
        last_resort.requested().await;
        tokio::time::sleep(limit).await;
        std::process::exit(INTERRUPTED.into());
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use epwatch_collector::config::CollectorConfig;

    use super::*;

    /// The service manager kills a process at that time, in the middle of anything.
    #[test]
    fn a_stop_is_over_before_the_units_kill_it() {
        let drain = CollectorConfig::default().batch.drain_timeout.0;
        for (unit, drain) in [
            ("serve", drain),
            ("collector", drain),
            ("detector", Duration::ZERO),
        ] {
            let file = format!(
                "{}/docs/examples/epwatch-{unit}.service",
                env!("CARGO_MANIFEST_DIR")
            );
            let unit = std::fs::read_to_string(&file).unwrap();
            let mut limits = unit
                .lines()
                .filter_map(|line| line.strip_prefix("TimeoutStopSec="));
            let limit: u64 = limits.next_back().unwrap().parse().unwrap();
            assert!(drain + AFTER_DRAIN < Duration::from_secs(limit), "{file}");
        }
    }
}
