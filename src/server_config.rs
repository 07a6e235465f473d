//! Configuration of `serve`, `collector`, `detector` and `migrate`: one file with a section for each component, and
//! the few options that belong on the command line.

use std::{net::SocketAddr, path::PathBuf};

use epwatch_collector::config::CollectorConfig;
use epwatch_detector::config::DetectorConfig;
use epwatch_store::StoreTarget;
use serde::Deserialize;

use crate::{
    config::{self, ConfigError, Sources},
    store_config::StoreConfig,
};

/// Options of every server command; they override the config file.
#[derive(Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// Config file (TOML). Environment variables such as EPWATCH_COLLECTOR__WAL__MAX_BYTES override it.
    #[arg(long, value_name = "FILE", env = "EPWATCH_CONFIG")]
    config: Option<PathBuf>,
    /// Folder of the WAL and the embedded store [default: ./epwatch-data].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// ClickHouse to use: http://host:8123, https://host:8443 or unix:/path. Without it `serve` runs
    /// the embedded engine.
    #[arg(long, value_name = "ADDRESS")]
    clickhouse: Option<String>,
    /// Where devices send to [default: 127.0.0.1:4717].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

/// Options of a command that only works on the store; they override the config file.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// Config file (TOML), for its `[store]`.
    #[arg(long, value_name = "FILE", env = "EPWATCH_CONFIG")]
    config: Option<PathBuf>,
    /// Store to work on: http://host:8123, https://host:8443 or unix:/path, as `epwatch serve` prints
    /// it for the embedded one [default: that of a `serve` in ./epwatch-data].
    #[arg(long, value_name = "ADDRESS")]
    clickhouse: Option<String>,
    /// Folder of the `serve` whose embedded store it is.
    #[arg(long, value_name = "DIR", conflicts_with = "clickhouse")]
    data_dir: Option<PathBuf>,
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
    /// The config of that `serve`; only the parts that are read are checked.
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

impl StoreArgs {
    /// The config of the `serve` that has the store; only the parts that are read are checked.
    pub(crate) fn load(&self) -> Result<ServerConfig, ConfigError> {
        let server = ServerArgs {
            config: self.config.clone(),
            data_dir: self.data_dir.clone(),
            clickhouse: self.clickhouse.clone(),
            listen: None,
        };
        let mut config = server.load(Runs::Neither)?;
        if self.data_dir.is_some() {
            config.store.clickhouse = None;
        }
        Ok(config)
    }

    /// Returns the store that the options name.
    pub(crate) fn target(&self) -> anyhow::Result<StoreTarget> {
        let file = self.config.as_deref();
        let (mut config, mut sources): (ServerConfig, _) =
            config::load(file, std::env::vars(), SECTIONS)?;
        if let Some(address) = &self.clickhouse {
            config.store.clickhouse = Some(address.clone());
            sources.note("store.clickhouse", "--clickhouse");
        }
        if let Some(data_dir) = &self.data_dir {
            config.data_dir.clone_from(data_dir);
            config.store.clickhouse = None;
        }
        said(&config.store.problems(), &sources)?;
        if let Some(target) = config.store.server()? {
            return Ok(target);
        }
        let socket = config.data_dir.join("engine").join("store.sock");
        if !socket.exists() {
            anyhow::bail!(
                "no store is there: {} does not exist; give --clickhouse ADDRESS as `epwatch serve` \
                 prints it, or http://host:8123",
                socket.display()
            );
        }
        Ok(StoreTarget::unix(&socket, &config.store.database))
    }
}

/// The config file.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServerConfig {
    /// Folder of the WAL and the embedded store.
    pub(crate) data_dir: PathBuf,
    pub(crate) store: StoreConfig,
    pub(crate) collector: CollectorConfig,
    pub(crate) detector: DetectorConfig,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("epwatch-data"),
            store: StoreConfig::default(),
            collector: CollectorConfig::default(),
            detector: DetectorConfig::default(),
        }
    }
}

/// The sections that environment variables may name.
const SECTIONS: &[&str] = &["data_dir", "store", "collector", "detector"];

/// What a command runs, and so what of the config has to be right for it. One file serves several
/// machines, and the keys and certificates of one are not on the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runs {
    /// Collector and detector.
    Both,
    /// The collector alone.
    Collector,
    /// The detector alone.
    Detector,
    /// Neither: it works on the store.
    Neither,
}

impl ServerArgs {
    /// Reads file, environment and options, and checks the parts that are run; every problem is in
    /// the error.
    pub(crate) fn load(&self, runs: Runs) -> Result<ServerConfig, ConfigError> {
        let (config, sources) = self.read()?;
        config.check(runs, &sources)?;
        Ok(config)
    }

    fn read(&self) -> Result<(ServerConfig, Sources), ConfigError> {
        let file = self.config.as_deref();
        let (mut config, mut sources): (ServerConfig, _) =
            config::load(file, std::env::vars(), SECTIONS)?;
        if let Some(data_dir) = &self.data_dir {
            config.data_dir.clone_from(data_dir);
            sources.note("data_dir", "--data-dir");
        }
        if let Some(address) = &self.clickhouse {
            config.store.clickhouse = Some(address.clone());
            sources.note("store.clickhouse", "--clickhouse");
        }
        if let Some(listen) = self.listen {
            config.collector.listen = listen;
            sources.note("collector.listen", "--listen");
        }
        // A relative log folder lies in the data folder; an absolute one stays.
        config.collector.wal.dir = config.data_dir.join(&config.collector.wal.dir);
        // One key for both, since windows are whole buckets of the roll-up.
        config.detector.bucket = config.collector.rollup.bucket;
        Ok((config, sources))
    }
}

impl ServerConfig {
    fn check(&self, runs: Runs, sources: &Sources) -> Result<(), ConfigError> {
        let mut problems = self.store.problems();
        if matches!(runs, Runs::Both | Runs::Collector)
            && let Err(found) = self.collector.validate()
        {
            problems.extend(found.0.iter().map(|p| format!("collector.{p}")));
        }
        if matches!(runs, Runs::Both | Runs::Detector) {
            let found = self.detector.validate().err().unwrap_or_default();
            problems.extend(found.0.iter().map(|p| format!("detector.{p}")));
        }
        said(&problems, sources)
    }
}

/// The problems, each with where its value came from.
fn said(problems: &[String], sources: &Sources) -> Result<(), ConfigError> {
    if problems.is_empty() {
        return Ok(());
    }
    let problems = problems.iter().map(|problem| sources.name(problem));
    Err(ConfigError::Problems {
        problems: problems.collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use super::*;

    /// People copy the example, so it must name every default and stay true.
    #[test]
    fn the_example_holds_the_defaults() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/epwatch.example.toml");
        let (example, _): (ServerConfig, _) =
            config::load(Some(Path::new(file)), std::iter::empty(), SECTIONS).unwrap();
        let defaults = ServerConfig::default();
        assert_eq!(example.collector, defaults.collector);
        assert_eq!(example.detector, defaults.detector);
        assert_eq!(example.store, defaults.store);
        assert_eq!(example.data_dir, defaults.data_dir);
    }

    /// The keys below a section, as the error of an unknown one lists them.
    fn keys_of_structs(section: &str, is_list: bool, keys: &mut BTreeSet<String>) -> bool {
        let head = match (section, is_list) {
            ("", _) => String::new(),
            (section, false) => format!("[{section}]\n"),
            (section, true) => format!("[[{section}]]\n"),
        };
        let error = toml::from_str::<ServerConfig>(&format!("{head}no_such_key = 1")).unwrap_err();
        let text = error.message().to_owned();
        let Some(expected) = text.strip_prefix("unknown field `no_such_key`, expected ") else {
            return false;
        };
        for name in expected.split('`').skip(1).step_by(2) {
            let key = format!("{section}.{name}");
            let key = key.trim_start_matches('.');
            if !keys_of_structs(key, false, keys) && !keys_of_structs(key, true, keys) {
                keys.insert(key.to_owned());
            }
        }
        true
    }

    fn keys_of_file(section: &str, value: &toml::Value, keys: &mut BTreeSet<String>) {
        match value {
            toml::Value::Table(table) => {
                for (name, value) in table {
                    let key = format!("{section}.{name}");
                    keys_of_file(key.trim_start_matches('.'), value, keys);
                }
            }
            toml::Value::Array(list) if list.iter().any(toml::Value::is_table) => {
                for value in list {
                    keys_of_file(section, value, keys);
                }
            }
            _ => drop(keys.insert(section.to_owned())),
        }
    }

    /// What is commented out in the example is read as well.
    #[test]
    fn the_example_has_every_key() {
        let file = include_str!("../epwatch.example.toml");
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let uncommented = |line: &&str| {
            let is_key = line
                .split_once(" = ")
                .is_some_and(|(key, _)| key.chars().all(is_name));
            is_key || (line.starts_with('[') && line.ends_with(']'))
        };
        let lines = file
            .lines()
            .map(|line| line.strip_prefix("# ").unwrap_or(line));
        let text: Vec<&str> = lines.filter(uncommented).collect();
        let example = toml::Value::Table(text.join("\n").parse().unwrap());
        let (mut in_structs, mut in_file) = (BTreeSet::new(), BTreeSet::new());
        keys_of_structs("", false, &mut in_structs);
        keys_of_file("", &example, &mut in_file);
        assert!(in_structs.len() > 40, "{in_structs:?}");
        assert_eq!(in_file, in_structs, "example and structs");
    }

    #[test]
    fn every_problem_is_said_at_once() {
        let env = [
            ("EPWATCH_STORE__RAW_DAYS", "1"),
            ("EPWATCH_STORE__READER__LISTEN", "0.0.0.0:8123"),
            ("EPWATCH_COLLECTOR__LISTEN", "0.0.0.0:4717"),
            ("EPWATCH_DETECTOR__STEP", "7s"),
        ];
        let env = env.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned()));
        let (config, sources): (ServerConfig, _) = config::load(None, env, SECTIONS).unwrap();
        let error = config.check(Runs::Both, &sources).unwrap_err();
        let text = error.to_string();
        for key in [
            "EPWATCH_STORE__RAW_DAYS: store.raw_days",
            "EPWATCH_STORE__READER__LISTEN: store.reader.listen",
            "default: store.reader.password_file",
            "default: collector.keys",
            "EPWATCH_DETECTOR__STEP: detector.step",
        ] {
            assert!(text.contains(key), "{text}");
        }
    }

    #[track_caller]
    fn check_days(raw_days: &str, rollup_days: &str, expected: &[&str]) {
        let env = [
            ("EPWATCH_STORE__RAW_DAYS", raw_days),
            ("EPWATCH_STORE__ROLLUP_DAYS", rollup_days),
        ];
        let env = env.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned()));
        let (config, _): (ServerConfig, _) = config::load(None, env, SECTIONS).unwrap();
        let problems = config.store.problems();
        assert_eq!(problems.len(), expected.len(), "{problems:?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.starts_with(expected), "{problem}");
        }
    }

    #[test]
    fn days_cover_what_devices_keep_and_end_before_the_stores_times_do() {
        check_days("14", "14", &[]);
        check_days("10000", "10000", &[]);
        check_days("13", "400", &["store.raw_days: must be 14 or more, got 13"]);
        check_days("20", "19", &["store.rollup_days: must be at least"]);
        check_days("14", "10001", &["store.rollup_days: must be at most 10000"]);
        let both = [
            "store.raw_days: must be at most",
            "store.rollup_days: must be at most",
        ];
        check_days("65535", "65535", &both);
    }

    /// A late report must still meet its earlier copy.
    #[test]
    fn reports_are_kept_two_days_longer_than_devices_keep_them() {
        use epwatch_collector::schema::{MIN_RAW_DAYS, Retention};
        let on_device = epwatch_sdk::policy::MAX_SPOOL_AGE.as_secs() / 86_400;
        assert_eq!(u64::from(MIN_RAW_DAYS), on_device + 2);
        assert!(Retention::default().raw_days >= MIN_RAW_DAYS);
    }
}
