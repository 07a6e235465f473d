//! The store that a subcommand of `epwatch store` works on, whether or not a `serve` has it open.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use epwatch_store::StoreTarget;

use crate::output::WrongUse;
use crate::server_config::ServerConfig;
use crate::store::Store;

/// Returns the data folder of the embedded store.
pub(crate) fn embedded_data_dir(config: &ServerConfig) -> anyhow::Result<PathBuf> {
    let Some(address) = &config.store.clickhouse else {
        return Ok(config.data_dir.clone());
    };
    let socket = address
        .strip_prefix("unix:")
        .map(|path| PathBuf::from(path.strip_prefix("//").unwrap_or(path)));
    let Some(socket) = socket else {
        bail!(WrongUse(format!(
            "{address} is a ClickHouse server, which has a BACKUP of its own (see docs/backup.md); \
             this command saves the embedded store of a `serve`: give its --data-dir"
        )));
    };
    // `serve` has its socket at DATA/engine/store.sock. If that path is too long, the socket is elsewhere.
    let engine = socket.parent().filter(|dir| dir.ends_with("engine"));
    let data_dir = engine.and_then(Path::parent);
    Ok(data_dir.unwrap_or(&config.data_dir).to_owned())
}

/// The store of a running `serve`, or an engine started on its folder.
pub(crate) struct OpenStore {
    pub(crate) target: StoreTarget,
    own: Option<Store>,
}

impl OpenStore {
    /// Opens the ClickHouse server of a config, or its embedded store. For an embedded store, sets the config's WAL
    /// folder to the one next to it.
    pub(crate) async fn of(config: &mut ServerConfig) -> anyhow::Result<Self> {
        let is_server = |address: &String| !address.starts_with("unix:");
        if config.store.clickhouse.as_ref().is_some_and(is_server)
            && let Some(target) = config.store.server()?
        {
            return Ok(Self { target, own: None });
        }
        let data_dir = embedded_data_dir(config)?;
        move_wal(config, &data_dir);
        Self::at(config, &data_dir).await
    }

    pub(super) async fn at(config: &ServerConfig, data_dir: &Path) -> anyhow::Result<Self> {
        let database = &config.store.database;
        if !epwatch_store::embedded::engine_dir(data_dir)
            .join("db")
            .exists()
        {
            bail!(WrongUse(format!(
                "{} holds no embedded store; give the --data-dir of a `serve`",
                data_dir.display()
            )));
        }
        let socket = format!(
            "unix:{}",
            epwatch_store::embedded::default_socket(data_dir)?.display()
        );
        for socket in config.store.clickhouse.iter().chain([&socket]) {
            if let Ok(target) = StoreTarget::parse(socket, database)
                && answers(&target).await
            {
                return Ok(Self { target, own: None });
            }
        }
        let own = Store::open_as_it_is(&config.store, data_dir)
            .await
            .context("failed to open the store, which no `serve` seems to have open")?;
        Ok(Self {
            target: own.target.clone(),
            own: Some(own),
        })
    }

    pub(crate) async fn close(self) {
        if let Some(own) = self.own {
            own.stop().await;
        }
    }
}

/// The WAL is in the data folder unless the config names another.
pub(crate) fn move_wal(config: &mut ServerConfig, data_dir: &Path) {
    if let Ok(name) = config.collector.wal.dir.strip_prefix(&config.data_dir) {
        config.collector.wal.dir = data_dir.join(name);
    }
}

async fn answers(target: &StoreTarget) -> bool {
    let server = epwatch_store::client(&target.clone().with_database(""));
    server.query("SELECT 1").fetch_one::<u8>().await.is_ok()
}
