//! Limits on one sender: reports, deletions, names and new installations.

use std::time::Duration;

use epwatch_server::{AddressBlock, Period, new_installation_quota::QuotaLimits};
use serde::{Deserialize, Serialize};

/// Long-run rates of one sender, each a minute; 0 turns the limit off. Reports above a rate are refused as over quota,
/// with a delay until the next try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Reports of one installation.
    #[serde(skip)]
    pub reports_per_installation: u32,
    /// Reports of all holders of one app key.
    pub reports_per_key: u32,
    /// Deletions by all holders of one app key. They are limited because each is kept for ever and an app key is
    /// public.
    #[serde(skip)]
    pub deletions_per_key: u32,
    /// Deletions from one network (IPv4 /24, IPv6 /48), where it is known.
    #[serde(skip)]
    pub deletions_per_network: u32,
    /// Manifests by all holders of one key of kind `pipeline`; each has up to 4 MiB.
    #[serde(skip)]
    pub manifests_per_key: u32,
    /// Certified placements by all holders of one key of kind `pipeline`.
    #[serde(skip)]
    pub placements_per_key: u32,
    /// How many reports or deletions may come at once after a pause.
    #[serde(skip)]
    pub bursts: BurstsConfig,
}

/// The burst of each limit of [`LimitsConfig`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "named like the limits")]
pub struct BurstsConfig {
    pub reports_per_installation: u32,
    pub reports_per_key: u32,
    pub deletions_per_key: u32,
    pub deletions_per_network: u32,
    pub manifests_per_key: u32,
    pub placements_per_key: u32,
}

/// Distinct names that an app may have in 14 days; names above the limit become `__other__` in rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NamesConfig {
    /// The limit of models; 0 turns the limits of all names off. The limit of versions is 5 times this number, of
    /// chipsets 3 times, and of input-shape keys 10 times.
    pub models: usize,
}

impl NamesConfig {
    /// Models, versions, chipsets and input-shape keys.
    pub(crate) fn limits(&self) -> [usize; 4] {
        [1, 5, 3, 10].map(|times| self.models.saturating_mul(times))
    }
}

/// New installations of an app that may vote in 24 hours. Reports of further ones are stored as unproven.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NewInstallationsConfig {
    /// The least limit of an app; 0 turns the limit off.
    pub at_least: u64,
    /// The limit of one network (IPv4 /24, IPv6 /48), which grows with the app's limit above `at_least`; 0 turns it
    /// off.
    pub per_network: u64,
    /// Proxies whose `X-Forwarded-For` is trusted; for other peers their own address counts. `None` leaves it open:
    /// then a collector does not start again once its uploads turned out to come from one private address only.
    pub trusted_proxies: Option<Vec<AddressBlock>>,
    /// Known installations in memory; each takes 16 bytes.
    #[serde(skip)]
    pub known: usize,
    /// Pause between loads of installations that other collectors admitted.
    #[serde(skip)]
    pub refresh: Period,
}

impl NewInstallationsConfig {
    /// False if every new installation is proven.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.at_least > 0 || self.per_network > 0
    }
}

impl Default for NamesConfig {
    fn default() -> Self {
        // Several times the number of models that large apps have, so it limits made-up names and not real ones.
        Self { models: 100 }
    }
}

impl Default for NewInstallationsConfig {
    fn default() -> Self {
        let QuotaLimits {
            at_least,
            per_network,
        } = QuotaLimits::default();
        Self {
            at_least,
            per_network,
            trusted_proxies: None,
            known: 1 << 20,
            refresh: Period(Duration::from_secs(600)),
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            // A hundred a second: thousands of times a device's rate, and too little to fill the WAL.
            reports_per_installation: 6_000,
            // Off, because the right limit depends on the app's number of devices.
            reports_per_key: 0,
            // Ten million devices that ask once in their life make less than one deletion a second.
            deletions_per_key: 300,
            // Thousands of phones share a carrier's address.
            deletions_per_network: 30,
            manifests_per_key: 6,
            placements_per_key: 60,
            bursts: BurstsConfig {
                // More than any spool holds.
                reports_per_installation: 50_000,
                reports_per_key: 10_000,
                deletions_per_key: 300,
                deletions_per_network: 100,
                // Enough for all models of a large release, for all chipsets.
                manifests_per_key: 500,
                placements_per_key: 5_000,
            },
        }
    }
}
