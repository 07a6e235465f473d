//! Limits on what one sender may cause: reports and deletions, names, and new installations.

use std::time::Duration;

use epwatch_server::Period;
use serde::{Deserialize, Serialize};

use super::address_block::AddressBlock;

/// Rates of one sender, in the long run and a minute; 0 is no limit. What is beyond is refused as a quota, to come
/// again later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Reports of one installation.
    pub reports_per_installation: u32,
    /// Reports of all holders of one app key.
    pub reports_per_key: u32,
    /// Deletions by all holders of one app key: each is kept for ever, and an app key is public.
    pub deletions_per_key: u32,
    /// Deletions from one network (IPv4 /24, IPv6 /48), where it is known.
    pub deletions_per_network: u32,
    /// Numbers at once after a pause.
    #[serde(skip)]
    pub bursts: BurstsConfig,
}

/// Reports, or deletions, that each limit of [`LimitsConfig`] admits at once after a pause.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as the limits are")]
pub struct BurstsConfig {
    pub reports_per_installation: u32,
    pub reports_per_key: u32,
    pub deletions_per_key: u32,
    pub deletions_per_network: u32,
}

/// Distinct names an app may have in a day; names beyond become `__other__` in rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NamesConfig {
    /// Models; 0 is no limit of any names. Versions of all of them may be 5 times as many, chipsets 3 times, and
    /// input-shape keys 10 times.
    pub models: usize,
}

impl NamesConfig {
    /// Models, versions, chipsets and input-shape keys.
    pub(crate) fn limits(&self) -> [usize; 4] {
        [1, 5, 3, 10].map(|times| self.models.saturating_mul(times))
    }
}

/// New installations that an app may have in a UTC day; reports of the others are stored as
/// unproven, and do not vote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NewInstallationsConfig {
    /// However few are usual, so many may come; 0 is no limit for an app.
    pub at_least: u64,
    /// Of these from one network (IPv4 /24, IPv6 /48), and as much more of it as the app's room is
    /// above `at_least`; 0 is no limit for a network.
    pub per_network: u64,
    /// Proxies whose `X-Forwarded-For` is believed. Without any, the address that connects counts.
    pub trusted_proxies: Vec<AddressBlock>,
    /// This many times the usual number may come: the median of the last 14 whole days.
    #[serde(skip)]
    pub times_usual: u32,
    /// Installations that are remembered; each takes 16 bytes.
    #[serde(skip)]
    pub known: usize,
    /// Pause between reads of those that other collectors let in.
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
        // Several times what large apps have: a limit on what is made up, not on what is used.
        Self { models: 100 }
    }
}

impl Default for NewInstallationsConfig {
    fn default() -> Self {
        Self {
            at_least: 1_000,
            per_network: 200,
            trusted_proxies: Vec::new(),
            times_usual: 3,
            known: 1 << 20,
            refresh: Period(Duration::from_secs(600)),
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            // A hundred a second: thousands of times what a device makes, little enough that no one
            // of them fills the WAL.
            reports_per_installation: 6_000,
            // As large as the app: only its operator knows.
            reports_per_key: 0,
            // Of ten million devices that ask once in their life, less than one does in a second.
            deletions_per_key: 300,
            // Thousands of phones share a carrier's address, and some of them ask.
            deletions_per_network: 30,
            bursts: BurstsConfig {
                // Any spool at once.
                reports_per_installation: 50_000,
                reports_per_key: 10_000,
                deletions_per_key: 300,
                deletions_per_network: 100,
            },
        }
    }
}
