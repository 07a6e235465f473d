//! How often devices may send.

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
