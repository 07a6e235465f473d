//! A signal's name and its result.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The ratios that `Shift` tests, in tenths. The first is tested only if the devices fall into two groups.
pub const BEYOND_TENTHS: [u16; 6] = [13, 16, 20, 25, 32, 40];

/// Shares of a device's runs that `Tail` and `NearTail` test, in percent, each with the share of healthy devices beyond
/// it. The shares of devices are the built-in prior until a fleet has its own.
pub const TAIL_PERCENTS: [(u16, f64); 5] = [(3, 0.2), (5, 0.1), (10, 0.04), (20, 0.02), (40, 0.01)];

/// Identifies a signal. It is a short text in the store and in documents.
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
    /// Devices beyond one of [`Self::Shift`]'s ratios, in tenths. The count is kept as the cohort's history.
    ShiftBeyond(u16),
    /// Some devices have runs far slower than before.
    Tail,
    /// Devices with at least this share of such runs, in percent. The count is kept as the cohort's history.
    TailBeyond(u16),
    /// Some devices have slow runs that are a group of their own, less slow than runs of [`Self::Tail`].
    NearTail,
    /// Devices with at least this share of such runs, in percent. The count is kept as the cohort's history.
    NearTailBeyond(u16),
    /// The median of some devices moved, but not their fast runs.
    Moved,
    /// The NPU does not start.
    Start,
    /// Outputs differ by more than the tolerance.
    Outputs,
    /// Outputs differ between devices.
    OutputHash,
    /// Outputs are off by more than rounding, or than the tolerance.
    OutputDrop,
    /// Runs vary more than before.
    CvIncrease,
}

/// Declares the names of signals without a number. A signal that lacks one does not compile.
macro_rules! names {
    ($($signal:ident = $name:literal,)+) => {
        impl SignalId {
            const NAMED: &'static [Self] = &[$(Self::$signal,)+];

            /// Returns the name of a signal without a number.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
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
    OutputDrop = "output_drop",
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
#[serde(deny_unknown_fields)]
pub struct Signal {
    /// Its name.
    pub id: SignalId,
    /// The effect that is compared with `threshold`; the unit depends on the signal.
    pub value: f64,
    /// The chance of at least so many hits in a healthy cohort.
    pub p: f64,
    /// Devices hit.
    pub hits: u64,
    /// Devices that could have been hit.
    pub devices: u64,
    /// The least effect that fires.
    pub threshold: f64,
    /// Whether there are enough devices, enough effect, and a small enough chance.
    pub fires: bool,
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
            SignalId::OutputDrop,
            SignalId::CvIncrease,
        ] {
            assert_eq!(SignalId::parse(&id.to_string()), Some(id));
        }
        assert_eq!(SignalId::parse("slower_than_9.9x"), None);
    }
}
