//! The result of a gate: the document `epwatch.gate/1`, which all reports are written from.

use std::{borrow::Cow, collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize};

use crate::{mistakes::Mistake, profile::RunProfile, time::TimeRange};

/// Name and version of the document.
pub const SCHEMA: &str = "epwatch.gate/1";

/// The result of a check, and of all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum CheckResult {
    Pass,
    Warn,
    Skip,
    Undecided,
    Fail,
}

impl CheckResult {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Skip => "skip",
            Self::Undecided => "undecided",
            Self::Fail => "fail",
        }
    }
}

/// A part that the gate did not check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotChecked {
    /// For example `latency`, or `chipset.SM8635` of a policy.
    pub id: Cow<'static, str>,
    /// The reason, in a few words.
    pub why: &'static str,
}

/// The verdict on a model, over all its targets.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Time of the gate (RFC 3339); `None` if its caller sets none.
    pub made_at: Option<String>,
    /// `pass`, `fail` or `undecided`.
    pub result: CheckResult,
    /// Parts that were not checked. They come first in each report.
    pub not_checked: Vec<NotChecked>,
    /// The policy file; `None` for the defaults.
    pub policy: Option<GatedFile>,
    /// The program that judged, because reports are kept.
    pub tool: Tool,
    /// The targets, in the order of the command line.
    pub targets: Vec<Target>,
}

/// A file that the result depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GatedFile {
    /// The path as given on the command line.
    pub path: String,
    /// 64 hexadecimal digits.
    pub sha256: String,
}

/// A model file, with the files that it needs next to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GatedModel {
    /// As on the command line.
    pub path: String,
    /// 64 hexadecimal digits.
    pub sha256: String,
    /// Files that hold its tensors or compiled graphs, as far as they are there.
    pub data: Vec<GatedFile>,
}

impl GatedModel {
    /// Returns the SHA-256 of a file of its data, by the file's path from the model's folder.
    pub(crate) fn sha256_of_data(&self, file: &str) -> Option<&str> {
        let folder = Path::new(&self.path).parent().unwrap_or(Path::new(""));
        let path = folder.join(file);
        let mut data = self.data.iter();
        let found = data.find(|one| Path::new(&one.path) == path)?;
        Some(&found.sha256)
    }
}

/// The program that judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tool {
    /// For example `0.1.0`.
    pub version: String,
}

/// The earlier model, on the same chipset.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EarlierModel {
    /// Its file.
    pub model: GatedModel,
    /// Where its nodes are; `None` without a session.
    pub placement: Option<PlacementNumbers>,
}

/// A model on one chipset.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Target {
    /// For example `SM8650`.
    pub chipset: String,
    /// The chipset's own file, if the policy has variants; `None` for latencies.
    pub model: Option<GatedModel>,
    /// Measured launches; the baseline's launches come last.
    pub runs: Vec<GatedFile>,
    /// `emulator`, or the kind of the files.
    pub source: &'static str,
    /// Device that the launches are of, as far as the files name it.
    pub device: Option<String>,
    /// Firmware of that device, if the files name one.
    pub firmware: Option<String>,
    /// The runtime with its version.
    pub runtime: Option<String>,
    /// EPs or selection policies that the launches asked for, each once, as far as the files name them.
    pub asked_for: Vec<String>,
    /// The earlier model, if it was given.
    pub before: Option<EarlierModel>,
    /// Where the nodes are; `None` without a session.
    pub placement: Option<PlacementNumbers>,
    /// How long runs take; `None` on an emulator.
    pub latency: Option<LatencyNumbers>,
    /// How long sessions take to start; `None` if the launches do not say it.
    pub load: Option<LoadNumbers>,
    /// Time of nodes, of a launch that is not judged by it.
    pub profile: Option<RunProfile>,
    /// The comparison with a baseline; `None` without run times of both.
    pub against: Option<Against>,
    /// The checks, in a fixed order.
    pub checks: Vec<Check>,
    /// Misreadings that the files invite.
    pub mistakes: Vec<Mistake>,
}

/// A placement in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlacementNumbers {
    /// Share of the MACs on the NPU, 0 to 1; `None` if they could not be counted.
    pub npu_macs: Option<f64>,
    /// Share of the MACs that could be attributed to nodes, 0 to 1.
    pub macs_attributed: Option<f64>,
    /// Nodes, partitions and MACs by EP.
    pub eps: BTreeMap<String, EpNumbers>,
    /// Partitions on the NPU.
    pub partitions: u32,
    /// Sizes of the partitions, in ONNX Runtime's order; empty if they are not known.
    pub partition_sizes: Vec<PartitionSize>,
    /// Nodes on the CPU that compute.
    pub cpu_nodes: usize,
    /// Estimated time of the CPU's nodes in a run; `None` if a size is not known.
    pub cpu_time: Option<TimeRange>,
    /// Nodes of the model whose MACs no rule counts.
    pub uncounted: Vec<Uncounted>,
    /// Tensors between NPU and CPU; `None` if they are not known.
    pub crossings: Option<Crossings>,
    /// Fingerprint of the computing nodes.
    pub fingerprint_normalised: Option<String>,
}

/// A node of `inspect --json` whose MACs are not known, or not all of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each is a field of `inspect --json`")]
pub struct Uncounted {
    pub name: String,
    pub op_type: String,
    pub why: String,
    pub at_least_macs: u64,
    #[serde(default)]
    pub unknown_turns: bool,
}

/// An EP's part of a placement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpNumbers {
    /// Nodes of the model.
    pub nodes: u32,
    /// Connected subgraphs; `None` if they are not known.
    pub partitions: Option<u32>,
    /// Share of the model's MACs, 0 to 1; `None` if they could not be counted.
    pub macs_share: Option<f64>,
}

/// A partition on the NPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PartitionSize {
    /// Nodes of the model.
    pub nodes: u32,
    /// Their share of the model's MACs, 0 to 1; `None` if they could not be counted.
    pub macs_share: Option<f64>,
}

/// Tensors between NPU and CPU, without the graph's own inputs and outputs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Crossings {
    pub to_npu: CrossingWay,
    pub to_cpu: CrossingWay,
    /// Estimated: the copies, and each call of the NPU after the first; `None` if a tensor has no fixed size.
    pub time: Option<TimeRange>,
}

/// Tensors of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CrossingWay {
    /// Tensors; one that several nodes read counts once.
    pub count: u64,
    /// Their size; `None` if one of them has no fixed size.
    pub bytes: Option<u64>,
}

/// Launches in numbers, each the median over launches.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct LatencyNumbers {
    pub launches: usize,
    /// Number of runs without the warm-up.
    pub runs: usize,
    pub median_ms: Option<f64>,
    pub p95_ms: Option<f64>,
    pub cv: Option<f64>,
    pub cv_robust: Option<f64>,
    /// Share of runs beyond 1.7 x the launch's own p10.
    pub slow_share: Option<f64>,
    /// Share of runs beyond `deadline_ms`; `None` without that limit.
    pub late: Option<f64>,
}

/// Time until a session is made, each the median over launches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct LoadNumbers {
    /// Time of a start with nothing cached.
    pub cold_ms: Option<f64>,
    /// Time of a start from a compiled graph.
    pub warm_ms: Option<f64>,
}

/// The candidate's over the baseline's median.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Against {
    /// `launches` in turn on one device, or `jobs` on phones of a farm.
    pub origin: &'static str,
    /// Pairs of launches, or jobs a side.
    pub pairs: usize,
    /// The median ratio.
    pub ratio: f64,
    /// Bounds of the true median ratio; `None` below six pairs.
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// Chance of as many slower pairs if the true ratio were 1.05, adjusted for the number of devices; `None` for jobs.
    pub chance: Option<f64>,
}

/// One rule on one target.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// For example `npu_macs`.
    pub id: &'static str,
    /// The result of this rule alone.
    pub result: CheckResult,
    /// The measured number.
    pub value: Option<f64>,
    /// The policy's number.
    pub limit: Option<f64>,
    /// Unit of the value and the limit, for example `ms`; `None` without numbers.
    pub unit: Option<&'static str>,
    /// The sentence for people.
    pub why: String,
    /// Nodes that caused the result, the largest share of the MACs first.
    pub nodes: Vec<FailingNode>,
}

/// A node on the CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FailingNode {
    /// Name in the model; may be empty.
    pub name: String,
    /// For example `Gemm`.
    pub op_type: String,
    /// Kinds of elements of its inputs and outputs, for example `float`.
    pub types: Vec<String>,
    /// Reason code of `inspect`.
    pub reason: String,
    /// The sentence of QNN's validator, if there is one.
    pub reason_text: Option<String>,
    /// Share of the model's MACs, 0 to 1.
    pub macs_share: Option<f64>,
    /// Estimated time of the node on the CPU in a run; `None` if it is not known.
    pub time: Option<TimeRange>,
    /// The advice for this reason.
    pub fix: Option<String>,
    /// Other forms of the op that this chipset's NPU was measured to take.
    pub alternative: Option<String>,
}

impl PlacementNumbers {
    /// Bytes between NPU and CPU in a run, both ways; `None` if they are not known.
    pub fn crossing_bytes(&self) -> Option<u64> {
        let crossings = self.crossings?;
        let (to_npu, to_cpu) = (crossings.to_npu.bytes?, crossings.to_cpu.bytes?);
        Some(to_npu.saturating_add(to_cpu))
    }
}

impl Verdict {
    /// Combines the checks of all targets. The result is a failure if any check fails, else undecided if any check is.
    /// A target without a judged check is undecided.
    pub fn new(
        version: &str,
        policy: Option<GatedFile>,
        not_checked: Vec<NotChecked>,
        mut targets: Vec<Target>,
    ) -> Self {
        for target in &mut targets {
            let mut checks = target.checks.iter();
            if checks.all(|check| check.result == CheckResult::Skip) {
                let why = "nothing of this target was judged";
                target
                    .checks
                    .push(Check::new("judged", CheckResult::Undecided, why));
            }
        }
        let has = |outcome| {
            let mut checks = targets.iter().flat_map(|target| &target.checks);
            checks.any(|check| check.result == outcome)
        };
        let result = if has(CheckResult::Fail) {
            CheckResult::Fail
        } else if has(CheckResult::Undecided) || targets.is_empty() {
            CheckResult::Undecided
        } else {
            CheckResult::Pass
        };
        Self {
            schema: SCHEMA,
            made_at: None,
            result,
            not_checked,
            policy,
            tool: Tool {
                version: version.to_owned(),
            },
            targets,
        }
    }

    /// The target in one word: its chipset, after its model if there are several.
    pub fn name_of(&self, target: &Target) -> String {
        let mut models = self.targets.iter().map(Target::file);
        let is_one = models.all(|file| file == target.file());
        match is_one {
            true => self.chipset_of(target),
            false => format!("{} {}", target.file(), self.chipset_of(target)),
        }
    }

    /// The target's chipset. It says which target has launches, if another one of the same model and chipset has none.
    pub(crate) fn chipset_of(&self, target: &Target) -> String {
        let is_twin = |other: &Target| {
            let of_one = (&other.chipset, other.file()) == (&target.chipset, target.file());
            of_one && other.runs.is_empty()
        };
        match !target.runs.is_empty() && self.targets.iter().any(is_twin) {
            true => with_launches(&target.chipset),
            false => target.chipset.clone(),
        }
    }

    /// Checks with this result, each with its target.
    pub fn with(&self, outcome: CheckResult) -> impl Iterator<Item = (&Target, &Check)> {
        let each = self.targets.iter();
        let checks = each.flat_map(|target| target.checks.iter().map(move |check| (target, check)));
        checks.filter(move |(_, check)| check.result == outcome)
    }
}

/// The name of a chipset's target with launches, next to its target without them.
pub fn with_launches(chipset: &str) -> String {
    format!("{chipset}, launches")
}

impl Target {
    /// Adds an undecided check for each of these limits (a check and its key) that has none. A limit by which nothing
    /// was judged does not pass.
    pub fn add_unanswered(&mut self, asked: impl Iterator<Item = (&'static str, &'static str)>) {
        for (id, key) in asked {
            if self.checks.iter().all(|check| check.id != id) {
                let why = format!("the policy sets {key}, and nothing here shows it");
                self.checks
                    .push(Check::new(id, CheckResult::Undecided, why));
            }
        }
    }

    /// The gravest result of its checks; a warning passes.
    pub fn result(&self) -> CheckResult {
        let has = |outcome| self.checks.iter().any(|check| check.result == outcome);
        let mut gravest =
            [CheckResult::Fail, CheckResult::Undecided, CheckResult::Warn].into_iter();
        gravest
            .find(|outcome| has(*outcome))
            .unwrap_or(CheckResult::Pass)
    }

    /// Path of the file that is judged.
    pub(crate) fn file(&self) -> &str {
        let model = self.model.as_ref().map(|model| &model.path);
        let path = model.or_else(|| self.runs.first().map(|file| &file.path));
        path.map_or("", String::as_str)
    }
}

impl Check {
    /// The check of a part that ended without an answer.
    pub fn unanswered(why: String) -> Self {
        Self::new("judged", CheckResult::Undecided, why)
    }

    pub(crate) fn new(id: &'static str, result: CheckResult, why: impl Into<String>) -> Self {
        Self {
            id,
            result,
            value: None,
            limit: None,
            unit: unit_of(id),
            why: why.into(),
            nodes: Vec::new(),
        }
    }

    /// Returns the check with the measured number and the policy's limit.
    pub(crate) fn with(mut self, value: Option<f64>, limit: Option<f64>) -> Self {
        (self.value, self.limit) = (value, limit);
        self
    }

    /// The fixes of its nodes, each once.
    pub(crate) fn fixes(&self) -> Vec<&str> {
        let mut fixes: Vec<&str> = Vec::new();
        for fix in self.nodes.iter().filter_map(FailingNode::way_out) {
            if !fixes.contains(&fix) {
                fixes.push(fix);
            }
        }
        fixes
    }
}

fn unit_of(check: &str) -> Option<&'static str> {
    Some(match check {
        "npu_macs" | "placement_change" | "layers" | "late" => "share",
        "partitions" => "partitions",
        "cpu_ops" => "nodes",
        "crossings" => "bytes",
        "regression" | "cv" => "ratio",
        "median" | "p95" | "load" => "ms",
        "outputs" => "cosine",
        _ => return None,
    })
}

impl FailingNode {
    /// The measured other form, or else the general advice for the reason. JSON has both.
    pub(crate) fn way_out(&self) -> Option<&str> {
        self.alternative.as_deref().or(self.fix.as_deref())
    }

    /// For example `Gemm head_fc1, 27.2 % of the MACs: fp16_not_supported: Failed to add node.`
    pub(crate) fn line(&self) -> String {
        format!("{}{}", self.head(), self.why())
    }

    /// For example `Gemm head_fc1, 27.2 % of the MACs`.
    pub(crate) fn head(&self) -> String {
        let name = match self.name.as_str() {
            "" => "(unnamed)",
            name => name,
        };
        let mut line = format!("{} {name}", self.op_type);
        if !self.types.is_empty() {
            line.push_str(&format!(" ({})", self.types.join(", ")));
        }
        if let Some(share) = self.macs_share.filter(|share| *share > 0.0) {
            line.push_str(&format!(", {:.1} % of the MACs", 100.0 * share));
        }
        if let Some(time) = self.time.and_then(TimeRange::in_words) {
            line.push_str(&format!(", about {time}"));
        }
        line
    }

    /// For example `: fp16_not_supported: Failed to add node.`
    pub(crate) fn why(&self) -> String {
        // The text leaves out an unknown reason.
        let reason = Some(self.reason.as_str()).filter(|reason| *reason != "unknown");
        let parts = reason.into_iter().chain(self.reason_text.as_deref());
        parts.map(|part| format!(": {part}")).collect()
    }
}
