//! The scenarios that are evaluated, and the families of each.

use crate::golden::GoldenFleet;
use crate::labelled::{Benign, Circumstance, FamilySpec, Fault, FaultKind, PlacementView, Truth};
use crate::stories::Story;
use crate::stories::jitter::Jitter;

/// A kind of fleet and its weight.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    /// Number of families relative to the requested number.
    pub(crate) weight: f64,
    /// The scenario's first seed, counted from the run's first seed, and the number of its seeds.
    seeds: (u64, u64),
    recipe: Recipe,
}

#[derive(Debug, Clone, Copy)]
enum Recipe {
    /// 78 % plain families, the rest with confounders.
    Operational,
    Confounders,
    Others,
    /// One chipset, with load that two models share.
    SharedLoad,
    /// One chipset, in a hot week that a part of the devices cannot report.
    UnseenHeat,
    /// One chipset, whose sessions come in two speeds, before a fleet has rates of its own.
    TwoSpeeds,
    Total,
    SomeDevices,
    Runs,
    /// A fault of some sessions, on the first of this many chipsets.
    Sessions(usize),
    Drift,
    TheIncident(PlacementView),
    WithoutPasts,
    /// The given number of devices with 50 runs each, and one window with the fault.
    Needed(Need, u32),
    /// Twice the usual noise, with 3 or 14 earlier windows.
    Wild(u32),
    /// Faults that are repaired, on devices with this many runs a day.
    Repaired(f64),
    /// The same faults without a repair.
    Lasting(f64),
    /// Healthy families and families with a fault of 3x on all devices, in turn.
    Circumstance(Circumstance),
    /// A story of the field, which only takes the family's seed.
    Story(Story),
    /// Golden outputs.
    Golden(GoldenFleet),
    /// Runs that vary more, at each strength and on each share of the devices in turn.
    Jitter(Jitter),
}

/// Faults for which the least number of devices is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Need {
    Total3,
    Total2,
    Total2Missing,
    Half2Missing,
    Third,
    Tenth,
    Runs15,
    Runs15Twice,
}

pub(crate) const NEEDS: [(Need, &str); 8] = [
    (Need::Total3, "total, 3x"),
    (Need::Total2, "total, 2x"),
    (Need::Total2Missing, "total, 2x, no placements"),
    (Need::Half2Missing, "half of the devices, 2x, no placements"),
    (Need::Third, "30 % of the devices, 3x"),
    (Need::Tenth, "10 % of the devices, 3x"),
    (Need::Runs15, "15 % of the runs, 3x"),
    (Need::Runs15Twice, "15 % of the runs, 2x"),
];

/// The entries of [`NEEDS`] from this one on were added later.
const LATER_NEEDS: usize = 7;

/// From 3 on, because robots come in small fleets.
pub(crate) const NEEDED_DEVICES: [u32; 11] = [3, 4, 5, 8, 10, 12, 20, 30, 50, 100, 200];

/// Runs a day of the devices whose faults are repaired: enough to be sure within a day, and too few.
pub(crate) const REPAIRED_RUNS: [f64; 2] = [50.0, 12.0];

/// The day of the repair, counted from the first day: the third day of the fault.
const REPAIRED_ON: u32 = 5;

/// Days of the same faults without a repair.
pub(crate) const LASTING_DAYS: u32 = 9;

/// Share of plain families in the operational mix.
const PLAIN_SHARE: f64 = 0.78;

/// Number of seeds of each scenario, so that all of them stay within half a million.
const SEEDS: u64 = 5_300;

/// Number of seeds of each circumstance, and of later scenarios.
const FEWER_SEEDS: u64 = 400;

/// Later stories are added last, so that golden outputs keep their seeds.
const STORIES_BEFORE_GOLDEN: usize = 16;

/// Twice the usual spread of devices and runs.
const WILD: f64 = 2.0;

pub(crate) fn all() -> Vec<Scenario> {
    let scenario = |name: &str, weight, recipe| Scenario {
        name: name.to_owned(),
        weight,
        seeds: (0, SEEDS),
        recipe,
    };
    let mut all = vec![
        scenario("operational", 6.76, Recipe::Operational),
        scenario("confounders", 16.7, Recipe::Confounders),
        scenario("others", 4.4, Recipe::Others),
        scenario("total", 1.0, Recipe::Total),
        scenario("some devices", 1.6, Recipe::SomeDevices),
        scenario("intermittent runs", 2.0, Recipe::Runs),
        scenario("intermittent sessions", 1.0, Recipe::Sessions(1)),
        scenario("drift", 1.0, Recipe::Drift),
        scenario(
            "the incident, full",
            0.2,
            Recipe::TheIncident(PlacementView::Full),
        ),
        scenario(
            "the incident, missing",
            0.2,
            Recipe::TheIncident(PlacementView::Missing),
        ),
        scenario(
            "the incident, lying",
            0.2,
            Recipe::TheIncident(PlacementView::Lying),
        ),
        scenario(
            "the incident, devices without a past",
            0.2,
            Recipe::WithoutPasts,
        ),
        scenario("wild, built-in rates", 0.8, Recipe::Wild(3)),
        scenario("wild, its own rates", 0.8, Recipe::Wild(14)),
        scenario("shared load", 1.0, Recipe::SharedLoad),
        scenario("two speeds, built-in rates", 1.0, Recipe::TwoSpeeds),
    ];
    let needed = |(need, name): (Need, &'static str)| {
        NEEDED_DEVICES.map(|devices| {
            let recipe = Recipe::Needed(need, devices);
            scenario(&needed_name(name, devices), 0.1, recipe)
        })
    };
    all.extend(NEEDS.into_iter().take(LATER_NEEDS).flat_map(needed));
    // Added last, because a scenario's position decides its seeds.
    all.push(scenario("unseen heat", 1.0, Recipe::UnseenHeat));
    let circumstances = Circumstance::ALL.map(|circumstance| {
        let recipe = Recipe::Circumstance(circumstance);
        scenario(&circumstance_name(circumstance), 0.34, recipe)
    });
    let repaired =
        REPAIRED_RUNS.map(|runs| scenario(&repaired_name(runs), 0.1, Recipe::Repaired(runs)));
    let needed = NEEDS.into_iter().skip(LATER_NEEDS).flat_map(needed);
    let among = scenario(SESSIONS_AMONG_CHIPSETS, 1.0, Recipe::Sessions(3));
    let with_fewer_seeds = circumstances.into_iter().chain(repaired).chain(needed);
    let lasting =
        REPAIRED_RUNS.map(|runs| scenario(&lasting_name(runs), 0.1, Recipe::Lasting(runs)));
    let story = |story: Story| scenario(&story_name(story), 0.1, Recipe::Story(story));
    let (stories, later_stories) = Story::ALL.split_at(STORIES_BEFORE_GOLDEN);
    let stories = stories.iter().copied().map(story);
    let later_stories = later_stories.iter().copied().map(story);
    // With 300 families, each kind gets 50.
    let golden = GoldenFleet::ALL
        .map(|fleet| scenario(&golden_name(fleet), 1.0 / 6.0, Recipe::Golden(fleet)));
    // With 300 families, each share and strength gets 10.
    let jitters =
        Jitter::ALL.map(|jitter| scenario(&jitter_name(jitter), 0.5, Recipe::Jitter(jitter)));
    let with_fewer_seeds = with_fewer_seeds
        .chain([among])
        .chain(lasting)
        .chain(stories)
        .chain(golden)
        .chain(later_stories)
        .chain(jitters);
    all.extend(with_fewer_seeds.map(|scenario| Scenario {
        seeds: (0, FEWER_SEEDS),
        ..scenario
    }));
    let mut first = 0;
    for scenario in &mut all {
        scenario.seeds.0 = first;
        first += scenario.seeds.1;
    }
    all
}

pub(crate) const SESSIONS_AMONG_CHIPSETS: &str = "intermittent sessions on one of three chipsets";

pub(crate) fn circumstance_name(circumstance: Circumstance) -> String {
    format!("circumstance: {}", circumstance.text())
}

pub(crate) fn repaired_name(runs: f64) -> String {
    format!("repaired, {runs} runs a day")
}

pub(crate) fn lasting_name(runs: f64) -> String {
    format!("lasting, {runs} runs a day")
}

pub(crate) fn story_name(story: Story) -> String {
    format!("story: {}", story.text())
}

pub(crate) fn jitter_name(jitter: Jitter) -> String {
    format!("jitter: {}", jitter.text())
}

pub(crate) fn golden_name(fleet: GoldenFleet) -> String {
    format!("golden outputs: {}", fleet.text())
}

pub(crate) fn needed_name(name: &str, devices: u32) -> String {
    format!("{name}, {devices} devices")
}

/// A draw in [0, 1) from a seed and a purpose.
fn unit(seed: u64, purpose: u64) -> f64 {
    let mut z =
        seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ purpose.wrapping_mul(0xD1B5_4A32_D192_ED03);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

fn log_between(unit: f64, low: f64, high: f64) -> f64 {
    (low.ln() + unit * (high / low).ln()).exp()
}

#[expect(clippy::cast_possible_truncation, reason = "within the list")]
fn one_of<T: Copy>(of: &[T], unit: f64) -> T {
    of[((unit * of.len() as f64) as usize).min(of.len() - 1)]
}

impl Scenario {
    /// Returns the day on which the scenario's faults are repaired, from 0 on; `None` if it does not measure ends of
    /// incidents.
    pub(crate) fn repaired_on(&self) -> Option<u32> {
        match self.recipe {
            Recipe::Repaired(_) => Some(REPAIRED_ON),
            Recipe::Lasting(_) => Some(u32::MAX),
            _ => None,
        }
    }

    /// Returns the scenario's story, if it has one.
    pub(crate) fn story(&self) -> Option<Story> {
        match self.recipe {
            Recipe::Story(story) => Some(story),
            _ => None,
        }
    }

    /// Returns the scenario's fleet of golden outputs, if it has one.
    pub(crate) fn golden(&self) -> Option<GoldenFleet> {
        match self.recipe {
            Recipe::Golden(fleet) => Some(fleet),
            _ => None,
        }
    }

    /// Returns the way in which the scenario's runs vary more, if they do.
    pub(crate) fn jitter(&self) -> Option<Jitter> {
        match self.recipe {
            Recipe::Jitter(jitter) => Some(jitter),
            _ => None,
        }
    }

    /// Families `from..to` of the scenario.
    pub(crate) fn families(&self, first_seed: u64, from: u64, to: u64) -> Vec<FamilySpec> {
        let first = first_seed + self.seeds.0;
        (from..to).map(|at| self.family(first + at, at)).collect()
    }

    /// Returns the scenario's number of families for `asked` requested ones, at most the number of its seeds.
    #[expect(clippy::cast_possible_truncation, reason = "thousands")]
    pub(crate) fn n_families(&self, asked: u64) -> u64 {
        ((self.weight * asked as f64).ceil() as u64).min(self.seeds.1)
    }

    #[expect(clippy::cast_possible_truncation, reason = "within the list")]
    fn family(&self, seed: u64, number: u64) -> FamilySpec {
        let at = |purpose| unit(seed, purpose);
        let benign = |benign| FamilySpec::drawn(seed, Truth::Benign(benign));
        let in_turn = |of: &[Benign]| of[(number % of.len() as u64) as usize];
        let confounders = &Benign::CONFOUNDERS[1..];
        let kind = match self.recipe {
            Recipe::Story(_) | Recipe::Golden(_) | Recipe::Jitter(_) => {
                return benign(Benign::Plain);
            }
            Recipe::Operational if at(4) < PLAIN_SHARE => return benign(Benign::Plain),
            Recipe::Operational => return benign(one_of(confounders, at(5))),
            Recipe::Confounders => return benign(in_turn(confounders)),
            Recipe::Others => return benign(in_turn(&Benign::OTHERS)),
            Recipe::SharedLoad => {
                return FamilySpec {
                    chipsets: 1,
                    rollout: vec![1.0],
                    peers: 1.0,
                    ..benign(Benign::SharedLoad)
                };
            }
            Recipe::UnseenHeat => {
                return FamilySpec {
                    chipsets: 1,
                    rollout: vec![1.0],
                    ..benign(Benign::UnseenHeat)
                };
            }
            Recipe::TwoSpeeds => {
                return FamilySpec {
                    chipsets: 1,
                    windows: (1, 5),
                    rollout: vec![1.0],
                    ..benign(Benign::TwoSpeeds)
                };
            }
            Recipe::Wild(before) => {
                return FamilySpec {
                    windows: (before, 3),
                    rollout: vec![1.0],
                    wildness: WILD,
                    ..benign(in_turn(&Benign::CONFOUNDERS))
                };
            }
            Recipe::TheIncident(view) => return the_incident(seed, view),
            Recipe::WithoutPasts => {
                return FamilySpec {
                    without_baseline: 1.0,
                    ..the_incident(seed, PlacementView::Missing)
                };
            }
            Recipe::Needed(need, devices) => return needed(seed, need, devices),
            Recipe::Repaired(runs) => return repaired(seed, number, runs),
            Recipe::Lasting(runs) => {
                return FamilySpec {
                    windows: (3, LASTING_DAYS),
                    ..repaired(seed, number, runs)
                };
            }
            Recipe::Circumstance(circumstance) => {
                return under(seed, number, circumstance, log_between(at(1), 0.05, 1.0));
            }
            Recipe::Total => FaultKind::Total,
            Recipe::Drift => FaultKind::Drift,
            Recipe::SomeDevices => FaultKind::SomeDevices(log_between(at(3), 0.01, 1.0)),
            Recipe::Runs => FaultKind::IntermittentRuns(log_between(at(3), 0.01, 0.6)),
            Recipe::Sessions(_) => FaultKind::IntermittentSessions(log_between(at(3), 0.05, 0.6)),
        };
        let fault = Fault {
            kind,
            factor: log_between(at(2), 1.3, 8.0),
            moved: log_between(at(1), 0.05, 1.0),
        };
        let drawn = FamilySpec::drawn(seed, Truth::Fault(fault));
        let views = [
            PlacementView::Full,
            PlacementView::Full,
            PlacementView::NodesOnly,
            PlacementView::Missing,
            PlacementView::Lying,
        ];
        FamilySpec {
            view: one_of(&views, at(6)),
            chipsets: match self.recipe {
                Recipe::Sessions(chipsets) => chipsets,
                _ => 1,
            },
            windows: (
                8,
                if matches!(kind, FaultKind::Drift) {
                    7
                } else {
                    4
                },
            ),
            ..drawn
        }
    }
}

/// 400 devices on four chipsets get a new model version. On one chipset one activation moves to the CPU, which is 18 %
/// of the FLOPs; p50 there goes from 8.2 to 24 ms. There are 50 runs a device, and seven earlier windows.
fn the_incident(seed: u64, view: PlacementView) -> FamilySpec {
    let fault = Fault {
        kind: FaultKind::Total,
        factor: 24.0 / 8.2,
        moved: 0.18,
    };
    FamilySpec::at_once(seed, Truth::Fault(fault), view)
}

/// Returns a family on two chipsets, healthy or with a fault of 3x on all devices of the new version.
fn under(seed: u64, number: u64, circumstance: Circumstance, moved: f64) -> FamilySpec {
    let fault = Fault {
        kind: FaultKind::Total,
        factor: 3.0,
        // A fault that always existed is visible only because the NPU was requested.
        moved: match circumstance {
            Circumstance::FirstDay => 1.0,
            _ => moved,
        },
    };
    let truth = match number % 2 {
        0 => Truth::Benign(Benign::Plain),
        _ => Truth::Fault(fault),
    };
    let is_slow = matches!(
        circumstance,
        Circumstance::SlowRollout | Circumstance::FrequentVersions
    );
    FamilySpec {
        windows: (7, if is_slow { 8 } else { 4 }),
        chipsets: 2,
        ..FamilySpec::drawn(seed, truth)
    }
    .under(circumstance)
}

/// Returns a family with a fault on 30 devices that report each hour.
fn repaired(seed: u64, number: u64, runs: f64) -> FamilySpec {
    let (kinds, views) = (
        [
            FaultKind::Total,
            FaultKind::SomeDevices(0.5),
            FaultKind::IntermittentRuns(0.3),
            FaultKind::IntermittentSessions(0.4),
        ],
        [PlacementView::Full, PlacementView::Missing],
    );
    let fault = Fault {
        kind: kinds[(number % 4) as usize],
        factor: log_between(unit(seed, 2), 2.5, 6.0),
        moved: 0.3,
    };
    FamilySpec {
        view: views[(number / 4 % 2) as usize],
        chipsets: 1,
        devices: 30,
        windows: (3, 7),
        rollout: vec![1.0],
        rolls_out_twice: false,
        runs,
        reports: 24,
        shape_known: true,
        peers: 0.0,
        ..FamilySpec::drawn(seed, Truth::Fault(fault))
    }
}

fn needed(seed: u64, need: Need, devices: u32) -> FamilySpec {
    let (kind, factor) = match need {
        Need::Total3 => (FaultKind::Total, 3.0),
        Need::Total2 | Need::Total2Missing => (FaultKind::Total, 2.0),
        Need::Half2Missing => (FaultKind::SomeDevices(0.5), 2.0),
        Need::Third => (FaultKind::SomeDevices(0.3), 3.0),
        Need::Tenth => (FaultKind::SomeDevices(0.1), 3.0),
        Need::Runs15 => (FaultKind::IntermittentRuns(0.15), 3.0),
        Need::Runs15Twice => (FaultKind::IntermittentRuns(0.15), 2.0),
    };
    let fault = Fault {
        kind,
        factor,
        moved: 0.18,
    };
    FamilySpec {
        view: match need {
            Need::Total2Missing | Need::Half2Missing => PlacementView::Missing,
            _ => PlacementView::Full,
        },
        chipsets: 1,
        devices: devices as usize,
        windows: (7, 3),
        rollout: vec![1.0],
        rolls_out_twice: false,
        runs: 50.0,
        shape_known: true,
        peers: 0.0,
        presence: 1.0,
        ..FamilySpec::drawn(seed, Truth::Fault(fault))
    }
}
