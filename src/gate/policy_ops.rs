//! Checks the names of ops in a policy, because a limit on a misspelt op would never fail.

use std::collections::BTreeSet;

use epwatch_gate::policy::{PlacementLimits, Policy};
use strsim::damerau_levenshtein;

use crate::output::WrongUse;

/// The ops of ONNX and of ONNX Runtime, by `tests/fixtures/scripts/make_op_names.py`.
const OP_NAMES: &str = include_str!("op_names.txt");
/// At most this many letters differ between a name and the one that was meant.
const MOST_LETTERS: usize = 3;

/// Names that a policy may have in addition to ONNX's ops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OtherOps {
    /// No other names, because the nodes of an ONNX model are judged.
    None,
    /// Layers of other runtimes, whose ops have names of their own. Then a name is refused only if it differs from a
    /// known one in one letter or in case.
    OfRuntimes,
}

/// Refuses a name that is neither an op of ONNX nor one of `own`.
pub(super) fn check<'a>(
    policy: &Policy,
    own: impl IntoIterator<Item = &'a str>,
    others: OtherOps,
) -> Result<(), WrongUse> {
    let known: BTreeSet<&str> = OP_NAMES.lines().chain(own).collect();
    let chipsets = policy.chipset.iter();
    let chipsets = chipsets.map(|(name, on)| (format!("chipset.{name}.placement"), &on.placement));
    let all = std::iter::once(("placement".to_owned(), &policy.placement));
    let models = policy.model.iter();
    let models = models.map(|(name, of)| (format!("model.\"{name}\".placement"), &of.placement));
    for (table, limits) in all.chain(chipsets).chain(models) {
        for (key, op) in named(limits).filter(|(_, op)| !known.contains(op.as_str())) {
            let near = nearest(op, &known);
            let is_slip = near.is_some_and(|near| {
                near.eq_ignore_ascii_case(op) || damerau_levenshtein(op, near) == 1
            });
            if others == OtherOps::OfRuntimes && !is_slip {
                continue;
            }
            let near = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
            return Err(WrongUse(format!(
                "{table}.{key} of --policy names the op {op}, which neither ONNX, ONNX Runtime nor the model has{near}"
            )));
        }
    }
    Ok(())
}

/// Ops of a table, each with its key.
fn named(limits: &PlacementLimits) -> impl Iterator<Item = (&'static str, &String)> {
    let of = |key, ops| -> Vec<(&'static str, &String)> {
        let ops: &Option<Vec<String>> = ops;
        ops.iter().flatten().map(|op| (key, op)).collect()
    };
    let allowed = of("allowed_cpu_ops", &limits.allowed_cpu_ops);
    let forbidden = of("forbidden_cpu_ops", &limits.forbidden_cpu_ops);
    allowed.into_iter().chain(forbidden)
}

/// Returns the known name from which the fewest letters differ.
fn nearest<'a>(op: &str, known: &BTreeSet<&'a str>) -> Option<&'a str> {
    let lower = op.to_ascii_lowercase();
    let away = |name: &str| damerau_levenshtein(&lower, &name.to_ascii_lowercase());
    let nearest = known.iter().map(|name| (away(name), *name)).min();
    // In a short name fewer letters may differ, since a few are most of the name.
    let most = MOST_LETTERS.min(op.len() / 2);
    nearest
        .filter(|(away, _)| *away <= most)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_refused(op: &str, others: OtherOps, near: Option<&str>) {
        let policy = Policy::parse(&format!("[placement]\nforbidden_cpu_ops = ['{op}']")).unwrap();
        let error = check(&policy, ["MyOp"], others).unwrap_err().to_string();
        assert!(error.contains(op), "{error}");
        match near {
            Some(near) => assert!(error.ends_with(&format!("did you mean {near}?")), "{error}"),
            None => assert!(!error.contains("mean"), "{error}"),
        }
    }

    #[test]
    fn a_misspelt_op_is_refused_with_the_nearest_name() {
        for (op, near) in [
            ("LayerNormalisation", Some("LayerNormalization")),
            ("Topk", Some("TopK")),
            ("MatMull", Some("MatMul")),
            ("Myop", Some("MyOp")),
            ("QuantiseLinear", Some("QuantizeLinear")),
            ("GroupQueryAtention", Some("GroupQueryAttention")),
            ("Zyxwvu", None),
        ] {
            check_refused(op, OtherOps::None, near);
        }
        check_refused("Topk", OtherOps::OfRuntimes, Some("TopK"));
    }

    #[test]
    fn ops_of_onnx_of_the_model_and_of_other_runtimes_are_known() {
        let text = "[placement]\nallowed_cpu_ops = ['TopK', 'MyOp', 'GroupQueryAttention', 'ReorderInput']\n\
                    [chipset.SM8635.placement]\nforbidden_cpu_ops = ['EPContext', 'Upsample', 'FusedConv']";
        let policy = Policy::parse(text).unwrap();
        check(&policy, ["MyOp"], OtherOps::None).unwrap();
        let policy =
            Policy::parse("[placement]\nforbidden_cpu_ops = ['CONV_2D', 'Conv2d']").unwrap();
        check(&policy, [], OtherOps::OfRuntimes).unwrap();
        let error = check(&policy, [], OtherOps::None).unwrap_err();
        assert!(error.to_string().contains("CONV_2D"), "{error}");
    }
}
