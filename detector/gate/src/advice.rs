//! Advice for a node on the CPU, from its form in the model.

use std::collections::{BTreeSet, HashMap};

use epwatch_proto::ReasonCode;

use crate::{
    ops::{OpForm, Precision},
    verdict::{Check, CheckResult, FailingNode},
};

/// Maximum number of nodes that are suspected of a failed session whose error names no node.
const MOST_SUSPECTS: usize = 10;

/// A node of the model.
#[derive(Debug, Clone, Copy)]
pub struct ModelNode<'a> {
    /// Name in the model.
    pub name: &'a str,
    /// Its form, in the terms of `docs/ops.md`.
    pub form: OpForm<'a>,
}

/// Advises each node of the checks of one chipset. `nodes` are the nodes of the model. The advice only names forms that
/// this chipset's NPU took in a measurement, in the node's precision.
pub fn advise(checks: &mut [Check], chipset: &str, nodes: &[ModelNode<'_>]) {
    let by_name: HashMap<&str, &ModelNode<'_>> = nodes.iter().map(|n| (n.name, n)).collect();
    for check in checks.iter_mut() {
        if check.id == "session" && check.result == CheckResult::Fail && check.nodes.is_empty() {
            suspect(check, chipset, nodes);
        }
        for node in &mut check.nodes {
            if let Some(known) = by_name.get(node.name.as_str()) {
                node.alternative = known.form.alternative(chipset);
                fit_fix(node, known.form.precision);
                let unproven = known.form.unproven(chipset);
                let has_way_out = node.alternative.is_some() || names_opt_in(node);
                if let Some(no) = unproven.filter(|_| !has_way_out) {
                    let fix = node.fix.take().unwrap_or_default();
                    node.fix = Some(format!("{no} {fix}").trim_end().to_owned());
                }
            }
        }
    }
}

/// Whether the node's text names the option that lets the plugin take its op.
fn names_opt_in(node: &FailingNode) -> bool {
    let texts = [&node.reason_text, &node.fix];
    texts
        .into_iter()
        .flatten()
        .any(|text| text.contains("op_affinity=FILE"))
}

/// "Quantise" does not help a node that is quantised, so it gets other advice.
fn fit_fix(node: &mut FailingNode, precision: Precision) {
    let says_quantise = [
        ReasonCode::Fp16NotSupported,
        ReasonCode::LayoutNotSelected,
        ReasonCode::PrepareFailed,
    ];
    let is_it = |code: &ReasonCode| node.reason == code.as_str();
    if !says_quantise.iter().any(is_it) {
        return;
    }
    node.fix = match precision {
        Precision::EightBit => {
            let instead = match node.alternative {
                Some(_) => "take the form named above",
                None => "take another form of it (docs/ops.md), or leave it to the CPU on purpose",
            };
            Some(format!(
                "It is quantised already, and this chipset refuses it so: {instead}."
            ))
        }
        Precision::Partly => Some(
            "It is quantised in part: quantise all its inputs too, as get_qnn_qdq_config of ONNX Runtime does.".to_owned(),
        ),
        Precision::Float | Precision::Unknown => return,
    };
}

/// Names suspects if the error names no node: the nodes whose op this chipset refused in a model of one op.
fn suspect(check: &mut Check, chipset: &str, nodes: &[ModelNode<'_>]) {
    let refused = nodes
        .iter()
        .filter_map(|node| Some((node, node.form.refusal(chipset)?)));
    let suspects: Vec<FailingNode> = refused
        .take(MOST_SUSPECTS)
        .map(|(node, reason)| FailingNode {
            name: node.name.to_owned(),
            op_type: node.form.op_type.to_owned(),
            types: Vec::new(),
            reason: reason.to_owned(),
            reason_text: Some(format!(
                "by docs/ops.md, {chipset} refuses this op in a model of its own"
            )),
            macs_share: None,
            time: None,
            fix: ReasonCode::from_name(reason).map(|code| code.fix().to_owned()),
            alternative: None,
        })
        .collect();
    let ops: BTreeSet<&str> = suspects.iter().map(|node| node.op_type.as_str()).collect();
    if !ops.is_empty() {
        let ops: Vec<&str> = ops.into_iter().collect();
        let why = check.why.trim_end().trim_end_matches(['.', ';']);
        check.why = format!("{why}; likely by {}", ops.join(", "));
    }
    check.nodes = suspects;
}

/// Op and name of the node that an error of ONNX Runtime names. The suffix `_token_N` of the layout transformer is
/// removed, so that the name is the one in the model.
pub(crate) fn node_of_error(error: &str) -> Option<(String, String)> {
    let (_, rest) = error.split_once("Node '")?;
    let (name, rest) = rest.split_once("' OpType:")?;
    let op_type = rest.split([' ', ',']).next().filter(|op| !op.is_empty())?;
    let name = match name.rsplit_once("_token_") {
        Some((before, number)) if number.bytes().all(|b| b.is_ascii_digit()) => before,
        _ => name,
    };
    Some((op_type.to_owned(), name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::QnnAge;

    #[test]
    fn an_errors_node_is_named_as_the_model_has_it() {
        let error = "Node 'c1_token_2' OpType:Conv with domain:com.ms.internal.nhwc was inserted using the NHWC format";
        let found = node_of_error(error).unwrap();
        assert_eq!(found, ("Conv".to_owned(), "c1".to_owned()));
        let found = node_of_error("Node 'a_token_x' OpType:Conv, x").unwrap();
        assert_eq!(found.1, "a_token_x");
        assert_eq!(
            node_of_error("Failed to finalize QNN graph. Error code: 1002"),
            None
        );
    }

    fn checks(id: &'static str, node: Option<(&str, &str)>) -> Vec<Check> {
        let mut check = Check::new(id, CheckResult::Fail, "no session: 1002");
        check.nodes.extend(node.map(|(name, reason)| FailingNode {
            name: name.to_owned(),
            op_type: "LayerNormalization".to_owned(),
            types: Vec::new(),
            reason: reason.to_owned(),
            reason_text: None,
            macs_share: None,
            time: None,
            fix: Some("Quantise the model.".to_owned()),
            alternative: None,
        }));
        vec![check]
    }

    #[test]
    fn a_quantised_node_is_not_told_to_be_quantised() {
        let titles = ["LayerNormalization, axis 1"];
        let node = ModelNode {
            name: "ln",
            form: OpForm {
                op_type: "LayerNormalization",
                titles: &titles,
                precision: Precision::EightBit,
                qnn: QnnAge::Newest,
            },
        };
        let mut found = checks("cpu_ops", Some(("ln", "fp16_not_supported")));
        advise(&mut found, "SM8635", &[node]);
        let ln = &found[0].nodes[0];
        assert!(
            ln.fix.as_ref().unwrap().contains("quantised already"),
            "{ln:?}"
        );
        assert!(
            ln.alternative.as_ref().unwrap().contains("(8-bit)"),
            "{ln:?}"
        );
    }

    #[test]
    fn a_node_that_is_quantised_in_part_is_to_be_quantised() {
        let node = ModelNode {
            name: "grid",
            form: OpForm {
                op_type: "GridSample",
                titles: &["GridSample"],
                precision: Precision::Partly,
                qnn: QnnAge::Newest,
            },
        };
        let mut found = checks("cpu_ops", Some(("grid", "layout_not_selected")));
        advise(&mut found, "SM8635", &[node]);
        let grid = &found[0].nodes[0];
        assert!(
            grid.fix.as_ref().unwrap().contains("quantised in part"),
            "{grid:?}"
        );
        let alternative = grid.alternative.as_ref().unwrap();
        assert!(alternative.contains("its 8-bit form"), "{alternative}");
    }

    /// An op that the plugin's default keeps off the NPU has a way out, so that "no alternative" would contradict it.
    #[test]
    fn an_op_with_an_opt_in_is_not_said_to_have_no_way_out() {
        let opt_in = "--ep-option op_affinity=FILE with {} opts in, in the app too.";
        let node = ModelNode {
            name: "gqa",
            form: OpForm {
                op_type: "GroupQueryAttention",
                titles: &[],
                precision: Precision::Float,
                qnn: QnnAge::Newest,
            },
        };
        for (text, expected) in [
            (Some(opt_in), None),
            (
                None,
                Some("No alternative to GroupQueryAttention is proven for SM8650."),
            ),
        ] {
            let mut found = checks("cpu_ops", Some(("gqa", "unknown")));
            let gqa = &mut found[0].nodes[0];
            (gqa.fix, gqa.reason_text) = (None, text.map(str::to_owned));
            advise(&mut found, "SM8650", &[node]);
            assert_eq!(found[0].nodes[0].fix.as_deref(), expected);
        }
    }

    #[test]
    fn a_session_that_names_no_node_has_suspects() {
        let node = ModelNode {
            name: "elu_1",
            form: OpForm {
                op_type: "Elu",
                titles: &[],
                precision: Precision::Float,
                qnn: QnnAge::Newest,
            },
        };
        let mut found = checks("session", None);
        advise(&mut found, "SM8350", &[node]);
        assert_eq!(found[0].nodes[0].name, "elu_1");
        assert!(
            found[0].why.ends_with("1002; likely by Elu"),
            "{}",
            found[0].why
        );
        // The suspects follow the fix of a reason, which is a sentence of its own.
        let mut found = checks("session", None);
        found[0].why.push_str(". Split the graph.");
        advise(&mut found, "SM8350", &[node]);
        assert_eq!(
            found[0].why,
            "no session: 1002. Split the graph; likely by Elu"
        );
        let alternative = found[0].nodes[0].alternative.as_ref().unwrap();
        assert!(alternative.contains("get_qnn_qdq_config"), "{alternative}");
        let mut found = checks("session", None);
        advise(&mut found, "SM8650", &[node]);
        assert!(found[0].nodes.is_empty());
    }
}
