//! `epwatch gate`: judges a model before it ships, by its placement on each chipset or by measured launches.

mod aihub;
mod args;
mod baseline;
mod calibrate;
mod cells;
mod certify;
mod device;
mod distance;
pub(crate) mod dsse;
mod fix;
mod folder_lock;
mod keygen;
mod model_file;
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
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
pub(crate) use args::Args;
use args::{Chosen, GateCommand, check_use, policy};
use certify::Judged;
use device::{DeviceArgs, LaunchFiles, LeftBehind, Measured};
use epwatch_gate::{
    comparison::{ALL_PAIRS, FIRST_PAIRS},
    groups::UNNAMED,
    launches::JudgedLaunches,
    placement::Inspected,
    policy::Policy,
    read::ReadOptions,
    verdict::{Against, Check, CheckResult, NotChecked, Target, Verdict, with_launches},
};
use epwatch_manifest::{ModelOutline, graph_facts};
use epwatch_proto::{Runtime, v1};
use jiff::Timestamp;
use model_file::gated_model;
use policy_ops::OtherOps;
use runs::RunFiles;

use crate::{
    input_file::{self, FilePurpose},
    inspect::{self, InspectedEp, SocModel},
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

/// What a gate that only has launches did not check if it could not make them.
const NO_LAUNCHES: NotChecked = NotChecked {
    id: Cow::Borrowed("launches"),
    why: "they could not be made",
};

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
    let folders = args.report.folder().into_iter().chain(args.device.kept());
    let new: Vec<&Path> = folders.filter(|folder| !folder.exists()).collect();
    let ended = until_ended(Box::pin(gated(&args, &left)), &args.device, &left).await;
    if let Err(error) = &ended {
        for folder in new {
            // Fails if a report or a launch is there.
            let _ = fs::remove_dir(folder);
        }
        args.report.annotate_wrong_use(error)?;
    }
    ended
}

/// Runs to the end or to a signal, and removes the folders that were made on other machines.
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
        .map(SigningKey::read_for_evidence)
        .transpose();
    let key = key.map_err(|error| WrongUse(format!("--attest: {error:#}")))?;
    check_use(args, &chosen)?;
    check_measured(args, &chosen, &policy)?;
    let calibration = args
        .calibration
        .as_deref()
        .map(calibrate::read)
        .transpose()?;
    args.report.prepare(args.device.report())?;
    check_ops(args, &chosen, &policy)?;
    let mut parts = Parts::default();
    if let Err(error) = parts.judge(args, &chosen, &policy, left).await {
        if error.is::<WrongUse>() {
            return Err(error);
        }
        let target = parts.unanswered(args, &chosen, &policy, &error);
        parts.targets.push(target);
        if parts.not_checked.is_empty() {
            parts.not_checked.push(NO_LAUNCHES);
        }
    }
    let Parts {
        mut not_checked,
        targets: mut found,
        mut judged,
        latency,
        cells,
        unwritten,
    } = parts;
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
    if let Some(error) = &unwritten {
        output::remark(format_args!("--report: {error:#}"));
    }
    // On a terminal, the report right above already has the sentences.
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
        CheckResult::Fail => Err(No(sentences(CheckResult::Fail)).into()),
        CheckResult::Undecided => anyhow::bail!("{}", sentences(CheckResult::Undecided)),
        _ if unwritten.is_some() => {
            anyhow::bail!("the gate passed, and its --report was not written, see above")
        }
        _ => {
            if let Some(url) = &args.certify.certify {
                let shapes = args.app.shapes(&args.shape);
                // Launches with a placement of their own have a certificate of their own.
                let latency = latency.filter(|_| cells.judged.is_empty());
                for one in &mut judged {
                    one.latency = latency;
                }
                judged.extend(cells.judged);
                if judged.is_empty() {
                    let why = match cells.left_out.is_empty() {
                        true => "no launch is of an NPU and has the placement that the runner of this version writes; \
                                 measure again, or give --soc"
                            .to_owned(),
                        false => cells.left_out.join("; "),
                    };
                    anyhow::bail!("the gate passed, and there is nothing to certify: {why}");
                }
                let send = args.certify.send(url, judged, evidence, &shapes);
                let lines = send.await?;
                for line in lines.iter().filter(|_| !args.report.json) {
                    output::line(line)?;
                }
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The parts of a verdict, as far as they were judged.
#[derive(Default)]
struct Parts {
    not_checked: Vec<NotChecked>,
    targets: Vec<Target>,
    /// Placements of the emulator that can be certified.
    judged: Vec<Judged>,
    /// Run times for a certificate.
    latency: Option<v1::CertifiedLatency>,
    /// Placements of devices that can be certified.
    cells: cells::Cells,
    /// Why the file of `--report` could not be written.
    unwritten: Option<anyhow::Error>,
}

impl Parts {
    /// Judges the placements, then the launches. After an error the parts before it are there.
    async fn judge(
        &mut self,
        args: &Args,
        chosen: &Chosen,
        policy: &Policy,
        left: &LeftBehind,
    ) -> anyhow::Result<()> {
        if !chosen.socs.is_empty() {
            self.not_checked = NOT_CHECKED.to_vec();
            if args.inspected_ep() != InspectedEp::Qnn {
                for part in &mut self.not_checked {
                    part.why = "nothing is run";
                }
            }
            self.targets = targets(args, chosen, policy, &mut self.judged).await?;
        }
        let farmed = on_farm(args, chosen, policy).await?;
        if let Some(farmed) = farmed {
            self.not_checked = farmed.not_checked;
            self.targets.extend(farmed.targets);
        }
        let mut made = made_here(args, chosen, policy, left, None).await?;
        let Some(mut measured) = judged_files(args, chosen, policy, &made)? else {
            return Ok(());
        };
        if needs_more(args, policy, &measured) {
            output::remark(format_args!(
                "{FIRST_PAIRS} pairs do not decide: {ALL_PAIRS} do, with these among them"
            ));
            made = made_here(args, chosen, policy, left, Some(made)).await?;
            measured = judged_files(args, chosen, policy, &made)?.unwrap_or(measured);
        }
        let of_emulator =
            |target: &Target| target.mistakes.iter().any(|one| one.id == "cpu_latency");
        let is_emulated = measured.targets.iter().any(of_emulator);
        self.latency = runs::certified(&measured.launches).filter(|_| !is_emulated);
        if args.certify.certify.is_some()
            && let Some(model) = model_of_runs(args, chosen, policy)?
        {
            let ep_version = args.certify.ep_version.as_deref();
            self.cells = cells::cells(candidates(args, &made), &model, ep_version)?;
        }
        self.not_checked = measured.not_checked;
        if !chosen.socs.is_empty() {
            self.not_checked.retain(|part| part.id != "placement");
        }
        self.targets.extend(measured.targets);
        self.unwritten = made.unwritten;
        Ok(())
    }

    /// The target of a part that ended without an answer, so that each report has the reason.
    fn unanswered(
        &self,
        args: &Args,
        chosen: &Chosen,
        policy: &Policy,
        error: &anyhow::Error,
    ) -> Target {
        let chipsets: Vec<String> = chosen.socs.iter().map(shown).collect();
        let chipset = match chipsets.is_empty() {
            true => UNNAMED.to_owned(),
            false => chipsets.join(", "),
        };
        let mut judged = self.targets.iter();
        let model = model_of_runs(args, chosen, policy).ok().flatten();
        Target {
            chipset: match judged.any(|target| target.chipset == chipset) {
                true => with_launches(&chipset),
                false => chipset,
            },
            model: model.and_then(|model| gated_model(&model).ok()),
            source: "unknown",
            checks: vec![Check::unanswered(format!("{error:#}"))],
            ..Target::default()
        }
    }
}

/// Refuses launches that nothing could be judged by, before they are made.
fn check_measured(args: &Args, chosen: &Chosen, policy: &Policy) -> Result<(), WrongUse> {
    let model = match args.makes_launches() {
        true => model_of_runs(args, chosen, policy)?,
        false => None,
    };
    let Some(model) = model else { return Ok(()) };
    if chosen.baseline.n_models() > 1 {
        return Err(WrongUse(
            "launches are compared with one earlier model: give one file as --baseline".to_owned(),
        ));
    }
    let before = chosen.baseline.of_model(&model, 1)?;
    if let Some(before) = before
        && baseline::is_same_model(&model, before)
    {
        return Err(WrongUse(format!(
            "--baseline {} is the same model as {}: give the model before, or measure this one in turn with itself by \
             `epwatch gate calibrate`",
            before.display(),
            model.display()
        )));
    }
    let soc = chosen.socs.first();
    let own = of_model(policy, Some(&model))?;
    // Outputs are compared with the CPU's.
    let has_limits = own.latency.has_limits() || own.load.cold_ms.is_some();
    let is_judged = before.is_some() || has_limits;
    match args.device.option() {
        Some(option) if args.device.is_on_cpu(soc) && !is_judged => Err(WrongUse(format!(
            "{option} measures on the CPU, where nothing judges the launches: give --baseline OLD_MODEL, a limit of launches \
             in --policy (latency.median_ms and the like), or --qnn-provider and --qnn-backend for an NPU; \
             `epwatch run` measures without judging"
        ))),
        _ => Ok(()),
    }
}

/// Refuses ops of the policy that no model on a chipset of --soc can have.
fn check_ops(args: &Args, chosen: &Chosen, policy: &Policy) -> Result<(), WrongUse> {
    let mut outlines = Vec::new();
    for (path, _) in by_model(args, chosen, policy)? {
        // Checks the model's section of the policy before any session is made.
        of_model(policy, Some(&path))?;
        // Problems of the file are printed when it is inspected.
        let is_file = input_file::check(&path, FilePurpose::Model).is_ok();
        outlines.extend(is_file.then(|| ModelOutline::of(&path).ok()).flatten());
    }
    if outlines.is_empty() {
        return Ok(());
    }
    let ops = outlines.iter().flat_map(ModelOutline::op_types);
    policy_ops::check(policy, ops, OtherOps::None)
}

/// Returns a chipset's model file: its variant, else the command line's model, else the policy's default.
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

/// Returns the launches of MODEL: the command line's files, or the launches that were made.
fn candidates<'a>(args: &'a Args, made: &'a LaunchFiles) -> &'a [PathBuf] {
    match args.device.option() {
        Some(_) => &made.candidate,
        None => &args.runs,
    }
}

/// Reads and judges the launches: the command line's files, or the launches that were made. `None` without launches.
fn judged_files(
    args: &Args,
    chosen: &Chosen,
    policy: &Policy,
    made: &LaunchFiles,
) -> anyhow::Result<Option<JudgedLaunches>> {
    let runs = candidates(args, made);
    let baseline = match args.device.option() {
        Some(_) => &made.baseline,
        None => &chosen.baseline.launches,
    };
    if runs.is_empty() {
        return Ok(None);
    }
    let model = model_of_runs(args, chosen, policy)?;
    let measured = model.as_deref().filter(|_| args.device.option().is_some());
    let before = measured.map(|model| chosen.baseline.of_model(model, 1));
    let shapes = args.app.shapes(&args.shape);
    let files = RunFiles {
        runs,
        baseline,
        model: model.as_deref(),
        before: before.transpose()?.flatten(),
        shapes: &shapes,
        chipset: chosen.socs.first().map(shown),
        device: None,
        is_on_cpu: args.device.is_on_cpu(chosen.socs.first()),
        temporary: made.temporary(),
        options: ReadOptions {
            hdr_unit: args.hdr_unit,
        },
    };
    let own = of_model(policy, model.as_deref())?;
    Ok(Some(runs::launches(&files, &own)?))
}

/// Whether the first look of `--local` leaves a regression open. A policy that sets the number of launches allows no second look.
fn needs_more(args: &Args, policy: &Policy, measured: &JudgedLaunches) -> bool {
    let is_open = |target: &Target| {
        let has_fewer = |against: &Against| against.pairs < ALL_PAIRS;
        let is_undecided =
            |check: &Check| check.id == "regression" && check.result == CheckResult::Undecided;
        target.against.as_ref().is_some_and(has_fewer) && target.checks.iter().any(is_undecided)
    };
    args.device.is_here()
        && policy.latency.launches.is_none()
        && measured.targets.iter().any(is_open)
}

/// Makes the launches of `--local`, `--ssh` or `--adb`: for the first look, or the remaining ones after it.
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
        custom_ops: &args.app.custom_ops,
        shapes: &shapes,
        policy: &own,
        policy_folder: policy_file::folder(args.policy.as_deref()),
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
            // A job does not say which file it measured.
            before: None,
            shapes: &shapes,
            chipset: chosen.socs.first().map(shown),
            device: Some(on.device.clone()),
            is_on_cpu: false,
            temporary: None,
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
            "--policy has [variants]: give the chipset of the launches with --soc".to_owned(),
        )),
    }
}

/// Returns a model's policy, in which the model's own section replaces keys.
fn of_model<'a>(policy: &'a Policy, model: Option<&Path>) -> Result<Cow<'a, Policy>, WrongUse> {
    let Some(model) = model else {
        return Ok(Cow::Borrowed(policy));
    };
    let own = policy.for_model(&model.display().to_string());
    let own = own.map_err(|error| WrongUse(format!("--policy cannot be used: {error}")))?;
    Ok(Cow::Owned(own))
}

/// Returns the patterns of the policy's model sections that match no target's model.
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

/// Returns the chipsets with limits or a model in the policy, but without a target.
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

/// Returns the options with which a model is inspected on these chipsets.
fn inspection(args: &Args, model: &Path, socs: &[SocModel]) -> inspect::Args {
    inspect::Args {
        model: model.to_owned(),
        argument: "MODEL",
        // An EP without chipsets is inspected as one place, without `soc`.
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
    let of_emulator = certify::runtime(args.qnn_version);
    let (runtime, certified) = match args.inspected_ep() {
        InspectedEp::Qnn => {
            let certified = of_emulator.await?;
            (certified.name(), certified)
        }
        ep => (
            ep.runtime(args.ort.as_deref()).await?.name,
            Runtime::default(),
        ),
    };
    let n_models = chosen.models.len();
    for (model, socs) in by_model(args, chosen, policy)? {
        let own = of_model(policy, Some(&model))?;
        let policy: &Policy = &own;
        let document = inspect::inspected(&inspection(args, &model, &socs)).await?;
        judged.extend(document.placements().map(|(chipset, placement)| Judged {
            model: model.clone(),
            chipset: chipset.to_owned(),
            firmware: String::new(),
            placement,
            runtime: certified.clone(),
            latency: None,
        }));
        let found: Inspected = serde_json::from_value(serde_json::to_value(&document)?)?;
        let file = gated_model(&model)
            .map_err(anyhow::Error::msg)
            .with_context(|| format!("failed to read MODEL {}", model.display()))?;
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
            // The advice is for QNN only, because other forms of ops were measured with QNN.
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
                source: match args.inspected_ep() {
                    InspectedEp::Qnn => "emulator",
                    _ => "session",
                },
                runtime: Some(runtime.clone()),
                before: was,
                placement,
                checks,
                ..Target::default()
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
