//! The share of a cohort's runs beyond the deadline that the config gives their model.

use serde::{Deserialize, Serialize};

/// Runs of a cohort window that take longer than the deadline. Each run counts, so a device that runs often has more
/// weight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LateRuns {
    /// The deadline, in milliseconds as in the config.
    pub deadline_ms: f64,
    /// Share of the clean runs, in [0, 1].
    pub share: f64,
    /// The version before, if 5 devices or more ran it on the chipset in the same window.
    pub previous_version: Option<String>,
    /// Its share.
    pub previous_share: Option<f64>,
    /// The share of this version on the other chipsets, if 5 devices or more ran it there.
    pub other_chipsets: Option<f64>,
}
