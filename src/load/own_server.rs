//! `epwatch serve` in a temporary folder and a separate process, so that its cost is measured apart from the cost of
//! the load.

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::Context;
use epwatch_store::StoreTarget;
use tokio::process::{Child, Command};

use crate::{collector::Addresses, temp_folder::TempFolder};

/// Time to write the rest of the WAL to the store.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// Clock ticks a second in `/proc`, a constant of Linux's interface to programs (USER_HZ).
const TICKS_PER_SECOND: f64 = 100.0;

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub(super) struct OwnServer {
    child: Child,
    pid: u32,
    addresses: Option<Addresses>,
    _dir: TempFolder,
}

impl OwnServer {
    /// Starts the process; [`Self::ready`] waits until the server takes reports.
    pub(super) fn start() -> anyhow::Result<Self> {
        let dir = TempFolder::new("epwatch-load-")?;
        let program: PathBuf = std::env::current_exe().context("failed to find this program")?;
        let child = Command::new(program)
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(dir.path())
            .env("EPWATCH_COLLECTOR__HTTP_LISTEN", "127.0.0.1:0")
            .env("EPWATCH_PAGE__LISTEN", "127.0.0.1:0")
            .env("EPWATCH_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            // In a process group of its own the server does not get Ctrl-C, which first ends the sending.
            .process_group(0)
            .spawn()
            .context("failed to start a server")?;
        let pid = child.id().context("the server ended at once")?;
        Ok(Self {
            child,
            pid,
            addresses: None,
            _dir: dir,
        })
    }

    /// Waits until the server takes reports. The first start fetches the engine.
    pub(super) async fn ready(&mut self) -> anyhow::Result<()> {
        let stdout = self
            .child
            .stdout
            .take()
            .context("the server has no output")?;
        let stdout = stdout.into_owned_fd()?;
        let read = tokio::task::spawn_blocking(move || {
            let reader = std::io::BufReader::new(std::fs::File::from(stdout));
            let mut documents = serde_json::Deserializer::from_reader(reader).into_iter();
            documents.next()
        });
        let Some(addresses) = read.await? else {
            anyhow::bail!("the server ended before it was ready; its log says why");
        };
        self.addresses = Some(addresses.context("failed to read where the server listens")?);
        Ok(())
    }

    fn addresses(&self) -> anyhow::Result<&Addresses> {
        self.addresses.as_ref().context("the server is not ready")
    }

    pub(super) fn endpoint(&self) -> anyhow::Result<String> {
        Ok(format!("http://{}", self.addresses()?.collector))
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn store(&self) -> anyhow::Result<StoreTarget> {
        let database = epwatch_collector::schema::DATABASE;
        let store = self.addresses()?.store.as_deref();
        Ok(StoreTarget::parse(
            store.context("the server names no store")?,
            database,
        )?)
    }

    /// Lets the server drain its WAL, and ends it.
    pub(super) async fn stop(&mut self) -> anyhow::Result<()> {
        let told = Command::new("kill").arg(self.pid.to_string()).status();
        told.await.context("failed to tell the server to end")?;
        if tokio::time::timeout(STOP_TIMEOUT, self.child.wait())
            .await
            .is_err()
        {
            self.child
                .kill()
                .await
                .context("failed to end the server")?;
        }
        Ok(())
    }
}

/// Returns user and system time of a process, with all its threads; `None` if it cannot be read.
pub(super) fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold blanks; the fields after it do not. See proc(5).
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}
