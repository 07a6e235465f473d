//! Sessions of recorded reports: the placement that is judged of many.

use std::sync::Arc;

use crate::{
    files::MeasuredFile,
    macs::ModelMacs,
    mistakes::Mistake,
    placement::InspectedChipset,
    policy::Policy,
    verdict::{Check, Outcome},
};

/// The worst placement of the sessions, by the checks it fails, then by its share on the NPU.
pub(crate) fn worst_placement(
    candidate: &[MeasuredFile],
    policy: &Policy,
    macs: Option<&ModelMacs>,
    mistakes: &mut Vec<Mistake>,
) -> Option<InspectedChipset> {
    let mut distinct: Vec<&Arc<InspectedChipset>> = Vec::new();
    for placed in candidate.iter().filter_map(|one| one.run.placed.as_ref()) {
        if !distinct
            .iter()
            .any(|known| Arc::ptr_eq(known, placed) || **known == *placed)
        {
            distinct.push(placed);
        }
    }
    mistakes.extend((distinct.len() > 1).then(|| Mistake::placements_differ(distinct.len())));
    let each = distinct.into_iter().map(|placed| {
        let mut placed = InspectedChipset::clone(placed);
        if let Some(macs) = macs {
            macs.add_shares(&mut placed);
        }
        let checks = placed.judge(&policy.placement_on(&placed.chipset), None);
        let has = |outcome| checks.iter().any(|check| check.result == outcome);
        let rank = match (has(Outcome::Fail), has(Outcome::Undecided)) {
            (true, _) => 2,
            (false, true) => 1,
            (false, false) => 0,
        };
        let share = placed.numbers().and_then(|numbers| numbers.npu_macs);
        (rank, -share.unwrap_or(0.0), placed)
    });
    let worst = each.max_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    worst.map(|(_, _, placed)| placed)
}

/// The result of a side without run times.
pub(crate) fn without_runs() -> Check {
    Check::new(
        "latency",
        Outcome::Undecided,
        "no session of one side has 20 warm runs on a cool device of this chipset; record longer sessions",
    )
}
