//! Other forms of an op that QNN's validator takes where it refuses this one, as `ops/measure.py` of this crate measured
//! them in real sessions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use serde::Deserialize;

static MEASURED: LazyLock<Measured> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../ops/ops.json")).expect("a test reads the same file")
});

/// Forms of a model: `float` and `8-bit`. Maps each chipset that refuses it to its reason.
type Refused = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Debug, Deserialize)]
struct Measured {
    chipsets: BTreeSet<String>,
    cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
struct Case {
    title: String,
    ops: Vec<String>,
    refused: Refused,
    alternatives: Vec<Alternative>,
}

#[derive(Debug, Deserialize)]
struct Alternative {
    title: String,
    refused: Refused,
}

/// Returns what the NPU of this chipset takes instead of an op; `None` if nothing was measured that it takes.
pub(crate) fn alternative(op_type: &str, chipset: &str) -> Option<String> {
    let measured = &*MEASURED;
    let cases = || measured.cases.iter();
    let is_refused = cases().any(|case| {
        let mut refused = case.refused.values();
        case.ops == [op_type] && refused.any(|refused| refused.contains_key(chipset))
    });
    let mut found: Vec<String> = Vec::new();
    for case in cases().filter(|case| case.ops.iter().any(|op| op == op_type)) {
        for alternative in &case.alternatives {
            // A form counts if the op is refused in it, and the alternative is not.
            let forms = case.refused.iter().filter(|(form, refused)| {
                let others = alternative.refused.get(*form);
                refused.contains_key(chipset)
                    && others.is_some_and(|others| !others.contains_key(chipset))
            });
            let forms: Vec<&str> = forms.map(|(form, _)| form.as_str()).collect();
            let what = format!("{} ({})", alternative.title, forms.join(" and "));
            match case.ops.len() {
                _ if forms.is_empty() => {}
                1 => found.push(what),
                // The op is the one that is refused of several.
                _ if is_refused => found.push(format!("{what}, for {}", case.title)),
                _ => {}
            }
        }
    }
    found.dedup();
    let is_measured = measured.chipsets.contains(chipset) && !found.is_empty();
    is_measured.then(|| {
        format!(
            "Taken by {chipset} instead of {op_type}: {}.",
            found.join("; or ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An advice that the validator refuses costs a day.
    #[test]
    fn no_refused_form_is_advised() {
        assert!(MEASURED.cases.len() >= 60 && MEASURED.chipsets.len() >= 7);
        let mut advised = 0;
        for case in &MEASURED.cases {
            let [op] = &case.ops[..] else { continue };
            for chipset in &MEASURED.chipsets {
                let Some(text) = alternative(op, chipset) else {
                    continue;
                };
                advised += 1;
                for other in case.alternatives.iter().filter(|a| text.contains(&a.title)) {
                    let takes = |refused: &BTreeMap<_, _>| !refused.contains_key(chipset);
                    assert!(other.refused.values().any(takes), "{text}");
                }
            }
        }
        assert!(advised > 0);
        let gelu = alternative("Erf", "SM8650").unwrap();
        assert!(
            gelu.contains("Gelu, one node (opset 20) (8-bit), for Gelu as"),
            "{gelu}"
        );
        assert_eq!(alternative("Add", "SM8650"), None);
        assert_eq!(alternative("Conv", "SM8650"), None);
        assert_eq!(alternative("Hardmax", "unknown"), None);
    }
}
