//! What came of a fleet, in a form that is kept and added.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Figures of some families of one story.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) story: String,
    /// Which families of the story, as `from..to`.
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) reports: u64,
    pub(crate) seconds_telling: f64,
    pub(crate) seconds_judging: f64,
    /// Cohorts without a fault, by what else is the matter.
    pub(crate) healthy: BTreeMap<String, Healthy>,
    pub(crate) faults: Vec<FaultOutcome>,
    /// Truth, verdict: cohort windows from the change on.
    pub(crate) verdicts: BTreeMap<String, BTreeMap<String, u64>>,
    /// Truth, number of the rule: cohort windows asked, fired. The last rule is ours.
    pub(crate) rules: BTreeMap<String, BTreeMap<usize, (u64, u64)>>,
}

/// Cohort windows without a fault.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Healthy {
    /// All, and those from the change on.
    pub(crate) windows: u64,
    pub(crate) windows_after: u64,
    /// Incidents of severity page that fired, counted for every cohort inside.
    pub(crate) pages: u64,
    /// The same for tickets.
    pub(crate) tickets: u64,
}

impl Healthy {
    pub(crate) fn add(&mut self, other: &Healthy) {
        self.windows += other.windows;
        self.windows_after += other.windows_after;
        self.pages += other.pages;
        self.tickets += other.tickets;
    }
}

/// A cohort at fault.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct FaultOutcome {
    pub(crate) seed: u64,
    pub(crate) kind: String,
    pub(crate) factor: f64,
    pub(crate) moved: f64,
    /// Shares of the devices and of their runs or sessions.
    pub(crate) devices_share: f64,
    pub(crate) runs_share: f64,
    pub(crate) devices: u64,
    pub(crate) runs: f64,
    pub(crate) view: String,
    pub(crate) shape_known: bool,
    pub(crate) is_page_worthy: bool,
    /// Window in which the page fired, 1 for the first.
    pub(crate) paged_in: Option<u64>,
    /// Whether the verdict of the first window is a page, sure or not.
    pub(crate) found_first: bool,
    pub(crate) class: String,
    pub(crate) ticketed: bool,
}

impl FaultOutcome {
    /// Whether a page names what is the matter, as far as placements show it.
    pub(crate) fn is_right(&self) -> bool {
        let blind = matches!(self.view.as_str(), "Missing" | "Lying");
        let class = self.class.as_str();
        match self.kind.as_str() {
            "intermittent runs" => class == "intermittent_fallback",
            "intermittent sessions" if blind => {
                matches!(class, "intermittent_fallback" | "slow_without_placement")
            }
            // Their placement shows, so it is named by the share of the devices hit in the window.
            "intermittent sessions" => class.ends_with("_fallback"),
            _ if blind => class == "slow_without_placement",
            "some devices" if self.devices_share < 0.7 => class == "some_devices_fallback",
            // About the share from which it is most devices.
            "some devices" if self.devices_share < 0.9 => class.ends_with("_fallback"),
            _ if self.moved > 0.96 => class == "total_fallback",
            _ if self.moved > 0.93 => matches!(class, "total_fallback" | "partial_fallback"),
            _ => class == "partial_fallback",
        }
    }
}
