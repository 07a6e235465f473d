//! Selects from the placements of many launches the one that is judged, and the one that it is compared with.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    files::{LaunchesError, MeasuredFile},
    macs::ModelMacs,
    mistakes::Mistake,
    placement::InspectedChipset,
    policy::Policy,
    verdict::{CheckResult, PlacementNumbers},
};

/// Placements of one side's launches.
pub(crate) struct LaunchPlacements {
    /// Each different placement once.
    distinct: Vec<FoundPlacement>,
    /// Number of launches without a placement. Launches of precompiled models are not counted, because none of their
    /// files can have a placement.
    pub(crate) without: usize,
}

struct FoundPlacement {
    /// Path of a file that has it.
    file: String,
    /// Whether the file has it as ONNX Runtime's list, and not in events of nodes.
    is_listed: bool,
    placed: Arc<InspectedChipset>,
}

/// Collects the placements of the files. A file lists its placement, or has nodes from which the MACs of the model give
/// it.
///
/// # Errors
/// A profile belongs to another model.
pub(crate) fn placements(
    arm: &mut [MeasuredFile],
    macs: Option<&ModelMacs>,
    chipset: &str,
) -> Result<LaunchPlacements, LaunchesError> {
    let (mut distinct, mut without) = (Vec::<FoundPlacement>::new(), 0);
    for one in arm {
        let of_nodes = of_nodes(one, macs, chipset)?.map(Arc::new);
        let listed = one.run.placed.iter().cloned().map(|placed| (true, placed));
        let of_nodes = of_nodes.map(|placed| (false, placed));
        let found: Vec<(bool, Arc<InspectedChipset>)> = listed.chain(of_nodes).collect();
        let is_precompiled = one.run.mistakes.iter().any(|note| note.id == "ep_context");
        without += usize::from(found.is_empty() && !is_precompiled);
        for (is_listed, placed) in found {
            let is_it = |known: &FoundPlacement| {
                let is_same = Arc::ptr_eq(&known.placed, &placed) || known.placed == placed;
                known.is_listed == is_listed && is_same
            };
            if !distinct.iter().any(is_it) {
                distinct.push(FoundPlacement {
                    file: one.file.path.clone(),
                    is_listed,
                    placed,
                });
            }
        }
    }
    Ok(LaunchPlacements { distinct, without })
}

fn of_nodes(
    one: &mut MeasuredFile,
    macs: Option<&ModelMacs>,
    chipset: &str,
) -> Result<Option<InspectedChipset>, LaunchesError> {
    let run = &mut one.run;
    let listed = ModelMacs::listed(&run.nodes).filter(|_| run.source == "run");
    let Some(macs) = macs.or(listed.as_ref()) else {
        return Ok(None);
    };
    match run.source {
        "ort_profile" => {
            let placed = macs.placement(run, chipset);
            let file = || one.file.path.clone();
            let placed = placed.map_err(|error| LaunchesError::WrongModel {
                file: file(),
                error,
            });
            placed.map(Some)
        }
        "aihub_profile" | "aihub_result" | "run" if !run.nodes.is_empty() => {
            Ok(Some(macs.joined(run, chipset)))
        }
        _ => Ok(None),
    }
}

impl LaunchPlacements {
    /// The worst placement: by the checks that it does not pass, then by its share on the NPU.
    pub(crate) fn worst(
        &self,
        policy: &Policy,
        macs: Option<&ModelMacs>,
        notes: &mut Vec<Mistake>,
    ) -> Option<InspectedChipset> {
        let mut results = BTreeSet::new();
        let each = self.distinct.iter().map(|found| {
            let (file, mut placed) = (&found.file, InspectedChipset::clone(&found.placed));
            if let Some(macs) = macs {
                macs.add_shares(&mut placed);
                if found.is_listed {
                    placed.counted = macs.counted.clone();
                }
            }
            let limits = policy.placement_on(&placed.chipset);
            let checks = placed.judge(&limits, placed.error.as_deref());
            let worst = [CheckResult::Warn, CheckResult::Undecided, CheckResult::Fail]
                .into_iter()
                .rposition(|result| checks.iter().any(|check| check.result == result));
            let numbers = placed.numbers();
            let share = numbers.as_ref().and_then(|numbers| numbers.npu_macs);
            let partitions = numbers.map(|numbers| numbers.partitions);
            results.insert((worst, share.map(f64::to_bits), partitions));
            (worst, -share.unwrap_or(0.0), file, placed)
        });
        let worst = each.max_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let (_, _, file, placed) = worst?;
        let n = results.len();
        notes.extend((n > 1).then(|| Mistake::placements_differ(n, file)));
        Some(placed)
    }

    /// The best placement. The judged model may not be worse than it.
    pub(crate) fn best(&self) -> Option<PlacementNumbers> {
        let each = self
            .distinct
            .iter()
            .filter_map(|found| found.placed.numbers());
        let share = |of: &PlacementNumbers| of.npu_macs.unwrap_or(-1.0);
        each.max_by(|a, b| share(a).total_cmp(&share(b)))
    }
}
