//! `epwatch gate`: judges a model before it ships: its placement on each chipset, or launches that were measured.

mod aihub;
mod baseline;
mod calibrate;
mod certify;
mod device;
mod distance;
pub(crate) mod dsse;
mod fix;
mod folder_lock;
mod keygen;
mod op_advice;
mod percent;
mod policy_file;
mod policy_ops;
mod reports;
mod runs;
mod trend;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::ExitCode,
};

use aihub::AihubArgs;
use anyhow::Context;
use baseline::Baseline;
use certify::{CertifyArgs, Judged};
use device::{DeviceArgs, LaunchFiles, LeftBehind, Measured};
use epwatch_engines::QnnVersion;
use epwatch_gate::{
    comparison::{ALL_PAIRS, FIRST_PAIRS},
    launches::JudgedLaunches,
    placement::Inspected,
    policy::{LatencyLimits, PlacementLimits, Policy, Preset},
    read::{HdrUnit, ReadOptions},
    verdict::{GatedFile, NotChecked, Outcome, Target, Verdict},
};
use epwatch_manifest::{InputShape, ModelOutline, graph_facts};
use epwatch_server::Period;
use jiff::Timestamp;
use percent::Percent;
use policy_ops::OtherOps;
use reports::ReportArgs;
use runs::RunFiles;

use crate::{
    input_file::{self, InputKind},
    inspect::{self, AppOptions, EpOption, InspectedEp, SocModel, SocTier},
    output::{self, No, WrongUse},
    shutdown::{until_interrupted, until_interrupted_and_removed},
    signing_key::SigningKey,
};

/// Parts of a model's behaviour that an emulator does not have.
const NOT_CHECKED: [NotChecked; 2] = [
    NotChecked {
        id: Cow::Borrowed("latency"),
        why: "run and load times of an emulator mean nothing",
    },
    NotChecked {
        id: Cow::Borrowed("outputs"),
        why: "nothing is run",
    },
];

/// Fails a pipeline if a model would leave the NPU on a chipset.
///
/// With --soc it needs no phone. The placement comes from the real QNN EP and its op validator on this machine (Linux
/// x86-64), as `inspect` shows it. With --ep it comes from another EP, for example openvino, on this machine. Latency is not looked at, and every report says so first. A model as --baseline adds
/// what is new on the CPU since then. With --runs it judges launches of a phone against a baseline and limits; with
/// MODEL also the placement that their profiles show. With both, and one chipset, both are judged. docs/gate.md has the
/// policy's keys and what a gate cannot see.
///
/// Exit code 0: passed, with warnings too. Exit code 1: failed. Exit code 2: wrong use, no ONNX model, or a policy that
/// cannot be used. Exit code 3: could not find out.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<GateCommand>,
    /// The ONNX model, or several. May be left out if the policy's `[variants]` name a file for each chipset.
    #[arg(value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// Chipsets, by name (SM8650) or QNN's number (57), separated by commas. Whole tiers: all, fp16 and no-fp16 (by what
    /// their NPU computes), v73 and the like (by its Hexagon version).
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        required_unless_present_any = ["runs", "ep", "place", "aihub"]
    )]
    soc: Vec<SocTier>,
    /// Another EP than QNN's, on this machine as it is: openvino, or one that --ort has (xnnpack, coreml, webgpu). No --soc
    /// then.
    #[arg(long, value_name = "EP", value_enum, conflicts_with_all = ["runs", "place"])]
    ep: Option<InspectedEp>,
    /// The app's ONNX Runtime. With --ep it is for this machine, 1.24 or later, and has the EP. With --local, --ssh or --adb
    /// it is any for the device [default on a machine of this kind: a fetched one].
    #[arg(long, value_name = "LIB")]
    ort: Option<PathBuf>,
    /// Launches of the model that were measured elsewhere, one launch (a process with one session) a file. A file is
    /// ONNX Runtime's profile, AI Hub's result, latencies as JSON array, CSV or HDR log, or another kind (docs/gate.md
    /// lists them).
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "place")]
    runs: Vec<PathBuf>,
    /// Files that the model is compared with. With --soc, the earlier model (.onnx): nodes that are new on the CPU
    /// fail. With --runs, the earlier model's launches, as many, measured in turn on one device. With both, files that
    /// end in .onnx are models.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    baseline: Vec<PathBuf>,
    /// Unit of the values of an HDR log: ns, us or ms.
    #[arg(long, value_name = "UNIT", requires = "runs")]
    hdr_unit: Option<HdrUnit>,
    /// The policy (TOML). `[placement]` has limits. `[chipset.SM8635.placement]` changes them for one chipset,
    /// `[model."detect*.onnx".placement]` for models by the end of their path. [default: 98 % of the MACs on the NPU in
    /// one partition, and no op on the CPU between its nodes].
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Limits that the policy does not set: strict, default or macs-only. Short for a policy, as the next two.
    #[arg(long, value_name = "NAME", conflicts_with = "policy")]
    preset: Option<Preset>,
    /// Most of the MACs on the CPU, for example 2%.
    #[arg(long, value_name = "PERCENT", conflicts_with = "policy")]
    max_cpu_macs: Option<Percent>,
    /// Most partitions on the NPU.
    #[arg(long, value_name = "N", conflicts_with = "policy")]
    max_partitions: Option<u32>,
    /// Longest median of the runs. Short for a policy, as the next three.
    #[arg(long, value_name = "MS", requires = "runs", conflicts_with = "policy")]
    median_ms: Option<f64>,
    /// Longest 95th percentile.
    #[arg(long, value_name = "MS", requires = "runs", conflicts_with = "policy")]
    p95_ms: Option<f64>,
    /// Time after which a run is late: at most 1 % may be.
    #[arg(long, value_name = "MS", requires = "runs", conflicts_with = "policy")]
    deadline_ms: Option<f64>,
    /// Largest coefficient of variation, for example 8%. docs/gate-proof.md has what it costs.
    #[arg(
        long,
        value_name = "PERCENT",
        requires = "runs",
        conflicts_with = "policy"
    )]
    cv: Option<Percent>,
    /// Shape of an input that the model leaves open, for its MACs: input=1,3,224,224. Once for each.
    #[arg(long, value_name = "INPUT=DIMS")]
    shape: Vec<InputShape>,
    /// Option of the EP, as the app gives it: enable_htp_fp16_precision=0. Once for each.
    #[arg(long, value_name = "KEY=VALUE")]
    ep_option: Vec<EpOption>,
    #[command(flatten)]
    app: AppOptions,
    /// Version of QNN that partitions, the same as in the app on the phone. It is 2.3 to 2.7 as onnxruntime-qnn counts,
    /// or 2.47 to 2.51 as the QNN SDK does. Each is fetched once, about 250 MB. There is no older one for this machine.
    #[arg(long, value_name = "VERSION", default_value_t)]
    qnn_version: QnnVersion,
    /// What `gate calibrate` found on this device: limits below their floor are named in the report.
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// How long one chipset may take.
    #[arg(long, value_name = "TIME", default_value = "10m")]
    timeout: Period,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    aihub: AihubArgs,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    certify: CertifyArgs,
}

#[derive(Debug, clap::Subcommand)]
enum GateCommand {
    Calibrate(Box<calibrate::GateCalibrateArgs>),
    Fix(fix::FixArgs),
    Keygen(keygen::GateKeygenArgs),
    Trend(trend::TrendArgs),
}

impl Args {
    fn inspected_ep(&self) -> InspectedEp {
        self.ep.unwrap_or_default()
    }

    /// Whether launches are made before they are judged.
    fn makes_launches(&self) -> bool {
        self.device.option().is_some() || !self.aihub.aihub.is_empty()
    }

    /// True of `gate fix`, which runs both models in its own process.
    pub(crate) fn loads_onnx_runtime(&self) -> bool {
        matches!(self.command, Some(GateCommand::Fix(_)))
    }
}

pub(crate) async fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    match args.command.take() {
        Some(GateCommand::Calibrate(args)) => {
            let left = LeftBehind::default();
            let calibrated = Box::pin(calibrate::calibrate(&args, &left));
            return until_ended(calibrated, &args.device, &left).await;
        }
        Some(GateCommand::Fix(args)) => {
            return until_interrupted(Box::pin(fix::fix(args))).await;
        }
        Some(GateCommand::Keygen(args)) => return keygen::keygen(&args),
        Some(GateCommand::Trend(args)) => return trend::trend(&args),
        None => {}
    }
    let left = LeftBehind::default();
    let ended = until_ended(Box::pin(gated(&args, &left)), &args.device, &left).await;
    if let Err(error) = &ended {
        args.report.annotate_wrong_use(error)?;
    }
    ended
}

/// Runs to the end or to a signal, and removes what was made on other machines.
async fn until_ended(
    command: impl Future<Output = anyhow::Result<ExitCode>>,
    device: &DeviceArgs,
    left: &LeftBehind,
) -> anyhow::Result<ExitCode> {
    match device.is_elsewhere() {
        true => until_interrupted_and_removed(command, left.remove()).await,
        false => until_interrupted(command).await,
    }
}

async fn gated(args: &Args, left: &LeftBehind) -> anyhow::Result<ExitCode> {
    let (policy, policy_file) = policy(args)?;
    let chosen = Chosen::of(args, &policy)?;
    let key = args
        .report
        .attest
        .as_deref()
        .map(SigningKey::read)
        .transpose();
    let key = key.map_err(|error| WrongUse(format!("--attest: {error:#}")))?;
    check_use(args, &chosen)?;
    let calibration = args
        .calibration
        .as_deref()
        .map(calibrate::read)
        .transpose()?;
    args.report.make_folder()?;
    check_ops(args, &chosen, &policy)?;
    let mut judged = Vec::new();
    let (mut not_checked, mut found) = (NOT_CHECKED.to_vec(), Vec::new());
    if args.inspected_ep() != InspectedEp::Qnn {
        for part in &mut not_checked {
            part.why = "nothing is run";
        }
    }
    if !chosen.socs.is_empty() {
        found = targets(args, &chosen, &policy, &mut judged).await?;
    }
    let mut latency = None;
    let farmed = on_farm(args, &chosen, &policy).await?;
    if let Some(farmed) = farmed {
        not_checked = farmed.not_checked;
        found.extend(farmed.targets);
    }
    let made = made_here(args, &chosen, &policy, left, None).await?;
    if let Some(mut measured) = judged_files(args, &chosen, &policy, &made)? {
        if needs_more(args, &policy, &measured) {
            output::remark(format_args!(
                "{FIRST_PAIRS} pairs do not decide: {ALL_PAIRS} do, with these among them"
            ));
            let made = made_here(args, &chosen, &policy, left, Some(made)).await?;
            measured = judged_files(args, &chosen, &policy, &made)?.unwrap_or(measured);
        }
        latency = runs::certified(&measured.launches);
        not_checked = measured.not_checked;
        if !chosen.socs.is_empty() {
            not_checked.retain(|part| part.id != "placement");
        }
        found.extend(measured.targets);
    }
    if let Some(calibration) = &calibration {
        for target in &mut found {
            calibration.note(target, &policy.latency, &policy.load);
        }
    }
    not_checked.extend(unused(&policy, &found));
    not_checked.extend(unused_models(&policy, &found));
    let version = env!("CARGO_PKG_VERSION");
    let mut verdict = Verdict::new(version, policy_file, not_checked, found);
    verdict.made_at = Some(Timestamp::from_second(Timestamp::now().as_second())?.to_string());
    let evidence = args.report.write(&verdict, key.as_ref())?;
    // On a terminal the sentences stand right above.
    let is_told = output::columns().is_some() && !args.report.json;
    let sentences = |outcome| {
        let found = verdict.with(outcome);
        let each = found.map(|(on, check)| match is_told {
            true => format!(
                "{}: {}: {}",
                verdict.name_of(on),
                check.id,
                check.result.as_str()
            ),
            false => format!(
                "{}: {}: {}",
                verdict.name_of(on),
                check.id,
                output::one_line(&check.why)
            ),
        });
        each.collect::<Vec<_>>().join("\n")
    };
    match verdict.result {
        Outcome::Fail => Err(No(sentences(Outcome::Fail)).into()),
        Outcome::Undecided => anyhow::bail!("{}", sentences(Outcome::Undecided)),
        _ => {
            if let Some(url) = &args.certify.certify {
                let shapes = args.app.shapes(&args.shape);
                let runtime = certify::runtime(args.qnn_version).await?;
                let send = args
                    .certify
                    .send(url, judged, latency, evidence, &shapes, &runtime);
                let lines = send.await?;
                for line in lines.iter().filter(|_| !args.report.json) {
                    output::line(line)?;
                }
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The command line's models, chipsets and baseline, once tiers and kinds of files are known.
struct Chosen {
    /// Each once, in the order of the command line.
    models: Vec<PathBuf>,
    socs: Vec<SocModel>,
    baseline: Baseline,
}

impl Chosen {
    fn of(args: &Args, policy: &Policy) -> Result<Self, WrongUse> {
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

    fn only_model(&self) -> Option<&PathBuf> {
        self.models.first().filter(|_| self.models.len() == 1)
    }
}

/// Refuses arguments that do not belong together.
fn check_use(args: &Args, chosen: &Chosen) -> Result<(), WrongUse> {
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
    let measures = !args.runs.is_empty() || args.makes_launches();
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
    if args.makes_launches() && !args.app.custom_ops.is_empty() {
        return wrong(
            "--custom-ops is for sessions with --soc or --ep: launches are made without such libraries",
        );
    }
    if let Some(option) = makes.filter(|_| chosen.socs.len() > 1) {
        return wrong(&format!(
            "{option} measures on one chipset: give one with --soc"
        ));
    }
    if measures && chosen.socs.len() > 1 {
        return wrong("--runs are of one chipset: give one with --soc");
    }
    if measures && chosen.models.len() > 1 {
        return wrong("--runs are of one model: give one MODEL");
    }
    if args.certify.certify.is_some() && !places {
        return wrong("--certify stores placements: give --soc, and --runs for their latency");
    }
    if args.certify.certify.is_some() && chosen.models.len() > 1 {
        return wrong("--certify is of one model id and version: give one MODEL");
    }
    if args.report.attest.is_some() && !places && chosen.models.is_empty() {
        return wrong("--attest is about a model: give MODEL");
    }
    args.certify.check_key()
}

/// Refuses ops of the policy that no model on a chipset of --soc can have.
fn check_ops(args: &Args, chosen: &Chosen, policy: &Policy) -> Result<(), WrongUse> {
    let mut outlines = Vec::new();
    for (path, _) in by_model(args, chosen, policy)? {
        // Before any session is made.
        of_model(policy, Some(&path))?;
        // Problems of the file are printed when it is inspected.
        let is_file = input_file::check(&path, InputKind::Model).is_ok();
        outlines.extend(is_file.then(|| ModelOutline::of(&path).ok()).flatten());
    }
    if outlines.is_empty() {
        return Ok(());
    }
    let ops = outlines.iter().flat_map(ModelOutline::op_types);
    policy_ops::check(policy, ops, OtherOps::None)
}

/// Reads the policy file, or makes one of the arguments.
fn policy(args: &Args) -> anyhow::Result<(Policy, Option<GatedFile>)> {
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

/// The model file of a chipset: its variant, else the one of the command line, else the policy's default.
fn model_of(
    args: &Args,
    chosen: &Chosen,
    policy: &Policy,
    chipset: &str,
) -> Result<PathBuf, WrongUse> {
    let folder = args.policy.as_deref().and_then(Path::parent);
    let variant = |name: &str| {
        let path = policy.variants.get(name)?;
        Some(folder.map_or_else(|| path.clone(), |folder| folder.join(path)))
    };
    let model = variant(chipset).or_else(|| chosen.only_model().cloned());
    model.or_else(|| variant("default")).ok_or_else(|| {
        WrongUse(format!(
            "no model for {chipset}: give MODEL, or {chipset} or default in [variants] of --policy"
        ))
    })
}

/// Reads the launches of the command line, or those that were made, and judges them. `None` without launches.
fn judged_files(
    args: &Args,
    chosen: &Chosen,
    policy: &Policy,
    made: &LaunchFiles,
) -> anyhow::Result<Option<JudgedLaunches>> {
    let (runs, baseline) = match args.device.option() {
        Some(_) => (&made.candidate, &made.baseline),
        None => (&args.runs, &chosen.baseline.launches),
    };
    if runs.is_empty() {
        return Ok(None);
    }
    let model = model_of_runs(args, chosen, policy)?;
    let shapes = args.app.shapes(&args.shape);
    let files = RunFiles {
        runs,
        baseline,
        model: model.as_deref(),
        shapes: &shapes,
        chipset: chosen.socs.first().map(shown),
        device: None,
        is_on_cpu: args.device.is_on_cpu(chosen.socs.first()),
        options: ReadOptions {
            hdr_unit: args.hdr_unit,
        },
    };
    let own = of_model(policy, model.as_deref())?;
    Ok(Some(runs::launches(&files, &own)?))
}

/// Whether the first look of `--local` leaves a regression open. A policy that sets the number of launches allows no second look.
fn needs_more(args: &Args, policy: &Policy, measured: &JudgedLaunches) -> bool {
    let mut checks = measured.targets.iter().flat_map(|target| &target.checks);
    args.device.is_here()
        && policy.latency.launches.is_none()
        && checks.any(|check| check.id == "regression" && check.result == Outcome::Undecided)
}

/// Makes the launches of `--local`, `--ssh` or `--adb`: of the first look, or the rest after it.
async fn made_here(
    args: &Args,
    chosen: &Chosen,
    policy: &Policy,
    left: &LeftBehind,
    first: Option<LaunchFiles>,
) -> anyhow::Result<LaunchFiles> {
    if !args.aihub.aihub.is_empty() {
        return Ok(LaunchFiles::default());
    }
    let Some(option) = args.device.option() else {
        if let Some(key) = policy.of_runner() {
            let text = format!(
                "{key} of --policy is for launches that the gate makes: give --local, --ssh or --adb, or take it out"
            );
            return Err(WrongUse(text).into());
        }
        return Ok(LaunchFiles::default());
    };
    let model = model_of_runs(args, chosen, policy)?;
    let Some(model) = model else {
        return Err(WrongUse(format!("{option} measures a model: give MODEL")).into());
    };
    let mut own = of_model(policy, Some(&model))?;
    if first.is_some() {
        own.to_mut().latency.launches = u32::try_from(ALL_PAIRS).ok();
    }
    let shapes = args.app.shapes(&args.shape);
    let measured = Measured {
        model: &model,
        ort: args.ort.as_deref(),
        baseline: chosen.baseline.of_model(&model, 1)?,
        soc: chosen.socs.first(),
        qnn_version: args.qnn_version,
        ep_options: &args.ep_option,
        dims: &args.app.dim,
        shapes: &shapes,
        policy: &own,
    };
    args.device.measure(&measured, left, first).await
}

/// Makes the jobs of `--aihub`, and judges each phone by itself. `None` without it.
async fn on_farm(
    args: &Args,
    chosen: &Chosen,
    policy: &Policy,
) -> anyhow::Result<Option<JudgedLaunches>> {
    if args.aihub.aihub.is_empty() {
        return Ok(None);
    }
    let model = model_of_runs(args, chosen, policy)?;
    let Some(model) = model else {
        return Err(WrongUse("--aihub measures a model: give MODEL".to_owned()).into());
    };
    let own = of_model(policy, Some(&model))?;
    let before = chosen.baseline.of_model(&model, 1)?;
    let measured = args.aihub.measure(&model, before, &own).await?;
    let shapes = args.app.shapes(&args.shape);
    let mut judged = JudgedLaunches::default();
    for on in &measured {
        let files = RunFiles {
            runs: &on.candidate,
            baseline: &on.baseline,
            model: Some(&model),
            shapes: &shapes,
            chipset: chosen.socs.first().map(shown),
            device: Some(on.device.clone()),
            is_on_cpu: false,
            options: ReadOptions::default(),
        };
        judged.add(on.judged(|| runs::launches(&files, &own))?);
    }
    if !chosen.socs.is_empty() {
        judged.not_checked.retain(|part| part.id != "placement");
    }
    Ok(Some(judged))
}

/// Returns the model that the launches measured: the model for their chipset.
fn model_of_runs(
    args: &Args,
    chosen: &Chosen,
    policy: &Policy,
) -> Result<Option<PathBuf>, WrongUse> {
    match chosen.socs.first() {
        Some(soc) => model_of(args, chosen, policy, &soc.chipset()).map(Some),
        None if policy.variants.is_empty() => Ok(chosen.only_model().cloned()),
        None => Err(WrongUse(
            "--policy has [variants]: give the chipset of --runs with --soc".to_owned(),
        )),
    }
}

/// The policy of a model, whose own section replaces keys.
fn of_model<'a>(policy: &'a Policy, model: Option<&Path>) -> Result<Cow<'a, Policy>, WrongUse> {
    let Some(model) = model else {
        return Ok(Cow::Borrowed(policy));
    };
    let own = policy.for_model(&model.display().to_string());
    let own = own.map_err(|error| WrongUse(format!("--policy cannot be used: {error}")))?;
    Ok(Cow::Owned(own))
}

/// Patterns of the policy's sections of models that name none of the targets' models.
fn unused_models(policy: &Policy, targets: &[Target]) -> Vec<NotChecked> {
    let used: BTreeSet<&str> = targets
        .iter()
        .filter_map(|target| target.model.as_ref())
        .flat_map(|model| policy.patterns_of(&model.path))
        .collect();
    let patterns = policy.model.keys();
    let unused = patterns.filter(|pattern| !used.contains(pattern.as_str()));
    let each = unused.map(|pattern| NotChecked {
        id: format!("model \"{pattern}\"").into(),
        why: "the policy has limits for it, and no model here has that name",
    });
    each.collect()
}

/// Chipsets that the policy has limits or a model for, and that no target is of.
fn unused(policy: &Policy, targets: &[Target]) -> Vec<NotChecked> {
    let is_of = |target: &Target, chipset: &str| {
        let rest = target.chipset.strip_prefix(chipset);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    let named: BTreeSet<&str> = policy.chipsets().collect();
    let unused = named
        .into_iter()
        .filter(|chipset| !targets.iter().any(|target| is_of(target, chipset)));
    let each = unused.map(|chipset| NotChecked {
        id: chipset.to_owned().into(),
        why: "the policy has limits or a model for it, and nothing here is of it",
    });
    each.collect()
}

/// Each model with its chipsets: all models on all chipsets, or the variant of each chipset.
fn by_model(
    args: &Args,
    chosen: &Chosen,
    policy: &Policy,
) -> Result<Vec<(PathBuf, Vec<SocModel>)>, WrongUse> {
    if chosen.models.len() > 1 {
        let each = chosen.models.iter();
        return Ok(each
            .map(|model| (model.clone(), chosen.socs.clone()))
            .collect());
    }
    let mut by_model: BTreeMap<PathBuf, Vec<SocModel>> = BTreeMap::new();
    for soc in &chosen.socs {
        let model = model_of(args, chosen, policy, &soc.chipset())?;
        by_model.entry(model).or_default().push(soc.clone());
    }
    Ok(by_model.into_iter().collect())
}

/// Returns how a model is inspected on these chipsets.
fn inspection(args: &Args, model: &Path, socs: &[SocModel]) -> inspect::Args {
    inspect::Args {
        model: model.to_owned(),
        argument: "MODEL",
        // An EP without chipsets has a place of its own.
        soc: match args.inspected_ep() {
            InspectedEp::Qnn => socs.to_vec(),
            _ => Vec::new(),
        },
        ep: args.inspected_ep(),
        ort: args.ort.clone(),
        manifest: None,
        shape: args.shape.clone(),
        ep_option: args.ep_option.clone(),
        app: args.app.clone(),
        qnn_version: args.qnn_version,
        timeout: args.timeout,
        fail_on: Vec::new(),
        json: false,
    }
}

/// Inspects each model on its chipsets, and judges the placements.
async fn targets(
    args: &Args,
    chosen: &Chosen,
    policy: &Policy,
    judged: &mut Vec<Judged>,
) -> anyhow::Result<Vec<Target>> {
    let mut targets = Vec::new();
    let runtime = match args.inspected_ep() {
        InspectedEp::Qnn => certify::runtime(args.qnn_version).await?.name(),
        ep => ep.runtime(args.ort.as_deref()).await?.name,
    };
    let n_models = chosen.models.len();
    for (model, socs) in by_model(args, chosen, policy)? {
        let own = of_model(policy, Some(&model))?;
        let policy: &Policy = &own;
        let document = inspect::inspected(&inspection(args, &model, &socs)).await?;
        judged.extend(document.placements().map(|(chipset, placement)| Judged {
            model: model.clone(),
            chipset: chipset.to_owned(),
            placement,
        }));
        let found: Inspected = serde_json::from_value(serde_json::to_value(&document)?)?;
        let file = GatedFile {
            path: model.display().to_string(),
            sha256: epwatch_manifest::sha256_of_file(&model)
                .with_context(|| format!("failed to read MODEL {}", model.display()))?,
        };
        let facts = graph_facts(&model, &args.app.shapes(&args.shape));
        let baseline = &chosen.baseline;
        let before = baseline
            .before(
                inspection(args, &model, &socs),
                &file,
                n_models,
                facts.as_ref().ok(),
            )
            .await?;
        for (at, mut on) in found.chipsets.into_iter().enumerate() {
            on.counted = found.counted.clone();
            let limits = policy.placement_on(&on.chipset);
            let mut checks = on.judge(&limits, found.macs_error.as_deref());
            let was = before.judge(at, &on, &limits, &mut checks);
            let placement = on.numbers();
            // Other forms of ops were measured with QNN.
            if let Ok(facts) = &facts
                && args.inspected_ep() == InspectedEp::Qnn
            {
                op_advice::advised(&mut checks, &on.chipset, facts, args.qnn_version);
            }
            for node in checks.iter_mut().flat_map(|check| &mut check.nodes) {
                let types = facts
                    .as_ref()
                    .map_or(&[][..], |facts| facts.types(&node.name));
                node.types = types.iter().map(|name| (*name).to_owned()).collect();
            }
            let mut target = Target {
                chipset: on.shown(),
                model: Some(file.clone()),
                runs: Vec::new(),
                source: match args.inspected_ep() {
                    InspectedEp::Qnn => "emulator",
                    _ => "session",
                },
                device: None,
                firmware: None,
                runtime: Some(runtime.clone()),
                against: None,
                before: was,
                placement,
                latency: None,
                checks,
                mistakes: Vec::new(),
            };
            if args.runs.is_empty() && !args.makes_launches() {
                target.add_unanswered(policy.asked_of_launches());
            }
            targets.push(target);
        }
    }
    // Variants are in the order of the chipsets.
    if n_models <= 1 {
        let order = |target: &Target| {
            chosen
                .socs
                .iter()
                .position(|soc| shown(soc) == target.chipset)
        };
        targets.sort_by_key(order);
    }
    Ok(targets)
}

fn shown(soc: &SocModel) -> String {
    match soc.chipset().as_str() {
        "unknown" => format!("QNN {}", soc.asked),
        chipset => chipset.to_owned(),
    }
}
