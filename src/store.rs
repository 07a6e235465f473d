//! Opens the store that a command works on: a ClickHouse server, or the embedded engine.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use epwatch_collector::schema::{
    self, Retention,
    retention::{self, Days},
};
use epwatch_engines::Engine;
use epwatch_server::{Backoff, Period};
use epwatch_store::{
    MigrateError, StoreTarget,
    embedded::{ChildProgram, EmbeddedConfig, EmbeddedStore},
};
use tokio::sync::Mutex;
use tokio_util::task::AbortOnDropHandle;

use crate::{engines, folder_lock::FolderLock, store_config::StoreConfig};

/// Pauses between tries to migrate an unreachable server.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(16);

/// An open store, whose schema is the schema of this program or is being migrated to it.
#[derive(Debug)]
pub(crate) struct Store {
    /// The embedded engine, if this process started one.
    pub(crate) embedded: Option<EmbeddedStore>,
    /// The folder's lock, released after the engine has ended.
    _folder: Option<FolderLock>,
    pub(crate) target: StoreTarget,
    /// The configured retention; an unreachable server may still keep rows longer.
    retention: Retention,
    /// The task that migrates a server that was unreachable at the start. It ends only with a lasting error.
    late: Option<Mutex<AbortOnDropHandle<MigrateError>>>,
}

impl Store {
    /// Opens the server of the config, or the embedded engine on `data_dir`, whose library it fetches if missing. Then
    /// applies the migrations, and leaves the retention as it is.
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

    /// Works like [`Store::open`], for a collector. It also sets the retention, and migrates an unreachable server once
    /// it answers. Acks need only the WAL.
    pub(crate) async fn open_or_wait(
        config: &StoreConfig,
        data_dir: &Path,
    ) -> anyhow::Result<Self> {
        let mut store = Self::connect(config, data_dir).await?;
        match migrate_and_keep(&store.target, config).await {
            Ok(retention) => store.retention = retention,
            Err(error) if store.embedded.is_none() && error.is_temporary() => {
                let late = migrate_later(store.target.clone(), config.clone(), error);
                store.late = Some(Mutex::new(AbortOnDropHandle::new(tokio::spawn(late))));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(store)
    }

    /// Returns the error if a late migration fails for good.
    pub(crate) async fn refused(&self) -> anyhow::Error {
        let Some(late) = &self.late else {
            return std::future::pending().await;
        };
        match (&mut *late.lock().await).await {
            Ok(error) => anyhow::Error::new(error).context("failed to migrate the store"),
            Err(error) => error.into(),
        }
    }

    async fn connect(config: &StoreConfig, data_dir: &Path) -> anyhow::Result<Self> {
        let (target, embedded, folder) = match config.server()? {
            Some(target) => (target, None, None),
            None => {
                let folder = FolderLock::take(data_dir)?;
                let embedded = start_engine(config, data_dir).await?;
                (
                    embedded.target(&config.database),
                    Some(embedded),
                    Some(folder),
                )
            }
        };
        Ok(Self {
            embedded,
            _folder: folder,
            target,
            retention: config.days().over(Days::default()),
            late: None,
        })
    }

    /// Returns how long reports are kept, from which a roll-up can be built again.
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

async fn start_engine(config: &StoreConfig, data_dir: &Path) -> anyhow::Result<EmbeddedStore> {
    let library = engines::ensure(Engine::Chdb).await?.chdb_library();
    let is_unpinned =
        |status: epwatch_engines::Status| status.engine == Engine::Chdb && status.is_unpinned;
    if epwatch_engines::list().into_iter().any(is_unpinned) {
        tracing::warn!(
            "libchdb was taken without a pinned hash; nothing but its source says that it is ClickHouse's"
        );
    }
    let program =
        ChildProgram::current_exe_subcommand().context("failed to find the running program")?;
    let mut engine = EmbeddedConfig::new(data_dir, library, program);
    let readers = config.reader.access();
    engine.readers = readers.context("failed to use store.reader.password_file")?;
    let engine = EmbeddedStore::start(engine).await?;
    engine.ready().await?;
    if let Some(address) = engine.readers() {
        tracing::info!(%address, "the store can be read by third parties");
    }
    Ok(engine)
}

/// Applies the migrations with the retention days that the store has, and returns these days.
async fn migrate(target: &StoreTarget, config: &StoreConfig) -> Result<Days, MigrateError> {
    let kept = retention::kept(target, |retention| config.schema(retention)).await?;
    let as_it_is = kept.over(config.days());
    epwatch_store::migrate(target, schema::MIGRATIONS, &config.schema(as_it_is)).await?;
    Ok(kept)
}

/// Calls [`migrate`], and then sets the config's days.
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

/// Logs each retention that is neither the default nor in the config.
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

/// Repeats the migration until the store answers, and returns the first lasting error. `why` is the error of the first
/// try.
async fn migrate_later(
    target: StoreTarget,
    config: StoreConfig,
    why: MigrateError,
) -> MigrateError {
    let mut kinds = BTreeSet::new();
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut error = why;
    while error.is_temporary() {
        warn_once(&error, &mut kinds);
        tokio::time::sleep(backoff.pause()).await;
        match migrate_and_keep(&target, &config).await {
            Ok(_) => {
                tracing::info!("the store is there");
                return std::future::pending().await;
            }
            Err(again) => error = again,
        }
    }
    error
}

/// Logs an error, once for each step and code of ClickHouse.
fn warn_once(error: &MigrateError, said: &mut BTreeSet<(String, Option<u32>)>) {
    if said.insert((error.to_string(), error.code())) {
        let error = error as &(dyn std::error::Error + 'static);
        tracing::warn!(
            error,
            "the store is away; reports wait in the WAL until it is there"
        );
    }
}
