//! The policy file: limits, by chipset where they differ, and the model file of each chipset.

use std::{collections::BTreeMap, path::PathBuf, str::FromStr};

use epwatch_proto::accelerator::split_cohort;
use serde::Deserialize;

use crate::launch::LEAST_RUNS;

/// Minimum share of the MACs on the NPU, unless a policy sets another.
pub const DEFAULT_MIN_NPU_MACS: f64 = 0.98;

/// Share of runs that may miss a deadline, unless a policy sets another.
const DEFAULT_MAX_LATE: f64 = 0.01;

/// Maximum number of launches that a runner makes of a model.
pub const MOST_LAUNCHES: u32 = 200;
/// Maximum number of timed runs of a launch, and of runs before them.
pub const MOST_RUNS: u32 = 100_000;

/// A policy that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The text is not TOML, has an unknown key, or a value of another type. The message has line and column.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// A limit that no model or every model keeps.
    #[error("{key} is {value}; expected a number above {least}")]
    NoLimit {
        /// Name of the key.
        key: &'static str,
        /// The value in the policy.
        value: f64,
        /// Excluded itself.
        least: f64,
    },
    /// A value that is not a share.
    #[error("{key} is {value}; expected a share from 0 to 1, for example 0.98 for 98 %")]
    NoShare {
        /// Path of the key.
        key: String,
        /// The value in the policy.
        value: f64,
    },
    /// A number of runs or launches that no launch can have.
    #[error("{key} is {value}; expected a whole number from {least} to {most}")]
    OutOfRange {
        /// Path of the key.
        key: &'static str,
        /// The value in the policy.
        value: u64,
        /// Minimum number that is accepted.
        least: u64,
        /// Maximum number that is accepted.
        most: u64,
    },
}

/// Limits of a placement where a policy sets no other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Like `default`, and no op may compute on the CPU, not even at the graph's edges.
    Strict,
    /// 98 % of the MACs on the NPU in one partition, and no op on the CPU between nodes of the NPU.
    #[default]
    Default,
    /// 98 % of the MACs on the NPU; all else is a warning.
    MacsOnly,
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "strict" => Ok(Self::Strict),
            "default" => Ok(Self::Default),
            "macs-only" => Ok(Self::MacsOnly),
            _ => Err("expected strict, default or macs-only".to_owned()),
        }
    }
}

/// Limits of a gate. Without a file, all limits have their defaults.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Limits of the placement that the file does not set.
    pub preset: Preset,
    /// Limits of the placement.
    pub placement: PlacementLimits,
    /// Limits of measured launches.
    pub latency: LatencyLimits,
    /// Limits of the start of a session.
    pub load: LoadLimits,
    /// Limits of a model's outputs.
    pub outputs: OutputLimits,
    /// Limits of single chipsets. Each key replaces that key of `placement`.
    pub chipset: BTreeMap<String, ChipsetLimits>,
    /// Limits of single models, by the end of their path. Each key replaces that key of `placement` and `chipset`.
    pub model: BTreeMap<String, ModelLimits>,
    /// Model file of each chipset, or of the `default`. Relative to the policy's folder.
    pub variants: BTreeMap<String, PathBuf>,
}

/// Limits of measured launches. A limit that is not set is not checked.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LatencyLimits {
    /// First runs of a launch that are dropped.
    pub warmup: Option<usize>,
    /// Timed runs of a launch that the gate makes itself.
    pub runs: Option<u32>,
    /// Launches that the gate makes itself.
    pub launches: Option<u32>,
    /// Ratio to the baseline from which on a model is slower.
    pub min_effect: Option<f64>,
    /// Longest median, in milliseconds.
    pub median_ms: Option<f64>,
    /// Longest p95, in milliseconds.
    pub p95_ms: Option<f64>,
    /// Time after which a run is late, in milliseconds.
    pub deadline_ms: Option<f64>,
    /// Largest share of runs that may be late, 0 to 1.
    pub max_late: Option<f64>,
    /// Largest coefficient of variation.
    pub cv_max: Option<f64>,
}

/// Limits of the start of a session.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoadLimits {
    /// Longest time until a session is made with nothing cached, in milliseconds.
    pub cold_ms: Option<f64>,
}

/// Limits of a model's outputs.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OutputLimits {
    /// Minimum cosine similarity with the expected outputs.
    pub min_cosine: Option<f64>,
    /// Folder with inputs for launches that the gate makes itself, in the layout of ONNX's test data.
    pub golden: Option<PathBuf>,
}

/// Limits of one chipset.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChipsetLimits {
    /// Limits of the placement.
    pub placement: PlacementLimits,
}

/// Limits of the models that a pattern names.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelLimits {
    /// Limits of the placement.
    pub placement: PlacementLimits,
}

/// Limits of a placement. A limit that is not set comes from the preset.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlacementLimits {
    /// The preset of the policy.
    #[serde(skip)]
    pub preset: Preset,
    /// Minimum share of the MACs on the NPU, 0 to 1.
    pub min_npu_macs: Option<f64>,
    /// Maximum number of partitions on the NPU.
    pub max_partitions: Option<u32>,
    /// Ops that may compute on the CPU; any other one there fails.
    pub allowed_cpu_ops: Option<Vec<String>>,
    /// Maximum number of bytes of tensors that go between NPU and CPU, in both directions together. The graph's own
    /// inputs and outputs do not count.
    pub max_crossing_bytes: Option<u64>,
    /// Ops that may not be on the CPU.
    pub forbidden_cpu_ops: Option<Vec<String>>,
}

impl Policy {
    /// Reads a policy file.
    ///
    /// # Errors
    /// The text has unknown keys, values of another type, or shares outside 0 to 1.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let policy: Self = toml::from_str(text)?;
        policy.check()?;
        Ok(policy)
    }

    /// Checks the limits of a policy that does not come from a file.
    ///
    /// # Errors
    /// A share is outside 0 to 1, or no model or every model keeps a limit.
    pub fn check(&self) -> Result<(), PolicyError> {
        self.placement.check("placement")?;
        let (latency, load) = (&self.latency, &self.load);
        for (key, value, least) in [
            ("latency.min_effect", latency.min_effect, 1.05),
            ("latency.median_ms", latency.median_ms, 0.0),
            ("latency.p95_ms", latency.p95_ms, 0.0),
            ("latency.deadline_ms", latency.deadline_ms, 0.0),
            ("latency.cv_max", latency.cv_max, 0.0),
            ("load.cold_ms", load.cold_ms, 0.0),
        ] {
            if let Some(value) = value.filter(|value| !(*value > least && value.is_finite())) {
                return Err(PolicyError::NoLimit { key, value, least });
            }
        }
        let most_runs = u64::from(MOST_RUNS);
        for (key, value, least, most) in [
            (
                "latency.warmup",
                latency.warmup.map(|n| n as u64),
                0,
                most_runs,
            ),
            (
                "latency.runs",
                latency.runs.map(u64::from),
                LEAST_RUNS as u64,
                most_runs,
            ),
            (
                "latency.launches",
                latency.launches.map(u64::from),
                1,
                u64::from(MOST_LAUNCHES),
            ),
        ] {
            if let Some(value) = value.filter(|value| !(least..=most).contains(value)) {
                return Err(PolicyError::OutOfRange {
                    key,
                    value,
                    least,
                    most,
                });
            }
        }
        share("latency.max_late", latency.max_late)?;
        share("outputs.min_cosine", self.outputs.min_cosine)?;
        for (chipset, limits) in &self.chipset {
            let key = format!("chipset.{chipset}.placement");
            limits.placement.check(&key)?;
        }
        for (pattern, limits) in &self.model {
            let key = format!("model.\"{pattern}\".placement");
            limits.placement.check(&key)?;
        }
        Ok(())
    }

    /// The first key in the policy that applies only to launches that the gate makes itself.
    pub fn of_runner(&self) -> Option<&'static str> {
        [
            ("latency.runs", self.latency.runs.is_some()),
            ("latency.launches", self.latency.launches.is_some()),
            ("outputs.golden", self.outputs.golden.is_some()),
        ]
        .into_iter()
        .find_map(|(key, is_set)| is_set.then_some(key))
    }

    /// Whether a limit of measured launches can fail without a baseline.
    pub fn limits_launches(&self) -> bool {
        let limits = [self.load.cold_ms, self.outputs.min_cosine];
        self.latency.has_limits() || limits.iter().any(Option::is_some)
    }

    /// Limits of launches that the policy sets, each as its check and its key.
    pub fn asked_of_launches(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let limits = &self.latency;
        let asked = [
            ("median", "latency.median_ms", limits.median_ms),
            ("p95", "latency.p95_ms", limits.p95_ms),
            ("late", "latency.deadline_ms", limits.deadline_ms),
            ("cv", "latency.cv_max", limits.cv_max),
            ("load", "load.cold_ms", self.load.cold_ms),
            ("outputs", "outputs.min_cosine", self.outputs.min_cosine),
        ];
        let asked = asked.into_iter().filter(|(_, _, limit)| limit.is_some());
        asked.map(|(check, key, _)| (check, key))
    }

    /// Limits of a chipset's placement that the policy sets, each as its check and its key.
    pub fn asked_of_placement(
        &self,
        chipset: &str,
    ) -> impl Iterator<Item = (&'static str, &'static str)> {
        let limits = self.placement_on(chipset);
        let is_strict = self.preset == Preset::Strict;
        let least = limits.min_npu_macs.filter(|least| *least > 0.0);
        let asked = [
            ("npu_macs", "placement.min_npu_macs", least.is_some()),
            (
                "partitions",
                "placement.max_partitions",
                limits.max_partitions.is_some() || is_strict,
            ),
            (
                "cpu_ops",
                "placement.allowed_cpu_ops",
                limits.allowed_cpu_ops.is_some() || is_strict,
            ),
            (
                "cpu_ops",
                "placement.forbidden_cpu_ops",
                limits.forbidden_cpu_ops.is_some(),
            ),
            (
                "crossings",
                "placement.max_crossing_bytes",
                limits.max_crossing_bytes.is_some(),
            ),
        ];
        let asked = asked.into_iter().filter(|(_, _, is_set)| *is_set);
        asked.map(|(check, key, _)| (check, key))
    }

    /// Names of chipsets in the file.
    pub fn chipsets(&self) -> impl Iterator<Item = &str> {
        let variants = self.variants.keys().filter(|name| *name != "default");
        self.chipset.keys().chain(variants).map(String::as_str)
    }

    /// Limits of a chipset's placement.
    pub fn placement_on(&self, chipset: &str) -> PlacementLimits {
        // Limits of a chipset apply to all its accelerators.
        let (chipset, _) = split_cohort(chipset);
        let own = self.chipset.get(chipset).map(|own| &own.placement);
        let mut limits = own.map_or_else(|| self.placement.clone(), |own| own.or(&self.placement));
        limits.preset = self.preset;
        limits
    }
}

impl LatencyLimits {
    /// Largest share of runs that may be late.
    pub(crate) fn max_late(&self) -> f64 {
        self.max_late.unwrap_or(DEFAULT_MAX_LATE)
    }

    /// Whether a limit can fail without a baseline.
    pub fn has_limits(&self) -> bool {
        let limits = [self.median_ms, self.p95_ms, self.deadline_ms, self.cv_max];
        limits.iter().any(Option::is_some)
    }
}

impl PlacementLimits {
    /// Takes keys that are not set here from `others`.
    pub(crate) fn or(&self, others: &Self) -> Self {
        let own = self.clone();
        Self {
            preset: own.preset,
            min_npu_macs: own.min_npu_macs.or(others.min_npu_macs),
            max_partitions: own.max_partitions.or(others.max_partitions),
            max_crossing_bytes: own.max_crossing_bytes.or(others.max_crossing_bytes),
            allowed_cpu_ops: own
                .allowed_cpu_ops
                .or_else(|| others.allowed_cpu_ops.clone()),
            forbidden_cpu_ops: own
                .forbidden_cpu_ops
                .or_else(|| others.forbidden_cpu_ops.clone()),
        }
    }

    /// Minimum share of the MACs on the NPU.
    pub(crate) fn least_npu_macs(&self) -> f64 {
        self.min_npu_macs.unwrap_or(DEFAULT_MIN_NPU_MACS)
    }

    /// Maximum number of partitions on the NPU; `None` if any number may be.
    pub(crate) fn most_partitions(&self) -> Option<u32> {
        let by_preset = (self.preset != Preset::MacsOnly).then_some(1);
        self.max_partitions.or(by_preset)
    }

    /// Whether an op may be on the CPU, anywhere in the graph.
    pub(crate) fn allows(&self, op_type: &String) -> bool {
        let mut ops = self.allowed_cpu_ops.iter().flatten();
        ops.any(|op| op == op_type)
    }

    /// Whether each op on the CPU must be allowed.
    pub(crate) fn lists_ops(&self) -> bool {
        self.allowed_cpu_ops.is_some() || self.preset == Preset::Strict
    }

    /// Whether CPU nodes between partitions fail. A policy that allows several partitions limits the partitions
    /// instead.
    pub(crate) fn refuses_middle(&self) -> bool {
        self.most_partitions().is_some_and(|most| most <= 1)
    }

    fn check(&self, path: &str) -> Result<(), PolicyError> {
        share(&format!("{path}.min_npu_macs"), self.min_npu_macs)
    }
}

fn share(key: &str, value: Option<f64>) -> Result<(), PolicyError> {
    match value {
        Some(value) if !(0.0..=1.0).contains(&value) => Err(PolicyError::NoShare {
            key: key.to_owned(),
            value,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chipset_replaces_single_limits() {
        let policy = Policy::parse(
            "[placement]\nmin_npu_macs = 0.9\nmax_partitions = 1\n\
             [chipset.SM8635.placement]\nmin_npu_macs = 0.7\nallowed_cpu_ops = ['TopK']\n\
             [variants]\nSM8650 = 'a.onnx'\ndefault = 'b.onnx'\n",
        )
        .unwrap();
        let own = policy.placement_on("SM8635");
        assert_eq!((own.min_npu_macs, own.max_partitions), (Some(0.7), Some(1)));
        assert_eq!(own.allowed_cpu_ops, Some(vec!["TopK".to_owned()]));
        assert_eq!(policy.placement_on("SM8650"), policy.placement);
        assert_eq!(policy.preset, Preset::Default);
        assert_eq!(policy.chipsets().collect::<Vec<_>>(), ["SM8635", "SM8650"]);
    }

    #[test]
    fn unknown_keys_and_shares_beyond_one_are_refused() {
        for (text, words) in [
            ("[placement]\nmin_npu_mac = 0.9", "min_npu_mac"),
            ("[placment]", "placment"),
            ("[latency]\ncv = 0.08", "cv_max"),
            ("[latency]\ncv_max = 0", "latency.cv_max is 0"),
            ("[latency]\nmax_late = 1.5", "latency.max_late"),
            ("[latency]\nmin_effect = inf", "above 1.05"),
            ("[load]\ncold_ms = 0", "load.cold_ms is 0"),
            (
                "[latency]\nwarmup = 5000000000",
                "latency.warmup is 5000000000; expected a whole number from 0 to 100000",
            ),
            (
                "[latency]\nruns = 5",
                "latency.runs is 5; expected a whole number from 20",
            ),
            ("[latency]\nlaunches = 0", "latency.launches is 0"),
            ("[latency]\nlaunches = 201", "from 1 to 200"),
            ("[outputs]\nmin_cosine = 99", "outputs.min_cosine is 99"),
            ("[outputs]\ngolden_file = 'a'", "min_cosine"),
            ("[chipset.SM8635]\nmax_partitions = 1", "max_partitions"),
            ("[placement]\nmin_npu_macs = 98", "0.98 for 98 %"),
            (
                "[chipset.A.placement]\nmin_npu_macs = nan",
                "chipset.A.placement.min_npu_macs",
            ),
            ("[placement]\nmax_partitions = -1", "max_partitions"),
            ("preset = 'lax'", "macs-only"),
            ("[placement]\npreset = 'strict'", "preset"),
            ("\u{0}", "line 1"),
        ] {
            let error = Policy::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn keys_of_launches_that_the_gate_makes_are_known() {
        for (text, key) in [
            ("[latency]\nruns = 30", "latency.runs"),
            ("[latency]\nlaunches = 6", "latency.launches"),
            ("[outputs]\ngolden = \"scene.golden\"", "outputs.golden"),
        ] {
            assert_eq!(Policy::parse(text).unwrap().of_runner(), Some(key));
        }
        let others = Policy::parse("[latency]\nwarmup = 3").unwrap();
        assert_eq!(others.of_runner(), None);
        let error = Policy::parse("[latency]\nrun = 30").unwrap_err();
        assert!(error.to_string().contains("unknown field"), "{error}");
    }
}
