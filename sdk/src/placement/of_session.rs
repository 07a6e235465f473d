//! Placement of a session that exists.

use epwatch_proto::{
    Asked, Placement, ReasonCode,
    chipset::{Fp16, Soc, soc_by_soc_model},
    placement::{CPU_EP, MAX_REASONS},
};

use super::{Assignment, PlacementInput, chosen::chosen, log::SessionLog, summarise};

/// Refuses ORT's assignment if it lacks nodes of the requested EP, because a placement with few of them would look like
/// a fallback.
pub(crate) fn recorded(
    assignment: Result<Assignment, ReasonCode>,
    requested_eps: &[String],
) -> Result<Assignment, ReasonCode> {
    let with_nodes = assignment.iter().flat_map(|found| &found.subgraphs);
    let requested_eps = chosen(requested_eps, with_nodes.map(|subgraph| &subgraph.ep));
    let asked = Asked::by_names(&requested_eps);
    match asked.is_none_or(|asked| asked.accelerator.is_recorded()) {
        true => assignment,
        false => assignment.and(Err(ReasonCode::AssignmentNotRecorded)),
    }
}

/// Returns the placement by ORT's assignment. The chipset that was given to the EP, or else the device's own, explains
/// refusals.
fn of_assignment(
    assignment: Result<Assignment, ReasonCode>,
    input: PlacementInput<'_>,
    device: Option<&'static Soc>,
) -> Placement {
    match assignment {
        Ok(assignment) => {
            let mut placement = summarise(&assignment, input);
            infer_fp16(&mut placement, soc_by_soc_model(input.soc_model).or(device));
            placement
        }
        Err(reason) => {
            let mut placement = Placement::unavailable(input.requested_eps.to_vec(), reason);
            placement.reasons.extend(input.known_reasons);
            placement.reasons.truncate(MAX_REASONS);
            placement
        }
    }
}

/// Returns the placement by ORT's assignment, and by the log of a session like this one if there is one.
pub(crate) fn of_logged(
    assignment: Result<Assignment, ReasonCode>,
    log: Option<&SessionLog>,
    input: PlacementInput<'_>,
    device: Option<&'static Soc>,
) -> Placement {
    match log {
        Some(log) => of_captured(assignment, log, input),
        None => of_assignment(assignment, input, device),
    }
}

/// Does the same as [`of_assignment`], and adds the reasons of a captured log. Without an assignment the log also gives
/// the placement.
fn of_captured(
    assignment: Result<Assignment, ReasonCode>,
    log: &SessionLog,
    input: PlacementInput<'_>,
) -> Placement {
    let Ok(assignment) = assignment else {
        return log.placement(input);
    };
    let mut placement = summarise(&assignment, input);
    let soc = soc_by_soc_model(input.soc_model).or_else(|| log.soc());
    log.explain(&mut placement, soc);
    placement
}

/// Ops that compute with floats only; their quantised forms have other names or are between QuantizeLinear and
/// DequantizeLinear.
const FLOAT_OPS: [&str; 25] = [
    "AveragePool",
    "BatchNormalization",
    "Conv",
    "ConvTranspose",
    "Elu",
    "Erf",
    "Exp",
    "FusedConv",
    "FusedGemm",
    "FusedMatMul",
    "Gelu",
    "Gemm",
    "GlobalAveragePool",
    "HardSigmoid",
    "HardSwish",
    "InstanceNormalization",
    "LayerNormalization",
    "LeakyRelu",
    "MatMul",
    "PRelu",
    "Relu",
    "Sigmoid",
    "Softmax",
    "Sqrt",
    "Tanh",
];

/// Gives float nodes on the CPU their reason if the chipset has no FP16: whatever a log would say, the HTP cannot run
/// them. A quantised node would have its DequantizeLinear next to it on the CPU.
fn infer_fp16(placement: &mut Placement, soc: Option<&Soc>) {
    let lacks_fp16 = soc.is_some_and(|soc| soc.fp16 == Fp16::No);
    let is_unknown = placement.reasons.contains(&ReasonCode::Unknown);
    let has_quantised = placement
        .ep(CPU_EP)
        .is_none_or(|cpu| cpu.op_types.contains_key("DequantizeLinear"));
    if !lacks_fp16 || !is_unknown || has_quantised {
        return;
    }
    let mut left = 0;
    for node in &mut placement.cpu_nodes {
        match node.reason {
            ReasonCode::Unknown if FLOAT_OPS.contains(&node.op_type.as_str()) => {
                node.reason = ReasonCode::Fp16NotSupported;
            }
            ReasonCode::Unknown => left += 1,
            _ => {}
        }
    }
    let mut nodes = placement.cpu_nodes.iter();
    if !nodes.any(|node| node.reason == ReasonCode::Fp16NotSupported) {
        return;
    }
    let reasons = &mut placement.reasons;
    let at = reasons.iter().position(|r| *r == ReasonCode::Unknown);
    let at = at.unwrap_or(reasons.len());
    // A graph that is wholly on the CPU has one reason. In a divided graph each node has its own reason.
    if left > 0 && placement.eps.len() > 1 {
        reasons.insert(at, ReasonCode::Fp16NotSupported);
        reasons.truncate(MAX_REASONS);
    } else {
        reasons[at] = ReasonCode::Fp16NotSupported;
    }
}

#[cfg(test)]
mod tests {
    use epwatch_proto::placement::QNN_EP;

    use super::*;
    use crate::placement::{AssignedNode, Assignment, Subgraph};

    fn reasons_on(soc_model: &str, npu: &[&str], cpu: &[&str]) -> Vec<ReasonCode> {
        let subgraph = |ep: &str, ops: &[&str]| Subgraph {
            ep: ep.to_owned(),
            nodes: ops
                .iter()
                .map(|op| AssignedNode {
                    name: (*op).to_owned(),
                    op_type: (*op).to_owned(),
                    domain: String::new(),
                })
                .collect(),
        };
        let mut subgraphs = vec![subgraph(CPU_EP, cpu)];
        if !npu.is_empty() {
            subgraphs.push(subgraph(QNN_EP, npu));
        }
        let requested = [QNN_EP.to_owned()];
        let input = PlacementInput {
            requested_eps: &requested,
            ..PlacementInput::default()
        };
        let mut placement = summarise(&Assignment { subgraphs }, input);
        infer_fp16(&mut placement, soc_by_soc_model(soc_model));
        placement.reasons
    }

    #[test]
    fn a_float_node_on_a_chipset_without_fp16_needs_no_log() {
        use ReasonCode::{EdgeQuantization, Fp16NotSupported, Unknown};
        let (conv, edge) = (&["Conv"][..], "QuantizeLinear");
        for soc in ["68", "SM8635"] {
            assert_eq!(
                reasons_on(soc, &[], &["Gemm", "Reshape"]),
                [Fp16NotSupported]
            );
            let divided = reasons_on(soc, conv, &[edge, "Gemm"]);
            assert_eq!(divided, [EdgeQuantization, Fp16NotSupported]);
            let divided = reasons_on(soc, conv, &[edge, "Gemm", "TopK"]);
            assert_eq!(divided, [EdgeQuantization, Fp16NotSupported, Unknown]);
            // A quantised node may be refused for another reason.
            let quantised = reasons_on(soc, conv, &["DequantizeLinear", "Gemm"]);
            assert_eq!(quantised, [EdgeQuantization, Unknown]);
            assert_eq!(reasons_on(soc, &[], &["TopK"]), [Unknown]);
        }
        for soc in ["57", "", "30"] {
            assert_eq!(reasons_on(soc, &[], &["Gemm"]), [Unknown], "{soc}");
        }
    }
}
