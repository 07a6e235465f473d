//! Opens the store that a command works on: a ClickHouse server, or the embedded engine.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use epwatch_collector::{
    retention::{self, Days},
    schema::{self, MAX_DAYS, MIN_RAW_DAYS, Retention},
};
use epwatch_engines::{Engine, Installed};
use epwatch_server::Period;
use epwatch_store::{
    Cluster, MigrateError, StoreTarget, TargetError, TemplateValues,
    embedded::{ChildProgram, EmbeddedConfig, EmbeddedStore, ReaderAccess},
};
use serde::Deserialize;
use tokio::{sync::watch, task::JoinHandle};

/// `[store]` of the config file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StoreConfig {
    /// `http://host:8123`, `https://host:8443` or `unix:/path`; without it the embedded engine.
    pub(crate) clickhouse: Option<String>,
    pub(crate) database: String,
    pub(crate) user: Option<String>,
    /// A cluster of that server's `remote_servers`: tables are replicated and sharded then.
    pub(crate) cluster: Option<String>,
    /// A file that holds the password and nothing else.
    pub(crate) password_file: Option<PathBuf>,
    /// Certificates (PEM) of who signs that server's, where that is no public one.
    pub(crate) ca_file: Option<PathBuf>,
    /// Days that reports, and summaries, are kept. Without them a store keeps its own, and a new one is
    /// made with the defaults.
    pub(crate) raw_days: Option<u16>,
    pub(crate) rollup_days: Option<u16>,
    pub(crate) reader: ReaderConfig,
}

/// `[store.reader]`: where third parties may read the embedded store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ReaderConfig {
    /// A loopback address; without it there is no port.
    pub(crate) listen: Option<SocketAddr>,
    /// A file that holds the password and nothing else.
    pub(crate) password_file: Option<PathBuf>,
}

impl ReaderConfig {
    /// The access it describes, if it does.
    fn access(&self) -> anyhow::Result<Option<ReaderAccess>> {
        let (Some(listen), Some(path)) = (self.listen, &self.password_file) else {
            return Ok(None);
        };
        let password = std::fs::read_to_string(path).with_context(|| {
            format!(
                "failed to read store.reader.password_file {}",
                path.display()
            )
        })?;
        let access = ReaderAccess::new(listen, password.trim_end());
        Ok(Some(access.with_context(|| {
            format!("failed to use store.reader with {}", path.display())
        })?))
    }
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            clickhouse: None,
            database: schema::DATABASE.to_owned(),
            user: None,
            cluster: None,
            password_file: None,
            ca_file: None,
            raw_days: None,
            rollup_days: None,
            reader: ReaderConfig::default(),
        }
    }
}

impl StoreConfig {
    /// Everything that is wrong with it, `key: problem` each.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        match self.address() {
            Err(error) => problems.push(format!("store.clickhouse: {error}")),
            Ok(target) => problems.extend(self.ca_problem(target)),
        }
        if let Some(listen) = self.reader.listen {
            if !listen.ip().is_loopback() {
                problems.push(format!(
                    "store.reader.listen: must be a loopback address, got {listen}: readers \
                     elsewhere come through a proxy with TLS"
                ));
            }
            if self.reader.password_file.is_none() {
                problems.push(
                    "store.reader.password_file: must name a file with the readers' password"
                        .to_owned(),
                );
            }
            if self.clickhouse.is_some() {
                problems.push(
                    "store.reader.listen: is for the embedded store; with store.clickhouse \
                     readers connect to that server"
                        .to_owned(),
                );
            }
        }
        if self.cluster.as_deref().is_some_and(str::is_empty) {
            problems
                .push("store.cluster: must not be empty; leave it out for one server".to_owned());
        }
        if self.cluster.is_some() && self.clickhouse.is_none() {
            problems.push(
                "store.cluster: needs store.clickhouse: the embedded store is one server"
                    .to_owned(),
            );
        }
        if self.database.is_empty() {
            problems.push("store.database: must not be empty".to_owned());
        }
        problems.extend(self.problems_of_days());
        problems
    }

    fn problems_of_days(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(days) = self.raw_days.filter(|days| *days < MIN_RAW_DAYS) {
            problems.push(format!(
                "store.raw_days: must be {MIN_RAW_DAYS} or more, got {days}: devices keep reports two days \
                 less, and one that comes again when its first copy is gone counts twice"
            ));
        }
        for (key, days) in [
            ("raw_days", self.raw_days),
            ("rollup_days", self.rollup_days),
        ] {
            if let Some(days) = days.filter(|days| *days > MAX_DAYS) {
                problems.push(format!(
                    "store.{key}: must be at most {MAX_DAYS}, got {days}"
                ));
            }
        }
        let raw_days = self.raw_days.unwrap_or(Retention::default().raw_days);
        if let Some(days) = self.rollup_days.filter(|days| *days < raw_days) {
            problems.push(format!(
                "store.rollup_days: must be at least store.raw_days ({raw_days}), got {days}"
            ));
        }
        problems
    }

    fn address(&self) -> Result<Option<StoreTarget>, TargetError> {
        let address = self.clickhouse.as_deref();
        address
            .map(|address| StoreTarget::parse(address, &self.database))
            .transpose()
    }

    /// What is wrong with `ca_file`, if something is.
    fn ca_problem(&self, target: Option<StoreTarget>) -> Option<String> {
        let path = self.ca_file.as_ref()?;
        let Some(target) = target.filter(StoreTarget::is_https) else {
            return Some("store.ca_file: is for an https store.clickhouse".to_owned());
        };
        let why = match std::fs::read(path) {
            Ok(pem) => target.with_ca(&pem).err()?.to_string(),
            Err(error) => error.to_string(),
        };
        Some(format!(
            "store.ca_file: failed to use {}: {why}",
            path.display()
        ))
    }

    /// The server it names, if it names one.
    pub(crate) fn server(&self) -> anyhow::Result<Option<StoreTarget>> {
        let Some(mut target) = self.address()? else {
            return Ok(None);
        };
        if let Some(path) = &self.ca_file {
            let failed = || format!("failed to use store.ca_file {}", path.display());
            let pem = std::fs::read(path).with_context(failed)?;
            target = target.with_ca(&pem).with_context(failed)?;
        }
        if let Some(user) = &self.user {
            let password = match &self.password_file {
                Some(path) => Some(std::fs::read_to_string(path).with_context(|| {
                    format!("failed to read store.password_file {}", path.display())
                })?),
                None => None,
            };
            target = target.with_credentials(user, password.as_deref().map(str::trim_end));
        }
        if self.cluster.is_some() {
            target = target.of_cluster();
        }
        Ok(Some(target))
    }

    /// The days that it says.
    pub(crate) fn days(&self) -> Days {
        Days {
            raw: self.raw_days,
            rollup: self.rollup_days,
        }
    }

    /// The values of the migrations' placeholders.
    pub(crate) fn schema(&self, retention: Retention) -> TemplateValues {
        match &self.cluster {
            None => schema::single_server(retention),
            Some(name) => schema::cluster(retention, Cluster::new(name)),
        }
    }
}

/// Between two tries to migrate a server that is away: doubled each time, from the first to the second.
const MIGRATE_PAUSE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(16)];

/// An open store, at the schema this program knows, or on its way there.
#[derive(Debug)]
pub(crate) struct Store {
    /// The engine, if it is ours.
    pub(crate) embedded: Option<EmbeddedStore>,
    pub(crate) target: StoreTarget,
    /// For how long it keeps rows, as far as is known: a server that is away may keep them longer.
    retention: Retention,
    /// Migrates a server that was away when this was opened; ends with an error that no waiting
    /// changes.
    late: Option<Late>,
}

/// Stops with the store.
#[derive(Debug)]
struct Late {
    task: JoinHandle<()>,
    refused: watch::Receiver<Option<Arc<MigrateError>>>,
}

impl Drop for Late {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Store {
    /// Opens the server that the config names, else the embedded engine on `data_dir`, fetching its
    /// library if need be; then applies the migrations. For how long rows are kept is the collectors'
    /// to say.
    pub(crate) async fn open(config: &StoreConfig, data_dir: &Path) -> anyhow::Result<Self> {
        let store = Self::connect(config, data_dir).await?;
        migrate(&store.target, config).await?;
        Ok(store)
    }

    /// Opens the embedded engine on `data_dir` without readers, and changes nothing in it.
    pub(crate) async fn open_as_it_is(
        config: &StoreConfig,
        data_dir: &Path,
    ) -> anyhow::Result<Self> {
        let alone = StoreConfig {
            database: config.database.clone(),
            ..StoreConfig::default()
        };
        Self::connect(&alone, data_dir).await
    }

    /// As [`Store::open`], for a collector: a server that is away, or in bad times, is migrated once it
    /// is there. Devices are acknowledged meanwhile, since the log is what an ack stands on.
    pub(crate) async fn open_or_wait(
        config: &StoreConfig,
        data_dir: &Path,
    ) -> anyhow::Result<Self> {
        let mut store = Self::connect(config, data_dir).await?;
        match migrate_and_keep(&store.target, config).await {
            Ok(retention) => store.retention = retention,
            Err(error) if store.embedded.is_none() && error.is_temporary() => {
                store.late = Some(migrate_later(store.target.clone(), config.clone(), error));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(store)
    }

    /// Returns when the store turned out to be one that this program cannot write.
    pub(crate) async fn refused(&self) -> anyhow::Error {
        let Some(late) = &self.late else {
            return std::future::pending().await;
        };
        let mut refused = late.refused.clone();
        let why = match refused.wait_for(Option::is_some).await {
            Ok(error) => error.clone(),
            Err(_) => None,
        };
        match why {
            Some(error) => anyhow::Error::new(error).context("failed to migrate the store"),
            // Migrated: the task has ended and said nothing.
            None => std::future::pending().await,
        }
    }

    async fn connect(config: &StoreConfig, data_dir: &Path) -> anyhow::Result<Self> {
        let store = match config.server()? {
            Some(target) => Self {
                embedded: None,
                target,
                retention: config.days().over(Days::default()),
                late: None,
            },
            None => {
                let library = engine(Engine::Chdb).await?.chdb_library();
                let program = ChildProgram::current_exe_subcommand()
                    .context("failed to find the running program")?;
                let mut embedded = EmbeddedConfig::new(data_dir, library, program);
                if let Some(access) = config.reader.access()? {
                    embedded = embedded.with_readers(access);
                }
                let embedded = EmbeddedStore::start(embedded).await?;
                embedded.ready().await?;
                if let Some(address) = embedded.readers() {
                    tracing::info!(%address, "the store can be read by third parties");
                }
                let target = embedded.target(&config.database);
                Self {
                    embedded: Some(embedded),
                    target,
                    retention: config.days().over(Days::default()),
                    late: None,
                }
            }
        };
        Ok(store)
    }

    /// For how long a summary may be built from reports again.
    pub(crate) fn raw_retention(&self) -> Period {
        let days = u64::from(self.retention.raw_days);
        Period(Duration::from_secs(days * 86_400))
    }

    pub(crate) fn client(&self) -> epwatch_collector::Client {
        epwatch_store::client(&self.target)
    }

    pub(crate) async fn stop(self) {
        if let Some(embedded) = self.embedded {
            embedded.stop().await;
        }
    }
}

/// Applies the migrations, with the days that the store has; returns those.
async fn migrate(target: &StoreTarget, config: &StoreConfig) -> Result<Days, MigrateError> {
    let kept = retention::kept(target, |retention| config.schema(retention)).await?;
    let as_it_is = kept.over(config.days());
    epwatch_store::migrate(target, schema::MIGRATIONS, &config.schema(as_it_is)).await?;
    Ok(kept)
}

/// As [`migrate`]; then the store keeps rows as long as the config says, or as it did.
async fn migrate_and_keep(
    target: &StoreTarget,
    config: &StoreConfig,
) -> Result<Retention, MigrateError> {
    let kept = migrate(target, config).await?;
    let retention = config.days().over(kept);
    note_kept(config, retention);
    retention::apply(target, &config.schema(retention)).await?;
    Ok(retention)
}

/// Says which rows a store keeps for other days than a new one would, without a config that says so.
fn note_kept(config: &StoreConfig, retention: Retention) {
    let default = Retention::default();
    for (key, table, asked, days, default) in [
        (
            "store.raw_days",
            "reports",
            config.raw_days,
            retention.raw_days,
            default.raw_days,
        ),
        (
            "store.rollup_days",
            "cohort_buckets",
            config.rollup_days,
            retention.rollup_days,
            default.rollup_days,
        ),
    ] {
        if asked.is_none() && days != default {
            tracing::warn!(
                table,
                days,
                default,
                key,
                "the store keeps its rows for other days than the default; it stays so until the key is set"
            );
        }
    }
}

/// Tries again until the store is there; `why` it was not at the first try.
fn migrate_later(target: StoreTarget, config: StoreConfig, why: MigrateError) -> Late {
    let (said, refused) = watch::channel(None);
    let task = tokio::spawn(async move {
        let mut kinds = BTreeSet::new();
        let [mut pause, longest] = MIGRATE_PAUSE;
        let mut error = why;
        while error.is_temporary() {
            warn_once(&error, &mut kinds);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
            match migrate_and_keep(&target, &config).await {
                Ok(_) => {
                    tracing::info!("the store is there");
                    return;
                }
                Err(again) => error = again,
            }
        }
        said.send_replace(Some(Arc::new(error)));
    });
    Late { task, refused }
}

/// Says why the store is not there, once for what was done and what ClickHouse's code for it is.
fn warn_once(error: &MigrateError, said: &mut BTreeSet<(String, Option<u32>)>) {
    if said.insert((error.to_string(), error.code())) {
        let error = error as &(dyn std::error::Error + 'static);
        tracing::warn!(
            error,
            "the store is away; reports wait in the log until it is there"
        );
    }
}

/// Makes a runtime available, with progress on stderr.
pub(crate) async fn engine(engine: Engine) -> anyhow::Result<Installed> {
    Ok(tokio::task::spawn_blocking(move || epwatch_engines::ensure(engine)).await??)
}
