//! `epwatch gate`: judges a model before it ships: its placement on each chipset, or launches that were measured.

mod certify;
mod distance;
pub(crate) mod dsse;
mod fix;
mod keygen;
mod percent;
mod policy_ops;
mod reports;
mod runs;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use certify::{CertifyArgs, Judged};
use epwatch_gate::{
    advice::{ModelNode, advise},
    ops::OpForm,
    placement::Inspected,
    policy::{LatencyLimits, PlacementLimits, Policy, Preset},
    read::{HdrUnit, ReadOptions},
    verdict::{Check, GatedFile, NotChecked, Outcome, Target, Verdict},
};
use epwatch_manifest::{GraphFacts, InputShape, ModelOutline, graph_facts};
use epwatch_proto::ModelHash;
use epwatch_server::Period;
use percent::Percent;
use policy_ops::OtherOps;
use reports::ReportArgs;
use runs::RunFiles;

use crate::{
    input_file::{self, InputKind},
    inspect::{self, AppOptions, EpOption, SocModel},
    output::{self, No, WrongUse},
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
/// With --soc it needs no phone: the placement comes from the real QNN EP and its op validator on this machine
/// (Linux x86-64), as `inspect` shows it. Latency is not looked at, and every report says so first.
/// With --runs it judges launches of a phone against a baseline and limits; with MODEL also the placement that
/// their profiles show. With both, and one chipset, both are judged.
/// docs/gate.md has the policy's keys and what a gate cannot see.
///
/// Exit codes: 0 passed, with warnings too; 1 failed; 2 wrong use, no ONNX model, or a policy that
/// cannot be used; 3 could not find out.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<GateCommand>,
    /// The ONNX model. May be left out if the policy's `[variants]` name a file for each chipset.
    model: Option<PathBuf>,
    /// Chipsets, by name (SM8650) or QNN's number (57), separated by commas.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        required_unless_present = "runs"
    )]
    soc: Vec<SocModel>,
    /// What was measured of the model elsewhere, a launch (a process with one session) a file: ONNX Runtime's
    /// profile, AI Hub's result, latencies as JSON array, CSV or HDR log, and more (docs/gate.md lists them).
    #[arg(long, value_name = "FILE", num_args = 1..)]
    runs: Vec<PathBuf>,
    /// The same of the model before, as many, measured in turn with --runs on one device.
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "runs")]
    baseline: Vec<PathBuf>,
    /// Unit of the values of an HDR log: ns, us or ms.
    #[arg(long, value_name = "UNIT", requires = "runs")]
    hdr_unit: Option<HdrUnit>,
    /// The policy (TOML) [default: 98 % of the MACs on the NPU in one partition, and no op on the CPU between its nodes].
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
    /// Largest coefficient of variation, for example 8%. docs/gate.md has what it costs.
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
    /// Option of the QNN EP, as the app gives it: enable_htp_fp16_precision=0. Once for each.
    #[arg(long, value_name = "KEY=VALUE", requires = "soc")]
    ep_option: Vec<EpOption>,
    #[command(flatten)]
    app: AppOptions,
    /// How long one chipset may take.
    #[arg(long, value_name = "TIME", default_value = "10m")]
    timeout: Period,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    certify: CertifyArgs,
}

#[derive(Debug, clap::Subcommand)]
enum GateCommand {
    Fix(fix::FixArgs),
    Keygen(keygen::GateKeygenArgs),
}

pub(crate) async fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    match args.command.take() {
        Some(GateCommand::Fix(args)) => return Box::pin(fix::fix(args)).await,
        Some(GateCommand::Keygen(args)) => return keygen::keygen(&args),
        None => {}
    }
    let ended = gated(&args).await;
    if let Err(error) = &ended {
        args.report.annotate_wrong_use(error)?;
    }
    ended
}

async fn gated(args: &Args) -> anyhow::Result<ExitCode> {
    let (policy, policy_file) = policy(args)?;
    let key = args
        .report
        .attest
        .as_deref()
        .map(SigningKey::read)
        .transpose();
    let key = key.map_err(|error| WrongUse(format!("--attest: {error:#}")))?;
    check_use(args)?;
    args.report.make_folder()?;
    check_ops(args, &policy)?;
    let mut judged = Vec::new();
    let (mut not_checked, mut found) = (NOT_CHECKED.to_vec(), Vec::new());
    if !args.soc.is_empty() {
        found = targets(args, &policy, &mut judged).await?;
    }
    let mut latency = None;
    if !args.runs.is_empty() {
        let model = model_of_runs(args, &policy)?;
        let shapes = args.app.shapes(&args.shape);
        let files = RunFiles {
            runs: &args.runs,
            baseline: &args.baseline,
            model: model.as_deref(),
            shapes: &shapes,
            chipset: args.soc.first().map(shown),
            options: ReadOptions {
                hdr_unit: args.hdr_unit,
            },
        };
        let measured = runs::launches(&files, &policy)?;
        latency = runs::certified(&measured.launches);
        not_checked = measured.not_checked;
        if !args.soc.is_empty() {
            not_checked.retain(|part| part.id != "placement");
        }
        found.extend(measured.targets);
    }
    not_checked.extend(unused(&policy, &found));
    let version = env!("CARGO_PKG_VERSION");
    let verdict = Verdict::new(version, policy_file, not_checked, found);
    let evidence = args.report.write(&verdict, key.as_ref())?;
    let sentences = |outcome| {
        let found = verdict.with(outcome);
        let each = found.map(|(on, check)| format!("{}: {}: {}", on.chipset, check.id, check.why));
        each.collect::<Vec<_>>().join("\n")
    };
    match verdict.result {
        Outcome::Fail => Err(No(sentences(Outcome::Fail)).into()),
        Outcome::Undecided => anyhow::bail!("{}", sentences(Outcome::Undecided)),
        _ => {
            if let Some(url) = &args.certify.certify {
                let shapes = args.app.shapes(&args.shape);
                let send = args.certify.send(url, judged, latency, evidence, &shapes);
                let lines = send.await?;
                for line in lines.iter().filter(|_| !args.report.json) {
                    output::line(line)?;
                }
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Refuses arguments that do not belong together.
fn check_use(args: &Args) -> Result<(), WrongUse> {
    let wrong = |text: &str| Err(WrongUse(text.to_owned()));
    let (measures, places) = (!args.runs.is_empty(), !args.soc.is_empty());
    if measures && args.soc.len() > 1 {
        return wrong("--runs are of one chipset: give one with --soc");
    }
    if args.certify.certify.is_some() && !places {
        return wrong("--certify stores placements: give --soc, and --runs for their latency");
    }
    if args.report.attest.is_some() && !places && args.model.is_none() {
        return wrong("--attest is about a model: give MODEL");
    }
    Ok(())
}

/// Refuses ops of the policy that no model on a chipset of --soc can have.
fn check_ops(args: &Args, policy: &Policy) -> Result<(), WrongUse> {
    let mut outlines = Vec::new();
    for soc in &args.soc {
        let path = model_of(args, policy, &soc.chipset())?;
        // What is wrong with the file is said when it is inspected.
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
    let shown = path.display();
    let text = input_file::read_text(path, InputKind::Document)
        .map_err(|error| WrongUse(format!("failed to read --policy {shown}: {error}")))?;
    let policy = Policy::parse(&text)
        .map_err(|error| WrongUse(format!("--policy {shown} cannot be used: {error}")))?;
    for name in policy.chipsets() {
        let known = name.parse::<SocModel>().map(|soc| soc.chipset());
        if known.as_deref() != Ok(name) {
            let expected = match known {
                Ok(chipset) => format!("expected {chipset}"),
                Err(expected) => expected,
            };
            let text = format!("--policy {shown} names the chipset {name}: {expected}");
            return Err(WrongUse(text).into());
        }
    }
    let file = GatedFile {
        path: shown.to_string(),
        sha256: ModelHash::of(text.as_bytes()).to_string(),
    };
    Ok((policy, Some(file)))
}

/// The model file of a chipset: its variant, else the one of the command line, else the policy's default.
fn model_of(args: &Args, policy: &Policy, chipset: &str) -> Result<PathBuf, WrongUse> {
    let folder = args.policy.as_deref().and_then(Path::parent);
    let variant = |name: &str| {
        let path = policy.variants.get(name)?;
        Some(folder.map_or_else(|| path.clone(), |folder| folder.join(path)))
    };
    let model = variant(chipset).or_else(|| args.model.clone());
    model.or_else(|| variant("default")).ok_or_else(|| {
        WrongUse(format!(
            "no model for {chipset}: give MODEL, or {chipset} or default in [variants] of --policy"
        ))
    })
}

/// The model of measured launches, which is that of their chipset.
fn model_of_runs(args: &Args, policy: &Policy) -> Result<Option<PathBuf>, WrongUse> {
    match args.soc.first() {
        Some(soc) => model_of(args, policy, &soc.chipset()).map(Some),
        None if policy.variants.is_empty() => Ok(args.model.clone()),
        None => Err(WrongUse(
            "--policy has [variants]: give the chipset of --runs with --soc".to_owned(),
        )),
    }
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

/// Inspects each model on its chipsets, and judges the placements.
async fn targets(
    args: &Args,
    policy: &Policy,
    judged: &mut Vec<Judged>,
) -> anyhow::Result<Vec<Target>> {
    let mut by_model: BTreeMap<PathBuf, Vec<SocModel>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for soc in &args.soc {
        let model = model_of(args, policy, &soc.chipset())?;
        if seen.insert(soc.qnn_id) {
            by_model.entry(model).or_default().push(soc.clone());
        }
    }
    let mut targets = Vec::new();
    let runtime = certify::runtime().await?.name();
    for (model, socs) in by_model {
        let document = inspect::inspected(&inspect::Args {
            model: model.clone(),
            soc: socs,
            manifest: None,
            shape: args.shape.clone(),
            ep_option: args.ep_option.clone(),
            app: args.app.clone(),
            timeout: args.timeout,
            fail_on: Vec::new(),
            json: false,
        })
        .await?;
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
        for mut on in found.chipsets {
            on.counted = found.counted.clone();
            let limits = policy.placement_on(&on.chipset);
            let mut checks = on.judge(&limits, found.macs_error.as_deref());
            let placement = on.numbers();
            if let Ok(facts) = &facts {
                advised(&mut checks, &on.chipset, facts);
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
                source: "emulator",
                device: None,
                firmware: None,
                runtime: Some(runtime.clone()),
                against: None,
                placement,
                latency: None,
                checks,
                mistakes: Vec::new(),
            };
            if args.runs.is_empty() {
                target.add_unanswered(policy.asked_of_launches());
            }
            targets.push(target);
        }
    }
    let order = |target: &Target| args.soc.iter().position(|soc| shown(soc) == target.chipset);
    targets.sort_by_key(order);
    Ok(targets)
}

/// Advises the nodes of checks by their forms in the model.
fn advised(checks: &mut [Check], chipset: &str, facts: &GraphFacts) {
    let nodes: Vec<ModelNode<'_>> = facts
        .forms()
        .map(|(name, op_type, form)| ModelNode {
            name,
            form: OpForm {
                op_type,
                titles: &form.titles,
                is_quantised: Some(form.is_quantised),
            },
        })
        .collect();
    advise(checks, chipset, &nodes);
}

fn shown(soc: &SocModel) -> String {
    match soc.chipset().as_str() {
        "unknown" => format!("QNN {}", soc.asked),
        chipset => chipset.to_owned(),
    }
}
