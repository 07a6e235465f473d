//! A signal's id, its result, and the limits for firing.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::tally::Tally;

/// Devices below which a cohort is not judged.
pub(crate) const MIN_ELIGIBLE: u64 = 5;

/// Devices that must be hit before a signal fires.
pub(crate) const MIN_HITS: u64 = 3;

/// Chance above which a count is not a sign of a fault. In a window with a finding, signals with such a chance are
/// history, like the signals of a healthy window.
pub(crate) const UNSURPRISING_P: f64 = 0.05;

/// The ratios that `Shift` tests, in tenths; the first only if the devices fall into two groups.
pub(crate) const BEYOND_TENTHS: [u16; 6] = [13, 16, 20, 25, 32, 40];

/// Shares of a device's runs that `Tail` and `NearTail` test, in percent. Each has the share of healthy devices beyond
/// it, which is the built-in prior until a fleet has its own.
pub(crate) const TAIL_PERCENTS: [(u16, f64); 5] =
    [(3, 0.2), (5, 0.1), (10, 0.04), (20, 0.02), (40, 0.01)];

/// Names a signal; a short text in the store and in documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum SignalId {
    /// Work moved to the CPU.
    Placement,
    /// Work moved to the CPU, and the devices are slower.
    SlowerAndMoved,
    /// Less work on the NPU than certified.
    Certificate,
    /// The median device is slower than before.
    Median,
    /// Some devices are slower than before.
    Shift,
    /// Some devices are slower than others of their make were.
    ShiftOfModel,
    /// Devices beyond one of [`Self::Shift`]'s ratios, in tenths: kept as the cohort's history.
    ShiftBeyond(u16),
    /// Some devices have runs far slower than before.
    Tail,
    /// Devices with at least this share of such runs, in percent: kept as the cohort's history.
    TailBeyond(u16),
    /// Some devices have slow runs that are a group of their own, less slow than runs of [`Self::Tail`].
    NearTail,
    /// Devices with at least this share of such runs, in percent: kept as the cohort's history.
    NearTailBeyond(u16),
    /// The median of some devices moved, but not their fast runs.
    Moved,
    /// The NPU does not start.
    Start,
    /// Outputs differ by more than the tolerance.
    Outputs,
    /// Outputs differ between devices.
    OutputHash,
    /// Runs vary more than before.
    CvIncrease,
}

/// Declares the names of signals without a number. A signal that lacks one does not compile.
macro_rules! names {
    ($($signal:ident = $name:literal,)+) => {
        impl SignalId {
            const NAMED: &'static [Self] = &[$(Self::$signal,)+];

            fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$signal => Some($name),)+
                    Self::ShiftBeyond(_) | Self::TailBeyond(_) | Self::NearTailBeyond(_) => None,
                }
            }
        }
    };
}

names! {
    Placement = "placement_change",
    SlowerAndMoved = "slower_with_placement_change",
    Certificate = "certificate_drift",
    Median = "median_ratio",
    Shift = "slow_device_share",
    ShiftOfModel = "slow_device_share_of_model",
    Tail = "intermittent_runs",
    NearTail = "near_intermittent_runs",
    Moved = "moved_median",
    Start = "start_failure",
    Outputs = "output_mismatch",
    OutputHash = "output_difference",
    CvIncrease = "cv_increase",
}

impl fmt::Display for SignalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SignalId::ShiftBeyond(tenths) => {
                write!(f, "slower_than_{}.{}x", tenths / 10, tenths % 10)
            }
            SignalId::TailBeyond(percent) => write!(f, "intermittent_runs_from_{percent}_percent"),
            SignalId::NearTailBeyond(percent) => {
                write!(f, "near_intermittent_runs_from_{percent}_percent")
            }
            named => f.write_str(named.name().unwrap_or_default()),
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
        let tails = TAIL_PERCENTS.map(|(percent, _)| SignalId::TailBeyond(percent));
        let near = TAIL_PERCENTS.map(|(percent, _)| SignalId::NearTailBeyond(percent));
        let named = SignalId::NAMED.iter().copied();
        named
            .chain(BEYOND_TENTHS.map(SignalId::ShiftBeyond))
            .chain(tails)
            .chain(near)
            .find(|id| id.to_string() == text)
    }
}

/// The result of one signal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Signal {
    pub id: SignalId,
    /// The effect that is compared with `threshold`; the unit depends on the signal.
    pub value: f64,
    /// The chance of at least so many hits in a healthy cohort.
    pub p: f64,
    pub hits: u64,
    /// Devices that could have been hit.
    pub devices: u64,
    /// The least effect that fires.
    pub threshold: f64,
    /// Whether there are enough devices, enough effect, and a small enough chance.
    pub fires: bool,
}

impl Signal {
    /// Returns a signal whose value is the share of the devices hit.
    pub(super) fn counted(id: SignalId, tally: Tally, p: f64, threshold: f64, fires: bool) -> Self {
        Signal {
            id,
            value: tally.share(),
            p,
            hits: tally.hits,
            devices: tally.devices,
            threshold,
            fires,
        }
    }
}

/// Whether there are enough devices and hits to fire, and at least this share of the devices is hit.
pub(super) fn is_enough(tally: Tally, min_share: f64) -> bool {
    tally.devices >= MIN_ELIGIBLE && tally.hits >= MIN_HITS && tally.share() >= min_share
}

/// The chance below which each kind of signal fires.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// For signals that decide on latency alone.
    pub p_latency: f64,
    /// For `Shift`, which compares devices with their own past.
    pub p_shift: f64,
    /// For placements, which do not vary with heat or load.
    pub p_placement: f64,
}

impl Limits {
    /// False alarms a day over all cohorts, shared by three signals.
    const FALSE_ALARMS_A_DAY: f64 = 0.03;

    /// Upper bound with few cohorts: at most one false page in 10,000 cohort windows. Two signals at this
    /// chance and `Shift` at [`Self::MOST_SHIFT`] use half of that, before a second window confirms.
    const MOST: f64 = 1e-5;

    /// The same for `Shift`, which gets the larger part: if placements are missing or wrong, no other signal finds
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

    /// Returns the limits where latency alone makes no page: a ticket waits for a second window too, and wakes no one.
    pub(super) fn of_tickets(self) -> Self {
        Self {
            p_latency: self.p_latency * 10.0,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_written() {
        for id in [
            SignalId::Placement,
            SignalId::SlowerAndMoved,
            SignalId::Certificate,
            SignalId::Median,
            SignalId::Shift,
            SignalId::ShiftBeyond(16),
            SignalId::ShiftBeyond(40),
            SignalId::TailBeyond(5),
            SignalId::NearTailBeyond(5),
            SignalId::Start,
            SignalId::Outputs,
            SignalId::OutputHash,
            SignalId::CvIncrease,
        ] {
            assert_eq!(SignalId::parse(&id.to_string()), Some(id));
        }
        assert_eq!(SignalId::parse("slower_than_9.9x"), None);
    }

    #[test]
    fn more_cohort_windows_a_day_ask_for_more_surprise() {
        assert!((Limits::for_windows_a_day(10_000.0).p_latency - 1e-6).abs() < 1e-12);
        assert_eq!(Limits::for_windows_a_day(1.0).p_latency, 1e-5);
    }
}
