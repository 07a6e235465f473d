//! A model's MACs by node, and the placement of a launch in shares of them.
//!
//! A profile has the CPU's nodes by name, and one event for each partition on the NPU. So the NPU has every node that
//! no other EP has, if it has an event at all.

use std::collections::{BTreeMap, BTreeSet};

use epwatch_proto::EpBackend;

use crate::{
    mistakes::Mistake,
    placement::{Counted, InspectedChipset, InspectedNode, NPU, NoSession},
    run::{Run, RunNode, Unit},
    verdict::EpNumbers,
};

const CPU: &str = "CPUExecutionProvider";
/// Minimum share of the MACs that must be attributed.
const LEAST_ATTRIBUTED: f64 = 0.95;

/// MACs of a model.
#[derive(Debug, Clone, Default)]
pub struct ModelMacs {
    /// MACs of all nodes.
    pub total: u64,
    /// MACs of nodes without a name.
    pub unnamed: u64,
    /// MACs by the name of the node.
    pub by_name: BTreeMap<String, u64>,
    /// Names under which a runtime may show a node, each mapped to the node's own name.
    pub aliases: BTreeMap<String, String>,
    /// A node whose MACs are not known.
    pub without: Option<String>,
    /// The counted and uncounted MACs, as `inspect --json` has them.
    pub counted: Counted,
}

/// A profile that belongs to another model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no node that computes on the CPU has a name of MODEL (for example {0:?}): the profile is of another model; give the \
     model that was measured, with its names"
)]
pub struct WrongModel(String);

impl ModelMacs {
    /// Name and MACs of a node, by its name or by an alias.
    fn node(&self, name: &str) -> Option<(&str, u64)> {
        let by_name = |name: &str| self.by_name.get_key_value(name);
        let found = by_name(name).or_else(|| by_name(self.aliases.get(name)?));
        found.map(|(name, macs)| (name.as_str(), *macs))
    }

    fn of(&self, name: &str) -> Option<u64> {
        self.node(name).map(|(_, macs)| macs)
    }

    /// MACs of each node in a list; `None` of one that the model does not have. A fusion may leave several names of one
    /// node, for example its own and its output's. Its MACs count once: for its own name, else for the first alias.
    fn of_each(&self, names: &[&str]) -> Vec<Option<u64>> {
        let own: BTreeSet<&str> = names.iter().copied().collect();
        let mut counted = BTreeSet::new();
        let of = |name: &&str| {
            let (node, macs) = self.node(name)?;
            let is_its_own = node == *name || !own.contains(node);
            Some(if is_its_own && counted.insert(node) {
                macs
            } else {
                0
            })
        };
        names.iter().map(of).collect()
    }

    /// MACs that a file lists itself; `None` if it lists none. If an op that computes has none, they are not the whole
    /// model's, and `joined` refuses them.
    pub(crate) fn listed(nodes: &[RunNode]) -> Option<Self> {
        let mut found = Self::default();
        for node in nodes {
            let name = &node.name;
            let Some(macs) = node.macs_by_shapes else {
                let may_compute = node.op_type.is_empty() || computes(&node.op_type);
                found.without = found.without.or_else(|| may_compute.then(|| name.clone()));
                continue;
            };
            found.total = found.total.saturating_add(macs);
            let all = found.by_name.entry(name.clone()).or_default();
            *all = all.saturating_add(macs);
        }
        (found.total > 0).then_some(found)
    }

    /// The placement of a launch whose file has every layer by name and unit. It has no shares, and its `error` says why, if
    /// less than 95 % of the MACs have a layer.
    pub(crate) fn joined(&self, run: &Run, chipset: &str) -> InspectedChipset {
        // A node may be several layers. It is on the NPU if all of them are.
        let mut found: BTreeMap<&str, (bool, u64)> = BTreeMap::new();
        for layer in &run.nodes {
            if let Some((name, macs)) = self.node(&layer.name) {
                let (is_on_npu, _) = found.entry(name).or_insert((true, macs));
                *is_on_npu &= layer.unit == Unit::Npu;
            }
        }
        let share = |macs: u64| macs as f64 / self.total.max(1) as f64;
        let on = |npu: bool| {
            let of_unit = found.values().filter(|(is_on_npu, _)| *is_on_npu == npu);
            share(of_unit.fold(0_u64, |sum, (_, macs)| sum.saturating_add(*macs)))
        };
        let (on_npu, off) = (on(true), on(false));
        let error = match &self.without {
            Some(node) => Some(format!("{node} has none")),
            None if on_npu + off < LEAST_ATTRIBUTED => Some(format!(
                "{:.1} % of them have a layer of this name; give the model that was compiled, with its names",
                100.0 * (on_npu + off)
            )),
            None => None,
        };
        let known = |share: f64| Some(share).filter(|_| error.is_none());
        let (npu, others): (Vec<&RunNode>, Vec<&RunNode>) =
            run.nodes.iter().partition(|node| node.unit == Unit::Npu);
        let npu = (!npu.is_empty()).then(|| ep(npu.len(), run.partitions, known(on_npu)));
        let cpu_nodes = others.into_iter().map(|node| {
            inspected(
                node,
                self.of(&node.name).and_then(|macs| known(share(macs))),
            )
        });
        let placed = placed(chipset, npu, cpu_nodes.collect(), known(off));
        InspectedChipset { error, ..placed }
    }

    /// The placement of a launch, as `inspect` would report it.
    ///
    /// # Errors
    /// The launch is of another model.
    pub fn placement(&self, run: &mut Run, chipset: &str) -> Result<InspectedChipset, WrongModel> {
        let total = self.total.max(1) as f64;
        let off_npu = run.nodes.iter().filter(|node| node.unit != Unit::Npu);
        let names: Vec<&str> = off_npu.clone().map(|node| &*node.name).collect();
        let (mut off, mut by_names, mut unknown) = (0_u64, 0_usize, None::<String>);
        let mut cpu_nodes = Vec::new();
        for (node, by_name) in off_npu.zip(self.of_each(&names)) {
            by_names += usize::from(by_name.is_some());
            let macs = by_name.or(node.macs_by_shapes.filter(|_| computes(&node.op_type)));
            // The body of a loop has the MACs of one turn, but an event for each turn.
            let is_body = node.events > run.runs_us.len() as u64;
            if computes(&node.op_type) && (macs.is_none() || is_body) {
                unknown = unknown.or_else(|| Some(node.name.clone()));
            }
            off = off.saturating_add(macs.unwrap_or(0));
            let macs = macs.filter(|macs| *macs <= self.total);
            cpu_nodes.push(inspected(node, macs.map(|macs| macs as f64 / total)));
        }
        // Work on the CPU that is not counted may be any share of the whole.
        if cpu_nodes.iter().any(|node| !node.benign) {
            unknown = unknown.or_else(|| self.without.clone());
        }
        let computing = run
            .nodes
            .iter()
            .find(|n| n.unit != Unit::Npu && computes(&n.op_type));
        if let Some(node) = computing.filter(|_| by_names == 0 && !self.by_name.is_empty()) {
            return Err(WrongModel(node.name.clone()));
        }
        let has_npu = run.nodes.iter().any(|node| node.unit == Unit::Npu);
        let unnamed = self.unnamed as f64 / total;
        let is_known = unknown.is_none() && unnamed <= 1.0 - LEAST_ATTRIBUTED && off <= self.total;
        if unnamed > 1.0 - LEAST_ATTRIBUTED {
            run.mistakes.push(Mistake::unnamed(100.0 * unnamed));
        }
        let share = |macs: f64| Some(macs / total).filter(|_| is_known && self.total > 0);
        let on_npu = self.total.saturating_sub(off) as f64;
        let npu = has_npu.then(|| ep(1, run.partitions, share(on_npu)));
        let error = unknown.map(|name| {
            format!(
                "the MACs of {name} are in no shape and no name, or it runs more than once a run"
            )
        });
        Ok(InspectedChipset {
            error,
            ..placed(chipset, npu, cpu_nodes, share(off as f64))
        })
    }
}

impl ModelMacs {
    /// Adds the shares of MACs to a placement without them, as an SDK without a manifest reports it. Leaves a placement
    /// unchanged if a node that computes is not in the model, or its MACs are not known. Leaves it unchanged, too, if
    /// the list of CPU nodes is cut.
    pub(crate) fn add_shares(&self, placed: &mut InspectedChipset) {
        let cpu = placed.eps.get(CPU).map_or(0, |cpu| cpu.nodes);
        let is_whole = u32::try_from(placed.cpu_nodes.len()).is_ok_and(|named| named == cpu);
        let has_shares = placed.eps.values().any(|ep| ep.macs_share.is_some());
        let is_npu: Vec<bool> = placed.eps.keys().map(|ep| placed.is_asked(ep)).collect();
        let mut others = placed.eps.keys().zip(&is_npu);
        let has_others = others.any(|(ep, is_npu)| ep != CPU && !is_npu);
        let is_known = self.unnamed == 0 && self.without.is_none();
        let is_countable = self.total > 0 && is_known && placed.error.is_none();
        if !is_whole || has_shares || has_others || !is_countable {
            return;
        }
        let names: Vec<&str> = placed.cpu_nodes.iter().map(|node| &*node.name).collect();
        let macs_of = |(node, macs): (&InspectedNode, Option<u64>)| match macs {
            None if computes(&node.op_type) => None,
            macs => Some(macs.unwrap_or(0)),
        };
        let each = placed.cpu_nodes.iter().zip(self.of_each(&names));
        let each: Option<Vec<u64>> = each.map(macs_of).collect();
        let Some(each) = each else { return };
        let off = each
            .iter()
            .fold(0_u64, |sum, macs| sum.saturating_add(*macs));
        let share = |macs: u64| macs as f64 / self.total as f64;
        for (node, macs) in placed.cpu_nodes.iter_mut().zip(each) {
            node.macs_share = Some(share(macs));
        }
        for (found, is_npu) in placed.eps.values_mut().zip(is_npu) {
            let macs = if is_npu {
                self.total.saturating_sub(off)
            } else {
                off
            };
            found.macs_share = Some(share(macs).min(1.0));
        }
    }
}

/// The placement of a launch whose file lists layers by unit, without shares; `None` if it has no layers by name.
pub(crate) fn of_layers(run: &Run, chipset: &str) -> Option<InspectedChipset> {
    run.layers.filter(|_| !run.nodes.is_empty())?;
    let (npu, others): (Vec<&RunNode>, Vec<&RunNode>) =
        run.nodes.iter().partition(|node| node.unit == Unit::Npu);
    let npu = (!npu.is_empty()).then(|| ep(npu.len(), run.partitions, None));
    let others = others.into_iter().map(|node| inspected(node, None));
    Some(placed(chipset, npu, others.collect(), None))
}

fn ep(nodes: usize, partitions: Option<u32>, macs_share: Option<f64>) -> EpNumbers {
    EpNumbers {
        nodes: u32::try_from(nodes).unwrap_or(u32::MAX),
        partitions,
        macs_share,
    }
}

fn placed(
    chipset: &str,
    npu: Option<EpNumbers>,
    cpu_nodes: Vec<InspectedNode>,
    off: Option<f64>,
) -> InspectedChipset {
    let mut eps: BTreeMap<String, EpNumbers> = BTreeMap::new();
    eps.extend(npu.map(|npu| (NPU.to_owned(), npu)));
    eps.insert(CPU.to_owned(), ep(cpu_nodes.len(), None, off));
    InspectedChipset {
        chipset: chipset.to_owned(),
        soc_model: String::new(),
        session: "ok".to_owned(),
        error: None,
        requested: Vec::new(),
        backend: EpBackend::default(),
        eps,
        cpu_nodes,
        fingerprint_normalised: None,
        reasons: Vec::new(),
        npu_partitions: Vec::new(),
        crossings: None,
        no_session: NoSession::default(),
        encoded: String::new(),
        counted: Counted::default(),
    }
}

fn inspected(node: &RunNode, macs_share: Option<f64>) -> InspectedNode {
    InspectedNode {
        name: node.name.clone(),
        op_type: node.op_type.clone(),
        reason: "unknown".to_owned(),
        reason_text: None,
        macs_share,
        // A profile does not say whether such nodes are at the graph's edges. ONNX Runtime adds the reorders for its
        // own kernels.
        benign: matches!(
            &*node.op_type,
            "QuantizeLinear" | "DequantizeLinear" | "ReorderInput" | "ReorderOutput"
        ),
        place: None,
        time: None,
    }
}

/// Whether an op has MACs, under any name that ONNX Runtime gives to its fused and quantised forms.
fn computes(op_type: &str) -> bool {
    let kinds = [
        "Conv",
        "Gemm",
        "MatMul",
        "Attention",
        "LSTM",
        "GRU",
        "RNN",
        "Einsum",
    ];
    kinds.iter().any(|kind| op_type.contains(kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy::PlacementLimits,
        read::{ReadOptions, read},
        verdict::CheckResult,
    };

    /// The MACs of `e_mixed.q8head32`, counted by `epwatch manifest`.
    fn macs() -> ModelMacs {
        let by_name = [
            ("conv0", 27_648),
            ("conv1", 147_456),
            ("conv2", 525_000),
            ("head_fc1", 262_144),
            ("head_fc2", 2_560),
        ];
        ModelMacs {
            total: by_name.iter().map(|(_, macs)| macs).sum(),
            by_name: by_name.map(|(name, macs)| (name.to_owned(), macs)).into(),
            aliases: BTreeMap::from([("h".to_owned(), "head_fc1".to_owned())]),
            ..ModelMacs::default()
        }
    }

    fn profile(name: &str) -> Run {
        let path = format!(
            "{}/tests/fixtures/profiles/{name}",
            env!("CARGO_MANIFEST_DIR")
        );
        let file = std::fs::File::open(path).unwrap();
        read(file, ReadOptions::default()).unwrap().remove(0)
    }

    fn macs_check(run: &mut Run, macs: &ModelMacs) -> (CheckResult, Option<f64>) {
        let placed = macs.placement(run, "SM8635").unwrap();
        let checks = placed.judge(&PlacementLimits::default(), placed.error.as_deref());
        let check = checks.iter().find(|check| check.id == "npu_macs").unwrap();
        (check.result, check.value)
    }

    #[test]
    fn the_cpus_nodes_are_known_by_name_and_the_npu_has_the_rest() {
        let macs = macs();
        let (result, value) = macs_check(&mut profile("e_mixed.q8head32.SM8635.json"), &macs);
        let expected = 1.0 - 264_704.0 / macs.total as f64;
        assert_eq!(result, CheckResult::Fail);
        assert!((value.unwrap() - expected).abs() < 1e-9, "{value:?}");
        let (result, value) = macs_check(&mut profile("e_mixed.q8head32.SM8650.json"), &macs);
        assert_eq!((result, value), (CheckResult::Pass, Some(1.0)));
    }

    /// A fusion renamed the node, so its MACs come from the tensor's name or the shapes.
    #[test]
    fn aliases_come_before_shapes() {
        let renamed = |run: &mut Run, name: &str, shapes: bool| {
            let node = run
                .nodes
                .iter_mut()
                .find(|n| n.op_type == "Gemm" && n.macs_by_shapes != Some(2_560));
            let node = node.unwrap();
            name.clone_into(&mut node.name);
            if !shapes {
                node.macs_by_shapes = None;
            }
        };
        for (name, shapes, result) in [
            ("h", false, CheckResult::Fail),
            ("other", true, CheckResult::Fail),
            ("other", false, CheckResult::Undecided),
        ] {
            let mut run = profile("e_mixed.q8head32.SM8635.json");
            renamed(&mut run, name, shapes);
            assert_eq!(macs_check(&mut run, &macs()).0, result, "{name} {shapes}");
        }
    }

    /// Regression test: each name of a fused node counted its MACs, so that the NPU had too few.
    #[test]
    fn a_node_with_two_names_counts_once() {
        let macs = macs();
        let node = |name: &str, op_type: &str| RunNode {
            name: name.to_owned(),
            op_type: op_type.to_owned(),
            unit: Unit::Cpu,
            events: 1,
            macs_by_shapes: None,
        };
        let listed = [
            node("h", "QuantizeLinear"),
            node("head_fc1", "Gemm"),
            node("y", "Relu"),
        ];
        let cpu_nodes = listed.iter().map(|node| inspected(node, None)).collect();
        let mut seen = placed("SM8635", Some(ep(3, Some(1), None)), cpu_nodes, None);
        seen.requested = vec![NPU.to_owned()];
        macs.add_shares(&mut seen);
        let off = 262_144.0 / macs.total as f64;
        assert_eq!(seen.eps[CPU].macs_share, Some(off));
        assert!((seen.eps[NPU].macs_share.unwrap() - (1.0 - off)).abs() < 1e-12);
        let each: Vec<_> = seen.cpu_nodes.iter().map(|node| node.macs_share).collect();
        assert_eq!(each, [Some(0.0), Some(off), Some(0.0)]);
        assert_eq!(
            macs.of_each(&["h", "h", "y"]),
            [Some(262_144), Some(0), None]
        );
    }

    /// Three of four turns of the body would be left out.
    #[test]
    fn the_body_of_a_loop_is_not_counted_as_one_turn() {
        let mut run = profile("e_mixed.q8head32.SM8635.json");
        let n = 4 * run.runs_us.len() as u64;
        let head = run.nodes.iter_mut().find(|node| node.op_type == "Gemm");
        head.unwrap().events = n;
        assert_eq!(macs_check(&mut run, &macs()).0, CheckResult::Undecided);
    }

    #[test]
    fn another_model_and_nodes_without_names_are_named() {
        let mut run = profile("d_mlp.fp32.SM8635.json");
        let error = macs()
            .placement(&mut run, "SM8635")
            .unwrap_err()
            .to_string();
        assert!(error.contains("another model"), "{error}");
        let mut unnamed = macs();
        unnamed.unnamed = unnamed.total / 10;
        let mut run = profile("e_mixed.q8head32.SM8635.json");
        assert_eq!(macs_check(&mut run, &unnamed).0, CheckResult::Undecided);
        assert_eq!(run.mistakes.last().unwrap().id, "unnamed_nodes");
    }
}
