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

/// Forms of a model: `float`, `8-bit` and `8-bit, quantize_static`. Maps each chipset that refuses it to its reason.
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
    /// The refusals of the oldest QNN.
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

/// Titles of the cases that `epwatch gate fix` rewrites.
const FIXED: [&str; 8] = [
    "CumSum",
    "CumSum, reverse",
    "Einsum",
    "Gelu as Div, Erf, Add, Mul, Mul",
    "InstanceNormalization",
    "LayerNormalization as ReduceMean, Sub, Pow, Sqrt, Div, Mul, Add",
    "LayerNormalization over the channels as ReduceMean, Sub, Pow, Sqrt, Div, Mul, Add",
    "LayerNormalization, axis 1",
];

/// Ops of ONNX Runtime's transformer optimiser. Each is a fusion of several ONNX ops.
const FUSED: [&str; 17] = [
    "Attention",
    "BiasAdd",
    "BiasGelu",
    "BiasSoftmax",
    "BiasSplitGelu",
    "EmbedLayerNormalization",
    "FastGelu",
    "GroupNorm",
    "GroupQueryAttention",
    "MultiHeadAttention",
    "QuickGelu",
    "RelativePositionBias",
    "RotaryEmbedding",
    "SimplifiedLayerNormalization",
    "SkipGroupNorm",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
];

/// A node in the terms of the table.
#[derive(Debug, Clone, Copy)]
pub struct OpForm<'a> {
    /// For example `LayerNormalization`.
    pub op_type: &'a str,
    /// Titles of the cases that the node belongs to; empty if the model does not show any.
    pub titles: &'a [&'a str],
    /// Kind of numbers that the node computes with.
    pub precision: Precision,
    /// Version of the QNN that refused it.
    pub qnn: QnnAge,
}

/// Kind of numbers that a node computes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// Floats.
    Float,
    /// 8 bits, between DequantizeLinear and QuantizeLinear.
    EightBit,
    /// Only some of its inputs, or of the nodes of its pattern, are quantised, as plain `quantize_static` leaves several ops.
    Partly,
    /// Not known, because the model is not given.
    Unknown,
}

const FLOAT: &str = "float";
const EIGHT_BIT: &str = "8-bit";
const PARTLY: &str = "8-bit, quantize_static";
/// The quantiser of the table's 8-bit form.
const QUANTISER: &str = "as get_qnn_qdq_config of ONNX Runtime quantises it";

impl OpForm<'_> {
    /// Returns the measured cases of this node. If several cases have its op, they differ in attributes, and none is
    /// returned without the model.
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
        match self.precision {
            Precision::EightBit => &[EIGHT_BIT],
            Precision::Float => &[FLOAT],
            Precision::Partly => &[PARTLY],
            Precision::Unknown => &[FLOAT, EIGHT_BIT],
        }
    }

    /// The reason for which a chipset refused this node in its form; `None` if the chipset took it, or nothing was
    /// measured.
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

    /// A form that the NPU of this chipset takes instead of this node; `None` if no measured form was taken.
    pub fn alternative(&self, chipset: &str) -> Option<String> {
        if !MEASURED.chipsets.contains(chipset) {
            return None;
        }
        let mut cases = self.cases().into_iter();
        cases.find_map(|case| self.alternative_of(case, chipset))
    }

    /// Says of a fused op on the CPU that no measurement shows another form which the NPU takes. `None` for other ops,
    /// and for an op that this chipset took in a model of its own.
    pub(crate) fn unproven(&self, chipset: &str) -> Option<String> {
        let is_asked = FUSED.contains(&self.op_type) && MEASURED.chipsets.contains(chipset);
        let is_taken = |case: &&Case| {
            let by = (&case.refused, &case.older);
            let mut forms = self.forms().iter();
            forms.all(|form| self.qnn.takes(by, form, chipset))
        };
        let is_proven = self.cases().iter().any(is_taken) || self.alternative(chipset).is_some();
        (is_asked && !is_proven).then(|| {
            format!(
                "No alternative to {} is proven for {chipset}.",
                self.op_type
            )
        })
    }

    fn alternative_of(&self, case: &Case, chipset: &str) -> Option<String> {
        let takes = |of: (&Refused, &Refused), form: &str| self.qnn.takes(of, form, chipset);
        let itself = (&case.refused, &case.older);
        let forms = self.forms().iter().copied();
        let forms: Vec<&str> = forms.filter(|form| !takes(itself, form)).collect();
        if forms.is_empty() {
            return None;
        }
        let can_be_quantised = matches!(self.precision, Precision::Float | Precision::Partly);
        let others = case.alternatives.iter().filter_map(|other| {
            let by = (&other.refused, &other.older);
            if forms.iter().all(|form| takes(by, form)) {
                return Some(other.title.clone());
            }
            let is_taken = can_be_quantised && !takes(itself, EIGHT_BIT) && takes(by, EIGHT_BIT);
            is_taken.then(|| format!("{} in 8 bits, {QUANTISER}", other.title))
        });
        let mut found: Vec<String> = others.collect();
        if can_be_quantised && takes(itself, EIGHT_BIT) {
            found.push(format!("its 8-bit form, {QUANTISER}"));
        }
        if found.is_empty() {
            return None;
        }
        let form = match self.precision {
            Precision::Unknown => format!("{}, the model's form is not known", forms.join(" and ")),
            Precision::Partly => "quantised in part".to_owned(),
            Precision::Float | Precision::EightBit => forms.join(" and "),
        };
        let fix = match (self.is_rewritten(case, chipset), self.qnn) {
            (false, _) => String::new(),
            (true, QnnAge::Newest) => {
                format!(" `epwatch gate fix MODEL --soc {chipset}` rewrites it.")
            }
            (true, _) => format!(
                " `epwatch gate fix MODEL --soc {chipset}` with the same --qnn-version rewrites it."
            ),
        };
        Some(format!(
            "Taken by {chipset} instead of {} ({form}): {}.{fix}",
            case.title,
            found.join("; or ")
        ))
    }

    /// Whether `epwatch gate fix` makes a form of it that this chipset takes.
    fn is_rewritten(&self, case: &Case, chipset: &str) -> bool {
        let takes = |form: &str| {
            let mut others = case.alternatives.iter();
            others.any(|other| {
                self.qnn
                    .takes((&other.refused, &other.older), form, chipset)
            })
        };
        FIXED.contains(&case.title.as_str())
            && match self.precision {
                Precision::Float => takes(FLOAT),
                Precision::EightBit => takes(EIGHT_BIT),
                // One node stands between the DequantizeLinear and QuantizeLinear around the pattern.
                Precision::Partly => case.ops.len() > 1 && takes(EIGHT_BIT),
                Precision::Unknown => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(titles: &'a [&'a str], precision: Precision) -> OpForm<'a> {
        OpForm {
            op_type: "",
            titles,
            precision,
            qnn: QnnAge::Newest,
        }
    }

    /// Following advice that the validator then refuses costs a developer a day.
    #[test]
    fn no_refused_form_is_advised() {
        assert!(MEASURED.cases.len() >= 60 && MEASURED.chipsets.len() >= 7);
        let mut advised = 0;
        for case in &MEASURED.cases {
            for chipset in &MEASURED.chipsets {
                for (form, precision) in [
                    (FLOAT, Precision::Float),
                    (EIGHT_BIT, Precision::EightBit),
                    (PARTLY, Precision::Partly),
                ] {
                    let title = [case.title.as_str()];
                    let found = of(&title, precision).alternative(chipset);
                    let is_refused = case.refused[form].contains_key(chipset);
                    assert!(found.is_none() || is_refused, "{found:?}");
                    let Some(text) = found else { continue };
                    advised += 1;
                    let list = text.split("): ").nth(1).unwrap();
                    for other in &case.alternatives {
                        let in_8_bits = format!("{} in 8 bits", other.title);
                        let by = match list.contains(&in_8_bits) {
                            true => EIGHT_BIT,
                            false => form,
                        };
                        let is_named = list.contains(&other.title);
                        let is_taken = !other.refused[by].contains_key(chipset);
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
        let text = of(&gelu, Precision::EightBit)
            .alternative("SM8635")
            .unwrap();
        assert!(text.contains("(8-bit): Gelu, one node"), "{text}");
        assert!(text.contains("epwatch gate fix"), "{text}");
        // A Div is not a Gelu, and without the model no pattern is known.
        let div = OpForm {
            op_type: "Div",
            titles: &[],
            precision: Precision::EightBit,
            qnn: QnnAge::Newest,
        };
        assert_eq!(div.alternative("SM8635"), None);
        let norm = ["LayerNormalization, axis 1"];
        let text = of(&norm, Precision::EightBit)
            .alternative("SM8635")
            .unwrap();
        assert!(text.contains("Reshape to one last axis"), "{text}");
        let grid = OpForm {
            op_type: "GridSample",
            titles: &[],
            precision: Precision::Float,
            qnn: QnnAge::Newest,
        };
        let text = grid.alternative("SM8635").unwrap();
        assert!(text.contains("get_qnn_qdq_config"), "{text}");
        let grid_of_floats = OpForm {
            precision: Precision::Partly,
            ..grid
        };
        assert_eq!(grid_of_floats.refusal("SM8350"), Some("prepare_failed"));
        let text = grid_of_floats.alternative("SM8350").unwrap();
        let expected = "(quantised in part): its 8-bit form";
        assert!(text.contains(expected), "{text}");
        let text = of(&gelu, Precision::Partly).alternative("SM8635").unwrap();
        let expected = "(quantised in part): Gelu, one node (opset 20) in 8 bits";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("epwatch gate fix"), "{text}");
        let text = of(&gelu, Precision::Float).alternative("SM8635").unwrap();
        assert!(!text.contains("epwatch gate fix"), "{text}");
        let conv = OpForm {
            op_type: "Conv",
            ..grid
        };
        assert_eq!(conv.alternative("SM8635"), None);
        let hardmax = OpForm {
            op_type: "Hardmax",
            titles: &["Hardmax"],
            precision: Precision::Unknown,
            ..grid
        };
        assert_eq!(hardmax.alternative("unknown"), None);
        let text = hardmax.alternative("SM8650").unwrap();
        assert!(text.contains("ReduceMax, Equal, Cast"), "{text}");
        // Over another axis the NPU refuses the first alternative.
        let image = of(&["Hardmax, axis 1 of 4"], Precision::Float);
        let text = image.alternative("SM8650").unwrap();
        assert!(text.ends_with("(float): ReduceMax, Equal, Cast."), "{text}");
    }

    /// A fused op of a transformer optimiser is refused as one node. The advice names the ops that it stands for, where
    /// they are taken.
    #[test]
    fn a_fused_op_has_its_parts_or_a_plain_no() {
        for (of_model, precision, chipset, expected) in [
            (
                "SkipLayerNormalization (fused)",
                Precision::Float,
                "SM8650",
                Some("(float): Add, LayerNormalization."),
            ),
            (
                "SkipLayerNormalization with a bias (fused)",
                Precision::Float,
                "SM8650",
                Some("(float): Add, Add, LayerNormalization."),
            ),
            (
                "SkipLayerNormalization (fused)",
                Precision::EightBit,
                "SM8635",
                Some("(8-bit): Add, LayerNormalization."),
            ),
            (
                "SkipLayerNormalization (fused)",
                Precision::Float,
                "SM8635",
                Some("Add, LayerNormalization in 8 bits, as get_qnn_qdq_config"),
            ),
            (
                "SimplifiedLayerNormalization",
                Precision::Float,
                "SM8350",
                Some(": Mul, ReduceMean, Add, Sqrt, Div, Mul; or its 8-bit form"),
            ),
            (
                "SkipSimplifiedLayerNormalization (fused)",
                Precision::Float,
                "SM8550",
                Some("(float): Add, Mul, ReduceMean, Add, Sqrt, Div, Mul."),
            ),
            (
                "SkipSimplifiedLayerNormalization with a bias (fused)",
                Precision::EightBit,
                "SM8635",
                Some("(8-bit): Add, Add, Mul, ReduceMean, Add, Sqrt, Div, Mul."),
            ),
            (
                "BiasGelu",
                Precision::Float,
                "SM8650",
                Some("(float): Add, Gelu (opset 20)."),
            ),
            (
                "FastGelu (fused)",
                Precision::EightBit,
                "SM8635",
                Some("(8-bit): Gelu with approximate tanh (opset 20)."),
            ),
            (
                "FastGelu with a bias (fused)",
                Precision::EightBit,
                "SM8635",
                Some("(8-bit): Add, Gelu with approximate tanh (opset 20)."),
            ),
            // Without the model it is not known which of the two cases it is.
            (
                "FastGelu",
                Precision::Float,
                "SM8650",
                Some("No alternative to FastGelu is proven for SM8650."),
            ),
            (
                "QuickGelu",
                Precision::EightBit,
                "SM8635",
                Some("Mul by its alpha, Sigmoid, Mul"),
            ),
            (
                "EmbedLayerNormalization",
                Precision::Float,
                "SM8650",
                Some("No alternative to EmbedLayerNormalization is proven for SM8650."),
            ),
            (
                "MultiHeadAttention",
                Precision::Float,
                "SM8635",
                Some("No alternative to MultiHeadAttention is proven for SM8635."),
            ),
            // This chipset takes the op, so that the node is refused for another reason.
            ("QuickGelu", Precision::Float, "SM8650", None),
            ("EmbedLayerNormalization", Precision::Float, "unknown", None),
            ("Conv", Precision::Float, "SM8650", None),
            ("Einsum not measured", Precision::Float, "SM8650", None),
        ] {
            let op_type = of_model.split(' ').next().unwrap();
            let title = match of_model {
                "Einsum not measured" => "not measured",
                title => title,
            };
            let titles = match title == op_type {
                true => &[][..],
                false => &[title][..],
            };
            let form = OpForm {
                op_type,
                ..of(titles, precision)
            };
            let found = form.alternative(chipset).or_else(|| form.unproven(chipset));
            match expected {
                Some(words) => {
                    let text = found.unwrap();
                    assert!(text.contains(words), "{words:?} is not in {text}");
                }
                None => assert_eq!(found, None, "{of_model} {chipset}"),
            }
        }
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
                        ..of(&title, Precision::EightBit)
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
