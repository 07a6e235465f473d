//! The store that a command reads, named on its command line.

use std::path::{Path, PathBuf};

use anyhow::Context;
use epwatch_store::StoreTarget;

use crate::output::WrongUse;

/// A store by its address, with the credentials to read it.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct StoreOptions {
    /// A store to read: http://host:8123, https://host:8443 or unix:/path.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) clickhouse: Option<String>,
    /// Certificates (PEM) that signed the store's, where they are not public ones.
    #[arg(long, value_name = "FILE", requires = "clickhouse")]
    clickhouse_ca: Option<PathBuf>,
    /// Its database.
    #[arg(
        long,
        value_name = "NAME",
        default_value = epwatch_collector::schema::DATABASE,
        requires = "clickhouse"
    )]
    database: String,
    /// Its user.
    #[arg(long, value_name = "NAME", requires = "clickhouse")]
    user: Option<String>,
    /// A file that holds the user's password and nothing else.
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
}

impl StoreOptions {
    /// The store, if one is named.
    ///
    /// # Errors
    /// An option that cannot be used, by its name.
    pub(crate) fn target(&self) -> anyhow::Result<Option<StoreTarget>> {
        let Some(address) = &self.clickhouse else {
            return Ok(None);
        };
        let mut target = StoreTarget::parse(address, &self.database)?;
        if let Some(path) = &self.clickhouse_ca {
            if !target.is_https() {
                anyhow::bail!(WrongUse(
                    "--clickhouse-ca: is for an https --clickhouse".to_owned()
                ));
            }
            let failed = || format!("failed to use --clickhouse-ca {}", path.display());
            let pem = std::fs::read(path).with_context(failed)?;
            target = target.with_ca(&pem).with_context(failed)?;
        }
        if let Some(user) = &self.user {
            let password = self
                .password_file
                .as_deref()
                .map(read_password)
                .transpose()?;
            target = target.with_credentials(user, password.as_deref().map(str::trim_end));
        }
        Ok(Some(target))
    }
}

fn read_password(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path)
        .with_context(|| format!("failed to read --password-file {}", path.display()))
}
