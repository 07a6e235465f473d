//! Advice for nodes on the CPU: other forms of their ops, as they were measured with QNN.

use epwatch_engines::QnnVersion;
use epwatch_gate::{
    advice::{ModelNode, advise},
    ops::{OpForm, Precision, QnnAge},
    verdict::Check,
};
use epwatch_manifest::{GraphFacts, NodeForm};

/// Returns the age of a QNN version, in the classes of docs/ops.md.
fn age(version: QnnVersion) -> QnnAge {
    match version {
        QnnVersion::NEWEST => QnnAge::Newest,
        QnnVersion::OLDEST => QnnAge::Oldest,
        _ => QnnAge::Between,
    }
}

/// Advises the nodes of checks by their forms in the model.
pub(super) fn advised(checks: &mut [Check], chipset: &str, facts: &GraphFacts, qnn: QnnVersion) {
    let qnn = age(qnn);
    let nodes: Vec<ModelNode<'_>> = facts
        .forms()
        .map(|(name, op_type, form)| ModelNode {
            name,
            form: OpForm {
                op_type,
                titles: &form.titles,
                precision: precision(form),
                qnn,
            },
        })
        .collect();
    advise(checks, chipset, &nodes);
}

fn precision(form: &NodeForm) -> Precision {
    match (form.is_quantised, form.is_partly_quantised) {
        (true, _) => Precision::EightBit,
        (false, true) => Precision::Partly,
        (false, false) => Precision::Float,
    }
}
