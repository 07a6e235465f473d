//! The config of `serve`, `collector`, `detector` and `migrate`: one file with a section for each component, and a few
//! options that override it.

use std::{
    net::SocketAddr,
    path::{self, PathBuf},
};

use epwatch_collector::{Collector, config::CollectorConfig};
use epwatch_detector::{Detector, DetectorConfig};
use epwatch_engines::{CacheState, Engine};
use epwatch_page::{PageConfig, PageServer};
use epwatch_server::{ByteSize, Problems};
use epwatch_store::embedded::{default_socket, engine_dir};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    config::{self, ConfigError, SECTIONS, Sources},
    folder_check,
    shutdown::Hangup,
    store_config::StoreConfig,
};

/// Options of every server command; they override the config file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ServerArgs {
    /// Config file (TOML). Environment variables such as EPWATCH_COLLECTOR__WAL__MAX_BYTES override it.
    #[arg(long, value_name = "FILE", env = "EPWATCH_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Folder of the WAL and the embedded store [default: ./epwatch-data].
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// ClickHouse to use: http://host:8123, https://host:8443 or unix:/path. Without it `serve` runs
    /// the embedded engine.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) clickhouse: Option<String>,
    /// The address that devices send to, for a command with [`ListenArgs`].
    #[arg(skip)]
    pub(crate) listen: Option<SocketAddr>,
}

/// The option `--listen`, for commands with a device port.
#[derive(Debug, clap::Args)]
pub(crate) struct ListenArgs {
    /// Where devices send to [default: 127.0.0.1:4717].
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,
}

/// The config file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServerConfig {
    /// Folder of the WAL and the embedded store.
    pub(crate) data_dir: PathBuf,
    pub(crate) store: StoreConfig,
    pub(crate) collector: CollectorConfig,
    pub(crate) detector: DetectorConfig,
    pub(crate) page: PageConfig,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("epwatch-data"),
            store: StoreConfig::default(),
            collector: CollectorConfig::default(),
            detector: DetectorConfig::default(),
            page: PageConfig::default(),
        }
    }
}

/// The components that a command runs, whose sections must be valid. One file serves several machines, and the keys and
/// certificates of one are not on the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runs {
    Both,
    Collector,
    Detector,
    Page,
    /// A command that works on the store.
    Neither,
}

impl ServerArgs {
    /// Reads file, environment and options, and checks the sections of the components that run. The error has every
    /// problem.
    pub(crate) fn load(&self, runs: Runs) -> Result<ServerConfig, ConfigError> {
        let (config, sources) = self.read()?;
        config.check(runs, &sources)?;
        Ok(config)
    }

    /// Reads file, environment and options, and checks nothing but types.
    pub(crate) fn read(&self) -> Result<(ServerConfig, Sources), ConfigError> {
        let file = self.config.as_deref();
        let (mut config, mut sources): (ServerConfig, _) =
            config::load(file, std::env::vars(), SECTIONS)?;
        if let Some(data_dir) = &self.data_dir {
            config.data_dir.clone_from(data_dir);
            sources.note("data_dir", "--data-dir");
        }
        if std::env::var_os("EPWATCH_CACHE").is_some() {
            sources.note("EPWATCH_CACHE", "environment");
        }
        if let Some(address) = &self.clickhouse {
            config.store.clickhouse = Some(address.clone());
            sources.note("store.clickhouse", "--clickhouse");
        }
        if let Some(listen) = self.listen {
            config.collector.listen = listen;
            sources.note("collector.listen", "--listen");
        }
        // A relative WAL folder is below the data folder.
        config.collector.wal.dir = config.data_dir.join(&config.collector.wal.dir);
        // The detector's buckets follow the collector's key, because windows are whole buckets of the roll-up.
        config.detector.bucket = config.collector.rollup.bucket;
        // A window waits for the batches that its last reports are written with.
        config.detector.batch_period = config.collector.batch.period;
        Ok((config, sources))
    }
}

impl ServerConfig {
    /// Returns the meaning of SIGHUP for a collector with this config.
    pub(crate) fn at_hangup(&self) -> Hangup {
        match self.collector.keys_file.is_some() || self.collector.tls.is_some() {
            true => Hangup::ReadsAgain,
            false => Hangup::NothingToRead,
        }
    }

    /// Checks the sections of the components that run.
    pub(crate) fn check(&self, runs: Runs, sources: &Sources) -> Result<(), ConfigError> {
        let mut problems = Problems::default();
        let mut add = |section: &str, validated: Result<(), Problems>| {
            for problem in validated.err().unwrap_or_default().0 {
                problems.push(format!("{section}.{}", problem.key), problem.text);
            }
        };
        add("store", self.store.validate());
        if !matches!(runs, Runs::Neither | Runs::Page) {
            add("store", self.store.check_secrets(runs == Runs::Both));
        }
        if matches!(runs, Runs::Both | Runs::Collector) {
            add("collector", self.collector.validate());
            add("collector", Collector::check_findings(&self.collector));
        }
        if matches!(runs, Runs::Both | Runs::Detector) {
            add("detector", self.detector.validate());
            add("detector", Detector::check_files(&self.detector));
        }
        if matches!(runs, Runs::Both | Runs::Page) {
            for (key, text) in self.page.problems() {
                problems.push(format!("page.{key}"), text);
            }
            if let Some((key, text)) = PageServer::check_files(&self.page) {
                problems.push(key, text);
            }
        }
        self.check_folders(runs, &mut problems);
        for (key, other) in self.shared_addresses(runs) {
            problems.push(key, format!("must be another address than {other}"));
        }
        sources.refuse(&problems)
    }

    /// Checks the folders that the components write, up to the first problem of a key. The WAL is below `data_dir` unless
    /// the config places it elsewhere.
    fn check_folders(&self, runs: Runs, problems: &mut Problems) {
        let has_engine = runs == Runs::Both && self.store.clickhouse.is_none();
        let has_wal = matches!(runs, Runs::Both | Runs::Collector);
        let (data_dir, wal) = (&self.data_dir, &self.collector.wal.dir);
        let key_of_wal = match wal.starts_with(data_dir) {
            true => "data_dir",
            false => "collector.wal.dir",
        };
        let problem_of_socket = || {
            let made = path::absolute(data_dir).unwrap_or_else(|_| data_dir.clone());
            default_socket(&made).err().map(|error| error.to_string())
        };
        let engine = engine_dir(data_dir);
        let is_used = has_engine || has_wal;
        let unnamed = folder_check::problem(data_dir).filter(|_| data_dir.as_os_str().is_empty());
        let key_of_shared = "collector.wal.dir";
        let found = [
            (is_used, "data_dir", unnamed),
            (has_engine, "data_dir", folder_check::problem(data_dir)),
            (has_engine, "data_dir", folder_check::problem(&engine)),
            (has_engine, "data_dir", problem_of_socket()),
            (has_engine, key_of_shared, self.problem_of_shared_folder()),
            (has_wal, key_of_wal, folder_check::problem(wal)),
            (has_engine, "EPWATCH_CACHE", problem_of_cache()),
        ];
        for (is_written, key, problem) in found {
            let is_known = problems.0.iter().any(|known| known.key == key);
            if let Some(text) = problem.filter(|_| is_written && !is_known) {
                problems.push(key, text);
            }
        }
    }

    /// Returns the reason why the WAL cannot be in the embedded store's folder: each has a lock and files of its own.
    fn problem_of_shared_folder(&self) -> Option<String> {
        let [data_dir, engine, wal] = [
            &self.data_dir,
            &engine_dir(&self.data_dir),
            &self.collector.wal.dir,
        ]
        .map(|folder| folder_check::resolved(folder));
        let whose = match wal {
            _ if wal == data_dir => "data_dir itself, whose lock the embedded store holds",
            _ if wal.starts_with(&engine) => "in the embedded store's folder",
            _ => return None,
        };
        Some(format!(
            "is {whose}: expected a folder of its own, such as `epwatch-wal`, the default"
        ))
    }

    /// Returns each key of an address that is also the address of another key, with that key. Port 0 is any free port.
    fn shared_addresses(&self, runs: Runs) -> Vec<(&'static str, &'static str)> {
        let of_collector = matches!(runs, Runs::Both | Runs::Collector);
        let of_both = runs == Runs::Both;
        let collector = &self.collector;
        let ports = [
            (of_collector, "collector.listen", Some(collector.listen)),
            (
                of_collector,
                "collector.http_listen",
                Some(collector.http_listen),
            ),
            (of_both, "page.listen", Some(self.page.listen)),
            (of_both, "store.reader.listen", self.store.reader.listen),
        ];
        let opened = ports.into_iter().filter(|(is_opened, ..)| *is_opened);
        let opened = opened.filter_map(|(_, key, listen)| Some((key, listen?)));
        let opened: Vec<_> = opened.filter(|(_, listen)| listen.port() != 0).collect();
        let is_same = |a: &SocketAddr, b: &SocketAddr| {
            let is_wild = a.ip().is_unspecified() || b.ip().is_unspecified();
            a.port() == b.port() && (is_wild || a.ip() == b.ip())
        };
        let mut shared = Vec::new();
        for (n, (key, listen)) in opened.iter().enumerate() {
            let other = opened[..n].iter().find(|(_, other)| is_same(listen, other));
            shared.extend(other.map(|(other, _)| (*key, *other)));
        }
        shared
    }

    /// Returns the warnings of a check, each as key and text. A server may start like that, and be of no use.
    pub(crate) fn warnings(&self, runs: Runs) -> Vec<(&'static str, String)> {
        let mut warnings = Vec::new();
        if matches!(runs, Runs::Both | Runs::Collector)
            && let Some(lockout) = self.collector.lockout()
        {
            warnings.push(("collector.keys", lockout.to_owned()));
        }
        if matches!(runs, Runs::Both | Runs::Collector)
            && let Some(tls) = &self.collector.tls
            && let Some(problem) = tls.authority_problem(Timestamp::now())
        {
            warnings.push(("collector.tls.client_ca", problem));
        }
        if matches!(runs, Runs::Both | Runs::Collector) {
            let least = self.collector.wal.min_free_bytes;
            let (dir, free) = folder_check::free_bytes(&self.collector.wal.dir);
            if free < least.0 {
                let text = format!(
                    "is {least}, and {} are free on the volume of {}, so every report is refused: lower it, or free some",
                    ByteSize(free >> 20 << 20),
                    dir.display()
                );
                warnings.push(("collector.wal.min_free_bytes", text));
            }
        }
        if matches!(runs, Runs::Collector | Runs::Detector) && self.store.clickhouse.is_none() {
            let text = "names no server, so a start needs --clickhouse ADDRESS";
            warnings.push(("store.clickhouse", text.to_owned()));
        }
        if runs == Runs::Both && !self.page.trusted_proxies.is_empty() && self.page.hosts.is_empty()
        {
            let text = "is set, and page.hosts is not: the page refuses a request whose Host is the proxy's name; list \
                        that name in page.hosts, unless the proxy sends the page's own address as Host";
            warnings.push(("page.trusted_proxies", text.to_owned()));
        }
        warnings
    }
}

/// Returns the reason why the embedded store's library is not in the cache, and cannot be fetched into it.
fn problem_of_cache() -> Option<String> {
    let mut engines = epwatch_engines::list().into_iter();
    let chdb = engines.find(|status| status.engine == Engine::Chdb)?;
    let cache = match epwatch_engines::cache_dir() {
        Ok(cache) => cache,
        Err(error) => return Some(error.to_string()),
    };
    if !matches!(chdb.state, CacheState::Missing | CacheState::Damaged) {
        return None;
    }
    let problem = folder_check::problem_of_other(&cache)?;
    Some(format!(
        "libchdb, the embedded store, is not in the cache {}, and cannot be fetched into it: {problem}, or set \
         EPWATCH_CACHE to another folder",
        cache.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use clap::CommandFactory;

    use super::*;

    /// The detector and its test page have no port for devices.
    #[test]
    fn only_what_devices_send_to_has_listen() {
        let command = crate::Cli::command();
        let at = |path: &[&str]| {
            let found = path
                .iter()
                .try_fold(&command, |command, name| command.find_subcommand(name));
            let mut options = found.unwrap().get_arguments();
            options.any(|option| option.get_long() == Some("listen"))
        };
        assert!(at(&["serve"]) && at(&["collector"]));
        assert!(!at(&["detector"]) && !at(&["detector", "test-page"]) && !at(&["migrate"]));
    }

    /// People copy the example, so it must hold every default.
    #[test]
    fn the_example_holds_the_defaults() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/epwatch.example.toml");
        let (example, _): (ServerConfig, _) =
            config::load(Some(Path::new(file)), std::iter::empty(), SECTIONS).unwrap();
        let defaults = ServerConfig::default();
        assert_eq!(example.collector, defaults.collector);
        assert_eq!(example.detector, defaults.detector);
        assert_eq!(example.page, defaults.page);
        assert_eq!(example.store, defaults.store);
        assert_eq!(example.data_dir, defaults.data_dir);
    }

    /// Removes empty lists, which the file has as comments or not at all.
    fn without_empty_lists(table: toml::Table) -> toml::Table {
        let kept = table.into_iter().filter_map(|(key, value)| match value {
            toml::Value::Array(list) if list.is_empty() => None,
            toml::Value::Table(table) => Some((key, without_empty_lists(table).into())),
            value => Some((key, value)),
        });
        kept.collect()
    }

    /// This finds a default that is missing in the file, or is spelt differently.
    #[test]
    fn the_example_is_the_serialised_defaults() {
        let example: toml::Table = include_str!("../epwatch.example.toml").parse().unwrap();
        let defaults = toml::Table::try_from(ServerConfig::default()).unwrap();
        assert_eq!(without_empty_lists(example), without_empty_lists(defaults));
    }

    /// Collects the keys of a section from the error text for an unknown key.
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

    /// Includes the keys that the example has in comments.
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
    fn an_address_that_is_none_is_shown_with_one_that_is() {
        let env = (
            "EPWATCH_COLLECTOR__LISTEN".to_owned(),
            "localhost:4717".to_owned(),
        );
        let error = config::load::<ServerConfig>(None, [env].into_iter(), SECTIONS).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("127.0.0.1:4717") && text.contains("got \"localhost:4717\""),
            "{text}"
        );
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let env = [
            ("EPWATCH_STORE__RAW_DAYS", "1"),
            ("EPWATCH_STORE__READER__LISTEN", "0.0.0.0:8123"),
            ("EPWATCH_COLLECTOR__LISTEN", "0.0.0.0:4717"),
            ("EPWATCH_DETECTOR__STEP", "7s"),
            ("EPWATCH_COLLECTOR__HTTP_LISTEN", "0.0.0.0:4717"),
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
            "EPWATCH_COLLECTOR__HTTP_LISTEN: collector.http_listen: must be another address",
        ] {
            assert!(text.contains(key), "{text}");
        }
    }
}
