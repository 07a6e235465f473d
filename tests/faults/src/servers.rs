//! The processes that are broken: collectors and the store behind them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clickhouse::Client;
use epwatch_collector::schema::{self, DATABASE, Retention};
use epwatch_engines::Engine;
use epwatch_store::StoreTarget;
use epwatch_store::embedded::{ChildProgram, EmbeddedConfig, EmbeddedStore, ReaderAccess};
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use crate::options::{FaultOptions, Servers};
use crate::process::{Kept, StartLine, State, signal};
use crate::proxy::Proxy;

/// After this silence of a collector, others close buckets without it: two buckets of 2 s, see `line`.
pub(crate) const COLLECTOR_TIMEOUT: Duration = Duration::from_secs(4);
/// The first start fetches the engine, and each start migrates.
const START_TIMEOUT: Duration = Duration::from_secs(180);

/// Everything that can be killed.
pub(crate) struct Processes {
    kept: Vec<Kept>,
    /// The store; `None` if it is inside `serve`.
    store: Option<EmbeddedStore>,
    /// The proxy between the collectors and the store.
    _proxy: Option<Proxy>,
    dir: PathBuf,
}

impl Processes {
    /// Starts the processes and waits until each listens.
    pub(crate) async fn start(options: &FaultOptions, dir: &Path) -> anyhow::Result<Self> {
        let mut kept_proxy = None;
        let (store, lines) = match options.servers {
            Servers::Collectors => {
                let store = start_store(&options.program, dir).await?;
                migrate(&store, Retention::default()).await?;
                let mut address = format!("unix:{}", store.socket().display());
                if let Some(hidden_for) = options.late_reads {
                    let proxy = Proxy::hiding_rows(&store, DATABASE, hidden_for.0).await?;
                    address = proxy.url();
                    kept_proxy = Some(proxy);
                }
                let args = ["collector", "--clickhouse", &address];
                let line = |name| line(options, dir, name, &args);
                let lines = vec![line("collector-1"), line("collector-2")];
                (Some(store), lines)
            }
            Servers::Serve => (None, vec![line(options, dir, "serve", &["serve"])]),
        };
        let processes = Self {
            kept: lines.into_iter().map(Kept::start).collect(),
            store,
            _proxy: kept_proxy,
            dir: dir.to_owned(),
        };
        processes.all_listen().await?;
        Ok(processes)
    }

    /// Waits until each collector listens.
    pub(crate) async fn all_listen(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        for mut state in self.states() {
            let listens = state.wait_for(|state| state.addresses.is_some());
            let waited = timeout_at(deadline, listens).await;
            waited.with_context(|| {
                let dir = self.dir.display();
                format!("a collector did not start; its log is in {dir}")
            })??;
        }
        Ok(())
    }

    /// Returns the changing state of each collector.
    pub(crate) fn states(&self) -> Vec<watch::Receiver<State>> {
        self.kept.iter().map(Kept::state).collect()
    }

    /// Returns the present address of each collector, for devices.
    pub(crate) fn addresses(&self) -> Vec<Where> {
        self.states().into_iter().map(Where).collect()
    }

    /// Kills a collector; returns whether it was running.
    pub(crate) async fn kill_collector(&self, index: usize, down: Duration) -> bool {
        self.kept[index % self.kept.len()].kill(down).await
    }

    /// Kills every collector; returns how many were running.
    pub(crate) async fn kill_collectors(&self) -> u64 {
        let mut killed = 0;
        for kept in &self.kept {
            killed += u64::from(kept.kill(Duration::ZERO).await);
        }
        killed
    }

    /// Kills the engine, whether it is ready or starting; returns whether it was running.
    pub(crate) async fn kill_store(&self) -> anyhow::Result<bool> {
        match self.engine_pid() {
            // The engine may meanwhile have ended by itself, which counts as not running.
            Some(pid) => Ok(signal(pid, Signal::KILL).is_ok()),
            None => Ok(false),
        }
    }

    /// Freezes the engine for a spell, whatever it is doing.
    pub(crate) async fn freeze_store(&self, spell: Duration) -> bool {
        let Some(pid) = self.engine_pid() else {
            return false;
        };
        let frozen = signal(pid, Signal::STOP).is_ok();
        sleep(spell).await;
        frozen && signal(pid, Signal::CONT).is_ok()
    }

    /// Moves the store's socket away for a spell, and kills collectors during it. Returns how many, or `None` if there
    /// was no socket.
    pub(crate) async fn cut_store_off(&self, spell: Duration) -> Option<u64> {
        let socket = self.socket()?;
        let away = socket.with_extension("away");
        let engine = self.engine_pid();
        std::fs::rename(&socket, &away).ok()?;
        let mut killed = 0;
        for _ in 0..4 {
            // Collectors are killed because they would continue over open connections. `serve` is not, because it
            // supervises the engine, and a restart would end the cut.
            if self.store.is_some() {
                killed += self.kill_collectors().await;
            }
            sleep(spell / 4).await;
        }
        // An engine that was started in the meantime has made its own socket.
        if self.engine_pid() == engine {
            let _ = std::fs::rename(&away, &socket);
        } else {
            let _ = std::fs::remove_file(&away);
        }
        Some(killed)
    }

    /// Returns a client of the currently running store.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        if let Some(store) = &self.store {
            return Ok(store.client(DATABASE));
        }
        let socket = self
            .socket()
            .context("serve has not said where its store is")?;
        Ok(epwatch_store::client(&StoreTarget::unix(&socket, DATABASE)))
    }

    /// Lets the collectors drain and end.
    pub(crate) async fn stop_collectors(&self) -> anyhow::Result<()> {
        for kept in &self.kept {
            kept.stop().await.context("failed to stop a collector")?;
        }
        Ok(())
    }

    /// Ends the store, if the harness started it.
    pub(crate) async fn stop_store(self) {
        if let Some(store) = self.store {
            store.stop().await;
        }
    }

    fn socket(&self) -> Option<PathBuf> {
        if let Some(store) = &self.store {
            return Some(store.socket().to_owned());
        }
        let state = self.kept[0].state();
        let addresses = state.borrow().addresses.clone()?;
        Some(addresses.store?.strip_prefix("unix:")?.into())
    }

    fn engine_pid(&self) -> Option<u32> {
        engine_of(&self.dir.canonicalize().ok()?)
    }
}

/// A collector's address while it listens.
#[derive(Debug, Clone)]
pub(crate) struct Where(watch::Receiver<State>);

impl Where {
    pub(crate) fn now(&self) -> Option<SocketAddr> {
        self.0.borrow().addresses.as_ref().map(|a| a.collector)
    }
}

/// Returns the engine's process that has files below `dir` open. Other engines belong to other tests.
fn engine_of(dir: &Path) -> Option<u32> {
    let is_engine = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|word| word == b"engine-child")
    };
    let is_below = |pid: &u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd"));
        let mut files = files.into_iter().flatten().flatten();
        files.any(|file| std::fs::read_link(file.path()).is_ok_and(|file| file.starts_with(dir)))
    };
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| is_engine(pid) && is_below(pid))
}

/// The password of a store's port for readers.
pub const READER_PASSWORD: &str = "of readers in tests";

/// Starts an engine on `dir/store`, whose child is the command `program`. Readers find it on a free port.
///
/// # Errors
/// The engine cannot be fetched or started.
pub async fn start_store(program: &Path, dir: &Path) -> anyhow::Result<EmbeddedStore> {
    start_engine(program, dir, "").await
}

/// Works like [`start_store`], with more elements in the engine's configuration.
pub(crate) async fn start_engine(
    program: &Path,
    dir: &Path,
    elements: &str,
) -> anyhow::Result<EmbeddedStore> {
    let fetch = || epwatch_engines::ensure(Engine::Chdb).map_err(anyhow::Error::from);
    let library = tokio::task::spawn_blocking(fetch).await??.chdb_library();
    let child = ChildProgram::new(program, ["engine-child"]);
    let mut config = EmbeddedConfig::new(dir.join("store"), library, child);
    config.socket = Some(dir.join("store.sock"));
    config.engine_config = elements.to_owned();
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    config.readers = Some(ReaderAccess::new(any_port, READER_PASSWORD)?);
    let store = EmbeddedStore::start(config).await?;
    store.ready().await?;
    Ok(store)
}

/// Applies the schema of a single server; returns the migrations that were missing.
///
/// # Errors
/// Fails as [`epwatch_store::migrate`] does.
pub async fn migrate(
    store: &EmbeddedStore,
    retention: Retention,
) -> Result<Vec<u32>, epwatch_store::MigrateError> {
    let values = schema::single_server(retention);
    epwatch_store::migrate(&store.target(DATABASE), schema::MIGRATIONS, &values).await
}

/// Returns a command line with small segments, short buckets and short pauses, so that every code path runs often.
fn line(options: &FaultOptions, dir: &Path, name: &str, args: &[&str]) -> StartLine {
    let data_dir = dir.join(name).display().to_string();
    let more = ["--json", "--listen=127.0.0.1:0", "--data-dir", &data_dir];
    let env = [
        ("EPWATCH_LOG", "info"),
        ("EPWATCH_COLLECTOR__HTTP_LISTEN", "127.0.0.1:0"),
        ("EPWATCH_PAGE__LISTEN", "127.0.0.1:0"),
        // This gives segments of 256 KiB.
        ("EPWATCH_COLLECTOR__WAL__MAX_BYTES", "32MiB"),
        ("EPWATCH_COLLECTOR__WAL__MIN_FREE_BYTES", "0B"),
        // This also limits the pause between tries to half a second.
        ("EPWATCH_COLLECTOR__BATCH__PERIOD", "50ms"),
        ("EPWATCH_COLLECTOR__ROLLUP__BUCKET", "2s"),
        // This is longer than the time that rows are hidden.
        ("EPWATCH_COLLECTOR__ROLLUP__RECHECK_AFTER", "8s"),
        ("EPWATCH_COLLECTOR__REFRESH", "1s"),
    ];
    StartLine {
        program: options.program.clone(),
        args: args
            .iter()
            .chain(&more)
            .map(|&arg| arg.to_owned())
            .collect(),
        env: env.to_vec(),
        log: dir.join(format!("{name}.log")),
    }
}
