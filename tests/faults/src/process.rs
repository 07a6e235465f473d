//! One `epwatch` process that is started again whenever it ends, killed when told to, and may be kept
//! down for a while.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

/// Between two starts of a process that ends by itself.
const START_PAUSE: Duration = Duration::from_millis(200);
/// Time for the WAL's records, when it has the order to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);

/// How to start it.
#[derive(Debug, Clone)]
pub(crate) struct StartLine {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    /// Takes its log, over all its lives.
    pub(crate) log: PathBuf,
}

/// Its address, from the output of `--json`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Addresses {
    pub(crate) collector: SocketAddr,
    #[serde(default)]
    pub(crate) store: Option<String>,
}

/// Its state as seen from outside.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub(crate) pid: Option<u32>,
    /// Once it has reported it.
    pub(crate) addresses: Option<Addresses>,
    pub(crate) starts: u64,
    /// Ends without an order.
    pub(crate) ended_by_itself: u64,
}

enum Order {
    /// SIGKILL. Answers whether there was a process; it stays down that long.
    Kill(Duration, oneshot::Sender<bool>),
    /// SIGTERM, and no start after it.
    Stop(oneshot::Sender<anyhow::Result<()>>),
}

/// Keeps one process alive. Dropped, the process is killed.
#[derive(Debug)]
pub(crate) struct Kept {
    orders: mpsc::Sender<Order>,
    state: watch::Receiver<State>,
    keeper: JoinHandle<()>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl Kept {
    pub(crate) fn start(line: StartLine) -> Self {
        let (orders, inbox) = mpsc::channel(1);
        let (said, state) = watch::channel(State::default());
        let keeper = tokio::spawn(keep(line, inbox, said));
        Self {
            orders,
            state,
            keeper,
        }
    }

    pub(crate) fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Kills it, wherever it is, and keeps it down for `down`. Returns whether there was one to kill.
    pub(crate) async fn kill(&self, down: Duration) -> bool {
        let (done, killed) = oneshot::channel();
        let _ = self.orders.send(Order::Kill(down, done)).await;
        killed.await.unwrap_or(false)
    }

    /// Lets it drain and end for good.
    pub(crate) async fn stop(&self) -> anyhow::Result<()> {
        let (done, stopped) = oneshot::channel();
        let _ = self.orders.send(Order::Stop(done)).await;
        stopped.await.context("the process was gone already")?
    }
}

async fn keep(line: StartLine, mut orders: mpsc::Receiver<Order>, said: watch::Sender<State>) {
    loop {
        let mut pause = START_PAUSE;
        match line.spawn() {
            Ok(mut child) => {
                said.send_modify(|state| {
                    state.pid = child.id();
                    state.starts += 1;
                });
                let order = live(&mut child, &mut orders, &said).await;
                said.send_modify(|state| {
                    state.pid = None;
                    state.addresses = None;
                });
                match order {
                    Some(Order::Kill(down, done)) => {
                        let _ = child.kill().await;
                        let _ = done.send(true);
                        pause = down;
                    }
                    Some(Order::Stop(done)) => {
                        let _ = done.send(end(&mut child).await);
                        return;
                    }
                    None => said.send_modify(|state| state.ended_by_itself += 1),
                }
            }
            Err(error) => tracing::error!(%error, "failed to start {}", line.program.display()),
        }
        let until = tokio::time::Instant::now() + pause;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until) => break,
                order = orders.recv() => match order {
                    Some(Order::Kill(_, done)) => { let _ = done.send(false); }
                    // Down already: only the next start drains its WAL.
                    Some(stop @ Order::Stop(_)) => { drop(stop); return; }
                    None => return,
                },
            }
        }
    }
}

/// Waits for an order, or for the process to end by itself; publishes its address meanwhile.
async fn live(
    child: &mut Child,
    orders: &mut mpsc::Receiver<Order>,
    said: &watch::Sender<State>,
) -> Option<Order> {
    let mut stdout = child.stdout.take().expect("piped");
    let mut text = Vec::new();
    let mut is_open = true;
    loop {
        tokio::select! {
            order = orders.recv() => return order,
            _ = child.wait() => return None,
            read = stdout.read_buf(&mut text), if is_open => {
                is_open = matches!(read, Ok(n) if n > 0);
                if let Ok(addresses) = serde_json::from_slice::<Addresses>(&text) {
                    said.send_modify(|state| state.addresses = Some(addresses));
                }
            }
        }
    }
}

/// Asks it to end with SIGTERM, and waits.
async fn end(child: &mut Child) -> anyhow::Result<()> {
    if let Some(pid) = child.id() {
        signal(pid, rustix::process::Signal::TERM)?;
    }
    let ended = tokio::time::timeout(STOP_TIMEOUT, child.wait()).await;
    let status = ended.context("it did not end when it was told to")??;
    anyhow::ensure!(status.success(), "it ended with {status}");
    Ok(())
}

/// Sends a signal to a process that this harness started.
pub(crate) fn signal(pid: u32, signal: rustix::process::Signal) -> anyhow::Result<()> {
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
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            // Ctrl-C is for the harness, which then ends them itself.
            .process_group(0)
            .spawn()
    }
}
