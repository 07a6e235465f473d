//! `epwatch inspect`: the placement of a model on each chipset, from this machine's emulator.
//!
//! Each chipset has a process of its own: QNN cannot run several in one, and a crash must not lose other answers.

mod answer;
mod app;
mod chipset;
mod document;
mod ep;
mod fail_on;
mod refusal;
pub(crate) mod session;
mod stderr;

use std::{
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use epwatch_engines::QnnVersion;
use epwatch_manifest::{
    GraphFacts, InputShape, ManifestDocument, ManifestError, ModelOutline, graph_facts, manifest_of,
};
use epwatch_proto::{ModelHash, ModelManifest};
use epwatch_server::Period;
use tempfile::NamedTempFile;
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    engines,
    input_file::{self, FilePurpose},
    manifest,
    output::{self, No, WrongUse, one_line},
};
use answer::Answer;
pub(crate) use answer::{Placed, each};
pub(crate) use app::AppOptions;
pub(crate) use chipset::{SocModel, SocTier};
pub(crate) use document::InspectDocument;
use document::OnChipset;
pub(crate) use ep::InspectedEp;
use fail_on::FailOn;
pub(crate) use fail_on::share_of_percent;
use refusal::Refusal;
pub(crate) use session::EpOption;
use session::{Attempt, Runtimes, SessionInputs, read_side_car};

/// The default chipsets: one of each HTP generation in the field, with FP16 and without.
const DEFAULT_SOCS: &str = "SM8350,SM8450,SM8550,SM8635,SM8650,SM8750,SM8850";

/// Shows where ONNX Runtime and QNN put each node of a model, chipset by chipset.
///
/// Needs no phone: the real QNN EP partitions the model for each chipset on this machine, with
/// Qualcomm's own op validator (Linux x86-64). Placement is real, latency would not be, so none is
/// shown. The first call fetches ONNX Runtime and QNN. --ep shows another EP's placement on this machine instead.
///
/// A session that cannot be made is an answer: the error, its reason and the way out. Exit codes: 0 there is an answer
/// for each chipset, 1 an answer breaks a rule of --fail-on. Exit code 2: wrong use, or MODEL is not an ONNX model or
/// is broken. Exit code 3: the runtimes cannot be fetched, or a chipset took too long. It is also 3 if MODEL needs a
/// library of custom ops, or a rule depends on MACs that are not counted.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The ONNX model.
    pub(crate) model: PathBuf,
    /// The name of the model's argument, for errors.
    #[arg(skip = "MODEL")]
    pub(crate) argument: &'static str,
    /// Chipsets, by name (SM8650) or QNN's number (57), separated by commas
    /// [default: SM8350,SM8450,SM8550,SM8635,SM8650,SM8750,SM8850].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) soc: Vec<SocModel>,
    /// EP. For qnn, --soc names chipsets. The other ones run on this machine as it is. openvino is fetched (84 MB, Linux
    /// x86-64); its option device_type=NPU, GPU or CPU is an --ep-option. cpu is ONNX Runtime without an accelerator. xnnpack,
    /// coreml and webgpu need an ONNX Runtime that has them, with --ort.
    #[arg(long, value_name = "EP", value_enum, default_value_t)]
    pub(crate) ep: InspectedEp,
    /// ONNX Runtime 1.24 or later with the EP of --ep: the library libonnxruntime, as your app ships it for this machine.
    #[arg(long, value_name = "LIB")]
    pub(crate) ort: Option<PathBuf>,
    /// MACs per node of the model (JSON) for the shares of the work [default: counted from MODEL, as
    /// `epwatch manifest` does].
    #[arg(long, value_name = "FILE")]
    pub(crate) manifest: Option<PathBuf>,
    /// Shape of an input that the model leaves open, for its MACs: input=1,3,224,224. Once for each.
    #[arg(long, value_name = "INPUT=DIMS", conflicts_with = "manifest")]
    pub(crate) shape: Vec<InputShape>,
    /// Option of the EP, as the app gives it: enable_htp_fp16_precision=0. Once for each.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) ep_option: Vec<EpOption>,
    #[command(flatten)]
    pub(crate) app: AppOptions,
    /// QNN that partitions: 2.3 to 2.7 as onnxruntime-qnn counts, or 2.47 to 2.51 as the QNN SDK does.
    #[arg(long, value_name = "VERSION", default_value_t)]
    pub(crate) qnn_version: QnnVersion,
    /// How long one chipset may take.
    #[arg(long, value_name = "TIME", default_value = "10m")]
    pub(crate) timeout: Period,
    /// Exit with 1 if a chipset breaks a rule. Rules: cpu (a node that computes is on the CPU), failed (no session),
    /// macs=2% (more than 2 % of the MACs on the CPU). A failed session breaks each rule.
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    pub(crate) fail_on: Vec<FailOn>,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Args {
    /// Returns the chipsets, or the place of an EP without chipsets.
    fn places(&self) -> Vec<SocModel> {
        if let Some(place) = self.ep.place() {
            return vec![place];
        }
        if !self.soc.is_empty() {
            return self.soc.clone();
        }
        let each = DEFAULT_SOCS.split(',').map(str::parse);
        each.map(|soc| soc.expect("the table has the default chipsets"))
            .collect()
    }

    /// Returns the model's name for errors.
    fn shown(&self) -> String {
        format!("{} {}", self.argument, self.model.display())
    }
}

/// Inspects the model on each chipset.
pub(crate) async fn inspected(args: &Args) -> anyhow::Result<InspectDocument> {
    args.ep.check(!args.soc.is_empty(), args.ort.as_deref())?;
    let inputs = Inputs::check(args).map_err(WrongUse)?;
    let runtimes = Arc::new(match args.ep {
        InspectedEp::Qnn => {
            let (ort, qnn) = engines::ensure_qnn(args.qnn_version)
                .await
                .context("without QNN and its emulator there is no chipset to look at")?;
            Runtimes::of_qnn(&ort, &qnn)
        }
        ep => Runtimes::built_in(ep, ep.runtime(args.ort.as_deref()).await?),
    });
    let chipsets = on_each(args, &inputs, &runtimes).await?;
    Ok(InspectDocument {
        model: args.model.display().to_string(),
        macs_error: inputs.macs_error,
        not_counted: inputs
            .counted
            .as_ref()
            .and_then(ManifestDocument::not_counted),
        total_macs: inputs
            .counted
            .as_ref()
            .map(|found| found.side_car.total_macs),
        uncounted: inputs
            .counted
            .map(|found| found.uncounted)
            .unwrap_or_default(),
        chipsets,
        ep: args.ep,
    })
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let document = inspected(&args).await?;
    if args.json {
        output::json(&document)?;
    } else {
        output::line(&document)?;
    }
    let each_chipset = || document.chipsets.iter();
    let unanswered: Vec<_> = each_chipset().filter_map(OnChipset::unanswered).collect();
    if !unanswered.is_empty() {
        anyhow::bail!("{}", unanswered.join("\n"));
    }
    let broken: Vec<_> = each_chipset()
        .flat_map(|on| args.fail_on.iter().filter_map(|rule| on.broken(*rule)))
        .collect();
    if !broken.is_empty() {
        return Err(No(broken.join("\n")).into());
    }
    let not_counted = document.not_counted.as_deref();
    let undecided: Vec<_> = each_chipset()
        .flat_map(|on| {
            args.fail_on
                .iter()
                .filter_map(|rule| on.undecided(*rule, not_counted))
        })
        .collect();
    if !undecided.is_empty() {
        anyhow::bail!("{}", undecided.join("\n"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Inputs of each process, checked once.
#[derive(Debug)]
struct Inputs {
    session: SessionInputs,
    /// Why the MACs could not be counted.
    macs_error: Option<String>,
    /// The graph's edges; `None` if it is too large.
    facts: Option<GraphFacts>,
    /// The file's own metadata and inputs; `None` if it is too large.
    outline: Option<ModelOutline>,
    /// Shapes of inputs, and sizes of dimensions, that the model leaves open.
    shapes: Vec<InputShape>,
    /// MACs that this process counted; `None` if a file gave them.
    counted: Option<ManifestDocument>,
    /// Keeps their file.
    _file: Option<NamedTempFile>,
}

impl Inputs {
    /// Checks the arguments. The error names the argument and the expected value.
    fn check(args: &Args) -> Result<Self, String> {
        let model = readable(&args.model, args.argument, FilePurpose::Model)?;
        let shown = args.shown();
        let is_empty = model.metadata().is_ok_and(|metadata| metadata.len() == 0);
        if is_empty {
            return Err(format!("{shown} is empty; expected an ONNX model"));
        }
        let outline = match ModelOutline::of(&model) {
            Ok(outline) => Some(outline),
            Err(error @ ManifestError::Over2Gb { .. }) => {
                return Err(format!("{shown}: {}", one_line(&error.to_string())));
            }
            Err(error @ (ManifestError::NotOnnx { .. } | ManifestError::OtherFormat { .. })) => {
                return Err(format!(
                    "{shown} is not an ONNX model: {}",
                    one_line(&error.to_string())
                ));
            }
            Err(_) => None,
        };
        if let Some(why) = outline.as_ref().and_then(ModelOutline::irregular_data) {
            return Err(format!("{shown}: {}", one_line(&why)));
        }
        let given = args.manifest.as_deref();
        let manifest = given.map(|path| readable(path, "--manifest", FilePurpose::SideCar));
        let manifest = manifest.transpose()?;
        if let Some(path) = &manifest {
            check_side_car(path, &model).map_err(|error| {
                format!(
                    "--manifest {} cannot be used: {error:#}; expected JSON with the model's MACs \
                     per node, as `epwatch manifest` writes it",
                    path.display()
                )
            })?;
        }
        let shapes = args.app.shapes(&args.shape);
        let mut inputs = Self {
            facts: graph_facts(&model, &shapes).ok(),
            session: SessionInputs {
                custom_ops: args.app.checked(outline.as_ref())?,
                dims: args.app.dim.clone(),
                ep_options: app::ep_options(&args.ep_option)?,
                model,
                manifest,
            },
            shapes,
            outline,
            macs_error: None,
            counted: None,
            _file: None,
        };
        if inputs.session.manifest.is_none() {
            inputs.count(args)?;
        }
        Ok(inputs)
    }

    /// Counts the model's MACs into a file for the processes. A placement without shares is still an answer. So this
    /// only fails for a wrong argument, or if a rule depends on the count.
    fn count(&mut self, args: &Args) -> Result<(), String> {
        let needs_macs = args.fail_on.iter().any(|r| matches!(r, FailOn::Macs(_)));
        let shown = args.shown();
        match manifest_of(&self.session.model, &self.shapes) {
            Ok(found)
                if needs_macs && found.side_car.total_macs == 0 && found.uncounted.is_empty() =>
            {
                return Err(format!(
                    "--fail-on macs needs MACs, and no node of {shown} has any; use --fail-on cpu"
                ));
            }
            Ok(found) => {
                let file = manifest::temporary(&found);
                let file =
                    file.map_err(|error| format!("failed to keep the MACs of {shown}: {error:#}"))?;
                self.session.manifest = Some(file.path().to_owned());
                self._file = Some(file);
                self.counted = Some(found);
            }
            Err(error @ ManifestError::NotOnnx { .. }) => {
                return Err(format!(
                    "{shown} is not an ONNX model: {}",
                    one_line(&error.to_string())
                ));
            }
            Err(error @ (ManifestError::WrongShape { .. } | ManifestError::WrongDim { .. })) => {
                return Err(one_line(&error.to_string()));
            }
            Err(error) if needs_macs => {
                let error = one_line(&error.to_string());
                return Err(format!("--fail-on macs needs the MACs of {shown}: {error}"));
            }
            Err(error) => self.macs_error = Some(error.to_string()),
        }
        Ok(())
    }
}

/// Refuses a side-car that cannot be read, or is of another model.
fn check_side_car(path: &Path, model: &Path) -> anyhow::Result<()> {
    let side_car = read_side_car(path)?;
    let theirs = side_car.model_hash()?;
    ModelManifest::try_from(side_car)?;
    let sha256 = input_file::sha256(model, FilePurpose::Model).map_err(anyhow::Error::msg)?;
    if ModelHash::from_hex(&sha256) != Some(theirs) {
        anyhow::bail!("it is of another model, with the SHA-256 {theirs}");
    }
    Ok(())
}

/// Returns the absolute path of a file. Links are not resolved, because a model's data is next to its link.
fn readable(path: &Path, argument: &str, kind: FilePurpose) -> Result<PathBuf, String> {
    let opened = input_file::open(path, kind).and_then(|_| app::absolute(path));
    opened.map_err(|error| format!("failed to read {argument} {}: {error}", path.display()))
}

/// Runs one process for each chipset, and as many at a time as there are processors. Answers are in the order of
/// `--soc`.
async fn on_each(
    args: &Args,
    inputs: &Inputs,
    runtimes: &Arc<Runtimes>,
) -> anyhow::Result<Vec<OnChipset>> {
    let at_a_time = std::thread::available_parallelism().map_or(1, usize::from);
    let turns = Arc::new(Semaphore::new(at_a_time));
    let mut running = JoinSet::new();
    let places = args.places();
    let n_places = places.len();
    for (index, soc) in places.into_iter().enumerate() {
        let (turns, runtimes) = (Arc::clone(&turns), Arc::clone(runtimes));
        let session = inputs.session.clone();
        let timeout: Duration = args.timeout.0;
        running.spawn(async move {
            let _turn = turns.acquire().await.expect("it is never closed");
            let answer = session::ask(&runtimes, &soc, &session, timeout).await;
            (index, soc, answer)
        });
    }
    let shown = args.shown();
    let mut answers = Vec::new();
    while let Some(answer) = running.join_next().await {
        let (index, soc, answer) = answer?;
        match answer {
            Answer::NoModel(error) => {
                let error = one_line(&error);
                return Err(WrongUse(format!("{shown} is not an ONNX model: {error}")).into());
            }
            Answer::WrongUse(error) => return Err(WrongUse(one_line(&error)).into()),
            answer => answers.push((index, soc, answer)),
        }
        progress(answers.len(), n_places);
    }
    answers.sort_by_key(|(index, ..)| *index);
    let outline = inputs.outline.as_ref();
    let is_refused = |answer: &Answer| matches!(answer, Answer::Failed(_) | Answer::Crashed(_));
    if answers.iter().all(|(.., answer)| is_refused(answer)) {
        match refusal(args, inputs, runtimes).await? {
            Some(Refusal::Broken(why)) => {
                let why = one_line(&why);
                return Err(WrongUse(format!("{shown} is broken: {why}")).into());
            }
            Some(Refusal::NeedsLibrary(why)) => {
                for (.., answer) in &mut answers {
                    *answer = Answer::NeedsCustomOps(why.clone());
                }
            }
            None => {}
        }
    }
    let each = answers.into_iter().map(|(_, soc, mut answer)| {
        match (&mut answer, outline) {
            (Answer::Failed(failed), Some(outline)) => {
                match refusal::by_newer_qnn(&failed.error, outline, args.qnn_version) {
                    Some(newer) => *failed = newer,
                    None => failed.way_out = refusal::way_out(&failed.error, outline),
                }
            }
            (Answer::Placed { .. }, Some(outline)) => {
                answer = refusal::of_precompiled(&soc, outline).unwrap_or(answer);
            }
            _ => {}
        }
        let mut on = OnChipset::new(&soc, args.ep, answer, inputs.facts.as_ref());
        if let Some(outline) = outline {
            on.name_open_dims(outline);
        }
        let counted = inputs.counted.as_ref();
        if counted.is_some_and(ManifestDocument::has_unknown_turns) {
            on.placed.forget_shares(args.ep.ep());
        }
        let mut options = args.ep_option.iter();
        if !options.any(|option| option.key == "op_affinity") {
            on.name_default_affinity();
        }
        on
    });
    Ok(each.collect())
}

/// Returns why every EP refuses a model without a session on any chipset; `None` if the CPU's EP accepts it.
async fn refusal(
    args: &Args,
    inputs: &Inputs,
    runtimes: &Runtimes,
) -> anyhow::Result<Option<Refusal>> {
    let outline = inputs.outline.as_ref();
    if let Some(found) = outline.and_then(refusal::by_outline) {
        return Ok(Some(found));
    }
    // Any chipset will do, because the process ignores it.
    let Some(soc) = &args.places().into_iter().next() else {
        return Ok(None);
    };
    let (session, attempt, timeout) = (&inputs.session, Attempt::Cpu, args.timeout.0);
    Ok(
        match session::attempt(runtimes, soc, session, attempt, timeout).await {
            Answer::OnCpu(Some(found)) if found.status_code != refusal::NOT_IMPLEMENTED => Some(
                refusal::by_cpu(&found.error, outline, !session.custom_ops.is_empty()),
            ),
            Answer::NoModel(why) => Some(Refusal::Broken(why)),
            Answer::WrongUse(why) => return Err(WrongUse(one_line(&why)).into()),
            _ => None,
        },
    )
}

/// A progress line on a terminal.
fn progress(done: usize, of: usize) {
    let mut out = std::io::stderr();
    if out.is_terminal() {
        let end = if done == of { "\n" } else { "" };
        // Progress is not part of the answer, so errors are ignored.
        let _ = write!(out, "\r{done} of {of} chipsets{end}");
        let _ = out.flush();
    }
}
