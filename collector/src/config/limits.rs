//! How often devices may send, and how many names they may use.

use serde::{Deserialize, Serialize};

/// Reports that a sender may hand over; what is beyond is refused as a quota, to come again later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Of one installation.
    pub installation: RateConfig,
    /// Of all who hold one app key.
    pub key: RateConfig,
}

/// A token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateConfig {
    /// Reports a minute in the long run; 0 is no limit.
    pub per_minute: u32,
    /// Reports at once after a pause.
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
