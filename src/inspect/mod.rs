//! `epwatch inspect`: the placement of a model on each chipset, from this machine's emulator.
//!
//! Each chipset has a process of its own: QNN cannot run several in one, and a crash must not lose other answers.

mod answer;
mod chipset;
mod document;
mod fail_on;
pub(crate) mod session;

use std::{
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use epwatch_engines::Engine;
use epwatch_manifest::{
    GraphFacts, InputShape, ManifestDocument, ManifestError, graph_facts, manifest_of,
};
use epwatch_server::Period;
use tempfile::NamedTempFile;
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    engines, manifest,
    output::{self, No, WrongUse},
};
use answer::Answer;
pub(crate) use answer::{Placed, each};
pub(crate) use chipset::SocModel;
pub(crate) use document::InspectDocument;
use document::OnChipset;
use fail_on::FailOn;
pub(crate) use fail_on::share_of_percent;
pub(crate) use session::EpOption;
use session::{Runtimes, read_manifest};

/// The default chipsets: one of each HTP generation in the field, with FP16 and without.
const DEFAULT_SOCS: &str = "SM8350,SM8450,SM8550,SM8635,SM8650,SM8750,SM8850";

/// Shows where ONNX Runtime and QNN put each node of a model, chipset by chipset.
///
/// Needs no phone: the real QNN EP partitions the model for each chipset on this machine, with
/// Qualcomm's own op validator (Linux x86-64). Placement is real, latency would not be, so none is
/// shown. The first call fetches ONNX Runtime and QNN.
///
/// A session that cannot be made is an answer: the error, its reason and the way out. Exit codes: 0
/// there is an answer for each chipset, 1 it breaks a rule of --fail-on, 2 wrong use or MODEL is no
/// ONNX model, 3 the runtimes are not to be had, a chipset took too long, or a rule depends on MACs that are not counted.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The ONNX model.
    pub(crate) model: PathBuf,
    /// Chipsets, by name (SM8650) or QNN's number (57), separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = DEFAULT_SOCS)]
    pub(crate) soc: Vec<SocModel>,
    /// MACs per node of the model (JSON) for the shares of the work [default: counted from MODEL, as
    /// `epwatch manifest` does].
    #[arg(long, value_name = "FILE")]
    pub(crate) manifest: Option<PathBuf>,
    /// Shape of an input that the model leaves open, for its MACs: input=1,3,224,224. Once for each.
    #[arg(long, value_name = "INPUT=DIMS", conflicts_with = "manifest")]
    pub(crate) shape: Vec<InputShape>,
    /// Option of the QNN EP, as the app gives it: enable_htp_fp16_precision=0. Once for each.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) ep_option: Vec<EpOption>,
    /// How long one chipset may take.
    #[arg(long, value_name = "TIME", default_value = "10m")]
    pub(crate) timeout: Period,
    /// Exit with 1 if a chipset breaks a rule: cpu (a node that computes is on the CPU), failed (no
    /// session), macs=2% (more than 2 % of the MACs on the CPU). A failed session breaks each rule.
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    pub(crate) fail_on: Vec<FailOn>,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Inspects the model on each chipset.
pub(crate) async fn inspected(args: &Args) -> anyhow::Result<InspectDocument> {
    let inputs = Inputs::check(args).map_err(WrongUse)?;
    let ort = engines::ensure(Engine::OnnxRuntime).await?;
    let qnn = engines::ensure(Engine::OnnxRuntimeQnn)
        .await
        .context("without QNN and its emulator there is no chipset to look at")?;
    let runtimes = Arc::new(Runtimes::of(&ort, &qnn));
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
    let late: Vec<_> = each_chipset().filter_map(OnChipset::timed_out).collect();
    if !late.is_empty() {
        anyhow::bail!("{}", late.join("\n"));
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
    /// Absolute, since each process has a working folder of its own.
    model: PathBuf,
    manifest: Option<PathBuf>,
    /// Why the MACs could not be counted.
    macs_error: Option<String>,
    /// The graph's edges; `None` if it is too large.
    facts: Option<GraphFacts>,
    /// MACs that were counted here.
    counted: Option<ManifestDocument>,
    /// Keeps their file.
    _file: Option<NamedTempFile>,
}

impl Inputs {
    /// Checks the arguments. The error names the argument and the expected value.
    fn check(args: &Args) -> Result<Self, String> {
        let model = readable(&args.model, "MODEL")?;
        let is_empty = model.metadata().is_ok_and(|metadata| metadata.len() == 0);
        if is_empty {
            let path = args.model.display();
            return Err(format!("MODEL {path} is empty; expected an ONNX model"));
        }
        let given = args.manifest.as_deref();
        let manifest = given.map(|path| readable(path, "--manifest")).transpose()?;
        if let Some(path) = &manifest {
            read_manifest(path).map_err(|error| {
                format!(
                    "--manifest {} cannot be used: {error:#}; expected JSON with the model's MACs \
                     per node",
                    path.display()
                )
            })?;
        }
        let mut inputs = Self {
            facts: graph_facts(&model, &args.shape).ok(),
            model,
            manifest,
            macs_error: None,
            counted: None,
            _file: None,
        };
        if inputs.manifest.is_none() {
            inputs.count(args)?;
        }
        Ok(inputs)
    }

    /// Counts the model's MACs into a file for the processes. Placements without shares are answers too, so only an
    /// error of an argument, or one that a rule depends on, is returned.
    fn count(&mut self, args: &Args) -> Result<(), String> {
        let needs_macs = args.fail_on.iter().any(|r| matches!(r, FailOn::Macs(_)));
        let shown = args.model.display();
        match manifest_of(&self.model, &args.shape) {
            Ok(found)
                if needs_macs && found.side_car.total_macs == 0 && found.uncounted.is_empty() =>
            {
                return Err(format!(
                    "--fail-on macs needs MACs, and no node of MODEL {shown} has any; use --fail-on cpu"
                ));
            }
            Ok(found) => {
                let file = manifest::temporary(&found);
                let file = file.map_err(|error| {
                    format!("failed to keep the MACs of MODEL {shown}: {error:#}")
                })?;
                self.manifest = Some(file.path().to_owned());
                self._file = Some(file);
                self.counted = Some(found);
            }
            Err(error @ ManifestError::NotOnnx { .. }) => {
                return Err(format!("MODEL {shown} is no ONNX model: {error}"));
            }
            Err(error @ ManifestError::WrongShape { .. }) => return Err(error.to_string()),
            Err(error) if needs_macs => {
                return Err(format!(
                    "--fail-on macs needs the MACs of MODEL {shown}: {error}"
                ));
            }
            Err(error) => self.macs_error = Some(error.to_string()),
        }
        Ok(())
    }
}

fn readable(path: &Path, argument: &str) -> Result<PathBuf, String> {
    let shown = path.display();
    if path.is_dir() {
        return Err(format!("{argument} {shown} is a folder; expected a file"));
    }
    let opened = std::fs::File::open(path).and_then(|_| path.canonicalize());
    opened.map_err(|error| format!("failed to read {argument} {shown}: {error}"))
}

/// Runs one process a chipset, as many at a time as there are processors. Answers are in the order of `--soc`.
async fn on_each(
    args: &Args,
    inputs: &Inputs,
    runtimes: &Arc<Runtimes>,
) -> anyhow::Result<Vec<OnChipset>> {
    let at_a_time = std::thread::available_parallelism().map_or(1, usize::from);
    let turns = Arc::new(Semaphore::new(at_a_time));
    let mut running = JoinSet::new();
    for (index, soc) in args.soc.iter().cloned().enumerate() {
        let (turns, runtimes) = (Arc::clone(&turns), Arc::clone(runtimes));
        let (model, manifest) = (inputs.model.clone(), inputs.manifest.clone());
        let ep_options = args.ep_option.clone();
        let timeout: Duration = args.timeout.0;
        running.spawn(async move {
            let _turn = turns.acquire().await.expect("it is never closed");
            let inputs = (manifest.as_deref(), &*ep_options);
            let answer = session::ask(&runtimes, &soc, &model, inputs, timeout).await;
            (index, soc, answer)
        });
    }
    let mut answers = Vec::new();
    while let Some(answer) = running.join_next().await {
        let (index, soc, answer) = answer?;
        if let Answer::NoModel(error) = answer {
            let path = args.model.display();
            return Err(WrongUse(format!("MODEL {path} is no ONNX model: {error}")).into());
        }
        answers.push((index, OnChipset::new(&soc, answer, inputs.facts.as_ref())));
        progress(answers.len(), args.soc.len());
    }
    answers.sort_by_key(|(index, _)| *index);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

/// A progress line on a terminal.
fn progress(done: usize, of: usize) {
    let mut out = std::io::stderr();
    if out.is_terminal() {
        let end = if done == of { "\n" } else { "" };
        // The answer does not depend on it.
        let _ = write!(out, "\r{done} of {of} chipsets{end}");
        let _ = out.flush();
    }
}
