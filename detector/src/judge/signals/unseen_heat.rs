//! Heat that devices cannot report. Runs of a hot device are left out as long as its thermal state is known. So on a
//! hot day, the devices that report no thermal state look slower.

use epwatch_model::Installation;

use crate::judge::hash::HashSet;
use crate::judge::tally::Tally;
use crate::judge::window::CohortWindow;

use super::limits::MIN_HITS;

/// Share of the devices hit that must report no thermal state. It is below 1 because some healthy devices are always
/// among them.
const NEARLY_ALL: f64 = 0.8;

/// Chance of so many such devices in the cohort, below which they are not an accident.
const BY_CHANCE: f64 = 0.05;

/// Shares of devices without a thermal state, in [0, 1].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnseenHeat {
    /// Share of the devices hit.
    pub of_hit: f64,
    /// Share of all devices of the cohort.
    pub of_all: f64,
}

/// Returns the shares if the devices hit lie nearly all among those that report no thermal state, and more of them
/// than by chance.
pub(super) fn unseen_heat(
    window: &CohortWindow,
    hit: &HashSet<Installation>,
) -> Option<UnseenHeat> {
    let votes = window.votes.iter().filter(|vote| vote.latency.is_some());
    let (mut all, mut without): (HashSet<Installation>, HashSet<Installation>) = Default::default();
    for vote in votes {
        all.insert(vote.installation);
        if !vote.reports_heat {
            without.insert(vote.installation);
        }
    }
    let of_hit = Tally::of(hit, |device| without.contains(device));
    let of_all = without.len() as f64 / all.len().max(1) as f64;
    let is_heat = of_hit.hits >= MIN_HITS
        && of_hit.share() >= NEARLY_ALL
        && of_hit.chance_at(of_all) <= BY_CHANCE;
    is_heat.then_some(UnseenHeat {
        of_hit: of_hit.share(),
        of_all,
    })
}
