//! The arguments of `epwatch gate`: what they are, which of them belong together, and what they choose.

use std::path::PathBuf;

use epwatch_engines::QnnVersion;
use epwatch_gate::{
    policy::{LatencyLimits, PlacementLimits, Policy, Preset},
    read::HdrUnit,
    verdict::GatedFile,
};
use epwatch_manifest::InputShape;
use epwatch_server::Period;

use super::{
    aihub::AihubArgs, baseline::Baseline, calibrate, certify::CertifyArgs, device::DeviceArgs, fix,
    keygen, percent::Percent, policy_file, reports::ReportArgs, trend,
};
use crate::{
    inspect::{AppOptions, EpOption, InspectedEp, SocModel, SocTier},
    output::WrongUse,
};

/// Fails a pipeline if a model would leave the NPU on a chipset.
///
/// With --soc it needs no phone. The placement comes from the real QNN EP and its op validator on this machine (Linux
/// x86-64), as `inspect` shows it. With --ep it comes from another EP, for example openvino, on this machine. Latency
/// is not judged, and every report says so first. A model as --baseline adds what is new on the CPU since then. With
/// --runs it judges launches of a phone against a baseline and limits; with MODEL also the placement that their
/// profiles show. With both, and one chipset, both are judged. docs/gate.md has the policy's keys and what a gate
/// cannot see.
///
/// Exit code 0: passed, with warnings too. Exit code 1: failed. Exit code 2: wrong use, no ONNX model, or a policy that
/// cannot be used. Exit code 3: could not find out.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(super) command: Option<GateCommand>,
    /// The ONNX model, or several. May be left out if the policy's `[variants]` name a file for each chipset.
    #[arg(value_name = "MODEL")]
    pub(super) models: Vec<PathBuf>,
    /// Chipsets, by name (SM8650) or QNN's number (57), separated by commas. Whole tiers: all, fp16 and no-fp16 (by what
    /// their NPU computes), v73 and the like (by its Hexagon version).
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        required_unless_present_any = ["runs", "ep", "place", "aihub"]
    )]
    pub(super) soc: Vec<SocTier>,
    /// An EP other than QNN's EP, on this machine as it is: openvino, or one that --ort has (xnnpack, coreml, webgpu).
    /// No --soc then.
    #[arg(long, value_name = "EP", value_enum, conflicts_with_all = ["runs", "place"])]
    pub(super) ep: Option<InspectedEp>,
    /// The app's ONNX Runtime. With --ep it is for this machine, 1.24 or later, and has the EP. With --local, --ssh or --adb
    /// it is any for the device [default on a machine of this kind: a fetched one].
    #[arg(long, value_name = "LIB")]
    pub(super) ort: Option<PathBuf>,
    /// Launches of the model that were measured elsewhere, one launch (a process with one session) a file. A file is
    /// ONNX Runtime's profile, AI Hub's result, latencies as JSON array, CSV or HDR log, or another kind (docs/gate.md
    /// lists them).
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "place")]
    pub(super) runs: Vec<PathBuf>,
    /// Files that the model is compared with. With --soc, the earlier model (.onnx): nodes that are new on the CPU
    /// fail. With --runs, the earlier model's launches, as many, measured in turn on one device. With both, files that
    /// end in .onnx are models.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(super) baseline: Vec<PathBuf>,
    /// Unit of the values of an HDR log: ns, us or ms.
    #[arg(long, value_name = "UNIT", requires = "runs")]
    pub(super) hdr_unit: Option<HdrUnit>,
    /// The policy (TOML). `[placement]` has limits. `[chipset.SM8635.placement]` changes them for one chipset,
    /// `[model."detect*.onnx".placement]` for models by the end of their path. [default: 98 % of the MACs on the NPU in
    /// one partition, and no op on the CPU between its nodes].
    #[arg(long, value_name = "FILE")]
    pub(super) policy: Option<PathBuf>,
    /// Limits that the policy does not set: strict, default or macs-only. Short for a policy, as the next two.
    #[arg(long, value_name = "NAME", conflicts_with = "policy")]
    pub(super) preset: Option<Preset>,
    /// Maximum share of the MACs on the CPU, for example 2%.
    #[arg(long, value_name = "PERCENT", conflicts_with = "policy")]
    pub(super) max_cpu_macs: Option<Percent>,
    /// Maximum number of partitions on the NPU.
    #[arg(long, value_name = "N", conflicts_with = "policy")]
    pub(super) max_partitions: Option<u32>,
    /// Longest median of the runs. Short for a policy, as the next three.
    #[arg(long, value_name = "MS", conflicts_with = "policy")]
    pub(super) median_ms: Option<f64>,
    /// Longest 95th percentile.
    #[arg(long, value_name = "MS", conflicts_with = "policy")]
    p95_ms: Option<f64>,
    /// Time after which a run is late: at most 1 % may be.
    #[arg(long, value_name = "MS", conflicts_with = "policy")]
    pub(super) deadline_ms: Option<f64>,
    /// Largest coefficient of variation, for example 8%. docs/gate-proof.md has what it costs.
    #[arg(long, value_name = "PERCENT", conflicts_with = "policy")]
    pub(super) cv: Option<Percent>,
    /// Shape of an input that the model leaves open, for its MACs: input=1,3,224,224. Once for each.
    #[arg(long, value_name = "INPUT=DIMS")]
    pub(super) shape: Vec<InputShape>,
    /// Option of the EP, as the app gives it: enable_htp_fp16_precision=0. Once for each.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(super) ep_option: Vec<EpOption>,
    #[command(flatten)]
    pub(super) app: AppOptions,
    /// Version of QNN that partitions, the same as in the app on the phone. It is 2.3 to 2.7 as onnxruntime-qnn counts,
    /// or 2.47 to 2.51 as the QNN SDK does. Each is fetched once, about 250 MB. There is no older one for this machine.
    #[arg(long, value_name = "VERSION", default_value_t)]
    pub(super) qnn_version: QnnVersion,
    /// Result of `gate calibrate` on this device: the report names limits that are below their floor.
    #[arg(long, value_name = "FILE")]
    pub(super) calibration: Option<PathBuf>,
    /// How long one chipset may take.
    #[arg(long, value_name = "TIME", default_value = "10m")]
    pub(super) timeout: Period,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    #[command(flatten)]
    pub(super) aihub: AihubArgs,
    #[command(flatten)]
    pub(super) report: ReportArgs,
    #[command(flatten)]
    pub(super) certify: CertifyArgs,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum GateCommand {
    Calibrate(Box<calibrate::GateCalibrateArgs>),
    Fix(fix::FixArgs),
    Keygen(keygen::GateKeygenArgs),
    Trend(trend::TrendArgs),
}

impl Args {
    pub(super) fn inspected_ep(&self) -> InspectedEp {
        self.ep.unwrap_or_default()
    }

    /// Whether launches are made before they are judged.
    pub(super) fn makes_launches(&self) -> bool {
        self.device.option().is_some() || !self.aihub.aihub.is_empty()
    }

    /// The option that gives launches, or makes them; `None` without launches.
    pub(super) fn launches_option(&self) -> Option<&'static str> {
        let farm = (!self.aihub.aihub.is_empty()).then_some("--aihub");
        let runs = (!self.runs.is_empty()).then_some("--runs");
        self.device.option().or(farm).or(runs)
    }

    /// True of `gate fix`, which runs both models in its own process.
    pub(crate) fn loads_onnx_runtime(&self) -> bool {
        matches!(self.command, Some(GateCommand::Fix(_)))
    }
}

/// The command line's models, chipsets and baseline, once tiers and kinds of files are known.
pub(super) struct Chosen {
    /// The models, each once, in the order of the command line.
    pub(super) models: Vec<PathBuf>,
    pub(super) socs: Vec<SocModel>,
    pub(super) baseline: Baseline,
}

impl Chosen {
    pub(super) fn of(args: &Args, policy: &Policy) -> Result<Self, WrongUse> {
        let mut models: Vec<PathBuf> = Vec::new();
        for model in &args.models {
            if !models.contains(model) {
                models.push(model.clone());
            }
        }
        if models.len() > 1 && !policy.variants.is_empty() {
            return Err(WrongUse(
                "[variants] of --policy are of one model: give one MODEL, or take them out"
                    .to_owned(),
            ));
        }
        let socs = match args.inspected_ep().place() {
            Some(place) => vec![place],
            None => SocTier::chipsets(&args.soc),
        };
        Ok(Self {
            models,
            baseline: Baseline::of(
                &args.baseline,
                !args.runs.is_empty(),
                !socs.is_empty() || args.makes_launches(),
            )?,
            socs,
        })
    }

    pub(super) fn only_model(&self) -> Option<&PathBuf> {
        self.models.first().filter(|_| self.models.len() == 1)
    }
}

/// Refuses arguments that do not belong together.
pub(super) fn check_use(args: &Args, chosen: &Chosen) -> Result<(), WrongUse> {
    let wrong = |text: &str| Err(WrongUse(text.to_owned()));
    args.inspected_ep().check(
        !args.soc.is_empty(),
        args.ort
            .as_deref()
            .filter(|_| args.device.option().is_none()),
    )?;
    if args.ep == Some(InspectedEp::Cpu) {
        return wrong(
            "--ep cpu asks for no accelerator, so that nothing can leave it: `epwatch inspect --ep cpu` shows the nodes",
        );
    }
    let makes_sessions = !chosen.socs.is_empty() || args.device.option().is_some();
    if !args.ep_option.is_empty() && !makes_sessions {
        return wrong(
            "--ep-option is of sessions that are made here: give --soc, --ep, --local, --ssh or --adb",
        );
    }
    if args.ep == Some(InspectedEp::Qnn) && chosen.socs.is_empty() {
        return wrong("--ep qnn is judged by chipset: give --soc");
    }
    if args.certify.certify.is_some() && args.inspected_ep() != InspectedEp::Qnn {
        return wrong("--certify stores placements by chipset: give --soc, and no --ep");
    }
    let (makes, places) = (args.device.option(), !chosen.socs.is_empty());
    if args.ort.is_some() && args.ep.is_none() && makes.is_none() {
        return wrong(
            "--ort is of sessions that are made here: give --ep, --local, --ssh or --adb",
        );
    }
    if let Some(option) = makes.filter(|_| chosen.models.is_empty()) {
        return wrong(&format!("{option} measures a model: give MODEL"));
    }
    if !args.aihub.aihub.is_empty() && chosen.models.is_empty() {
        return wrong("--aihub measures a model: give MODEL");
    }
    if !args.app.custom_ops.is_empty() && !args.aihub.aihub.is_empty() {
        return wrong(
            "--custom-ops does not reach AI Hub: measure on a device here (--ssh, --adb), or judge the placement alone (--soc)",
        );
    }
    if !args.app.custom_ops.is_empty() && !makes_sessions {
        return wrong(
            "--custom-ops is of sessions that are made here: give --soc, --ep, --local, --ssh or --adb",
        );
    }
    let measures = args.launches_option();
    if let Some(option) = measures.filter(|_| chosen.socs.len() > 1) {
        return wrong(&format!(
            "launches ({option}) are of one chipset: give one with --soc"
        ));
    }
    if let Some(option) = measures.filter(|_| chosen.models.len() > 1) {
        return wrong(&format!(
            "launches ({option}) are of one model: give one MODEL"
        ));
    }
    if args.certify.certify.is_some() && !places && args.runs.is_empty() && makes.is_none() {
        return wrong(
            "--certify stores placements: give --soc, or launches on a device (--adb, --ssh, --local or --runs)",
        );
    }
    if args.certify.certify.is_some()
        && !places
        && makes.is_some()
        && args.certify.ep_version.is_none()
    {
        return wrong(
            "--certify names the runtime of the launches: give --ep-version, the version of the QNN plugin as the app reports it",
        );
    }
    if args.certify.certify.is_some() && chosen.models.is_empty() && !places {
        return wrong("--certify is of a model: give MODEL");
    }
    if args.certify.certify.is_some() && chosen.models.len() > 1 {
        return wrong("--certify is of one model id and version: give one MODEL");
    }
    if let Some(option) = makes.filter(|_| args.certify.certify.is_some() && !places)
        && args.device.is_on_cpu(None)
    {
        return wrong(&format!(
            "--certify stores placements on an NPU, and {option} measures on the CPU: give --qnn-provider and \
             --qnn-backend, or --soc"
        ));
    }
    let is_of_device = !args.runs.is_empty() || makes.is_some() && args.device.has_npu();
    if args.certify.ep_version.is_some() && !is_of_device {
        return wrong(
            "--ep-version is of launches on a device (--runs, or --qnn-provider); a placement of --soc has the version of --qnn-version",
        );
    }
    if args.report.attest.is_some() && !places && chosen.models.is_empty() {
        return wrong("--attest is about a model: give MODEL");
    }
    let limits = [
        args.median_ms,
        args.p95_ms,
        args.deadline_ms,
        args.cv.map(|most| most.0),
    ];
    if measures.is_none() && limits.iter().any(Option::is_some) {
        return wrong(
            "--median-ms, --p95-ms, --deadline-ms and --cv are limits of launches: give --runs, --local, --ssh, --adb or \
             --aihub",
        );
    }
    args.certify.check()
}

/// Reads the policy file, or makes a policy from the arguments.
pub(super) fn policy(args: &Args) -> anyhow::Result<(Policy, Option<GatedFile>)> {
    let Some(path) = &args.policy else {
        let placement = PlacementLimits {
            min_npu_macs: args.max_cpu_macs.map(|most| 1.0 - most.0),
            max_partitions: args.max_partitions,
            ..PlacementLimits::default()
        };
        let latency = LatencyLimits {
            median_ms: args.median_ms,
            p95_ms: args.p95_ms,
            deadline_ms: args.deadline_ms,
            cv_max: args.cv.map(|most| most.0),
            ..LatencyLimits::default()
        };
        let policy = Policy {
            preset: args.preset.unwrap_or_default(),
            placement,
            latency,
            ..Policy::default()
        };
        policy
            .check()
            .map_err(|error| WrongUse(format!("limits of the command line: {error}")))?;
        return Ok((policy, None));
    };
    let (policy, file) = policy_file::read(path)?;
    Ok((policy, Some(file)))
}
