//! One session on one chipset in a separate process. This module starts the process, whose hidden subcommand
//! `inspect-session` creates the session.

use std::{
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitCode, ExitStatus, Stdio},
    str::FromStr,
    time::Duration,
};

use anyhow::Context;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use clap::ValueEnum;
use epwatch_engines::Installed;
use epwatch_manifest::{FreeDim, weights_outside};
use epwatch_proto::{ModelManifest, PlacementSource, SideCar, placement::QNN_EP, v1};
use epwatch_run::{crash_signal, with_custom_ops};
use epwatch_sdk::{
    placement::{
        Inspection, PlacementInput, inspect_bytes, inspect_file, ort_version, with_built_in_ep,
    },
    qnn::{HtpOptions, Plugin},
};
use ort::{
    logging::LogLevel,
    session::builder::{GraphOptimizationLevel, SessionBuilder},
    sys::OrtErrorCode,
};
use prost::Message;
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::{io::AsyncReadExt, process::Command, time::timeout};

use super::{
    answer::{Answer, CpuError, Crash, Failed, NodeName, Placed},
    chipset::SocModel,
    ep::{BuiltIn, InspectedEp},
    stderr::Said,
};
use crate::{
    input_file::{self, FilePurpose},
    output,
};

/// Precedes the answer, since QNN's libraries also write to standard output.
const MARK: &str = "epwatch-inspect ";

/// ONNX Runtime's option for the external data's folder, if the model is in memory.
const WEIGHTS_FOLDER: &str = "session.model_external_initializers_file_folder_path";

/// ONNX Runtime's status of a file that it cannot parse.
const INVALID_PROTOBUF: i32 = 7;

/// Maximum number of bytes that are read of a process's output.
const MAX_OUTPUT_BYTES: u64 = 64 << 20;

/// Paths of the runtimes.
#[derive(Debug)]
pub(crate) struct Runtimes {
    ort: PathBuf,
    ep: InspectedEp,
    qnn: Option<QnnLibraries>,
}

/// Libraries of QNN's EP.
#[derive(Debug)]
struct QnnLibraries {
    provider: PathBuf,
    backend: PathBuf,
}

impl Runtimes {
    pub(super) fn of_qnn(ort: &Installed, qnn: &Installed) -> Self {
        Self {
            ort: ort.ort_library(),
            ep: InspectedEp::Qnn,
            qnn: Some(QnnLibraries {
                provider: qnn.qnn_provider_library(),
                backend: qnn.qnn_htp_library(),
            }),
        }
    }

    pub(super) fn built_in(ep: InspectedEp, runtime: BuiltIn) -> Self {
        Self {
            ort: runtime.library,
            ep,
            qnn: None,
        }
    }
}

/// Inputs of each process, with absolute paths.
#[derive(Debug, Clone)]
pub(super) struct SessionInputs {
    pub(super) model: PathBuf,
    pub(super) manifest: Option<PathBuf>,
    pub(super) ep_options: Vec<EpOption>,
    pub(super) dims: Vec<FreeDim>,
    pub(super) custom_ops: Vec<PathBuf>,
}

/// The task of a session's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Attempt {
    /// Places the model.
    Place,
    /// Works like `Place`, and writes ONNX Runtime's log to standard error, which names the last node before a crash.
    Trace,
    /// Makes a session with the CPU's EP alone.
    Cpu,
}

/// Runs a process that creates the session. A failure of the process is also an answer.
pub(super) async fn ask(
    runtimes: &Runtimes,
    soc: &SocModel,
    inputs: &SessionInputs,
    max_wait: Duration,
) -> Answer {
    let answer = attempt(runtimes, soc, inputs, Attempt::Place, max_wait).await;
    let Answer::Crashed(crash) = answer else {
        return answer;
    };
    match attempt(runtimes, soc, inputs, Attempt::Trace, max_wait).await {
        Answer::Crashed(again) => Answer::Crashed(again),
        _ => Answer::Crashed(crash),
    }
}

/// Runs one process.
pub(super) async fn attempt(
    runtimes: &Runtimes,
    soc: &SocModel,
    inputs: &SessionInputs,
    kind: Attempt,
    max_wait: Duration,
) -> Answer {
    match timeout(max_wait, attempted(runtimes, soc, inputs, kind)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => Answer::Unanswered(format!("{error:#}")),
        Err(_) => Answer::TimedOut(format!(
            "no session after {max_wait:?}; --timeout gives it more"
        )),
    }
}

async fn attempted(
    runtimes: &Runtimes,
    soc: &SocModel,
    inputs: &SessionInputs,
    kind: Attempt,
) -> anyhow::Result<Answer> {
    // The libraries leave files in their working folder.
    let dir = tempfile::Builder::new()
        .prefix("epwatch-inspect-")
        .tempdir()?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("inspect-session")
        .arg(&inputs.model)
        .args(["--ep", runtimes.ep.word()])
        .arg("--ort")
        .arg(&runtimes.ort);
    if let Some(qnn_id) = soc.qnn_id {
        command.args(["--soc-model", &qnn_id.to_string()]);
    }
    if let Some(QnnLibraries { provider, backend }) = &runtimes.qnn {
        command.arg("--qnn-provider").arg(provider);
        command.arg("--qnn-backend").arg(backend);
    }
    if let Some(name) = kind.to_possible_value() {
        command.args(["--attempt", name.get_name()]);
    }
    if let Some(manifest) = &inputs.manifest {
        command.arg("--manifest").arg(manifest);
    }
    for EpOption { key, value } in &inputs.ep_options {
        command.arg(format!("--ep-option={key}={value}"));
    }
    for dim in &inputs.dims {
        command.arg(format!("--dim={dim}"));
    }
    for library in &inputs.custom_ops {
        command.arg("--custom-ops").arg(library);
    }
    let mut child = command
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("failed to start a process for the session")?;
    let stdout = child.stdout.take().context("it has no standard output")?;
    let stderr = child.stderr.take().context("it has no standard error")?;
    let mut out = Vec::new();
    let mut out_reader = stdout.take(MAX_OUTPUT_BYTES);
    let (read_out, said) = tokio::join!(out_reader.read_to_end(&mut out), Said::of(stderr));
    read_out.context("failed to read its answer")?;
    let said = said.context("failed to read its standard error")?;
    let status = child.wait().await?;
    let out = String::from_utf8_lossy(&out);
    let answer = out.lines().find_map(|line| {
        let (_, json) = line.split_once(MARK)?;
        serde_json::from_str(json).ok()
    });
    // The answer counts, even if the libraries crash afterwards.
    Ok(answer.unwrap_or_else(|| without_answer(status, said)))
}

/// Returns the answer for a process that ended without one.
fn without_answer(status: ExitStatus, said: Said) -> Answer {
    let tail = said.tail();
    let words = match tail.is_empty() {
        true => String::new(),
        false => format!("; it said: {tail}"),
    };
    match status.signal().map(|signal| (signal, crash_signal(signal))) {
        Some((_, Some(name))) => Answer::Crashed(Crash {
            signal: name.to_owned(),
            node: said
                .last_node
                .map(|(name, op_type)| NodeName { name, op_type }),
        }),
        Some((SIGKILL, None)) => Answer::Unanswered(format!(
            "the session's process was killed (SIGKILL), as the system does when memory runs out{words}"
        )),
        _ => Answer::Unanswered(format!(
            "the session's process ended without an answer ({status}){words}"
        )),
    }
}

const SIGKILL: i32 = 9;

/// Started by `epwatch inspect`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The ONNX model.
    model: PathBuf,
    /// The EP.
    #[arg(long, value_enum)]
    ep: InspectedEp,
    /// QNN's number of the chipset.
    #[arg(long, default_value = "")]
    soc_model: String,
    /// Path of libonnxruntime.
    #[arg(long)]
    ort: PathBuf,
    /// Path of the QNN plugin.
    #[arg(long, required_if_eq("ep", "qnn"))]
    qnn_provider: Option<PathBuf>,
    /// Path of libQnnHtp.
    #[arg(long, required_if_eq("ep", "qnn"))]
    qnn_backend: Option<PathBuf>,
    /// MACs per node.
    #[arg(long)]
    manifest: Option<PathBuf>,
    /// Options of the EP.
    #[arg(long)]
    ep_option: Vec<EpOption>,
    /// Sizes of dimensions.
    #[arg(long)]
    dim: Vec<FreeDim>,
    /// Libraries of ops.
    #[arg(long)]
    custom_ops: Vec<PathBuf>,
    /// The task.
    #[arg(long)]
    attempt: Attempt,
}

/// An option of the EP, as the app gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EpOption {
    pub(super) key: String,
    pub(super) value: String,
}

impl std::fmt::Display for EpOption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

/// Options that the command sets itself.
const OWN_OPTIONS: [&str; 3] = ["backend_path", "backend_type", "soc_model"];

impl FromStr for EpOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected KEY=VALUE, for example enable_htp_fp16_precision=0";
        let (key, value) = text.split_once('=').ok_or(expected)?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if key.is_empty() || !key.chars().all(is_name) || value.contains('\0') {
            return Err(expected.to_owned());
        }
        if OWN_OPTIONS.contains(&key) {
            return Err(format!(
                "{key} comes from --soc; expected another option of the QNN EP"
            ));
        }
        Ok(Self {
            key: key.to_owned(),
            value: value.to_owned(),
        })
    }
}

/// Makes the session and writes the answer.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // The process ends with its parent, however the parent ends, because then nobody reads the answer.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let answer = match args.attempt {
        Attempt::Cpu => on_cpu(args)?,
        Attempt::Place | Attempt::Trace => inspected(args)?,
    };
    // The answer starts on a new line, because the libraries may have written before.
    output::line(format_args!("\n{MARK}{}", serde_json::to_string(&answer)?))?;
    Ok(ExitCode::SUCCESS)
}

/// Tries the model on the EP that has every op of ONNX Runtime.
fn on_cpu(args: &Args) -> anyhow::Result<Answer> {
    let environment = ort::init_from(&args.ort)?.build()?;
    environment.set_log_level(LogLevel::Fatal);
    let builder = match as_the_app(SessionBuilder::new(&environment)?, args)? {
        Ok(builder) => builder,
        Err(wrong) => return Ok(Answer::WrongUse(wrong)),
    };
    // All weights must be read, but speed does not matter, so optimisations are off.
    let builder = builder.with_optimization_level(GraphOptimizationLevel::Disable);
    let mut builder = builder.map_err(|error| -> ort::Error { error.into() })?;
    let made = builder.commit_from_file(&args.model);
    Ok(Answer::OnCpu(made.err().map(|error| CpuError {
        status_code: OrtErrorCode::from(error.code()) as i32,
        error: error.message().to_owned(),
    })))
}

/// Sets the session options that the app sets. The inner error is about an argument.
fn as_the_app(
    mut builder: SessionBuilder,
    args: &Args,
) -> anyhow::Result<Result<SessionBuilder, String>> {
    for dim in &args.dim {
        let set = builder.with_dimension_override(dim.name(), dim.size().into());
        builder = set.map_err(|error| -> ort::Error { error.into() })?;
    }
    Ok(with_custom_ops(builder, &args.custom_ops).map_err(|wrong| wrong.to_string()))
}

fn inspected(args: &Args) -> anyhow::Result<Answer> {
    let manifest = args.manifest.as_deref().map(read_manifest).transpose()?;
    let environment = ort::init_from(&args.ort)?.build()?;
    let provider = args.qnn_provider.as_ref();
    let plugin = provider.map(|provider| Plugin::register(&environment, provider));
    let plugin = plugin.transpose()?;
    environment.set_log_level(LogLevel::Error);
    let (builder, reasons) = match &plugin {
        Some(plugin) => {
            let backend = args.qnn_backend.clone().unwrap_or_default();
            let htp = HtpOptions::new(backend).with_soc_model(&args.soc_model);
            let htp = plugin.session_builder(&htp)?;
            (
                htp.builder,
                htp.reasons.into_iter().map(Into::into).collect(),
            )
        }
        None => (SessionBuilder::new(&environment)?, Vec::new()),
    };
    let builder = match as_the_app(builder, args)? {
        Ok(builder) => builder,
        Err(wrong) => return Ok(Answer::WrongUse(wrong)),
    };
    let mut builder = match with_ep(builder, args)? {
        Ok(builder) => builder,
        Err(wrong) => return Ok(Answer::WrongUse(wrong)),
    };
    if args.attempt == Attempt::Trace {
        environment.set_log_level(LogLevel::Verbose);
        let set = builder.with_log_level(LogLevel::Verbose);
        builder = set.map_err(|error| -> ort::Error { error.into() })?;
        // If this attempt does not crash, the first attempt's answer is kept.
        let made = builder.commit_from_file(&args.model).map(drop);
        return Ok(Answer::OnCpu(made.err().map(|error| CpuError {
            status_code: OrtErrorCode::from(error.code()) as i32,
            error: error.message().to_owned(),
        })));
    }
    let requested = args.ep.requested();
    let input = PlacementInput {
        requested_eps: &requested,
        soc_model: &args.soc_model,
        manifest: manifest.as_ref(),
        known_reasons: &reasons,
    };
    Ok(match made(builder, &args.model, input) {
        // Of QNN's EP, and of EPs whose nodes are not recorded, the log tells as much.
        Inspection::Placed { placement, .. }
            if plugin.is_none()
                && match args.ep.accelerator().is_recorded() {
                    true => placement.source != PlacementSource::AssignmentApi,
                    false => placement.source == PlacementSource::Unavailable,
                } =>
        {
            Answer::Unproven(format!(
                "ONNX Runtime {} does not say where the nodes of a session are; give 1.24 or later with --ort",
                ort_version().unwrap_or_default()
            ))
        }
        Inspection::Placed {
            placement,
            npu_partitions,
            npu_nodes,
        } => Answer::Placed {
            placed: Box::new(Placed::of(&placement, npu_partitions)),
            npu_nodes,
            encoded: STANDARD.encode(v1::Placement::from(&*placement).encode_to_vec()),
        },
        Inspection::Failed {
            error,
            status_code: INVALID_PROTOBUF,
            ..
        } => Answer::NoModel(error),
        Inspection::Failed { error, reason, .. } => Answer::Failed(Failed {
            error,
            reason: reason.as_str().to_owned(),
            way_out: None,
        }),
        _ => {
            Answer::Unanswered("the SDK gave an answer that this program does not know".to_owned())
        }
    })
}

/// Adds the options of the EP, and the EP itself if the runtime has it built in. The inner error is about an argument.
fn with_ep(
    mut builder: SessionBuilder,
    args: &Args,
) -> anyhow::Result<Result<SessionBuilder, String>> {
    if args.ep == InspectedEp::Qnn {
        for EpOption { key, value } in &args.ep_option {
            let key = format!("ep.{}.{key}", QNN_EP.to_lowercase());
            let set = builder.with_config_entry(key, value);
            builder = set.map_err(|error| -> ort::Error { error.into() })?;
        }
        return Ok(Ok(builder));
    }
    let Some(name) = args.ep.built_in() else {
        return Ok(Ok(builder));
    };
    let options = args.ep_option.iter();
    let options: Vec<_> = options
        .map(|option| (option.key.clone(), option.value.clone()))
        .collect();
    Ok(with_built_in_ep(builder, name, &options).map_err(|error| {
        format!(
            "{} cannot be used: {}; expected an ONNX Runtime that has this EP built in (--ort), and options that it takes \
             (--ep-option)",
            args.ep.ep(),
            error.message().trim()
        )
    }))
}

/// Makes the session. The weights of a large model stay in its file, which ONNX Runtime maps. Read into memory, they
/// would need their size again.
fn made(builder: SessionBuilder, model: &Path, input: PlacementInput<'_>) -> Inspection {
    let outside = || {
        let path = model.canonicalize().ok()?;
        let (folder, name) = (path.parent()?.to_str()?, path.file_name()?.to_str()?);
        let bytes = weights_outside(&path, name).ok()??;
        let builder = builder.clone().with_config_entry(WEIGHTS_FOLDER, folder);
        Some((builder.ok()?, bytes))
    };
    match outside() {
        Some((builder, bytes)) => inspect_bytes(builder, &bytes, input),
        None => inspect_file(builder, model, input),
    }
}

/// Reads a side-car of MACs, which names its model.
pub(super) fn read_side_car(path: &Path) -> anyhow::Result<SideCar> {
    let text = input_file::read(path, FilePurpose::SideCar).map_err(anyhow::Error::msg)?;
    Ok(serde_json::from_slice(&text)?)
}

fn read_manifest(path: &Path) -> anyhow::Result<ModelManifest> {
    Ok(read_side_car(path)?.try_into()?)
}
