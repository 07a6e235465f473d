//! Why a verdict is what it is, one sentence each, with its numbers and their units.

mod from_signals;
mod numbers;
mod text;

use serde::{Deserialize, Serialize};

use crate::baseline::Origin;
use crate::placement::Unit;
use crate::signals::SpeedReference;

pub(crate) use numbers::{chance, counted, latency, percent};

/// Whether over a tenth of the installations are new: a fleet that gains so many in a window is rare.
pub(crate) fn many_are_new(proven: u64, devices: u64) -> bool {
    10 * proven < 9 * devices
}

/// One reason of a verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// EP: work moved to the CPU.
    Placement {
        /// Devices where it did.
        hits: u64,
        devices: u64,
        /// Share of the work on the NPU there, in [0, 1].
        npu_share: Option<f64>,
        /// The same in the reference.
        reference_npu_share: Option<f64>,
        /// What was counted.
        unit: Unit,
        /// What it was compared with.
        origin: Origin,
        /// Chance of so many in a healthy cohort.
        p: f64,
    },
    /// EJ: and those devices are slower.
    Slower {
        slower: u64,
        /// Devices with a worse placement.
        hits: u64,
        /// Of these, devices with enough runs to compare.
        compared: u64,
        /// Their median p50, in microseconds.
        p50_us: f64,
        /// That of what they were compared with.
        reference_p50_us: f64,
        /// What that is.
        reference: SpeedReference,
    },
    /// EP without EJ.
    NotSlower {
        slower: u64,
        /// Devices with a worse placement and enough runs to compare.
        compared: u64,
    },
    /// B: devices slower than their earlier selves.
    Shift {
        /// Devices beyond the ratio.
        hits: u64,
        /// Devices that know their earlier selves.
        devices: u64,
        /// The ratio of p10.
        beyond: f64,
        /// Chance of so many in a healthy cohort.
        p: f64,
    },
    /// A: the median device is slower than its earlier self.
    MedianSlower {
        /// Median ratio of p10.
        ratio: f64,
        /// Its lower bound.
        at_least: f64,
        /// Devices that know their earlier selves.
        devices: u64,
    },
    /// C or M: devices slow in some of their runs.
    Intermittent {
        hits: u64,
        /// Devices that know their earlier selves.
        devices: u64,
        /// Median over the devices hit of the share of runs beyond twice their earlier p95.
        slow_share: Option<f64>,
        /// Whether their input shape is known.
        shape_is_known: bool,
        /// Chance of so many in a healthy cohort.
        p: f64,
    },
    /// The whole cohort moved, by less than 1.6 x.
    CohortMoved {
        /// Median ratio of p10.
        ratio: f64,
        /// Devices that know their earlier selves.
        devices: u64,
    },
    /// A control did or did not slow down as well.
    PreviousVersionControl {
        /// Share of its devices beyond the same ratio, in [0, 1].
        share: f64,
        /// Whether that is as bad.
        slowed: bool,
    },
    /// Other models on the devices hit did or did not slow down.
    PeerControl {
        /// Share of the devices hit where they did, in [0, 1].
        share: f64,
        /// Whether that is most of them.
        slowed: bool,
    },
    /// The same version on other chipsets shows the same: no chipset's fault alone.
    Everywhere {
        /// Chipsets that were asked.
        chipsets: u64,
        /// Share of their devices hit in the same way, in [0, 1].
        share: f64,
        /// Their median ratio of p10, where whole cohorts moved.
        ratio: Option<f64>,
    },
    /// Devices with one firmware are hit far more often than others of the chipset.
    Firmware {
        firmware: String,
        /// Its devices hit.
        hits: u64,
        devices: u64,
        /// Devices of other firmwares that are hit.
        other_hits: u64,
        /// Devices of other firmwares.
        other_devices: u64,
    },
    /// The previous version moved as well.
    PreviousMoved {
        /// Its median ratio of p10.
        ratio: f64,
    },
    /// The devices hit have another runtime than the reference: it may only count differently.
    NewRuntime {
        /// Theirs, as ORT and EP version.
        runtimes: Vec<String>,
    },
    /// Work moved to the CPU on devices that all have another runtime than the reference.
    OnRuntime {
        /// ORT and EP versions.
        runtimes: Vec<String>,
    },
    /// The back end could not be set up.
    Backend {
        /// The contract's reason code.
        code: String,
        /// Devices hit that gave it.
        devices: u64,
    },
    /// S: the NPU does not start.
    NpuStart {
        /// Devices where it does not.
        hits: u64,
        devices: u64,
        /// Of those hit, devices where a session could not be made at all.
        failed: u64,
        /// Reason codes with their devices, commonest first.
        codes: Vec<(String, u64)>,
        /// Whether nothing shows that it ever starts on this chipset.
        is_unheard_of: bool,
        /// Chance of so many in a healthy cohort.
        p: f64,
    },
    /// O: outputs are off by more than is accepted.
    WrongOutputs {
        /// Devices where they are.
        hits: u64,
        devices: u64,
        /// Median of the largest difference between NPU and CPU.
        max_abs: f64,
        /// The accepted one.
        tolerance: f64,
        /// Median cosine of the two outputs, -1 to 1.
        cosine: Option<f64>,
        /// Share of the devices hit with the same largest element, in [0, 1].
        top1_share: Option<f64>,
        /// Chance of so many in a healthy cohort.
        p: f64,
    },
    /// OH: outputs differ between devices.
    DifferentOutputs {
        /// Devices whose output is not the commonest.
        hits: u64,
        devices: u64,
        outputs: u64,
        /// The firmware that explains it.
        firmware: Option<String>,
        /// Chance of so many in a healthy cohort.
        p: f64,
    },
    /// CV: runs vary more than they did.
    Varies {
        /// Devices where they do.
        hits: u64,
        /// Devices that know their earlier selves.
        devices: u64,
        /// Median coefficient of variation of the devices hit.
        cv: Option<f64>,
        /// What they had before.
        earlier_cv: Option<f64>,
        /// Chance of so many in a healthy cohort.
        p: f64,
    },
    /// The previous version varies more as well.
    PreviousVaries {
        /// Share of its devices, in [0, 1].
        share: f64,
    },
    /// A CV rule of the operator's fired.
    CvRule {
        name: String,
        /// Coefficient of variation of all runs.
        cv: f64,
        /// The limit, if the rule has one.
        limit: Option<f64>,
        /// That of earlier windows, if the rule compares with it.
        baseline: Option<f64>,
    },
    /// Far fewer devices reported than usual.
    FewReporting {
        /// Devices that did, on this chipset.
        devices: u64,
        /// Median of earlier windows.
        usual: u64,
        /// How many windows that are.
        windows: u64,
    },
    /// Far more devices reported than usual, and no more than those are hit.
    Crowd {
        /// Devices that did, on this chipset.
        devices: u64,
        /// Median of earlier windows.
        usual: u64,
        /// How many windows that are.
        windows: u64,
    },
    /// More new installations than the app usually has: they do not vote.
    Flood {
        /// Installations without a vote.
        devices: u64,
    },
    /// A directive took devices off the NPU: they do not vote.
    Directed { devices: u64 },
    /// What was found does not hold on the installations that were known before.
    NewcomersOnly {
        /// Installations known before the window.
        proven: u64,
        /// Devices that vote.
        devices: u64,
        /// Whether more are new than usual.
        flood: bool,
    },
    /// Too few are hit to wake anyone.
    FewHit {
        /// Share of the devices hit, in [0, 1].
        share: f64,
    },
    /// Too few devices in the window.
    TooFewDevices {
        devices: u64,
        /// So many show a slow-down by 2 of all of them.
        needed: u64,
    },
    /// Nothing to compare with.
    NoReference {
        /// The version before, if there was one.
        previous_version: Option<String>,
        /// Devices whose placement had a reference.
        comparable_placements: u64,
        /// Devices that knew their earlier selves.
        comparable_pasts: u64,
        /// So many are needed of either.
        needed: u64,
    },
    /// The NPU was asked for and has next to nothing; nothing says whether it should have more.
    HardlyOnNpu {
        /// Devices where the NPU has under 5 % of the work.
        off_npu: u64,
        /// Devices whose placement could be read.
        devices: u64,
    },
    /// Nothing changed since earlier windows of the version; nothing says whether they were right.
    AsBefore {
        /// Devices that were compared with them.
        devices: u64,
    },
}
