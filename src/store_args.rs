//! Options that name a store, by a config file or by its address.

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::bail;
use epwatch_store::{MigrateError, StoreTarget, embedded::default_socket};

use crate::{
    config::{ConfigError, Sources},
    output::WrongUse,
    server_config::{Runs, ServerArgs, ServerConfig},
    store_config::StoreConfig,
};

/// Longest wait for a server's version. If the store does not answer, the command itself reports this later.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);

/// Options of a command that only works on the store; they override the config file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct StoreArgs {
    /// Config file (TOML), for its `[store]`.
    #[arg(long, value_name = "FILE", env = "EPWATCH_CONFIG")]
    config: Option<PathBuf>,
    /// Store to work on: http://host:8123, https://host:8443 or unix:/path, as `epwatch serve` prints it for the
    /// embedded one [default: the store of a `serve` in ./epwatch-data].
    #[arg(long, value_name = "ADDRESS")]
    clickhouse: Option<String>,
    /// Folder of the `serve` whose embedded store it is.
    #[arg(long, value_name = "DIR", conflicts_with = "clickhouse")]
    data_dir: Option<PathBuf>,
}

impl StoreArgs {
    /// Returns the config of the `serve` that has the store, with `[store]` checked.
    pub(crate) fn load(&self) -> Result<ServerConfig, ConfigError> {
        let (mut config, sources) = self.server().read()?;
        if self.data_dir.is_some() {
            // `--data-dir` means the folder's own store, whichever server the file names.
            config.store.clickhouse = None;
            config.store.cluster = None;
            config.store.ca_file = None;
        }
        config.check(Runs::Neither, &sources)?;
        Ok(config)
    }

    /// Returns the config for a page of the store, unchecked.
    pub(crate) fn read_page(
        &self,
        listen: Option<SocketAddr>,
    ) -> Result<(ServerConfig, Sources), ConfigError> {
        let (mut config, mut sources) = self.server().read()?;
        if let Some(listen) = listen {
            config.page.listen = listen;
            sources.note("page.listen", "--listen");
        }
        Ok((config, sources))
    }

    fn server(&self) -> ServerArgs {
        ServerArgs {
            config: self.config.clone(),
            data_dir: self.data_dir.clone(),
            clickhouse: self.clickhouse.clone(),
            listen: None,
        }
    }

    /// Returns the address that `--clickhouse` names.
    pub(crate) fn elsewhere(&self) -> Option<&str> {
        self.clickhouse.as_deref()
    }

    /// Returns the store that the options name. Refuses a server that is too old.
    pub(crate) async fn target(&self) -> anyhow::Result<StoreTarget> {
        let config = self.load()?;
        if let Some(target) = config.store.server()? {
            return new_enough(target).await;
        }
        let socket = default_socket(&config.data_dir)?;
        match socket.metadata() {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => bail!(
                "the store of {} is not yours to read: its folder is its owner's alone; run this as that user, \
                 for example with sudo, or give --clickhouse ADDRESS",
                config.data_dir.display()
            ),
            Err(_) => bail!(
                "no store is there: {} does not exist; give --clickhouse ADDRESS as `epwatch serve` \
                 prints it, or http://host:8123",
                socket.display()
            ),
        }
        Ok(StoreTarget::unix(&socket, &config.store.database))
    }
}

/// Returns the server, unless it says that it is too old. Any other failure is left to the command's own statements.
async fn new_enough(target: StoreTarget) -> anyhow::Result<StoreTarget> {
    let checked = tokio::time::timeout(VERSION_TIMEOUT, epwatch_store::check_version(&target));
    match checked.await {
        Ok(Err(error @ MigrateError::TooOld { .. })) => {
            Err(anyhow::Error::new(error).context(format!("failed to use the store {target}")))
        }
        _ => Ok(target),
    }
}

/// Options of a command that makes a data folder; they override the config file.
#[derive(Debug, clap::Args)]
pub(crate) struct FolderArgs {
    /// Config file (TOML) of the `serve` that will run on it.
    #[arg(long, value_name = "FILE", env = "EPWATCH_CONFIG")]
    config: Option<PathBuf>,
    /// Folder to make, or an empty one [default: ./epwatch-data].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl FolderArgs {
    /// Returns the config of that `serve`, with `[store]` checked.
    pub(crate) fn load(&self) -> Result<ServerConfig, ConfigError> {
        let server = ServerArgs {
            config: self.config.clone(),
            data_dir: self.data_dir.clone(),
            clickhouse: None,
            listen: None,
        };
        server.load(Runs::Neither)
    }
}

/// A store by its address, for commands without a config file.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct AddressArgs {
    /// A store to read: http://host:8123, https://host:8443 or unix:/path.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) clickhouse: Option<String>,
    /// Certificates (PEM) that signed the store's, where they are not public ones.
    #[arg(long, value_name = "FILE", requires = "clickhouse")]
    clickhouse_ca: Option<PathBuf>,
    /// Database of that store.
    #[arg(
        long,
        value_name = "NAME",
        default_value = epwatch_collector::schema::DATABASE,
        requires = "clickhouse"
    )]
    database: String,
    /// User of that store.
    #[arg(long, value_name = "NAME", requires = "clickhouse")]
    user: Option<String>,
    /// A file that holds the user's password and nothing else.
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
}

impl AddressArgs {
    /// Returns the store that the options name, else the store of a `serve` in ./epwatch-data.
    pub(crate) async fn target_or_local(&self) -> anyhow::Result<StoreTarget> {
        match self.target().await? {
            Some(target) => Ok(target),
            None => StoreArgs::default().target().await.map_err(|error| {
                WrongUse(format!(
                    "neither --reports nor --clickhouse is given, and {error:#}"
                ))
                .into()
            }),
        }
    }

    /// Returns the store, if the options name one.
    ///
    /// # Errors
    /// An option cannot be used, and the error names it; or the server is too old.
    pub(crate) async fn target(&self) -> anyhow::Result<Option<StoreTarget>> {
        let config = StoreConfig {
            clickhouse: self.clickhouse.clone(),
            database: self.database.clone(),
            user: self.user.clone(),
            password_file: self.password_file.clone(),
            ca_file: self.clickhouse_ca.clone(),
            ..StoreConfig::default()
        };
        match config.server_of("--clickhouse-ca", "--password-file")? {
            Some(target) => new_enough(target).await.map(Some),
            None => Ok(None),
        }
    }
}
