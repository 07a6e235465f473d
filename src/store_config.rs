//! `[store]` of the config file: which store, and for how long it keeps rows.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use epwatch_collector::schema::{self, MAX_DAYS, MIN_RAW_DAYS, Retention, retention::Days};
use epwatch_store::{Cluster, StoreTarget, TargetError, TemplateValues, embedded::ReaderAccess};
use serde::Deserialize;

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
    /// Certificates (PEM) that signed the server's, if no public authority did.
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
    pub(crate) fn access(&self) -> anyhow::Result<Option<ReaderAccess>> {
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

    /// Returns the problem of `ca_file`, if it has one.
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
