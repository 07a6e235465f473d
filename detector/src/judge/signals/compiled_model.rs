//! Devices whose compiled model was made for another chipset or runtime, by the word of their sessions. Without a reference:
//! the device compares the model's file with itself.

use epwatch_model::Installation;
use epwatch_proto::ReasonCode;

use crate::judge::hash::HashSet;
use crate::judge::tally::Tally;
use crate::judge::window::{CohortWindow, DeviceVote};

use super::limits::{Limits, is_enough};

/// Codes of a session that exists. One that the EP refused is a failed start.
const CODES: [ReasonCode; 2] = [
    ReasonCode::EpcontextForAnother,
    ReasonCode::EpcontextIncompatible,
];

/// Share of devices with such a session in a healthy cohort: single ones with a file that was meant for another phone.
const RATE: f64 = 0.01;

/// Devices with a compiled model that was not made for them, more than a healthy cohort has.
#[derive(Debug, Clone, PartialEq)]
pub struct CompiledForAnother {
    pub tally: Tally,
    pub hit_devices: HashSet<Installation>,
    /// Chance of so many in a healthy cohort.
    pub p: f64,
}

/// Counts such devices; `None` if they are too few.
#[must_use]
pub(crate) fn compiled_for_another(
    window: &CohortWindow,
    limits: &Limits,
) -> Option<CompiledForAnother> {
    let says = |vote: &&DeviceVote| {
        let mut reasons = vote.placement.reasons.iter();
        reasons.any(|reason| CODES.iter().any(|code| reason == code.as_str()))
    };
    let hit = window.votes.iter().filter(says);
    let hit_devices: HashSet<Installation> = hit.map(|vote| vote.installation).collect();
    let tally = Tally {
        hits: hit_devices.len() as u64,
        devices: window.n_devices(),
    };
    let p = tally.chance_at(RATE);
    (is_enough(tally, 0.0) && p <= limits.p_placement).then_some(CompiledForAnother {
        tally,
        hit_devices,
        p,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fleet, compiled_for_another as saying};

    fn found(devices: u32, hits: u32) -> Option<CompiledForAnother> {
        let fleet = Fleet {
            devices,
            ..Fleet::default()
        };
        let window = saying(fleet.window(), 0..hits, "f1");
        compiled_for_another(&window, &Limits::for_windows_a_day(1_000.0))
    }

    #[test]
    fn devices_are_counted_once() {
        let found = found(60, 20).unwrap();
        let counts = (found.tally.hits, found.tally.devices);
        assert_eq!((counts, found.hit_devices.len()), ((20, 60), 20));
    }

    #[test]
    fn single_devices_are_none_of_the_cohort() {
        assert_eq!(found(60, 0), None);
        assert_eq!(found(60, 2), None);
        assert_eq!(found(400, 7), None);
        assert_eq!(found(4, 4), None);
        assert!(found(5, 3).is_some());
    }
}
