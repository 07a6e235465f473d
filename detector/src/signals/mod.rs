//! What was looked for, and how surprising what was found is: one file a signal.
//!
//! Every signal counts devices, never runs, since runs of one device are not independent. Names are
//! those of the project's detection notes: EP (placement got worse), EJ (and it is slower for it),
//! A (the median device is slower than it was), B (some devices are). S, O, OH and CV are ours: the
//! NPU does not start, outputs are wrong, outputs differ, runs vary more.

pub mod a_median;
pub mod b_shift;
pub mod cm_intermittent;
pub mod control;
pub mod cross_chipset;
pub mod cv_increase;
pub mod ej_slower_and_moved;
pub mod ep_placement;
pub mod o_outputs;
pub mod s_start_failure;
mod same_shape;

use std::fmt;

use epwatch_stats::beta_binomial::{BetaPrior, upper_tail};
use serde::{Deserialize, Serialize};

use crate::base_rates::BaseRate;
use crate::baseline::{Baseline, Tally};
use crate::window::CohortWindow;

pub use a_median::Median;
pub use b_shift::Shift;
pub use cm_intermittent::Intermittent;
pub use control::{Control, PeerRatios};
pub use cross_chipset::CrossChipset;
pub use cv_increase::CvIncrease;
pub use ej_slower_and_moved::{SlowerAndMoved, SpeedReference};
pub use ep_placement::{HitPlacement, PlacementChange};
pub use o_outputs::Outputs;
pub use s_start_failure::StartFailures;

/// Devices below which a cohort says nothing.
pub const MIN_ELIGIBLE: u64 = 5;

/// Devices that must be hit before any count means something.
pub const MIN_HITS: u64 = 3;

/// Weight of the fleet-wide rate, in devices: about a cohort of its own (the project's detection
/// measurements).
pub const PRIOR_STRENGTH: f64 = 100.0;

/// A signal's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum SignalId {
    /// EP: work moved to the CPU.
    Placement,
    /// EJ: and those devices are slower for it.
    SlowerAndMoved,
    /// A: the median device is slower than it was.
    Median,
    /// B: some devices are slower than they were.
    Shift,
    /// B': some devices are slower than others of their make were.
    ShiftOfModel,
    /// Devices beyond one of B's ratios, in tenths: kept as the cohort's history.
    ShiftBeyond(u16),
    /// C: some devices have runs far beyond what they were used to.
    Tail,
    /// Devices with at least this share of such runs, in percent: kept as the cohort's history.
    TailBeyond(u16),
    /// M: the median of some devices moved, their fast runs did not.
    Moved,
    /// S: the NPU does not start.
    Start,
    /// O: outputs are off by more than is accepted.
    Outputs,
    /// OH: outputs differ between devices.
    OutputHash,
    /// CV: runs vary more than they did.
    CvIncrease,
}

impl fmt::Display for SignalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SignalId::Placement => f.write_str("EP"),
            SignalId::SlowerAndMoved => f.write_str("EJ"),
            SignalId::Median => f.write_str("A"),
            SignalId::Shift => f.write_str("B"),
            SignalId::ShiftOfModel => f.write_str("B'"),
            SignalId::ShiftBeyond(tenths) => write!(f, "B{}.{}", tenths / 10, tenths % 10),
            SignalId::Tail => f.write_str("C"),
            SignalId::TailBeyond(percent) => write!(f, "C{percent}"),
            SignalId::Moved => f.write_str("M"),
            SignalId::Start => f.write_str("S"),
            SignalId::Outputs => f.write_str("O"),
            SignalId::OutputHash => f.write_str("OH"),
            SignalId::CvIncrease => f.write_str("CV"),
        }
    }
}

impl From<SignalId> for String {
    fn from(id: SignalId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for SignalId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        SignalId::parse(&text).ok_or(format!("signal {text:?} is not known"))
    }
}

impl SignalId {
    /// Reads a name as [`fmt::Display`] writes it.
    #[must_use]
    pub fn parse(text: &str) -> Option<SignalId> {
        let fixed = [
            SignalId::Placement,
            SignalId::SlowerAndMoved,
            SignalId::Median,
            SignalId::Shift,
            SignalId::ShiftOfModel,
            SignalId::Tail,
            SignalId::Moved,
            SignalId::Start,
            SignalId::Outputs,
            SignalId::OutputHash,
            SignalId::CvIncrease,
        ];
        let tails =
            cm_intermittent::TAIL_PERCENTS.map(|(percent, _)| SignalId::TailBeyond(percent));
        fixed
            .into_iter()
            .chain(b_shift::BEYOND_TENTHS.map(SignalId::ShiftBeyond))
            .chain(tails)
            .find(|id| id.to_string() == text)
    }
}

/// One signal's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Signal {
    /// Which.
    pub id: SignalId,
    /// The effect that was compared with `threshold`; its unit is the signal's.
    pub value: f64,
    /// The chance of at least so many hits in a healthy cohort.
    pub p: f64,
    /// Devices hit.
    pub hits: u64,
    /// Devices that could have been.
    pub devices: u64,
    /// What the effect had to reach.
    pub threshold: f64,
    /// Whether it fires: enough devices, enough effect, and surprising enough.
    pub fires: bool,
}

/// How surprising a hit count must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// For signals that decide on latency alone.
    pub p_latency: f64,
    /// For B, whose devices are held against their own past.
    pub p_shift: f64,
    /// For placements, which do not waver with heat or load.
    pub p_placement: f64,
}

impl Limits {
    /// False alarms a day over all cohorts, shared by three signals.
    const FALSE_ALARMS_A_DAY: f64 = 0.03;

    /// However few cohorts there are, one false page in 10,000 cohort windows is the bound; two signals
    /// at this chance and B at [`Self::MOST_SHIFT`] stay at half of it, before a second window confirms.
    const MOST: f64 = 1e-5;

    /// The same for B. It takes the larger part: where placements are missing or lie, nothing else finds
    /// a fault on some devices.
    const MOST_SHIFT: f64 = 3e-5;

    /// Returns the limits for a fleet with so many disjoint cohort windows a day.
    #[must_use]
    pub fn for_windows_a_day(cohort_windows: f64) -> Self {
        let p = Self::FALSE_ALARMS_A_DAY / (3.0 * cohort_windows.max(1.0));
        Self {
            p_latency: p.min(Self::MOST),
            p_shift: p.min(Self::MOST_SHIFT),
            p_placement: 1e-3,
        }
    }
}

/// What ran beside a cohort in its window.
#[derive(Debug, Clone, Copy)]
pub struct Controls<'a> {
    /// The previous version on the same chipset.
    pub previous: Option<&'a CohortWindow>,
    /// Other models of the app on the same devices.
    pub peers: &'a PeerRatios,
    /// The same version on other chipsets.
    pub chipsets: &'a [&'a CohortWindow],
}

/// Everything the signals found in one cohort window.
#[derive(Debug, Clone, PartialEq)]
pub struct Evidence {
    /// EP; `None` where no placement could be compared.
    pub placement: Option<PlacementChange>,
    /// EJ; `None` without EP, or where nothing tells whether the devices are slower.
    pub joined: Option<SlowerAndMoved>,
    /// B; `None` where no device knows its earlier self.
    pub shift: Option<Shift>,
    /// Whether those that B found are those whose placement got worse.
    pub placement_explains_shift: bool,
    /// A; `None` with fewer than 10 devices that know their earlier selves.
    pub median: Option<Median>,
    /// C; `None` where no device knows its earlier self.
    pub tail: Option<Intermittent>,
    /// M; `None` where no device knows its earlier self.
    pub moved: Option<Intermittent>,
    /// Whether something other than the model slowed down as well.
    pub control: Control,
    /// The same for C or M, whichever fires.
    pub intermittent_control: Control,
    /// Whether other chipsets show A or B as well; `None` where neither fires, or there are none.
    pub cross_chipset: Option<CrossChipset>,
    /// The same for C or M, whichever fires.
    pub intermittent_cross_chipset: Option<CrossChipset>,
    /// S; `None` without devices.
    pub starts: Option<StartFailures>,
    /// O and OH; `None` without self-tests.
    pub outputs: Option<Outputs>,
    /// CV; `None` where no device knows its earlier self.
    pub cv_increase: Option<CvIncrease>,
}

impl Evidence {
    /// Looks for everything.
    #[must_use]
    pub fn gather(
        window: &CohortWindow,
        controls: Controls<'_>,
        baseline: &Baseline,
        limits: &Limits,
    ) -> Self {
        let Controls {
            previous,
            peers,
            chipsets,
        } = controls;
        let placement = ep_placement::changed(window, baseline, limits);
        let joined = placement.as_ref().and_then(|change| {
            ej_slower_and_moved::slower(window, previous, change, baseline, limits)
        });
        let ratios = b_shift::worst_ratios(&window.votes);
        let before = previous.map(|previous| b_shift::worst_ratios(&previous.votes));
        let shift = b_shift::beyond(window, &ratios, baseline, limits);
        let slower = shift.as_ref().filter(|shift| shift.signal.fires);
        let placement_explains_shift =
            placement
                .as_ref()
                .zip(slower)
                .is_some_and(|(change, shift)| {
                    ej_slower_and_moved::explains(change, &shift.hit_devices, limits)
                });
        let median = a_median::moved(&ratios, before.as_ref());
        let control = control::slowed_too(window, before.as_ref(), peers, shift.as_ref());
        let runs = cm_intermittent::runs_of_devices(&window.votes);
        let tail = cm_intermittent::tails(&runs, baseline, limits);
        let moved = cm_intermittent::moved_medians(&runs, baseline, limits);
        let fires = |found: &&Intermittent| found.signal.fires;
        let found = tail.as_ref().filter(fires).or(moved.as_ref().filter(fires));
        let intermittent_control = found.map_or(Control::Absent, |found| {
            control::intermittent_too(window, previous, peers, found)
        });
        let intermittent_cross_chipset = found.and_then(|found| {
            let usual = usual_share(found.past_id(), baseline);
            cross_chipset::in_some_runs(window, controls, found, usual)
        });
        let is_slower = shift.as_ref().is_some_and(|shift| shift.signal.fires)
            || median.as_ref().is_some_and(|median| median.signal.fires);
        let cross_chipset = shift.as_ref().filter(|_| is_slower).and_then(|shift| {
            let usual = usual_share(shift.past_id(), baseline);
            cross_chipset::in_all_runs(window, chipsets, shift, usual)
        });
        Self {
            placement,
            joined,
            shift,
            placement_explains_shift,
            median,
            tail,
            moved,
            control,
            intermittent_control,
            cross_chipset,
            intermittent_cross_chipset,
            starts: s_start_failure::failed(window, previous, baseline, limits),
            outputs: o_outputs::differ(window, previous, baseline, limits),
            cv_increase: cv_increase::varies(window, previous, baseline, limits),
        }
    }

    /// Returns every signal, for the store and for people.
    #[must_use]
    pub fn signals(&self) -> Vec<Signal> {
        let joined = self.joined.iter().map(|found| found.signal.clone());
        let placement = self.placement.iter().map(|found| found.signal.clone());
        let median = self.median.iter().map(|found| found.signal.clone());
        let shift = self.shift.iter().map(|found| found.signal.clone());
        let tail = self.tail.iter().map(|found| found.signal.clone());
        let moved = self.moved.iter().map(|found| found.signal.clone());
        let all = joined.chain(placement).chain(median).chain(shift);
        let starts = self.starts.iter().map(|found| found.signal.clone());
        let outputs = self.outputs.iter().flat_map(Outputs::signals);
        let spread = self.cv_increase.iter().map(|found| found.signal.clone());
        let all = all.chain(tail).chain(moved);
        all.chain(starts).chain(outputs).chain(spread).collect()
    }

    /// Returns the counts behind the signals, for the history of later versions.
    #[must_use]
    pub fn tallies(&self) -> Vec<Signal> {
        let shift = self.shift.iter().flat_map(Shift::history_rows);
        let tail = self
            .tail
            .iter()
            .flat_map(|tail| tail.tallies.iter().cloned());
        shift.chain(tail).collect()
    }
}

/// Returns a signal's built-in rate among healthy devices.
#[must_use]
pub fn built_in_rate(id: SignalId) -> f64 {
    match id {
        SignalId::Placement | SignalId::SlowerAndMoved => ep_placement::FLEET_RATE,
        SignalId::Median | SignalId::Shift | SignalId::ShiftOfModel | SignalId::ShiftBeyond(_) => {
            b_shift::FLEET_RATE
        }
        SignalId::Moved => cm_intermittent::MOVED_RATE,
        SignalId::Start => s_start_failure::FLEET_RATE,
        SignalId::Outputs => o_outputs::BEYOND_RATE,
        SignalId::OutputHash => o_outputs::MINORITY_RATE,
        SignalId::CvIncrease => cv_increase::FLEET_RATE,
        SignalId::Tail | SignalId::TailBeyond(_) => {
            let rates = cm_intermittent::TAIL_PERCENTS.into_iter();
            rates
                .filter(|(percent, _)| id == SignalId::TailBeyond(*percent))
                .map(|(_, rate)| rate)
                .next()
                .unwrap_or(cm_intermittent::MOVED_RATE)
        }
    }
}

/// Share of a healthy cohort's devices that are hit, given the fleet's rate and the cohort's own past.
fn usual_share(id: SignalId, baseline: &Baseline) -> f64 {
    let fleet = baseline.rates.of(id, built_in_rate(id));
    let past = baseline.history.of(id);
    let hits = fleet.rate * fleet.strength + past.hits as f64;
    hits / (fleet.strength + past.devices as f64)
}

/// Chance of at least so many hits, given the fleet's rate and the cohort's own past.
pub(crate) fn surprise(found: Tally, fleet: BaseRate, past: Tally) -> f64 {
    // BaseRates that were read back may be anything.
    let rate = fleet.rate.clamp(1e-4, 0.99);
    let strength = fleet.strength.clamp(1.0, 10_000.0);
    let prior =
        BetaPrior::from_rate(rate, strength).expect("between 0 and 1, and a positive strength");
    // A past with more hits than devices is no past.
    let prior = prior.updated(past.hits, past.devices).unwrap_or(prior);
    upper_tail(found.hits.min(found.devices), found.devices, prior)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_written() {
        for id in [
            SignalId::Placement,
            SignalId::SlowerAndMoved,
            SignalId::Median,
            SignalId::Shift,
            SignalId::ShiftBeyond(16),
            SignalId::ShiftBeyond(40),
            SignalId::Start,
            SignalId::Outputs,
            SignalId::OutputHash,
            SignalId::CvIncrease,
        ] {
            assert_eq!(SignalId::parse(&id.to_string()), Some(id));
        }
        assert_eq!(SignalId::parse("B9.9"), None);
    }

    #[test]
    fn more_cohort_windows_a_day_ask_for_more_surprise() {
        assert!((Limits::for_windows_a_day(10_000.0).p_latency - 1e-6).abs() < 1e-12);
        assert_eq!(Limits::for_windows_a_day(1.0).p_latency, 1e-5);
    }

    /// The past of a cohort with lasting slow devices makes more of them unsurprising.
    #[test]
    fn a_cohorts_own_past_shifts_the_fleets_rate() {
        let found = Tally {
            hits: 15,
            devices: 100,
        };
        let fleet = BaseRate {
            rate: 0.01,
            strength: PRIOR_STRENGTH,
        };
        let unknown = surprise(found, fleet, Tally::default());
        let usual = surprise(
            found,
            fleet,
            Tally {
                hits: 40,
                devices: 400,
            },
        );
        let unusual = surprise(
            found,
            fleet,
            Tally {
                hits: 0,
                devices: 400,
            },
        );
        assert!(
            unusual < unknown && unknown < usual,
            "{unusual} {unknown} {usual}"
        );
        assert!(usual > 0.01 && unusual < 1e-6, "{unusual} {usual}");
    }
}
