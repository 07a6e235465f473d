//! The figures of a fleet, which are stored and added.

use std::collections::BTreeMap;

use epwatch_model::Severity;
use serde::{Deserialize, Serialize};

/// Figures of some families of one scenario.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub scenario: String,
    /// The families of the scenario, as `from..to`.
    pub from: u64,
    pub to: u64,
    pub reports: u64,
    /// Seconds that drawing the reports took.
    pub seconds_drawing: f64,
    /// Seconds that the detector took.
    pub seconds_replaying: f64,
    /// Cohorts without a fault, by truth.
    pub healthy: BTreeMap<String, Healthy>,
    /// Cohorts with a fault.
    pub faults: Vec<FaultOutcome>,
    /// Faults that were repaired.
    #[serde(default)]
    pub repairs: Vec<Repair>,
    /// Fleets of a story of the field.
    #[serde(default)]
    pub stories: Vec<StoryOutcome>,
    /// Fleets with runs that vary more.
    #[serde(default)]
    pub jitters: Vec<JitterOutcome>,
    /// Cohort windows from the change on, by truth and verdict.
    pub verdicts: BTreeMap<String, BTreeMap<String, u64>>,
    /// Numbers of cohort windows in which a rule could answer and in which it fired, by truth and the rule's number.
    /// The last rule is the detector's own.
    pub rules: BTreeMap<String, BTreeMap<usize, (u64, u64)>>,
}

/// Cohort windows without a fault.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Healthy {
    pub windows: u64,
    /// Windows from the change on.
    pub windows_after: u64,
    /// Incidents of severity page that fired, counted for every cohort inside.
    pub pages: u64,
    /// Incidents of severity ticket, counted in the same way.
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

/// A fleet of a story of the field.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StoryOutcome {
    pub seed: u64,
    /// The error in the detector's account; `None` if the story was told correctly.
    pub wrong: Option<String>,
}

/// A fleet with runs that vary more.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JitterOutcome {
    pub seed: u64,
    /// Share of the devices.
    pub share: f64,
    /// Multiple of their earlier p95.
    pub strength: f64,
    /// Highest severity that was sent.
    pub notified: Severity,
}

/// A fault that was repaired.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Repair {
    pub seed: u64,
    pub kind: String,
    /// Runs of the median device in a day.
    pub runs: f64,
    /// Whether anybody was notified of it.
    pub fired: bool,
    /// Hours from the repair to the end of the incident; `None` if it was open at the last window.
    pub ended_after_h: Option<i64>,
    /// Whether it fired again after its end.
    pub came_again: bool,
}

/// A cohort at fault.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FaultOutcome {
    pub seed: u64,
    pub kind: String,
    /// Slow-down of the runs hit.
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
    /// `PlacementView` of the family.
    pub view: String,
    pub shape_known: bool,
    /// Circumstance of the whole family; empty without one.
    #[serde(default)]
    pub circumstance: String,
    pub is_page_worthy: bool,
    /// Window in which the page fired, 1 for the first.
    pub paged_in: Option<u64>,
    /// Whether the verdict of the first window is a page, sure or not.
    pub found_first: bool,
    /// Class of the page's verdict.
    pub class: String,
    pub ticketed: bool,
}

impl FaultOutcome {
    /// Whether the page's verdict names the fault, as far as placements show it.
    #[must_use]
    pub fn is_right(&self) -> bool {
        let blind = matches!(self.view.as_str(), "Missing" | "Lying");
        let class = self.class.as_str();
        match self.kind.as_str() {
            "intermittent runs" => class == "intermittent_fallback",
            "intermittent sessions" if blind => {
                matches!(class, "intermittent_fallback" | "slow_without_placement")
            }
            // The placement of hit sessions is visible, so the verdict depends on the share of devices hit in the
            // window.
            "intermittent sessions" => class.ends_with("_fallback"),
            _ if blind => class == "slow_without_placement",
            "some devices" if self.devices_share < 0.7 => class == "some_devices_fallback",
            // Near this share the verdict may say "some" or "most" devices.
            "some devices" if self.devices_share < 0.9 => class.ends_with("_fallback"),
            _ if self.moved > 0.96 => class == "total_fallback",
            _ if self.moved > 0.93 => matches!(class, "total_fallback" | "partial_fallback"),
            _ => class == "partial_fallback",
        }
    }
}
