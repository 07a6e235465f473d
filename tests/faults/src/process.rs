//! One `epwatch` process: started again after each end, killed by order, and kept down for a while if the order says so.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;
use rustix::process::Signal;
use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Pause between two starts of a process that ends by itself.
const START_PAUSE: Duration = Duration::from_millis(200);
/// Time in which a process must drain its WAL after the order to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);

/// The command line of the process.
#[derive(Debug, Clone)]
pub(crate) struct StartLine {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(&'static str, &'static str)>,
    /// The log file of the process, for all its starts.
    pub(crate) log: PathBuf,
}

/// The addresses of the process, from the output of `--json`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Addresses {
    pub(crate) collector: SocketAddr,
    #[serde(default)]
    pub(crate) store: Option<String>,
}

/// The state of the process as seen from outside.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub(crate) pid: Option<u32>,
    /// The addresses, once the process has printed them.
    pub(crate) addresses: Option<Addresses>,
    pub(crate) starts: u64,
    /// Number of ends without an order.
    pub(crate) ended_by_itself: u64,
    /// Set by an order to end: the time until the next start, or that no start follows.
    next_start: Option<NextStart>,
    last_exit: Option<ExitStatus>,
}

#[derive(Debug, Clone, Copy)]
enum NextStart {
    In(Duration),
    Never,
}

/// Keeps one process running. Dropping this kills the process.
#[derive(Debug)]
pub(crate) struct Kept {
    state: watch::Sender<State>,
    keeper: JoinHandle<()>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl Kept {
    pub(crate) fn start(line: StartLine) -> Self {
        let state = watch::Sender::new(State::default());
        let keeper = tokio::spawn(keep(line, state.clone()));
        Self { state, keeper }
    }

    pub(crate) fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Kills the process, whatever it is doing, and keeps it down for `down`. Returns whether a process was running.
    pub(crate) async fn kill(&self, down: Duration) -> bool {
        self.end(Signal::KILL, NextStart::In(down)).await.is_ok()
    }

    /// Lets the process drain its WAL and end for good.
    pub(crate) async fn stop(&self) -> anyhow::Result<()> {
        let ended = timeout(STOP_TIMEOUT, self.end(Signal::TERM, NextStart::Never)).await;
        let status = ended.context("it did not end when it was told to")??;
        anyhow::ensure!(status.success(), "it ended with {status}");
        Ok(())
    }

    /// Sends a signal, and waits for the end.
    async fn end(&self, how: Signal, next_start: NextStart) -> anyhow::Result<ExitStatus> {
        let pid = self.state.borrow().pid;
        let pid = pid.context("the process was gone already")?;
        self.state
            .send_modify(|state| state.next_start = Some(next_start));
        if let Err(error) = signal(pid, how) {
            self.state.send_modify(|state| state.next_start = None);
            return Err(error);
        }
        let mut state = self.state.subscribe();
        let ended = state.wait_for(|state| state.pid != Some(pid)).await?;
        ended
            .last_exit
            .context("the process ended without a status")
    }
}

async fn keep(line: StartLine, state: watch::Sender<State>) {
    loop {
        let exit = match line.spawn() {
            Ok(child) => live(child, &state).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &exit {
            tracing::error!(%error, "failed to run {}", line.program.display());
        }
        let mut next_start = None;
        state.send_modify(|state| {
            next_start = state.next_start.take();
            state.ended_by_itself += u64::from(next_start.is_none() && exit.is_ok());
            state.pid = None;
            state.addresses = None;
            state.last_exit = exit.ok();
        });
        match next_start {
            None => sleep(START_PAUSE).await,
            Some(NextStart::In(down)) => sleep(down).await,
            Some(NextStart::Never) => return,
        }
    }
}

/// Waits for the end of a process, and publishes its address meanwhile.
async fn live(mut child: Child, state: &watch::Sender<State>) -> std::io::Result<ExitStatus> {
    state.send_modify(|state| {
        state.pid = child.id();
        state.starts += 1;
    });
    let mut stdout = child.stdout.take().expect("piped");
    let mut text = Vec::new();
    let mut is_open = true;
    loop {
        tokio::select! {
            ended = child.wait() => return ended,
            read = stdout.read_buf(&mut text), if is_open => {
                is_open = matches!(read, Ok(n) if n > 0);
                if let Ok(addresses) = serde_json::from_slice::<Addresses>(&text) {
                    state.send_modify(|state| state.addresses = Some(addresses));
                }
            }
        }
    }
}

/// Sends a signal to a process that this harness started.
pub(crate) fn signal(pid: u32, signal: Signal) -> anyhow::Result<()> {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    let pid = pid.context("not a process id")?;
    rustix::process::kill_process(pid, signal).context("failed to signal a process")
}

impl StartLine {
    fn spawn(&self) -> std::io::Result<Child> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)?;
        Command::new(&self.program)
            .args(&self.args)
            .envs(self.env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            // Only the harness gets Ctrl-C, and then ends the processes itself.
            .process_group(0)
            .spawn()
    }
}
