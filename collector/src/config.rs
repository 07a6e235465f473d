//! The collector's part of the config file: every key with its default, and all that can be wrong
//! with them at once. Reading the file and the environment is the command's work.

mod address_block;
mod front;
mod keys;
mod limits;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::address_block::{AddressBlock, AddressBlockError};
pub use self::front::{ConnectionsConfig, TlsConfig};
pub use self::keys::{AppKeyConfig, NewKey};
pub(crate) use self::keys::{KeyEntry, KeyHash, hash_of, inline as inline_keys, read_keys_file};
pub use self::limits::{LimitsConfig, NamesConfig, NewInstallationsConfig, RateConfig};
use crate::wal::MAX_PAYLOAD_BYTES;
use epwatch_server::{ByteSize, Period, Problems};

/// Larger inserts are cut into several blocks, which the engine stores one by one.
pub const MAX_BATCH_REPORTS: usize = 100_000;

/// What the collector does and where.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CollectorConfig {
    /// Where devices send to: gRPC, and HTTP POST of the same messages.
    pub listen: SocketAddr,
    /// Where `/metrics`, `/healthz` and `/readyz` are.
    pub http_listen: SocketAddr,
    /// The largest request. Devices are told; 4 MiB is what they take for granted.
    pub max_request_bytes: ByteSize,
    /// How many reports' keys are remembered to answer `duplicate` without the store.
    pub seen_keys: usize,
    /// The app keys that are accepted. Empty: any or none, which only a loopback address may do.
    pub keys: Vec<AppKeyConfig>,
    /// A TOML file with more `[[keys]]`, read again when it changes: how keys come and go without
    /// a restart. While it is named, a key is needed, whatever it holds.
    pub keys_file: Option<PathBuf>,
    /// The certificate that devices see; without it the port speaks plain HTTP.
    pub tls: Option<TlsConfig>,
    /// What a connection may cost.
    pub connections: ConnectionsConfig,
    /// How often devices may send.
    pub limits: LimitsConfig,
    /// How many names an app may have in a day.
    pub names: NamesConfig,
    /// How many new installations an app may have in a day before they do not vote.
    pub new_installations: NewInstallationsConfig,
    /// The write-ahead log.
    pub wal: WalConfig,
    /// Writing to the store.
    pub batch: BatchConfig,
    /// Summaries of closed buckets.
    pub rollup: RollupConfig,
    /// Forgetting installations.
    pub deletion: DeletionConfig,
    /// Handing out directives.
    pub directives: DirectivesConfig,
    /// How long the store keeps reports; the command sets it from its `store.raw_days`.
    #[serde(skip)]
    pub raw_retention: Period,
}

/// The write-ahead log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WalConfig {
    /// Its directory, for this collector alone, on a disk with real fsync.
    pub dir: PathBuf,
    /// Size of one file.
    pub segment_bytes: ByteSize,
    /// What may wait for the store before reports are refused.
    pub max_bytes: ByteSize,
    /// What may wait for the disk before reports are refused.
    pub max_in_flight_bytes: ByteSize,
    /// Below this much free space on its disk reports are refused: the store's data often lies on
    /// the same disk, and a store cannot even merge on a full one. 0 is no limit.
    pub min_free_bytes: ByteSize,
    /// How long reports gather before they are written and synced together.
    pub gather: Period,
}

/// Writing to the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BatchConfig {
    /// A batch goes out when it has this many reports ...
    pub max_reports: usize,
    /// ... or this many bytes ...
    pub max_bytes: ByteSize,
    /// ... or its first report is this old.
    pub period: Period,
    /// The longest pause after a failed try.
    pub max_backoff: Period,
    /// How long a stopping collector goes on writing; the rest waits in the log.
    pub drain_timeout: Period,
}

/// Summaries of closed buckets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RollupConfig {
    /// Whether this collector builds them. One of several is enough; two do no harm.
    pub enabled: bool,
    /// Length of a bucket, by receive time.
    pub bucket: Period,
    /// How often closed buckets are looked for.
    pub period: Period,
    /// How often the loss ledger is read for the metrics.
    pub ledger_period: Period,
    /// A collector that has not said how far it is for this long is not waited for: it is gone,
    /// and what its log still holds makes a new revision when it comes back.
    pub collector_timeout: Period,
}

/// Forgetting installations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeletionConfig {
    /// How often tombstones of other collectors are looked for.
    pub refresh: Period,
    /// How often rows of deleted installations are taken off the disk; views hide them at once.
    pub erase_period: Period,
}

/// Handing out directives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DirectivesConfig {
    /// How often published directives are looked for.
    pub refresh: Period,
}

impl Default for DeletionConfig {
    fn default() -> Self {
        Self {
            refresh: Period(Duration::from_secs(10)),
            // Erasing writes whole parts anew: rather many installations at once.
            erase_period: Period(Duration::from_secs(6 * 3600)),
        }
    }
}

impl Default for DirectivesConfig {
    fn default() -> Self {
        Self {
            refresh: Period(Duration::from_secs(10)),
        }
    }
}

impl Default for CollectorConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 4717)),
            http_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 4718)),
            max_request_bytes: ByteSize(4 << 20),
            // About 80 bytes each.
            seen_keys: 1 << 20,
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
            deletion: DeletionConfig::default(),
            directives: DirectivesConfig::default(),
            raw_retention: Period(Duration::from_secs(14 * 86_400)),
        }
    }
}

impl Default for WalConfig {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("epwatch-wal"),
            segment_bytes: ByteSize(64 << 20),
            // An hour of 4,000 reports of 500 bytes a second.
            max_bytes: ByteSize(8 << 30),
            max_in_flight_bytes: ByteSize(64 << 20),
            min_free_bytes: ByteSize(512 << 20),
            // Nothing beside a phone's round trip, and under load it makes one sync of dozens.
            gather: Period(Duration::from_millis(2)),
        }
    }
}

impl Default for BatchConfig {
    fn default() -> Self {
        Self {
            max_reports: 20_000,
            max_bytes: ByteSize(32 << 20),
            period: Period(Duration::from_secs(1)),
            max_backoff: Period(Duration::from_secs(10)),
            drain_timeout: Period(Duration::from_secs(30)),
        }
    }
}

impl Default for RollupConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            bucket: Period(Duration::from_secs(3600)),
            period: Period(Duration::from_secs(10)),
            ledger_period: Period(Duration::from_secs(60)),
            collector_timeout: Period(Duration::from_secs(3600)),
        }
    }
}

impl CollectorConfig {
    /// Checks what types cannot, and reads the files that the config names.
    ///
    /// # Errors
    /// Every problem, not just the first.
    pub fn validate(&self) -> Result<(), Problems> {
        let mut problems = Problems::default();
        self.check_ingest(&mut problems);
        keys::check(self, &mut problems);
        front::check(self, &mut problems);
        self.check_wal(&mut problems);
        self.check_batch(&mut problems);
        self.new_installations.check(&mut problems);
        problems.into_result()
    }

    fn check_ingest(&self, problems: &mut Problems) {
        let largest = ByteSize(MAX_PAYLOAD_BYTES as u64);
        problems.check_range(
            "max_request_bytes",
            &self.max_request_bytes,
            ByteSize(64 << 10)..=largest,
        );
        problems.check_range("seen_keys", &self.seen_keys, 0..=1 << 26);
    }

    fn check_wal(&self, problems: &mut Problems) {
        let wal = &self.wal;
        problems.check("wal.dir", !wal.dir.as_os_str().is_empty(), || {
            "must name a directory".into()
        });
        let segments = ByteSize(64 << 10)..=ByteSize(4 << 30);
        problems.check_range("wal.segment_bytes", &wal.segment_bytes, segments);
        problems.check(
            "wal.max_bytes",
            wal.max_bytes.0 / 4 >= wal.segment_bytes.0,
            || {
                format!(
                    "must be at least four segments ({} each)",
                    wal.segment_bytes
                )
            },
        );
        problems.check(
            "wal.max_in_flight_bytes",
            (self.max_request_bytes..=ByteSize(1 << 30)).contains(&wal.max_in_flight_bytes),
            || {
                format!(
                    "must be max_request_bytes ({}) to 1GiB",
                    self.max_request_bytes
                )
            },
        );
    }

    fn check_batch(&self, problems: &mut Problems) {
        let (batch, rollup) = (&self.batch, &self.rollup);
        problems.check_range(
            "batch.max_reports",
            &batch.max_reports,
            1..=MAX_BATCH_REPORTS,
        );
        let sizes = ByteSize(1 << 20)..=ByteSize(256 << 20);
        problems.check_range("batch.max_bytes", &batch.max_bytes, sizes);
        const HOUR: u64 = 3_600_000;
        const DAY: u64 = 24 * HOUR;
        for (key, period, min_ms, max_ms) in [
            ("wal.gather", self.wal.gather, 0, 1_000),
            ("batch.period", batch.period, 1, 60_000),
            ("batch.max_backoff", batch.max_backoff, 1, 600_000),
            ("batch.drain_timeout", batch.drain_timeout, 0, HOUR),
            ("rollup.bucket", rollup.bucket, 1_000, DAY),
            ("rollup.period", rollup.period, 10, HOUR),
            ("rollup.ledger_period", rollup.ledger_period, 10, DAY),
            ("deletion.refresh", self.deletion.refresh, 10, HOUR),
            (
                "deletion.erase_period",
                self.deletion.erase_period,
                10,
                7 * DAY,
            ),
            ("directives.refresh", self.directives.refresh, 10, HOUR),
            (
                "rollup.collector_timeout",
                rollup.collector_timeout,
                1_000,
                7 * DAY,
            ),
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
        assert!(text.contains("segment_bytes = \"64MiB\""), "{text}");
        assert_eq!(toml::from_str::<CollectorConfig>(&text).unwrap(), config);
    }

    #[test]
    fn unknown_keys_and_wrong_units_are_refused() {
        for (text, expected) in [
            ("lisen = 1", "unknown field `lisen`"),
            ("[wal]\nmax_bites = \"1GiB\"", "unknown field `max_bites`"),
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
        config.wal.max_bytes = ByteSize(1 << 20);
        config.batch.max_reports = 0;
        config.rollup.bucket = Period(Duration::from_secs(7));
        let problems = config.validate().unwrap_err();
        let keys: Vec<&str> = problems
            .0
            .iter()
            .map(|problem| problem.key.as_str())
            .collect();
        assert_eq!(
            keys,
            [
                "keys",
                "wal.max_bytes",
                "batch.max_reports",
                "rollup.bucket"
            ]
        );
    }
}
