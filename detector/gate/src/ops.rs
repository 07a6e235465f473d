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
    /// The same of the oldest QNN.
    older: Refused,
    alternatives: Vec<Alternative>,
}

#[derive(Debug, Deserialize)]
struct Alternative {
    title: String,
    refused: Refused,
    older: Refused,
}

/// Version of the QNN that refused a node. The table has answers of the newest and the oldest QNN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QnnAge {
    /// The newest QNN of the table.
    Newest,
    /// Another QNN, or an unknown one. It takes a form if the newest and the oldest QNN take it.
    Between,
    /// The oldest QNN of the table.
    Oldest,
}

impl QnnAge {
    /// Whether this QNN takes the form, by the answers of the newest and the oldest.
    fn takes(self, (refused, older): (&Refused, &Refused), form: &str, chipset: &str) -> bool {
        let taken = |by: &Refused| by.get(form).is_some_and(|by| !by.contains_key(chipset));
        match self {
            Self::Newest => taken(refused),
            Self::Oldest => taken(older),
            Self::Between => taken(refused) && taken(older),
        }
    }
}

/// Cases that `epwatch gate fix` rewrites.
const FIXED: [&str; 6] = [
    "CumSum",
    "CumSum, reverse",
    "Einsum",
    "Gelu as Div, Erf, Add, Mul, Mul",
    "InstanceNormalization",
    "LayerNormalization, axis 1",
];

/// A node as the table knows it.
#[derive(Debug, Clone, Copy)]
pub struct OpForm<'a> {
    /// For example `LayerNormalization`.
    pub op_type: &'a str,
    /// Titles of cases that the node is a part of; empty if the model does not show any.
    pub titles: &'a [&'a str],
    /// Whether it stands between DequantizeLinear and QuantizeLinear; `None` without the model.
    pub is_quantised: Option<bool>,
    /// Version of the QNN that refused it.
    pub qnn: QnnAge,
}

const FLOAT: &str = "float";
const EIGHT_BIT: &str = "8-bit";

impl OpForm<'_> {
    /// The cases about this node. An op of several cases, which differ in attributes, has none without the model.
    fn cases(&self) -> Vec<&'static Case> {
        let is_it = |case: &&Case| match self.titles {
            [] => case.ops == [self.op_type],
            titles => titles.contains(&case.title.as_str()),
        };
        let found: Vec<&Case> = MEASURED.cases.iter().filter(is_it).collect();
        match (self.titles, found.len()) {
            ([], 2..) => Vec::new(),
            _ => found,
        }
    }

    fn forms(&self) -> &'static [&'static str] {
        match self.is_quantised {
            Some(true) => &[EIGHT_BIT],
            Some(false) => &[FLOAT],
            None => &[FLOAT, EIGHT_BIT],
        }
    }

    /// The reason for which a chipset refused this node in its form; `None` if it took it, or nothing was measured.
    pub fn refusal(&self, chipset: &str) -> Option<&'static str> {
        let [form] = self.forms() else { return None };
        let mut cases = self.cases().into_iter();
        cases.find_map(|case| {
            let by = match self.qnn {
                QnnAge::Oldest => &case.older,
                QnnAge::Newest | QnnAge::Between => &case.refused,
            };
            Some(by.get(*form)?.get(chipset)?.as_str())
        })
    }

    /// What the NPU of this chipset takes instead of this node in its form; `None` if nothing was measured that it takes.
    pub fn alternative(&self, chipset: &str) -> Option<String> {
        if !MEASURED.chipsets.contains(chipset) {
            return None;
        }
        for case in self.cases() {
            let takes = |of: (&Refused, &Refused), form: &str| self.qnn.takes(of, form, chipset);
            let itself = (&case.refused, &case.older);
            let forms = self.forms().iter().copied();
            let forms: Vec<&str> = forms.filter(|form| !takes(itself, form)).collect();
            if forms.is_empty() {
                continue;
            }
            let others = case.alternatives.iter();
            let others = others.filter(|other| {
                let mut forms = forms.iter();
                forms.all(|form| takes((&other.refused, &other.older), form))
            });
            let mut found: Vec<&str> = others.map(|other| other.title.as_str()).collect();
            let is_float = self.is_quantised == Some(false);
            if is_float && takes(itself, EIGHT_BIT) {
                found.push("its 8-bit form, as get_qnn_qdq_config of ONNX Runtime quantises it");
            }
            if found.is_empty() {
                continue;
            }
            let forms = match self.is_quantised {
                Some(_) => forms.join(" and "),
                None => format!("{}, the model's form is not known", forms.join(" and ")),
            };
            let is_fixed = FIXED.contains(&case.title.as_str()) && self.is_quantised.is_some();
            let command = format!("`epwatch gate fix MODEL --soc {chipset}`");
            let fix = match (is_fixed, self.qnn) {
                (false, _) => String::new(),
                (true, QnnAge::Newest) => format!(" {command} rewrites it."),
                (true, _) => format!(" {command} with the same --qnn-version rewrites it."),
            };
            return Some(format!(
                "Taken by {chipset} instead of {} ({forms}): {}.{fix}",
                case.title,
                found.join("; or ")
            ));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(titles: &'a [&'a str], is_quantised: Option<bool>) -> OpForm<'a> {
        OpForm {
            op_type: "",
            titles,
            is_quantised,
            qnn: QnnAge::Newest,
        }
    }

    /// An advice that the validator refuses costs a day.
    #[test]
    fn no_refused_form_is_advised() {
        assert!(MEASURED.cases.len() >= 60 && MEASURED.chipsets.len() >= 7);
        let mut advised = 0;
        for case in &MEASURED.cases {
            for chipset in &MEASURED.chipsets {
                for (form, is_quantised) in [(FLOAT, false), (EIGHT_BIT, true)] {
                    let title = [case.title.as_str()];
                    let found = of(&title, Some(is_quantised)).alternative(chipset);
                    let is_refused = case.refused[form].contains_key(chipset);
                    assert!(found.is_none() || is_refused, "{found:?}");
                    let Some(text) = found else { continue };
                    advised += 1;
                    let list = text.split("): ").nth(1).unwrap();
                    for other in &case.alternatives {
                        let is_named = list.contains(&other.title);
                        let is_taken = !other.refused[form].contains_key(chipset);
                        assert_eq!(is_named, is_taken, "{text}");
                    }
                }
            }
        }
        assert!(advised > 20);
    }

    #[test]
    fn advice_is_of_the_nodes_own_pattern_and_precision() {
        let gelu = ["Gelu as Div, Erf, Add, Mul, Mul"];
        let text = of(&gelu, Some(true)).alternative("SM8635").unwrap();
        assert!(text.contains("(8-bit): Gelu, one node"), "{text}");
        assert!(text.contains("epwatch gate fix"), "{text}");
        // A Div is no Gelu, and without the model no pattern is known.
        let div = OpForm {
            op_type: "Div",
            titles: &[],
            is_quantised: Some(true),
            qnn: QnnAge::Newest,
        };
        assert_eq!(div.alternative("SM8635"), None);
        let norm = ["LayerNormalization, axis 1"];
        let text = of(&norm, Some(true)).alternative("SM8635").unwrap();
        assert!(text.contains("Reshape to one last axis"), "{text}");
        let grid = OpForm {
            op_type: "GridSample",
            titles: &[],
            is_quantised: Some(false),
            qnn: QnnAge::Newest,
        };
        let text = grid.alternative("SM8635").unwrap();
        assert!(text.contains("get_qnn_qdq_config"), "{text}");
        let conv = OpForm {
            op_type: "Conv",
            ..grid
        };
        assert_eq!(conv.alternative("SM8635"), None);
        let hardmax = OpForm {
            op_type: "Hardmax",
            is_quantised: None,
            ..grid
        };
        assert_eq!(hardmax.alternative("unknown"), None);
        let text = hardmax.alternative("SM8650").unwrap();
        assert!(text.contains("ReduceMax, Equal, Cast"), "{text}");
    }

    /// Versions between both ends are not measured, so only what both take is advised.
    #[test]
    fn advice_is_of_the_qnn_that_refused() {
        let mut n_differ = 0;
        for case in &MEASURED.cases {
            for chipset in &MEASURED.chipsets {
                let title = [case.title.as_str()];
                let advised = |qnn| {
                    let form = OpForm {
                        qnn,
                        ..of(&title, Some(true))
                    };
                    form.alternative(chipset).map_or(Vec::new(), |text| {
                        let others = case.alternatives.iter().map(|other| other.title.clone());
                        let list = text.split("): ").nth(1).unwrap().to_owned();
                        others.filter(|other| list.contains(other)).collect()
                    })
                };
                let (newest, between, oldest) = (
                    advised(QnnAge::Newest),
                    advised(QnnAge::Between),
                    advised(QnnAge::Oldest),
                );
                for other in &between {
                    let other = case
                        .alternatives
                        .iter()
                        .find(|o| o.title == *other)
                        .unwrap();
                    for by in [&other.refused, &other.older] {
                        assert!(!by[EIGHT_BIT].contains_key(chipset), "{other:?}");
                    }
                }
                n_differ += usize::from(newest != oldest);
            }
        }
        assert!(n_differ > 0, "both versions take the same");
    }
}
