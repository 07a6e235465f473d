//! The collector's part of the config file: keys, defaults, validation. The command reads the file and the environment.

mod app_keys;
mod connections;
mod limits;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::app_keys::{AppKeyConfig, KeyKind, NewKey};
pub(crate) use self::app_keys::{
    KeyEntry, KeyHash, NO_KEY_IN_FORCE, check_distinct, hash_of, inline as inline_keys,
    read_keys_file,
};
pub(crate) use self::connections::ConnectionsConfig;
pub use self::connections::TlsConfig;
pub use self::limits::{BurstsConfig, LimitsConfig, NamesConfig, NewInstallationsConfig};
use epwatch_server::{ByteSize, Period, Problems};

/// The section `[collector]`. Skipped fields are constants that tests change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CollectorConfig {
    /// Address for devices: gRPC, and HTTP POST of the same messages.
    pub listen: SocketAddr,
    /// Address of `/metrics`, `/healthz` and `/readyz`.
    pub http_listen: SocketAddr,
    /// Pause between reads of other collectors' deletions and of published directives. The loss ledger is read
    /// every sixth time.
    pub refresh: Period,
    /// Accepted app keys. If there are none, calls need no key, which is allowed only on a loopback address.
    pub keys: Vec<AppKeyConfig>,
    /// A TOML file with more `[[keys]]`, reloaded when it changes. If it is set, calls need a key even while it is empty.
    pub keys_file: Option<PathBuf>,
    /// The certificate of the device port, which is plain HTTP without one.
    pub tls: Option<TlsConfig>,
    /// Limits on the cost of connections.
    pub connections: ConnectionsConfig,
    /// Rates of reports and deletions.
    pub limits: LimitsConfig,
    /// Limits on the distinct names of an app.
    pub names: NamesConfig,
    /// Limits on new installations that may vote.
    pub new_installations: NewInstallationsConfig,
    /// The write-ahead log.
    pub wal: WalConfig,
    /// Writes to the store.
    pub batch: BatchConfig,
    /// Summaries of closed buckets.
    pub rollup: RollupConfig,
    /// The largest request. Answers carry it to devices, which assume 4 MiB before the first answer.
    #[serde(skip)]
    pub max_request_bytes: ByteSize,
    /// Pause between removals of deleted installations' rows from the disk; views hide them at once.
    #[serde(skip)]
    pub erase_period: Period,
    /// Report keys in memory that answer `duplicate` without the store, about 80 bytes each.
    #[serde(skip)]
    pub seen_keys: usize,
    /// Retention of reports in the store; the command sets it from its `store.raw_days`.
    #[serde(skip)]
    pub raw_retention: Period,
}

/// The write-ahead log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WalConfig {
    /// The WAL's directory, which no other collector uses, on a disk with real fsync.
    pub dir: PathBuf,
    /// Bytes that may wait for the store before reports are refused.
    pub max_bytes: ByteSize,
    /// Reports are refused below this much free space on the disk. The store's data is often on the same disk, and a
    /// store cannot even merge on a full one. 0 turns the limit off.
    pub min_free_bytes: ByteSize,
    /// How long reports gather before they are written and synced together.
    #[serde(skip)]
    pub gather: Period,
}

impl WalConfig {
    /// Size of a segment: 64 MiB at the default `max_bytes`. A smaller WAL has smaller ones, so that space is freed
    /// in smaller steps.
    pub(crate) fn segment_bytes(&self) -> u64 {
        (self.max_bytes.0 / 128).clamp(64 << 10, 64 << 20)
    }
}

/// Writes to the store. A batch is sent when it is full or its first report is old enough.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BatchConfig {
    /// Age of a batch's first report at which it is sent.
    pub period: Period,
    /// How long a stop may drain the WAL; the remaining reports stay in the WAL.
    pub drain_timeout: Period,
    /// Number of reports in a full batch. The engine cuts inserts above 100,000 rows into blocks and stores them one by
    /// one.
    #[serde(skip)]
    pub max_reports: usize,
    /// Number of bytes in a full batch.
    #[serde(skip)]
    pub max_bytes: ByteSize,
}

impl BatchConfig {
    /// The longest pause between retries.
    pub(crate) fn max_backoff(&self) -> Duration {
        self.period.0 * 10
    }
}

/// Summaries of closed buckets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RollupConfig {
    /// True if this collector builds summaries. By default every collector does, and several do no harm.
    #[serde(skip)]
    pub enabled: bool,
    /// Length of a bucket, by receive time.
    pub bucket: Period,
    /// Silence after which the roll-up no longer waits for a collector; `None` is two buckets, an hour at most.
    #[serde(skip)]
    pub collector_timeout: Option<Period>,
    /// Time from the build of a summary until its reports are counted again: longer than any replica lags.
    pub recheck_after: Period,
}

impl RollupConfig {
    /// Silence after which the roll-up no longer waits for a collector: two buckets, an hour at most. If the collector
    /// comes back, the reports in its WAL lead to a new revision of the summary.
    pub(crate) fn collector_timeout(&self) -> Duration {
        const MAX: Duration = Duration::from_secs(3600);
        let set = self.collector_timeout.map(|period| period.0);
        set.unwrap_or_else(|| (self.bucket.0 * 2).min(MAX))
    }

    /// Pause between checks for closable buckets.
    pub(crate) fn period(&self) -> Duration {
        (self.bucket.0 / 4).min(Duration::from_secs(10))
    }
}

impl Default for CollectorConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 4717)),
            http_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 4718)),
            max_request_bytes: ByteSize(4 << 20),
            refresh: Period(Duration::from_secs(10)),
            // Erasing rewrites whole parts, so it is cheaper for many installations at once.
            erase_period: Period(Duration::from_secs(6 * 3600)),
            keys: Vec::new(),
            keys_file: None,
            tls: None,
            connections: ConnectionsConfig::default(),
            limits: LimitsConfig::default(),
            names: NamesConfig::default(),
            new_installations: NewInstallationsConfig::default(),
            wal: WalConfig::default(),
            batch: BatchConfig::default(),
            rollup: RollupConfig::default(),
            seen_keys: 1 << 20,
            raw_retention: Period(Duration::from_secs(14 * 86_400)),
        }
    }
}

impl Default for WalConfig {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("epwatch-wal"),
            // Enough for an hour of 4,000 reports a second, 500 bytes each.
            max_bytes: ByteSize(8 << 30),
            min_free_bytes: ByteSize(512 << 20),
            // Short compared with a phone's round trip; under load one sync serves dozens of batches.
            gather: Period(Duration::from_millis(2)),
        }
    }
}

impl Default for BatchConfig {
    fn default() -> Self {
        Self {
            period: Period(Duration::from_secs(1)),
            drain_timeout: Period(Duration::from_secs(30)),
            max_reports: 20_000,
            max_bytes: ByteSize(32 << 20),
        }
    }
}

impl Default for RollupConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            bucket: Period(Duration::from_secs(3600)),
            // Replicas lag for seconds, and for minutes after a restart.
            recheck_after: Period(Duration::from_secs(600)),
            collector_timeout: None,
        }
    }
}

impl CollectorConfig {
    /// Checks the rules that types cannot express, and reads the files that the config names.
    ///
    /// # Errors
    /// Every problem, not just the first.
    pub fn validate(&self) -> Result<(), Problems> {
        let mut problems = Problems::default();
        app_keys::check(
            &self.keys,
            self.keys_file.as_deref(),
            self.listen,
            &mut problems,
        );
        problems.check_range("connections.max", &self.connections.max, 1..=1 << 20);
        if let Some(tls) = &self.tls {
            tls.check(&mut problems);
        }
        problems.check("wal.dir", !self.wal.dir.as_os_str().is_empty(), || {
            "must name a directory".into()
        });
        let sizes = ByteSize(256 << 10)..=ByteSize(1 << 50);
        problems.check_range("wal.max_bytes", &self.wal.max_bytes, sizes);
        self.check_periods(&mut problems);
        problems.into_result()
    }

    /// True if a key of kind `app` is in force, which anyone may have.
    pub(crate) fn has_public_keys(&self) -> bool {
        let in_force = self.keys_in_force();
        in_force.iter().any(|key| key.config.kind == KeyKind::App)
    }

    /// Returns a warning if calls need a key and none is in force. A collector starts like that, because its keys file
    /// is read again.
    #[must_use]
    pub fn lockout(&self) -> Option<&'static str> {
        let needs_key = !self.keys.is_empty() || self.keys_file.is_some();
        (needs_key && self.keys_in_force().is_empty()).then_some(NO_KEY_IN_FORCE)
    }

    fn keys_in_force(&self) -> Vec<KeyEntry> {
        let of_file = self.keys_file.as_deref().map(read_keys_file);
        let of_file = of_file.and_then(Result::ok).unwrap_or_default();
        let all = inline_keys(&self.keys).into_iter().chain(of_file);
        all.filter(|entry| !entry.config.revoked).collect()
    }

    fn check_periods(&self, problems: &mut Problems) {
        const HOUR: u64 = 3_600_000;
        const DAY: u64 = 24 * HOUR;
        let rollup = &self.rollup;
        for (key, period, min_ms, max_ms) in [
            ("refresh", self.refresh, 10, HOUR),
            ("batch.period", self.batch.period, 1, 60_000),
            ("batch.drain_timeout", self.batch.drain_timeout, 0, HOUR),
            ("rollup.bucket", rollup.bucket, 1_000, DAY),
            ("rollup.recheck_after", rollup.recheck_after, 0, DAY),
        ] {
            let period_ms = |ms| Period(Duration::from_millis(ms));
            problems.check_range(key, &period, period_ms(min_ms)..=period_ms(max_ms));
        }
        let (bucket, day) = (rollup.bucket.0.as_millis(), 86_400_000);
        problems.check("rollup.bucket", bucket == 0 || day % bucket == 0, || {
            "must divide a day into equal parts".into()
        });
        problems.check("rollup.bucket", bucket % 1_000 == 0, || {
            "must be whole seconds".into()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_round_trip() {
        let config = CollectorConfig::default();
        config.validate().unwrap();
        let text = toml::to_string(&config).unwrap();
        assert!(text.contains("max_bytes = \"8GiB\""), "{text}");
        assert_eq!(toml::from_str::<CollectorConfig>(&text).unwrap(), config);
    }

    #[test]
    fn unknown_keys_and_wrong_units_are_refused() {
        for (text, expected) in [
            ("lisen = 1", "unknown field `lisen`"),
            ("[wal]\nmax_bites = \"1GiB\"", "unknown field `max_bites`"),
            ("[rollup]\nenabled = true", "unknown field `enabled`"),
            (
                "[connections]\nmax_body_bytes = \"1GiB\"",
                "unknown field `max_body_bytes`",
            ),
            ("[batch]\nperiod = \"1 fortnight\"", "expected a duration"),
            ("[wal]\nmax_bytes = \"8 gigs\"", "expected a size"),
        ] {
            let error = toml::from_str::<CollectorConfig>(text)
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn every_problem_is_reported_with_its_key() {
        let mut config = CollectorConfig {
            listen: SocketAddr::from(([0, 0, 0, 0], 4717)),
            ..CollectorConfig::default()
        };
        config.wal.max_bytes = ByteSize(1 << 10);
        config.batch.period = Period(Duration::ZERO);
        config.rollup.bucket = Period(Duration::from_secs(7));
        let problems = config.validate().unwrap_err();
        let keys: Vec<&str> = problems
            .0
            .iter()
            .map(|problem| problem.key.as_str())
            .collect();
        assert_eq!(
            keys,
            ["keys", "wal.max_bytes", "batch.period", "rollup.bucket"]
        );
    }
}
