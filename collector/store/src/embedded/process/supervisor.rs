//! Supervisor of the engine's child: start, watch, restart with backoff, stop.
//!
//! It runs on its own thread. The kernel's death signal follows the thread that spawned the child, and a runtime's
//! worker may end before the process does. An engine that was ready once is restarted for ever. A full disk or a lack
//! of memory ends one day, and the collector works without the engine until then. An engine that was never ready ends
//! in [`EngineState::Failed`] if its start fails for a lasting reason, or five times in a row. A folder in use is
//! retried for as long as an engine may take to end. A killed server's engine goes on for a moment.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::control::{MAX_LINE_BYTES, Orders, Stage, StartReport};
use crate::client::StoreTarget;
use crate::embedded::config::{EmbeddedConfig, Layout};
use crate::embedded::state::{EmbeddedError, EngineFailure, EngineState};

const FIRST_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// A child that ran this long was healthy, so the backoff starts again.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Failed starts in a row before the supervisor gives up on an engine that was never ready. For another engine it
/// logs an error.
const MAX_FAILED_STARTS: u32 = 5;

/// Length of the kept end of the child's standard error, which has the reason of its death.
const STDERR_TAIL_BYTES: usize = 4 << 10;

/// The embedded engine with its supervisor. A drop kills the child and waits for its end; nothing acknowledged is lost.
#[derive(Debug)]
pub struct EmbeddedStore {
    socket: PathBuf,
    state: watch::Receiver<EngineState>,
    /// Cancelled to order the end.
    stop: CancellationToken,
    /// Cancelled to order the end at once. It also counts as the order to end.
    kill: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.kill.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the thread itself, and the child ends with that thread.
            let _ = thread.join();
        }
    }
}

impl EmbeddedStore {
    /// Prepares the data folder and starts the supervisor; [`ready`](Self::ready) waits for the engine.
    ///
    /// # Errors
    /// The folder cannot be made, or no socket path fits.
    pub fn start(
        config: EmbeddedConfig,
    ) -> BoxFuture<'static, Result<EmbeddedStore, EmbeddedError>> {
        Box::pin(async move {
            let layout = Layout::prepare(&config)?;
            let socket = layout.socket.clone();
            let (state_tx, state) = watch::channel(EngineState::Starting { n_restarts: 0 });
            let kill = CancellationToken::new();
            let stop = kill.child_token();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(EmbeddedError::Supervisor)?;
            let supervisor = Supervisor {
                config,
                layout,
                state: state_tx,
                n_restarts: 0,
                was_ready: false,
                stop: stop.clone(),
                kill: kill.clone(),
            };
            let thread = std::thread::Builder::new()
                .name("engine-supervisor".to_owned())
                .spawn(move || runtime.block_on(supervisor.run()))
                .map_err(EmbeddedError::Supervisor)?;
            Ok(EmbeddedStore {
                socket,
                state,
                stop,
                kill,
                thread: Some(thread),
            })
        })
    }

    /// Waits until the engine answers.
    ///
    /// # Errors
    /// The supervisor gave up or was stopped.
    pub fn ready(&self) -> BoxFuture<'_, Result<(), EmbeddedError>> {
        Box::pin(self.until(|state| !matches!(state, EngineState::Starting { .. })))
    }

    async fn until(&self, is_it: fn(&EngineState) -> bool) -> Result<(), EmbeddedError> {
        let mut state = self.state.clone();
        match state.wait_for(is_it).await.as_deref() {
            Ok(EngineState::Failed { reason }) => Err(EmbeddedError::Failed(reason.clone())),
            Ok(EngineState::Stopped) | Err(_) => Err(EmbeddedError::Stopped),
            Ok(_) => Ok(()),
        }
    }

    /// Returns the engine's state, now and as it changes.
    pub fn state(&self) -> watch::Receiver<EngineState> {
        self.state.clone()
    }

    /// Waits until the engine gave up or was stopped, and returns the reason.
    pub fn gone(&self) -> BoxFuture<'_, EmbeddedError> {
        Box::pin(async move {
            let is_gone = |state: &EngineState| {
                matches!(state, EngineState::Failed { .. } | EngineState::Stopped)
            };
            self.until(is_gone)
                .await
                .err()
                .unwrap_or(EmbeddedError::Stopped)
        })
    }

    /// Returns where readers connect, while the engine is ready and if they were asked for.
    pub fn readers(&self) -> Option<SocketAddr> {
        match *self.state.borrow() {
            EngineState::Ready { readers, .. } => readers,
            _ => None,
        }
    }

    /// Returns the socket's path, for `--clickhouse unix:/path` of another process.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the engine as a target for clients; an empty `database` means none.
    pub fn target(&self, database: &str) -> StoreTarget {
        StoreTarget::unix(&self.socket, database)
    }

    /// Returns a client for a database; an empty name means none. It works across restarts: a query fails while the
    /// engine is away, and can be repeated.
    pub fn client(&self, database: &str) -> clickhouse::Client {
        crate::client::client(&self.target(database))
    }

    /// Waits for running statements, for a bounded time, then for the child's end. A drop of the future kills the child.
    pub fn stop(mut self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.stop.cancel();
            if let Some(thread) = self.thread.take() {
                let _ = tokio::task::spawn_blocking(move || thread.join()).await;
            }
        })
    }
}

struct Supervisor {
    config: EmbeddedConfig,
    layout: Layout,
    state: watch::Sender<EngineState>,
    n_restarts: u64,
    /// Whether any child was ready.
    was_ready: bool,
    stop: CancellationToken,
    kill: CancellationToken,
}

/// The way in which a child ended.
enum Ended {
    Stopped,
    NotStarted(EngineFailure),
    Died { after: Duration },
}

impl Supervisor {
    async fn run(mut self) {
        let mut backoff = FIRST_BACKOFF;
        let mut n_failed = 0;
        let began = Instant::now();
        loop {
            match self.one_life().await {
                Ended::Stopped => break,
                Ended::NotStarted(reason) => {
                    n_failed += 1;
                    let hopeless = match &reason {
                        _ if self.was_ready => false,
                        EngineFailure::Locked { .. } => began.elapsed() >= self.config.stop_timeout,
                        reason => reason.is_final() || n_failed >= MAX_FAILED_STARTS,
                    };
                    if hopeless {
                        tracing::error!(%reason, "embedded engine gave up");
                        self.state.send_replace(EngineState::Failed { reason });
                        return;
                    }
                    let is_locked = matches!(reason, EngineFailure::Locked { .. });
                    if is_locked && n_failed > 1 {
                        tracing::debug!(%reason, ?backoff, "embedded engine did not start");
                    } else if is_locked {
                        let limit = self.config.stop_timeout;
                        tracing::warn!(%reason, ?limit, "waiting for the engine of an ended process");
                    } else if self.was_ready && n_failed == MAX_FAILED_STARTS {
                        tracing::error!(%reason, "embedded engine does not come back; trying on");
                    } else {
                        tracing::warn!(%reason, ?backoff, "embedded engine did not start");
                    }
                }
                Ended::Died { after } => {
                    n_failed = 0;
                    if after >= STABLE_AFTER {
                        backoff = FIRST_BACKOFF;
                    }
                }
            }
            self.n_restarts += 1;
            let n_restarts = self.n_restarts;
            self.state
                .send_replace(EngineState::Starting { n_restarts });
            tokio::select! {
                () = tokio::time::sleep(backoff) => {}
                () = self.stop.cancelled() => break,
            }
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
        self.state.send_replace(EngineState::Stopped);
    }

    async fn one_life(&mut self) -> Ended {
        let mut process = match self.spawn() {
            Ok(process) => process,
            Err(error) => {
                let reason = error.to_string();
                return Ended::NotStarted(EngineFailure::Program { reason });
            }
        };
        let report = tokio::select! {
            report = timeout(self.config.start_timeout, self.first_report(&mut process)) => report,
            () = self.stop.cancelled() => {
                process.end(self.config.stop_timeout, &self.kill).await;
                return Ended::Stopped;
            }
        };
        let (version, readers) = match report {
            Ok(Ok(StartReport::Ready { version, readers })) => (version, readers),
            Ok(Ok(StartReport::Failed { stage, reason })) => {
                let (_, stderr) = process.kill().await;
                return Ended::NotStarted(self.failure(stage, reason, stderr));
            }
            Ok(Err(error)) => {
                let (status, stderr) = process.kill().await;
                let reason = format!("{error} ({})", described(status));
                return Ended::NotStarted(EngineFailure::Start { reason, stderr });
            }
            Err(_) => {
                let (_, stderr) = process.kill().await;
                let reason = format!("no answer in {:?}", self.config.start_timeout);
                return Ended::NotStarted(EngineFailure::Start { reason, stderr });
            }
        };
        let ready_since = Instant::now();
        self.was_ready = true;
        tracing::info!(pid = process.pid, version, "embedded engine is ready");
        self.state.send_replace(EngineState::Ready {
            pid: process.pid,
            version,
            n_restarts: self.n_restarts,
            readers,
        });
        tokio::select! {
            status = process.child.wait() => {
                let stderr = process.stderr_tail().await;
                let status = described(status.ok());
                tracing::error!(pid = process.pid, status, stderr, "embedded engine died");
                Ended::Died { after: ready_since.elapsed() }
            }
            () = self.stop.cancelled() => {
                process.end(self.config.stop_timeout, &self.kill).await;
                Ended::Stopped
            }
        }
    }

    fn spawn(&self) -> io::Result<Process> {
        let (ours, childs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut command = self.config.program.command();
        // Ctrl-C in a terminal reaches the whole process group, but only the supervisor may order the child to end.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = Command::from(command)
            .stdin(Stdio::from(OwnedFd::from(childs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stderr = child.stderr.take().expect("piped above");
        Ok(Process {
            pid: child.id().expect("just spawned, not waited for"),
            child,
            control: UnixStream::from_std(ours)?,
            stderr: tokio::spawn(read_tail(stderr)),
        })
    }

    async fn first_report(&self, process: &mut Process) -> io::Result<StartReport> {
        let orders = Orders {
            parent_pid: std::process::id(),
            library: self.config.library.clone(),
            data: self.layout.database.clone(),
            config_file: self.layout.config_file.clone(),
            socket: self.layout.socket.clone(),
            engine_args: self.config.engine_args(),
            default_settings: self.config.default_settings(),
            memory_bytes: self.config.memory_limit_bytes,
            max_concurrent_queries: self.config.max_concurrent_queries,
            readers: self.config.readers.clone(),
            drain_ms: u64::try_from(self.config.stop_timeout.as_millis() / 2).unwrap_or(u64::MAX),
        };
        let line = serde_json::to_string(&orders)? + "\n";
        process.control.write_all(line.as_bytes()).await?;
        let mut line = String::new();
        let mut reader = BufReader::new(&mut process.control).take(MAX_LINE_BYTES);
        if reader.read_line(&mut line).await? == 0 {
            return Err(io::Error::other("it ended before it was ready"));
        }
        Ok(serde_json::from_str(&line)?)
    }

    fn failure(&self, stage: Stage, reason: String, stderr: String) -> EngineFailure {
        // Only the engine's log has the reason why it did not open. 76 is CANNOT_OPEN_FILE; the lock is the cause that
        // an operator can meet.
        let is_locked = stderr.contains("Code: 76") && stderr.contains("Cannot lock file");
        match stage {
            Stage::Engine if is_locked => EngineFailure::Locked {
                data_dir: self.config.data_dir.clone(),
            },
            Stage::Library => EngineFailure::Library { reason },
            _ => EngineFailure::Start { reason, stderr },
        }
    }
}

/// A child with its channels.
struct Process {
    pid: u32,
    child: Child,
    control: UnixStream,
    stderr: JoinHandle<String>,
}

impl Process {
    /// Closes the control channel, which is the order to end. Kills the child if it does not end, or at `kill`.
    async fn end(mut self, max_wait: Duration, kill: &CancellationToken) {
        let _ = self.control.shutdown().await;
        tokio::select! {
            biased;
            () = kill.cancelled() => {}
            ended = timeout(max_wait, self.child.wait()) => {
                if ended.is_ok() {
                    return;
                }
                tracing::warn!(pid = self.pid, "embedded engine did not end in time; killing it");
            }
        }
        let _ = self.child.start_kill();
        let _ = self.child.wait().await;
    }

    async fn kill(mut self) -> (Option<ExitStatus>, String) {
        // A child that ended by itself keeps its own status.
        let ended = timeout(Duration::from_millis(100), self.child.wait()).await;
        if ended.is_err() {
            let _ = self.child.start_kill();
        }
        let status = self.child.wait().await.ok();
        (status, self.stderr_tail().await)
    }

    async fn stderr_tail(&mut self) -> String {
        // The read ends with the child, unless a grandchild keeps the pipe open.
        let tail = timeout(Duration::from_secs(1), &mut self.stderr).await;
        match tail {
            Ok(Ok(tail)) => tail,
            _ => String::new(),
        }
    }
}

/// Reads to the end and returns the last bytes, as text.
async fn read_tail(mut stderr: ChildStderr) -> String {
    let mut tail = VecDeque::with_capacity(STDERR_TAIL_BYTES);
    let mut buffer = vec![0; STDERR_TAIL_BYTES];
    while let Ok(n) = stderr.read(&mut buffer).await {
        if n == 0 {
            break;
        }
        tracing::debug!(text = %String::from_utf8_lossy(&buffer[..n]).trim_end(), "engine stderr");
        tail.extend(&buffer[..n]);
        let excess = tail.len().saturating_sub(STDERR_TAIL_BYTES);
        tail.drain(..excess);
    }
    String::from_utf8_lossy(tail.make_contiguous())
        .trim()
        .to_owned()
}

fn described(status: Option<ExitStatus>) -> String {
    status.map_or_else(|| "unknown end".to_owned(), |status| status.to_string())
}
