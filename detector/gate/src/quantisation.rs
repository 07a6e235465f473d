//! Tells whether wrong outputs point at the quantisation or at one NPU, by comparing chipsets that run one model.
//!
//! It applies the detector's rule for fleets (`detector/src/judge/signals/output_drop.rs`) to the least cosine of each
//! chipset.

use std::collections::BTreeMap;

use crate::verdict::{CheckResult, Target};

/// One chipset in this many may have right outputs although the quantisation is the cause.
const MAY_DIFFER_OF: usize = 3;

/// Adds the cause to each check of outputs that fails, if the model was measured on other chipsets too.
pub(crate) fn tell_apart(targets: &mut [Target]) {
    let mut least: BTreeMap<(Option<String>, String), f64> = BTreeMap::new();
    for target in &*targets {
        if let Some(cosine) = cosine_of(target) {
            let slot = least.entry(key(target)).or_insert(cosine);
            *slot = slot.min(cosine);
        }
    }
    for target in targets {
        if cosine_of(target).is_none() {
            continue;
        }
        let (model, chipset) = key(target);
        let others = least
            .iter()
            .filter(|((of, on), _)| *of == model && *on != chipset);
        let others: Vec<f64> = others.map(|(_, cosine)| *cosine).collect();
        let failing = target
            .checks
            .iter_mut()
            .find(|check| check.id == "outputs" && check.result == CheckResult::Fail);
        if let Some(check) = failing {
            check.why += &cause(&others, check.limit);
        }
    }
}

fn key(target: &Target) -> (Option<String>, String) {
    let model = target.model.as_ref().map(|model| model.sha256.clone());
    (model, target.chipset.clone())
}

/// Returns the least cosine of a target, if it was judged.
fn cosine_of(target: &Target) -> Option<f64> {
    let mut checks = target.checks.iter();
    checks.find(|check| check.id == "outputs")?.value
}

/// Returns the cause as the end of a sentence.
fn cause(others: &[f64], limit: Option<f64>) -> String {
    let limit = limit.unwrap_or(f64::INFINITY);
    let nearest = others.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let spared = others.iter().filter(|cosine| **cosine >= limit).count();
    // The target's own chipset counts as well.
    let is_everywhere = MAY_DIFFER_OF * spared <= others.len() + 1;
    match (others.len(), is_everywhere) {
        (0, _) => String::new(),
        (n, true) => format!(
            "; {}, so it is your quantisation and not one NPU: keep the layer that loses it in 16 bits",
            match (n, spared) {
                (1, _) => "the other chipset loses them too".to_owned(),
                (n, 0) => format!("the {n} other chipsets lose them too"),
                (2, 1) => "1 of the 2 other chipsets loses them too".to_owned(),
                (n, spared) => format!("{} of the {n} other chipsets lose them too", n - spared),
            }
        ),
        (_, false) => {
            format!(
                "; another chipset keeps {nearest:.4}, so it is the NPU here and not your quantisation"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(others: &[f64], expected: &str) {
        let said = cause(others, Some(0.99));
        assert!(said.contains(expected), "{said}");
        assert_eq!(said.is_empty(), expected.is_empty(), "{said}");
    }

    #[test]
    fn the_same_loss_on_all_chipsets_is_the_quantisation() {
        check(&[0.95], "it is your quantisation");
        check(&[0.95, 0.6, 0.96], "the 3 other chipsets lose them too");
        check(&[0.95, 0.95, 0.95, 0.9999], "it is your quantisation");
        check(&[0.95, 0.9999], "1 of the 2 other chipsets loses them too");
    }

    #[test]
    fn a_loss_on_one_chipset_is_its_npu() {
        check(&[0.9995], "keeps 0.9995, so it is the NPU here");
        check(&[0.991], "it is the NPU here");
    }

    #[test]
    fn one_chipset_gives_no_answer() {
        check(&[], "");
    }
}
