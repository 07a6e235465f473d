//! Stories of the field: events in apps over weeks, each with the words in which the detector must tell it. They are
//! made from the reports of a [`Family`], which are changed from a day on.

mod edits;
pub(crate) mod jitter;
mod nouns;
mod told;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use epwatch_detector::read::Source;
use epwatch_detector::read::recorded::{Intake, SenderDecision};
use epwatch_detector::replay::{Line, ReplayOptions, replay};
use epwatch_detector::{Deadline, DetectorConfig};
use epwatch_proto::device::vendor_fingerprint_hash;
use epwatch_proto::placement::QNN_EP;
use epwatch_proto::{InstallationId, Placement, ReasonCode};
use epwatch_server::Period;

use crate::evaluation::{DAY_MS, START_MS};
use crate::labelled::{
    Benign, Family, FamilyReport, FamilySpec, Fault, FaultKind, PlacementView, Truth,
};
use crate::outcome::{Outcome, StoryOutcome};

use edits::{
    alternate, compile, learnt_on, luck, place, recount, rename, slow_down, slow_shape,
    split_shapes, without_past,
};

/// The chipset on which something happens.
pub(crate) const CHIPSET: &str = "SM8650";

/// The model of the stories.
const MODEL: &str = "segmenter";

/// The firmware that a story introduces.
const FIRMWARE: &str = "f9";

/// The runtime of [`Story::NewRuntime`].
const NEW_RUNTIME: &str = "1.33.0";

/// An input shape of [`Story::LargeInputs`].
const LARGE_SHAPE: &str = "x:1x3x640x640";

/// Device models of the new make.
const NEW_MAKE: [&str; 2] = ["Acme P00N", "Acme P01N"];

/// The day on which 2.0.0 reaches all devices, and the day of the story's other event.
const NEW_FROM: i64 = 7;
const THEN: i64 = 10;

/// A story.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Story {
    /// 2.0.0 is slow, and 2.0.1, three days later, is as slow.
    FixAsBad,
    /// 2.0.0 is slow, and 2.0.1, three days later, is as fast as 1.0.0.
    FixThatMends,
    /// A firmware spreads, and slows down every model of its devices below 3x.
    FirmwareSlowsAllModels,
    /// 2.0.0 is faster than 1.0.0, and a firmware takes that away again.
    GainedAndLost,
    /// The app's first version: some devices are slow in some of their runs from a day on.
    FirstVersionIntermittent,
    /// Devices of a new make, which never had the NPU, join an app's first version.
    NewMake,
    /// All models of all devices are slower from a day on, on all firmwares.
    LoadThatLasts,
    /// 2.0.0 comes to all devices of an app with one model and one chipset, on a day on which they are busy.
    BusyOnTheFirstDay,
    /// A fleet of five devices falls back, and the placements of one or two cannot be read.
    FiveDevices,
    /// A new runtime counts MACs differently.
    RecountedMacs,
    /// Devices of one chipset name it in three ways, and all of them fall back.
    ManyNames,
    /// 2.0.0 comes with a new runtime, and all of its devices are a little slower, on all chipsets.
    NewRuntime,
    /// 2.0.0 is slow with one of two input shapes.
    LargeInputs,
    /// Some devices are a little slower, and others far slower in some of their runs.
    SlowDevicesAndRuns,
    /// All devices get new installation ids with 2.0.0.
    Reinstall,
    /// A model has a deadline, and some runs of 2.0.0 take longer.
    LateFrames,
    /// 2.0.0 ships a compiled model that was made for another chipset than some devices have. Nobody is slower.
    CompiledForAnother,
    /// 2.0.0 is slow, and three days later all devices are back on 1.0.0.
    RollBack,
    /// Some devices have slow and fast runs in turn, with their old median.
    Alternation,
    /// 2.0.0 is slow on some devices, and three days later all devices are back on 1.0.0.
    RollBackOfSome,
    /// 2.0.0 is slow on some devices. Three days later these still have it, and all others are back on 1.0.0.
    RollBackWithoutTheHit,
    /// 2.0.0 is slow on some devices, and 2.0.1, three days later, is slow on the same.
    FixForNone,
    /// 2.0.0 is slow on some devices, and three days later all devices are back on 1.0.0, which is now slow on the same.
    RollBackForNone,
}

impl Story {
    /// All of them.
    pub const ALL: [Story; 23] = [
        Story::FixAsBad,
        Story::FixThatMends,
        Story::FirmwareSlowsAllModels,
        Story::GainedAndLost,
        Story::FirstVersionIntermittent,
        Story::NewMake,
        Story::LoadThatLasts,
        Story::BusyOnTheFirstDay,
        Story::FiveDevices,
        Story::RecountedMacs,
        Story::ManyNames,
        Story::NewRuntime,
        Story::LargeInputs,
        Story::SlowDevicesAndRuns,
        Story::Reinstall,
        Story::LateFrames,
        Story::CompiledForAnother,
        Story::RollBack,
        Story::Alternation,
        Story::RollBackOfSome,
        Story::RollBackWithoutTheHit,
        Story::FixForNone,
        Story::RollBackForNone,
    ];

    /// Returns the events of the story, and the notifications that must follow.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Story::FixAsBad => {
                "2.0.0 is slow and 2.0.1 is as slow: 2.0.1 pages or the incident stays open, and it is one page"
            }
            Story::FixThatMends => {
                "2.0.0 is slow and 2.0.1 is as fast as 1.0.0: the incident ends within a week, and 2.0.1 has no \
                 finding"
            }
            Story::FirmwareSlowsAllModels => {
                "a firmware spreads and slows all models down, 2x to 2.8x: a page that names it"
            }
            Story::GainedAndLost => {
                "2.0.0 is faster, and a firmware takes that away: a page that says that the version is the same"
            }
            Story::FirstVersionIntermittent => {
                "40 % of the runs of 30 % of the devices of a first version: a page or a ticket"
            }
            Story::NewMake => {
                "25 % of the devices are of a new make that never had the NPU: a ticket that names it"
            }
            Story::LoadThatLasts => {
                "all models of all firmwares are slower, 1.7x to 2.6x, and stay so: a ticket"
            }
            Story::BusyOnTheFirstDay => {
                "one model on one chipset, 2.0.0 to all at once on a day of load, 1.6x to 1.95x: no page"
            }
            Story::FiveDevices => {
                "five devices fall back, and one or two placements cannot be read: a page"
            }
            Story::RecountedMacs => {
                "a new runtime attributes 5 % to 12 % of the MACs to the CPU, as fast as before: neither page nor ticket"
            }
            Story::ManyNames => {
                "devices of one chipset name it in three ways, and all are slower: a page"
            }
            Story::NewRuntime => {
                "2.0.0 has a new runtime and is slower everywhere, 1.25x to 1.45x: a ticket that names the runtime"
            }
            Story::LargeInputs => {
                "2.0.0 is slow with one of two input shapes: a page that names the shape"
            }
            Story::SlowDevicesAndRuns => {
                "30 % of the devices are 1.45x slower, and 30 % are slow in some of their runs: a page for these"
            }
            Story::Reinstall => {
                "all devices have new installation ids with 2.0.0: a ticket that says so, and no page"
            }
            Story::LateFrames => {
                "15 % to 45 % of the runs of 2.0.0 take longer than the model's deadline: a page that says how many"
            }
            Story::CompiledForAnother => {
                "the compiled model of 2.0.0 is not for 40 % of the devices, as fast as before: a ticket that says so, and no page"
            }
            Story::RollBack => {
                "2.0.0 is slow and all devices go back to 1.0.0: the incident ends within a week and says so, and 1.0.0 has no \
                 finding"
            }
            Story::Alternation => {
                "30 % of the devices have half of their runs faster and half slower, 1.15x to 1.35x, with the old median: no page"
            }
            Story::RollBackOfSome => {
                "2.0.0 is slow on 30 % of the devices and all go back to 1.0.0: the incident ends within a week and says so"
            }
            Story::RollBackWithoutTheHit => {
                "2.0.0 is slow on 30 % of the devices and all others go back to 1.0.0: the incident stays open, and 1.0.0 has no \
                 finding"
            }
            Story::RollBackForNone => {
                "2.0.0 is slow on 30 % of the devices and all go back to 1.0.0, as slow on them: the incident stays open as one page"
            }
            Story::FixForNone => {
                "2.0.0 is slow on 30 % of the devices and 2.0.1 is as slow on them: the incident stays open, and it is one page"
            }
        }
    }

    /// Returns the slow-down, which depends on the seed.
    fn factor(self, seed: u64) -> f64 {
        let (low, high) = match self {
            Story::FixAsBad
            | Story::FixThatMends
            | Story::RollBack
            | Story::RollBackOfSome
            | Story::RollBackWithoutTheHit
            | Story::FixForNone
            | Story::RollBackForNone => (2.2, 4.0),
            Story::FirmwareSlowsAllModels => (2.0, 2.8),
            Story::GainedAndLost => (2.5, 4.0),
            Story::FirstVersionIntermittent => (2.6, 4.0),
            Story::NewMake => (4.0, 8.0),
            Story::LoadThatLasts => (1.7, 2.6),
            Story::BusyOnTheFirstDay => (1.6, 1.95),
            Story::FiveDevices => (2.4, 4.0),
            // For this story the number is a share of the MACs.
            Story::RecountedMacs => (0.05, 0.12),
            Story::ManyNames => (2.1, 2.4),
            Story::NewRuntime => (1.25, 1.45),
            Story::LargeInputs => (2.4, 4.0),
            Story::SlowDevicesAndRuns => (3.0, 4.0),
            Story::Reinstall | Story::CompiledForAnother => (1.0, 1.0),
            Story::LateFrames => (3.0, 4.0),
            Story::Alternation => (1.15, 1.35),
        };
        low + (high - low) * fraction(seed)
    }

    /// Returns the model's deadline in the detector's config, in milliseconds, which depends on the seed.
    #[must_use]
    pub fn deadline_ms(self, seed: u64) -> Option<f64> {
        let healthy = self.spec(seed, Truth::Benign(Benign::Plain));
        let deadline_ms = (2.0 * healthy.base_us / 100.0).round() / 10.0;
        (self == Story::LateFrames).then_some(deadline_ms)
    }

    fn spec(self, seed: u64, truth: Truth) -> FamilySpec {
        let views = [
            PlacementView::Missing,
            PlacementView::Lying,
            PlacementView::Full,
            PlacementView::NodesOnly,
        ];
        let of_fix = views[(seed % 4) as usize];
        let (view, windows, peers) = match self {
            Story::FixAsBad
            | Story::FixThatMends
            | Story::RollBack
            | Story::RollBackOfSome
            | Story::RollBackWithoutTheHit
            | Story::FixForNone
            | Story::RollBackForNone => (of_fix, (7, 10), 0.0),
            Story::FirmwareSlowsAllModels => (PlacementView::Missing, (3, 14), 1.0),
            Story::GainedAndLost => (PlacementView::Full, (7, 11), 0.0),
            Story::FirstVersionIntermittent => (PlacementView::Full, (3, 13), 0.0),
            Story::NewMake => (PlacementView::Missing, (3, 13), 0.0),
            Story::LoadThatLasts => (PlacementView::Missing, (3, 14), 1.0),
            Story::BusyOnTheFirstDay | Story::ManyNames => (PlacementView::Missing, (7, 8), 0.0),
            Story::FiveDevices | Story::RecountedMacs | Story::CompiledForAnother => {
                (PlacementView::Full, (7, 8), 0.0)
            }
            Story::NewRuntime | Story::LargeInputs => (PlacementView::Missing, (7, 4), 0.0),
            Story::SlowDevicesAndRuns => (PlacementView::Lying, (2, 12), 0.0),
            Story::Reinstall => (PlacementView::Full, (10, 3), 0.0),
            Story::LateFrames => (PlacementView::Missing, (7, 3), 0.0),
            Story::Alternation => (PlacementView::Full, (7, 7), 0.0),
        };
        let is_alone = matches!(
            self,
            Story::BusyOnTheFirstDay
                | Story::FiveDevices
                | Story::ManyNames
                | Story::SlowDevicesAndRuns
        );
        let drawn = FamilySpec::drawn(seed, truth);
        let (devices, presence) = match self {
            Story::FiveDevices => (5, 1.0),
            _ => (60 + (seed % 90) as usize, drawn.presence),
        };
        FamilySpec {
            view,
            chipsets: if is_alone { 1 } else { 2 },
            devices,
            presence,
            windows,
            rollout: vec![1.0],
            rolls_out_twice: false,
            // With 15 runs a day, few devices have the 20 runs in a window from which slow runs are counted.
            runs: match self {
                Story::FirstVersionIntermittent
                | Story::FiveDevices
                | Story::LargeInputs
                | Story::LateFrames
                | Story::SlowDevicesAndRuns => 50.0,
                _ => [15.0, 50.0][(seed / 4 % 2) as usize],
            },
            shape_known: true,
            peers,
            without_baseline: 0.1,
            ..drawn
        }
    }

    /// Returns the reports of 1.0.0 on devices that came back to it. Their baselines are from 2.0.0, which was slower on
    /// each device by a factor.
    fn back(self, seed: u64, slower: impl Fn(&FamilyReport) -> f64) -> Vec<FamilyReport> {
        let never_left = FamilySpec {
            windows: (17, 0),
            ..self.spec(seed, Truth::Benign(Benign::Plain))
        };
        let mut back = drawn(never_left);
        back.retain(|report| day(report) >= THEN);
        for report in &mut back {
            let slower = slower(report);
            learnt_on(&mut report.report, "2.0.0", slower);
        }
        back
    }

    /// The reports of a fleet.
    #[must_use]
    pub fn reports(self, seed: u64) -> Vec<FamilyReport> {
        let factor = self.factor(seed);
        let fault = Truth::Fault(Fault {
            kind: FaultKind::Total,
            factor,
            moved: 0.3,
        });
        let healthy = || drawn(self.spec(seed, Truth::Benign(Benign::Plain)));
        match self {
            Story::FixAsBad => {
                let mut reports = drawn(self.spec(seed, fault));
                for report in reports.iter_mut().filter(|report| day(report) >= THEN) {
                    follow(report, factor);
                }
                reports
            }
            Story::FixThatMends => {
                let mut reports = drawn(self.spec(seed, fault));
                reports.retain(|report| day(report) < THEN);
                let mended = healthy().into_iter().filter(|report| day(report) >= THEN);
                reports.extend(mended.map(|mut report| {
                    follow(&mut report, factor);
                    report
                }));
                reports
            }
            Story::RollBack => {
                let mut reports = drawn(self.spec(seed, fault));
                reports.retain(|report| day(report) < THEN);
                reports.extend(self.back(seed, |report| match is_there(report) {
                    true => factor,
                    false => 1.0,
                }));
                reports
            }
            Story::RollBackOfSome
            | Story::RollBackWithoutTheHit
            | Story::FixForNone
            | Story::RollBackForNone => {
                let fallen = placement_of(&drawn(self.spec(seed, fault)));
                let slower = |report: &FamilyReport| match is_of_some(report) {
                    true => factor,
                    false => 1.0,
                };
                let stays = |report: &FamilyReport| match self {
                    Story::RollBackOfSome | Story::RollBackForNone => false,
                    Story::RollBackWithoutTheHit => is_of_some(report),
                    _ => true,
                };
                let mut reports = healthy();
                reports.retain(|report| day(report) < THEN || stays(report));
                for report in reports.iter_mut().filter(|report| day(report) >= NEW_FROM) {
                    if is_of_some(report) {
                        slow_down(&mut report.report, factor, 1.0);
                        place(&mut report.report, &fallen);
                    }
                    if self == Story::FixForNone && day(report) >= THEN {
                        rename(&mut report.report, "2.0.1");
                        let slower = slower(report);
                        learnt_on(&mut report.report, "2.0.0", slower);
                    }
                }
                let back = self.back(seed, slower).into_iter();
                let back = back.filter(|report| !stays(report));
                reports.extend(back.map(|mut report| {
                    if self == Story::RollBackForNone && is_of_some(&report) {
                        slow_down(&mut report.report, factor, 1.0);
                        place(&mut report.report, &fallen);
                    }
                    report
                }));
                reports
            }
            Story::FirmwareSlowsAllModels => {
                let mut reports = healthy();
                for report in &mut reports {
                    if has_firmware(report, 0.06) {
                        update(report);
                        slow_down(&mut report.report, factor, 1.0);
                    }
                }
                reports
            }
            Story::GainedAndLost => {
                let fallen = placement_of(&drawn(self.spec(seed, fault)));
                let mut reports = healthy();
                for report in reports.iter_mut().filter(|report| is_there(report)) {
                    let has_lost = has_firmware(report, 0.25);
                    if day(report) >= NEW_FROM {
                        learnt_on(&mut report.report, "1.0.0", factor);
                    } else {
                        learnt_on(&mut report.report, "0.9.0", factor);
                    }
                    if has_lost {
                        update(report);
                    }
                    if has_lost || day(report) < NEW_FROM {
                        slow_down(&mut report.report, factor, 1.0);
                        place(&mut report.report, &fallen);
                    }
                }
                reports
            }
            Story::FirstVersionIntermittent => {
                let mut reports = first_version(healthy());
                for report in &mut reports {
                    let is_hit = is_there(report) && luck(&report.report) < 0.3;
                    if is_hit && day(report) >= THEN {
                        slow_down(&mut report.report, factor, 0.4);
                    }
                }
                reports
            }
            Story::NewMake => {
                let mut reports = first_version(healthy());
                let is_of_it =
                    |report: &FamilyReport| is_there(report) && luck(&report.report) < 0.25;
                reports.retain(|report| !is_of_it(report) || day(report) >= THEN);
                for report in reports.iter_mut().filter(|report| is_of_it(report)) {
                    update(report);
                    let second = usize::from(luck(&report.report) < 0.08);
                    report.report.device.model = NEW_MAKE[second].into();
                    slow_down(&mut report.report, factor, 1.0);
                }
                reports
            }
            Story::LoadThatLasts => {
                let mut reports = healthy();
                let is_slow = |report: &FamilyReport| is_there(report) && day(report) >= THEN;
                for report in reports.iter_mut().filter(|report| is_slow(report)) {
                    slow_down(&mut report.report, factor, 1.0);
                }
                reports
            }
            Story::BusyOnTheFirstDay => {
                let mut reports = healthy();
                let is_busy =
                    |report: &FamilyReport| day(report) == NEW_FROM && luck(&report.report) < 0.8;
                for report in reports.iter_mut().filter(|report| is_busy(report)) {
                    slow_down(&mut report.report, factor, 1.0);
                }
                reports
            }
            Story::FiveDevices => {
                let mut reports = drawn(self.spec(seed, fault));
                let devices = reports.iter().map(|report| report.report.key.installation);
                let devices: BTreeSet<InstallationId> = devices.collect();
                let n_hidden = 1 + (seed % 2) as usize;
                let hidden: Vec<InstallationId> = devices.into_iter().take(n_hidden).collect();
                let requested = vec![QNN_EP.to_owned()];
                let unread = Placement::unavailable(requested, ReasonCode::Unknown);
                for report in &mut reports {
                    if hidden.contains(&report.report.key.installation) {
                        place(&mut report.report, &unread);
                    }
                }
                reports
            }
            Story::RecountedMacs => {
                let mut reports = healthy();
                for report in reports.iter_mut().filter(|report| day(report) >= NEW_FROM) {
                    recount(&mut report.report, factor);
                }
                reports
            }
            Story::ManyNames => {
                let mut reports = healthy();
                for report in &mut reports {
                    if day(report) >= NEW_FROM {
                        slow_down(&mut report.report, factor, 1.0);
                    }
                    let name = match luck(&report.report) {
                        ..0.35 => "Snapdragon 8 Gen 3",
                        0.35..0.6 => "unknown",
                        _ => continue,
                    };
                    report.report.device.chipset_raw = name.into();
                    report.report.device.board = String::new();
                }
                reports
            }
            Story::NewRuntime => {
                let mut reports = healthy();
                for report in reports.iter_mut().filter(|report| day(report) >= NEW_FROM) {
                    report.report.runtime.ort_version = NEW_RUNTIME.into();
                    slow_down(&mut report.report, factor, 1.0);
                }
                reports
            }
            Story::LargeInputs => {
                let mut reports = healthy();
                for report in &mut reports {
                    split_shapes(&mut report.report, ["x:1x3x224x224", LARGE_SHAPE], 0.35);
                    if is_there(report) && day(report) >= NEW_FROM {
                        slow_shape(&mut report.report, LARGE_SHAPE, factor);
                    }
                }
                reports
            }
            Story::SlowDevicesAndRuns => {
                let mut reports = healthy();
                for report in reports.iter_mut().filter(|report| day(report) >= THEN) {
                    match luck(&report.report) {
                        ..0.3 => slow_down(&mut report.report, 1.45, 1.0),
                        0.3..0.6 => slow_down(&mut report.report, factor, 0.4),
                        _ => {}
                    }
                }
                reports
            }
            Story::Reinstall => {
                let mut reports = healthy();
                for report in reports.iter_mut().filter(|report| day(report) >= THEN) {
                    let key = &mut report.report.key;
                    key.installation = InstallationId::from_secret(key.installation.as_bytes());
                    without_past(&mut report.report);
                }
                reports
            }
            Story::CompiledForAnother => {
                let mut reports = healthy();
                for report in &mut reports {
                    let is_hit =
                        day(report) >= NEW_FROM && is_there(report) && luck(&report.report) < 0.4;
                    compile(&mut report.report, is_hit);
                }
                reports
            }
            Story::Alternation => {
                let mut reports = healthy();
                for report in reports.iter_mut().filter(|report| day(report) >= THEN) {
                    if is_there(report) && luck(&report.report) < 0.3 {
                        alternate(&mut report.report, factor);
                    }
                }
                reports
            }
            Story::LateFrames => {
                let share = 0.15 + 0.3 * fraction(seed + 1);
                let mut reports = healthy();
                for report in reports.iter_mut().filter(|report| day(report) >= NEW_FROM) {
                    if is_there(report) {
                        slow_down(&mut report.report, factor, share);
                    }
                }
                reports
            }
        }
    }
}

/// Returns a number in [0, 1), which depends on the seed.
fn fraction(seed: u64) -> f64 {
    let of = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    of as f64 / f64::from(1_u32 << 24)
}

fn drawn(spec: FamilySpec) -> Vec<FamilyReport> {
    let family = Family::new(spec, START_MS);
    let windows = 0..family.n_windows();
    windows.flat_map(|window| family.window(window)).collect()
}

fn day(report: &FamilyReport) -> i64 {
    (report.received_ms - START_MS).div_euclid(DAY_MS)
}

fn is_there(report: &FamilyReport) -> bool {
    report.report.device.chipset_raw == CHIPSET
}

/// Whether 2.0.0 is slow on the device, in stories in which it is slow on some.
fn is_of_some(report: &FamilyReport) -> bool {
    is_there(report) && luck(&report.report) < 0.3
}

/// Whether the device has the firmware, which reaches this share of the devices each day.
fn has_firmware(report: &FamilyReport, a_day: f64) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "days")]
    let share = a_day * (day(report) - THEN) as f64;
    is_there(report) && luck(&report.report) < share
}

fn update(report: &mut FamilyReport) {
    report.report.device.vendor_fingerprint_hash = vendor_fingerprint_hash(FIRMWARE);
}

/// Turns the report into one of 2.0.1, on devices whose baselines are from 2.0.0.
fn follow(report: &mut FamilyReport, factor: f64) {
    let factor = if is_there(report) { factor } else { 1.0 };
    rename(&mut report.report, "2.0.1");
    learnt_on(&mut report.report, "2.0.0", factor);
}

/// Keeps only the last version, as the app's first one.
fn first_version(mut reports: Vec<FamilyReport>) -> Vec<FamilyReport> {
    reports.retain(|report| day(report) >= 3);
    for report in &mut reports {
        without_past(&mut report.report);
    }
    reports
}

/// Returns the placement that most devices of 2.0.0 on the chipset have.
fn placement_of(reports: &[FamilyReport]) -> Placement {
    let mut there = reports
        .iter()
        .filter(|report| is_there(report) && day(report) >= NEW_FROM);
    let session = there.find_map(|report| report.report.sessions.first());
    session.expect("devices report").placement.clone()
}

/// Replays the reports of a story, a window a day, with a deadline of its model.
///
/// # Errors
/// The reports could not be replayed.
pub async fn lines_of(
    reports: &[FamilyReport],
    deadline_ms: Option<f64>,
) -> anyhow::Result<Vec<Line>> {
    let deadline = deadline_ms.map(|deadline_ms| Deadline {
        app: "camera".into(),
        model: MODEL.into(),
        deadline_ms,
    });
    let hour = Duration::from_secs(3_600);
    let mut intake = Intake::new(hour);
    for report in reports {
        let (app, mark) = (("camera", "production"), SenderDecision::default());
        intake.add_marked(report.received_ms, app, &report.report, &report.sent, mark);
    }
    let (recording, _) = intake.finish()?;
    let options = ReplayOptions {
        config: DetectorConfig {
            step: Period(24 * hour),
            deadlines: deadline.into_iter().collect(),
            ..DetectorConfig::default()
        },
        from: Some(jiff::Timestamp::from_millisecond(START_MS)?),
        to: None,
        all: true,
        modes: false,
    };
    let mut lines = Vec::new();
    let mut keep = |line: Line| {
        lines.push(line);
        Ok(())
    };
    let source = Source::recorded(Arc::new(recording), 2_000_000);
    replay(source, &options, &mut keep).await?;
    Ok(lines)
}

/// Judges fleets, each by itself. `reports` makes the fleet of a seed, with the model's deadline. `wrong` returns an
/// error if the replay's lines do not tell the story.
pub(crate) fn evaluate(
    scenario: &str,
    seeds: impl Iterator<Item = u64>,
    runtime: &tokio::runtime::Runtime,
    reports: impl Fn(u64) -> (Vec<FamilyReport>, Option<f64>),
    wrong: impl Fn(&[Line]) -> Result<(), String>,
) -> anyhow::Result<Outcome> {
    let began = Instant::now();
    let mut outcome = Outcome {
        scenario: scenario.to_owned(),
        ..Outcome::default()
    };
    for seed in seeds {
        let (reports, deadline_ms) = reports(seed);
        let lines = runtime.block_on(lines_of(&reports, deadline_ms))?;
        outcome.stories.push(StoryOutcome {
            seed,
            wrong: wrong(&lines).err(),
        });
    }
    outcome.seconds_replaying = began.elapsed().as_secs_f64();
    Ok(outcome)
}
