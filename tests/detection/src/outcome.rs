//! What came of a fleet, in a form that is kept and added.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Figures of some families of one story.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Of which story.
    pub story: String,
    /// Which families of the story, as `from..to`.
    pub from: u64,
    /// See `from`.
    pub to: u64,
    pub reports: u64,
    /// Seconds that it took to make the reports.
    pub seconds_telling: f64,
    /// And to judge them.
    pub seconds_judging: f64,
    /// Cohorts without a fault, by what else is the matter.
    pub healthy: BTreeMap<String, Healthy>,
    /// Cohorts with one.
    pub faults: Vec<FaultOutcome>,
    /// Truth, verdict: cohort windows from the change on.
    pub verdicts: BTreeMap<String, BTreeMap<String, u64>>,
    /// Truth, number of the rule: cohort windows asked, fired. The last rule is ours.
    pub rules: BTreeMap<String, BTreeMap<usize, (u64, u64)>>,
}

/// Cohort windows without a fault.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Healthy {
    /// All, and those from the change on.
    pub windows: u64,
    /// From the change on.
    pub windows_after: u64,
    /// Incidents of severity page that fired, counted for every cohort inside.
    pub pages: u64,
    /// The same for tickets.
    pub tickets: u64,
}

impl Healthy {
    /// Adds the counts of other windows.
    pub fn add(&mut self, other: &Healthy) {
        self.windows += other.windows;
        self.windows_after += other.windows_after;
        self.pages += other.pages;
        self.tickets += other.tickets;
    }
}

/// A cohort at fault.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FaultOutcome {
    /// Of its family.
    pub seed: u64,
    /// As the tables name it.
    pub kind: String,
    /// How many times slower.
    pub factor: f64,
    /// Share of the MACs that moved to the CPU.
    pub moved: f64,
    /// Share of the devices.
    pub devices_share: f64,
    /// Share of their runs or sessions.
    pub runs_share: f64,
    /// Devices of the cohort.
    pub devices: u64,
    /// Runs of the median device in a window.
    pub runs: f64,
    /// What placements show.
    pub view: String,
    /// Whether input shapes are.
    pub shape_known: bool,
    /// Worth a page.
    pub is_page_worthy: bool,
    /// Window in which the page fired, 1 for the first.
    pub paged_in: Option<u64>,
    /// Whether the verdict of the first window is a page, sure or not.
    pub found_first: bool,
    /// Verdict of the page.
    pub class: String,
    /// Whether a ticket came of it.
    pub ticketed: bool,
}

impl FaultOutcome {
    /// Whether a page names what is the matter, as far as placements show it.
    #[must_use]
    pub fn is_right(&self) -> bool {
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
