//! Misreadings of measurements, named instead of computed.

use serde::Serialize;

/// A misreading that a file invites, and what to do instead. If it would make a number meaningless, the reader returns
/// an error instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mistake {
    /// For example `one_launch`.
    pub id: &'static str,
    /// The reason why the number misleads.
    pub why: String,
    /// The way out.
    pub fix: String,
}

/// The name of the file in texts about a single launch, until its path is known.
pub(crate) const THIS_LAUNCH: &str = "this launch";

impl Mistake {
    pub(crate) fn new(id: &'static str, why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            id,
            why: why.into(),
            fix: fix.into(),
        }
    }

    /// Several runs of a file are slower at its beginning than later.
    pub(crate) fn warm_up_in_runs() -> Self {
        Self::new(
            "warm_up_in_runs",
            "the first runs that are judged take over 1.25 times as long as the others, so that warm-up is among them",
            "raise latency.warmup",
        )
    }

    /// A histogram has no order of runs.
    pub(crate) fn no_order() -> Self {
        Self::new(
            "no_order",
            "a histogram has no order of runs, so that its warm-up cannot be told apart",
            "record after the warm-up, or give single runs",
        )
    }

    pub(crate) fn one_launch() -> Self {
        Self::new(
            "one_launch",
            "one launch: its runs share clocks and heat, so that its number decides alone",
            "measure six launches or more, each in a process of its own",
        )
    }

    pub(crate) fn cpu_latency(what: &str) -> Self {
        Self::new(
            "cpu_latency",
            format!("{what} is not an NPU: its run times say nothing about one"),
            "measure on the phone",
        )
    }

    pub(crate) fn proxy(device: &str) -> Self {
        Self::new(
            "proxy_device",
            format!("{device} is another chipset that stands in for it"),
            "name a device of the chipset itself, or take its latency as a hint",
        )
    }

    pub(crate) fn partition_as_node() -> Self {
        Self::new(
            "partition_as_node",
            "a partition on the NPU is one event of a profile, so that a share of nodes would be wrong; none is computed",
            "give MODEL, for the share of the MACs",
        )
    }

    pub(crate) fn ep_context() -> Self {
        Self::new(
            "ep_context",
            "the model is precompiled (EPContext): each of its nodes is a whole partition, and nodes and MACs cannot be counted",
            "judge the placement of the model that it was compiled from",
        )
    }

    pub(crate) fn loop_body(name: &str) -> Self {
        Self::new(
            "loop_body",
            format!(
                "{name} runs several times in a run, as the body of a Loop or Scan: its MACs are counted for one turn"
            ),
            "judge the body as a model of its own",
        )
    }

    pub(crate) fn no_flops() -> Self {
        Self::new(
            "no_flops",
            "no profile of ONNX Runtime has a field flops: shares come from the model's own shapes",
            "give MODEL",
        )
    }

    pub(crate) fn unnamed(percent: f64) -> Self {
        Self::new(
            "unnamed_nodes",
            format!(
                "{percent:.1} % of the MACs are in nodes without a name, which no profile can attribute"
            ),
            "epwatch manifest MODEL --stamp-names COPY, and measure the copy",
        )
    }

    pub(crate) fn throttled(file: &str, why: &str) -> Self {
        Self::new(
            "throttled",
            format!("{file} was measured on a throttled device ({why}), and is not judged"),
            "let the device cool down and measure this pair again",
        )
    }

    /// The writer of a launch threw earlier tries of it away, for these reasons.
    pub(crate) fn made_again(file: &str, reasons: &[String]) -> Self {
        let why = format!("{file} was made again ({})", reasons.join("; "));
        let fix = "if many are, let the device cool down and close other apps; earlier tries are not judged";
        Self::new("made_again", why, fix)
    }

    /// The CPU probe of a launch was over 5 % faster or slower than another one, by this ratio.
    pub(crate) fn clock_moved(file: &str, ratio: f64, than: &str) -> Self {
        let why = format!("the CPU probe takes {ratio:.2} times as long {than}");
        if ratio > 1.0 {
            return Self::throttled(file, &why);
        }
        Self::new(
            "faster_clock",
            format!("{file} was measured at a faster clock ({why}), and is not judged"),
            "keep the device's clock the same (end its other work, or set a fixed frequency), and measure this pair again",
        )
    }

    /// Whether the run times of this launch are not judged.
    pub(crate) fn leaves_out(&self) -> bool {
        matches!(self.id, "throttled" | "faster_clock")
    }

    pub(crate) fn input_shapes() -> Self {
        Self::new(
            "input_shapes",
            "a session has runs of several input shapes, which take different times; only runs of the most frequent shape are judged",
            "record with one shape",
        )
    }

    pub(crate) fn few_runs(sessions: usize) -> Self {
        Self::new(
            "few_runs",
            format!(
                "{sessions} sessions have fewer than 20 warm runs on a cool device, so that their times are not judged"
            ),
            "record longer sessions",
        )
    }

    pub(crate) fn placements_differ(n: usize, worst: &str) -> Self {
        Self::new(
            "placements_differ",
            format!(
                "the launches have {n} placements that differ; the worst one is judged, of {worst}"
            ),
            "the reasons of its nodes say why; a launch that fell back once is a fault of the start",
        )
    }

    pub(crate) fn unequal_arms(candidates: usize, baselines: usize) -> Self {
        Self::new(
            "unequal_arms",
            format!(
                "{candidates} sessions and {baselines} of the baseline: they pair up in the order in which they were made, \
                 the surplus with none"
            ),
            "make as many sessions of both models in turn",
        )
    }

    pub(crate) fn not_in_turn() -> Self {
        Self::new(
            "not_in_turn",
            "all launches of one model come before all launches of the other, so that a drift of the device looks like the model's",
            "measure in turn: old, new, new, old",
        )
    }

    pub(crate) fn below_floor(share: f64, floor: Option<f64>) -> Self {
        let floor = floor.map_or(String::new(), |floor| format!("; {floor:.3} would not"));
        Self::new(
            "limit_below_floor",
            format!(
                "by the launches of the baseline, cv_max fails {:.0} % of the models that are as good{floor}",
                100.0 * share
            ),
            "raise latency.cv_max, or judge by --baseline",
        )
    }

    pub(crate) fn below_calibration(
        key: &str,
        limit: f64,
        floor: f64,
        at_most: Option<f64>,
    ) -> Self {
        let at_most = at_most.map_or(String::new(), |most| format!(" (at most {most:.3})"));
        Self::new(
            "limit_below_floor",
            format!(
                "{key} = {limit} is below this device's floor of {floor:.3}{at_most}: the calibrated model itself fails it in more than \
                 1 % of gates"
            ),
            format!("raise {key}"),
        )
    }

    pub(crate) fn no_power(decides: Option<f64>, asked: f64, pairs: Option<usize>) -> Self {
        let finds = match decides {
            Some(times) => format!("slowdowns from {times} times on, and not {asked} times"),
            None => "no slowdown up to 3 times".to_owned(),
        };
        let fix = match pairs {
            Some(pairs) => format!(
                "latency.launches = {pairs} finds {asked} times, or let the device do nothing else"
            ),
            None => "let the device do nothing else while it is measured".to_owned(),
        };
        Self::new(
            "little_power",
            format!("by its calibration, 95 % of gates of 12 pairs on this device find {finds}"),
            fix,
        )
    }

    /// The calibration is of another device.
    pub(crate) fn other_calibration(what: &str) -> Self {
        Self::new(
            "other_calibration",
            format!(
                "the calibration is of another device or runtime ({what}), so that its floors are not used"
            ),
            "epwatch gate calibrate on this device",
        )
    }

    pub(crate) fn not_finite(file: &str, outputs: &str) -> Self {
        Self::new(
            "not_finite",
            format!("{file}: {outputs}; a cosine is without them"),
            "inputs that the app has, as outputs.golden",
        )
    }

    pub(crate) fn outputs_vary(n: usize) -> Self {
        Self::new(
            "outputs_vary",
            format!("the launches have {n} different hashes of the outputs for one input"),
            "compare them by their cosine, or give the model the same input",
        )
    }

    pub(crate) fn sum_of_layers() -> Self {
        Self::new(
            "sum_of_layers",
            "a profile of layers has the sum of their times, which is not the time of a run",
            "give --exportTimes of trtexec too",
        )
    }

    pub(crate) fn npu_alone() -> Self {
        Self::new(
            "npu_alone",
            "the file has the ops on the NPU alone, and their run times: nodes on the CPU and their time are missing",
            "judge ONNX Runtime's profile of the same launch",
        )
    }

    pub(crate) fn only_minimum() -> Self {
        Self::new(
            "only_minimum",
            "the table has the fastest run alone, of one job on some phone of the kind",
            "compare with it; do not set a limit by it",
        )
    }
}
