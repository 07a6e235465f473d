//! `[store]` of the config file: the store's address, and the days that it keeps rows.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use epwatch_collector::schema::{self, MAX_DAYS, MIN_RAW_DAYS, Retention, retention::Days};
use epwatch_server::{Problems, read_config_file};
use epwatch_store::{Cluster, StoreTarget, TargetError, TemplateValues, embedded::ReaderAccess};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::output::WrongUse;

/// `[store]` of the config file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StoreConfig {
    /// `http://host:8123`, `https://host:8443` or `unix:/path`; without it the embedded engine.
    pub(crate) clickhouse: Option<String>,
    pub(crate) database: String,
    pub(crate) user: Option<String>,
    /// A cluster of that server's `remote_servers`; tables are then replicated and sharded.
    pub(crate) cluster: Option<String>,
    /// A file that holds the password and nothing else.
    pub(crate) password_file: Option<PathBuf>,
    /// Certificates (PEM) that signed the server's, if no public authority did.
    pub(crate) ca_file: Option<PathBuf>,
    /// Days that reports and roll-ups are kept. If left out, a store keeps its days, and a new one gets the defaults.
    #[serde(deserialize_with = "days")]
    pub(crate) raw_days: Option<u16>,
    #[serde(deserialize_with = "days")]
    pub(crate) rollup_days: Option<u16>,
    pub(crate) reader: ReaderConfig,
}

/// `[store.reader]`: the port on which third parties read the embedded store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ReaderConfig {
    /// A loopback address; without it there is no port.
    pub(crate) listen: Option<SocketAddr>,
    /// A file that holds the password and nothing else.
    pub(crate) password_file: Option<PathBuf>,
}

impl ReaderConfig {
    /// Returns the access, or `None` where the section is left out.
    pub(crate) fn access(&self) -> anyhow::Result<Option<ReaderAccess>> {
        let (Some(listen), Some(path)) = (self.listen, &self.password_file) else {
            return Ok(None);
        };
        let password = read_password(path, "store.reader.password_file")?;
        let access = ReaderAccess::new(listen, &password);
        Ok(Some(access.with_context(|| {
            format!("failed to use {}", path.display())
        })?))
    }
}

/// Reads a number of days. The limits are narrower than the range of the type, so an error names them.
fn days<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u16>, D::Error> {
    let days = i64::deserialize(value).ok();
    let within = days.and_then(|days| u16::try_from(days).ok());
    let within = within.ok_or_else(|| {
        let got = days.map_or_else(String::new, |days| format!(", got {days}"));
        D::Error::custom(format!(
            "must be a whole number from {MIN_RAW_DAYS} to {MAX_DAYS}{got}"
        ))
    })?;
    Ok(Some(within))
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
    /// Checks everything but the passwords.
    pub(crate) fn validate(&self) -> Result<(), Problems> {
        let mut problems = Problems::default();
        match self.address() {
            Err(error) => problems.push("clickhouse", error.to_string()),
            Ok(target) => {
                if let Err(text) = self.check_ca(target) {
                    problems.push("ca_file", text);
                }
            }
        }
        if let Some(listen) = self.reader.listen {
            problems.check("reader.listen", listen.ip().is_loopback(), || {
                format!(
                    "must be a loopback address, got {listen}: readers elsewhere come through a proxy with TLS"
                )
            });
            problems.check(
                "reader.password_file",
                self.reader.password_file.is_some(),
                || "must name a file with the readers' password".to_owned(),
            );
            problems.check("reader.listen", self.clickhouse.is_none(), || {
                "is for the embedded store; with store.clickhouse readers connect to that server"
                    .to_owned()
            });
        }
        if let Some(cluster) = &self.cluster {
            problems.check("cluster", !cluster.is_empty(), || {
                "must not be empty; leave it out for one server".to_owned()
            });
            problems.check("cluster", self.clickhouse.is_some(), || {
                "needs store.clickhouse: the embedded store is one server".to_owned()
            });
        }
        problems.check("database", !self.database.is_empty(), || {
            "must not be empty".to_owned()
        });
        self.check_days(&mut problems);
        problems.into_result()
    }

    /// Checks the files of passwords. The readers' password is checked only where the embedded store runs, because
    /// other commands may run as users who cannot read it.
    pub(crate) fn check_secrets(&self, with_readers: bool) -> Result<(), Problems> {
        let mut problems = Problems::default();
        let password = self.password_file.as_deref();
        if let Some(Err(error)) = password.map(|path| read_password(path, "store.password_file")) {
            problems.push("password_file", format!("{error:#}"));
        }
        // `validate` names another address.
        let is_loopback = self.reader.listen.is_some_and(|of| of.ip().is_loopback());
        if with_readers
            && is_loopback
            && let Err(error) = self.reader.access()
        {
            problems.push("reader.password_file", format!("{error:#}"));
        }
        problems.into_result()
    }

    fn check_days(&self, problems: &mut Problems) {
        let raw_days = self.raw_days.unwrap_or(Retention::default().raw_days);
        problems.check("raw_days", raw_days >= MIN_RAW_DAYS, || {
            format!(
                "must be {MIN_RAW_DAYS} or more, got {raw_days}: devices keep reports two days less, and one that \
                 comes again when its first copy is gone counts twice"
            )
        });
        let keys = [
            ("raw_days", self.raw_days),
            ("rollup_days", self.rollup_days),
        ];
        for (key, days) in keys {
            if let Some(days) = days.filter(|days| *days > MAX_DAYS) {
                problems.push(key, format!("must be at most {MAX_DAYS}, got {days}"));
            }
        }
        if let Some(days) = self.rollup_days.filter(|days| *days < raw_days) {
            let text = format!("must be at least store.raw_days ({raw_days}), got {days}");
            problems.push("rollup_days", text);
        }
    }

    fn address(&self) -> Result<Option<StoreTarget>, TargetError> {
        let address = self.clickhouse.as_deref();
        address
            .map(|address| StoreTarget::parse(address, &self.database))
            .transpose()
    }

    /// Returns the problem of `ca_file` as text, if it has one.
    fn check_ca(&self, target: Option<StoreTarget>) -> Result<(), String> {
        let Some(path) = &self.ca_file else {
            return Ok(());
        };
        let Some(target) = target.filter(StoreTarget::is_https) else {
            return Err("is for an https store.clickhouse".to_owned());
        };
        let used = match read_config_file(path) {
            Ok(pem) => target
                .with_ca(&pem)
                .map(drop)
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        used.map_err(|why| format!("failed to use {}: {why}", path.display()))
    }

    /// Returns the server that `clickhouse` names, or `None` for the embedded engine.
    pub(crate) fn server(&self) -> anyhow::Result<Option<StoreTarget>> {
        self.server_of("store.ca_file", "store.password_file")
    }

    /// Works like [`Self::server`], with the names of both files for errors.
    pub(crate) fn server_of(
        &self,
        ca_file: &str,
        password_file: &str,
    ) -> anyhow::Result<Option<StoreTarget>> {
        let Some(mut target) = self.address()? else {
            return Ok(None);
        };
        if let Some(path) = &self.ca_file {
            if !target.is_https() {
                bail!(WrongUse(format!("{ca_file}: is for an https address")));
            }
            let failed = || format!("failed to use {ca_file} {}", path.display());
            let pem = read_config_file(path).with_context(failed)?;
            target = target.with_ca(&pem).with_context(failed)?;
        }
        if let Some(user) = &self.user {
            let read = |path| read_password(path, password_file);
            let password = self.password_file.as_deref().map(read).transpose();
            let password = password.with_context(|| format!("failed to use {password_file}"))?;
            target = target.with_credentials(user, password.as_deref());
        }
        if self.cluster.is_some() {
            target = target.of_cluster();
        }
        Ok(Some(target))
    }

    /// Returns the configured days, for each kind of row.
    pub(crate) fn days(&self) -> Days {
        Days {
            raw: self.raw_days,
            rollup: self.rollup_days,
        }
    }

    /// Returns the values of the migrations' placeholders.
    pub(crate) fn schema(&self, retention: Retention) -> TemplateValues {
        match &self.cluster {
            None => schema::single_server(retention),
            Some(name) => schema::cluster(retention, Cluster::new(name)),
        }
    }
}

/// Returns the password in a file, without the final line break. `name` is the file's key or option, which the caller
/// adds to an error.
fn read_password(path: &Path, name: &str) -> anyhow::Result<String> {
    let text = epwatch_server::read_secret(path, name)
        .with_context(|| format!("failed to read {}", path.display()))?;
    Ok(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_days(raw_days: u16, rollup_days: u16, expected: &[&str]) {
        let config = StoreConfig {
            raw_days: Some(raw_days),
            rollup_days: Some(rollup_days),
            ..StoreConfig::default()
        };
        let problems = config.validate().err().unwrap_or_default().0;
        assert_eq!(problems.len(), expected.len(), "{problems:?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.to_string().starts_with(expected), "{problem}");
        }
    }

    #[test]
    fn days_cover_what_devices_keep_and_end_before_the_stores_times_do() {
        check_days(14, 14, &[]);
        check_days(10_000, 10_000, &[]);
        check_days(13, 400, &["raw_days: must be 14 or more, got 13"]);
        check_days(20, 19, &["rollup_days: must be at least"]);
        check_days(14, 10_001, &["rollup_days: must be at most 10000"]);
        let both = ["raw_days: must be at most", "rollup_days: must be at most"];
        check_days(65_535, 65_535, &both);
    }

    #[test]
    fn days_beyond_the_type_are_refused_with_the_same_limits() {
        let expected = "must be a whole number from 14 to 10000";
        for (days, got) in [
            ("99999", ", got 99999"),
            ("-1", ", got -1"),
            ("\"30d\"", ""),
        ] {
            let error = toml::from_str::<StoreConfig>(&format!("rollup_days = {days}"));
            let text = error.unwrap_err().to_string();
            assert!(text.contains(&format!("{expected}{got}")), "{text}");
        }
    }

    /// When a late report arrives, its earlier copy must still be stored.
    #[test]
    fn reports_are_kept_two_days_longer_than_devices_keep_them() {
        let on_device = epwatch_sdk::policy::MAX_SPOOL_AGE.as_secs() / 86_400;
        assert_eq!(u64::from(MIN_RAW_DAYS), on_device + 2);
        assert!(Retention::default().raw_days >= MIN_RAW_DAYS);
    }
}
