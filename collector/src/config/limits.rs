//! How often devices may send, how many names they may use, and how many of them may be new.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::address_block::AddressBlock;
use epwatch_server::{Period, Problems};

/// Reports that a sender may hand over; what is beyond is refused as a quota, to come again later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Of one installation.
    pub installation: RateConfig,
    /// Of all who hold one app key.
    pub key: RateConfig,
    /// Deletions that all who hold one app key may ask for: each is kept for ever, and an app key is public.
    pub key_deletions: RateConfig,
    /// Deletions that may be asked for from one network (IPv4 /24, IPv6 /48), where it is known.
    pub network_deletions: RateConfig,
}

/// A token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateConfig {
    /// Reports, or deletions, a minute in the long run; 0 is no limit.
    pub per_minute: u32,
    /// So many at once after a pause.
    pub burst: u32,
}

/// Distinct names an app may have in a day; what is beyond becomes `__other__` in rows. 0 is no
/// limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NamesConfig {
    /// Models.
    pub models: usize,
    /// Versions of all its models.
    pub versions: usize,
    /// Chipsets, other vendors' included.
    pub chipsets: usize,
    /// Input-shape keys of all its models.
    pub shape_keys: usize,
}

impl Default for NamesConfig {
    fn default() -> Self {
        // Several times what large apps have: a limit on what is made up, not on what is used.
        Self {
            models: 100,
            versions: 500,
            chipsets: 300,
            shape_keys: 1_000,
        }
    }
}

/// New installations that an app may have in a UTC day; reports of the others are stored as
/// unproven, and do not vote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NewInstallationsConfig {
    /// However few are usual, so many may come; 0 is no limit for an app.
    pub at_least: u64,
    /// This many times the usual number may come: the median of the last 14 whole days.
    pub times_usual: u32,
    /// Of these from one network (IPv4 /24, IPv6 /48), and as much more of it as the app's room is
    /// above `at_least`; 0 is no limit for a network.
    pub per_network: u64,
    /// Proxies whose `X-Forwarded-For` is believed. Without any, the address that connects counts.
    pub trusted_proxies: Vec<AddressBlock>,
    /// Installations that are remembered; each takes 16 bytes.
    pub known: usize,
    /// How often those that other collectors let in are looked for.
    pub refresh: Period,
}

impl NewInstallationsConfig {
    /// False if every new installation is proven.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.at_least > 0 || self.per_network > 0
    }

    pub(super) fn check(&self, problems: &mut Problems) {
        problems.check_range(
            "new_installations.times_usual",
            &self.times_usual,
            1..=1_000,
        );
        problems.check_range("new_installations.known", &self.known, 1_000..=1 << 26);
        let periods = Period(Duration::from_millis(10))..=Period(Duration::from_secs(86_400));
        problems.check_range("new_installations.refresh", &self.refresh, periods);
    }
}

impl Default for NewInstallationsConfig {
    fn default() -> Self {
        Self {
            at_least: 1_000,
            times_usual: 3,
            per_network: 200,
            trusted_proxies: Vec::new(),
            known: 1 << 20,
            refresh: Period(Duration::from_secs(600)),
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            // A hundred a second: thousands of times what a device makes, little enough that no one
            // of them fills the log; and any spool at once.
            installation: RateConfig {
                per_minute: 6_000,
                burst: 50_000,
            },
            // As large as the app: only its operator knows.
            key: RateConfig::default(),
            // Of ten million devices that ask once in their life, less than one does in a second.
            key_deletions: RateConfig {
                per_minute: 300,
                burst: 300,
            },
            // Thousands of phones share a carrier's address, and some of them ask.
            network_deletions: RateConfig {
                per_minute: 30,
                burst: 100,
            },
        }
    }
}

impl Default for RateConfig {
    fn default() -> Self {
        Self {
            per_minute: 0,
            burst: 10_000,
        }
    }
}
