//! One session on one chipset in a separate process: started here, created in the hidden subcommand
//! `inspect-session`.

use std::{
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    str::FromStr,
    time::Duration,
};

use anyhow::Context;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use epwatch_engines::Installed;
use epwatch_proto::{ModelManifest, SideCar, placement::QNN_EP, v1};
use epwatch_sdk::{
    placement::{Inspection, PlacementInput, inspect_file},
    qnn::{HtpOptions, Plugin},
};
use ort::logging::LogLevel;
use prost::Message;
use tokio::{io::AsyncReadExt, process::Command, time::timeout};

use super::{
    answer::{Answer, Placed},
    chipset::SocModel,
};
use crate::output;

/// Precedes the answer, since QNN's libraries also write to standard output.
const MARK: &str = "epwatch-inspect ";

/// ONNX Runtime's status of a file that it cannot parse.
const INVALID_PROTOBUF: i32 = 7;

/// Longest output that is read of a process.
const MAX_OUTPUT_BYTES: u64 = 64 << 20;

/// Longest output in the error of a process that ended without an answer.
const SAID_CHARS: usize = 400;

/// Paths of the runtimes.
#[derive(Debug)]
pub(crate) struct Runtimes {
    ort: PathBuf,
    qnn_provider: PathBuf,
    qnn_backend: PathBuf,
}

impl Runtimes {
    pub(super) fn of(ort: &Installed, qnn: &Installed) -> Self {
        Self {
            ort: ort.ort_library(),
            qnn_provider: qnn.qnn_provider_library(),
            qnn_backend: qnn.qnn_htp_library(),
        }
    }
}

/// Runs a process that creates the session. A failure of the process is also an answer.
pub(super) async fn ask(
    runtimes: &Runtimes,
    soc: &SocModel,
    model: &Path,
    (manifest, ep_options): (Option<&Path>, &[EpOption]),
    patience: Duration,
) -> Answer {
    match timeout(patience, asked(runtimes, soc, model, manifest, ep_options)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => Answer::without_reason(format!("{error:#}")),
        Err(_) => Answer::TimedOut(format!(
            "no session after {patience:?}; --timeout gives it more"
        )),
    }
}

async fn asked(
    runtimes: &Runtimes,
    soc: &SocModel,
    model: &Path,
    manifest: Option<&Path>,
    ep_options: &[EpOption],
) -> anyhow::Result<Answer> {
    // The libraries leave files in their working folder.
    let dir = tempfile::Builder::new()
        .prefix("epwatch-inspect-")
        .tempdir()?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("inspect-session")
        .arg(model)
        .args(["--soc-model", &soc.qnn_id.to_string()])
        .arg("--ort")
        .arg(&runtimes.ort)
        .arg("--qnn-provider")
        .arg(&runtimes.qnn_provider)
        .arg("--qnn-backend")
        .arg(&runtimes.qnn_backend);
    if let Some(manifest) = manifest {
        command.arg("--manifest").arg(manifest);
    }
    for EpOption { key, value } in ep_options {
        command.arg(format!("--ep-option={key}={value}"));
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
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let (mut out_reader, mut err_reader) =
        (stdout.take(MAX_OUTPUT_BYTES), stderr.take(MAX_OUTPUT_BYTES));
    let (read_out, read_err) = tokio::join!(
        out_reader.read_to_end(&mut out),
        err_reader.read_to_end(&mut err)
    );
    read_out
        .and(read_err)
        .context("failed to read its answer")?;
    let status = child.wait().await?;
    let out = String::from_utf8_lossy(&out);
    let answer = out.lines().find_map(|line| {
        let (_, json) = line.split_once(MARK)?;
        serde_json::from_str(json).ok()
    });
    // The answer counts, even if the libraries crash afterwards.
    answer.with_context(|| {
        let said = String::from_utf8_lossy(&err);
        let said = said.trim_end();
        let last = said.char_indices().rev().nth(SAID_CHARS);
        let said = &said[last.map_or(0, |(at, _)| at)..];
        format!("the process ended without an answer ({status}); it said: {said}")
    })
}

/// Started by `epwatch inspect`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The ONNX model.
    model: PathBuf,
    /// QNN's number of the chipset.
    #[arg(long)]
    soc_model: String,
    /// Path of libonnxruntime.
    #[arg(long)]
    ort: PathBuf,
    /// Path of the QNN plugin.
    #[arg(long)]
    qnn_provider: PathBuf,
    /// Path of libQnnHtp.
    #[arg(long)]
    qnn_backend: PathBuf,
    /// MACs per node.
    #[arg(long)]
    manifest: Option<PathBuf>,
    /// Options of the EP.
    #[arg(long)]
    ep_option: Vec<EpOption>,
}

/// An option of the EP, as the app gives it to QNN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EpOption {
    key: String,
    value: String,
}

/// Options that the command sets itself.
const OWN_OPTIONS: [&str; 3] = ["backend_path", "backend_type", "soc_model"];

impl FromStr for EpOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected KEY=VALUE, for example enable_htp_fp16_precision=0";
        let (key, value) = text.split_once('=').ok_or(expected)?;
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
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
    let answer = inspected(args)?;
    // A line of its own, since the libraries may have written before.
    output::line(format_args!("\n{MARK}{}", serde_json::to_string(&answer)?))?;
    Ok(ExitCode::SUCCESS)
}

fn inspected(args: &Args) -> anyhow::Result<Answer> {
    let manifest = args.manifest.as_deref().map(read_manifest).transpose()?;
    let environment = ort::init_from(&args.ort)?.build()?;
    let plugin = Plugin::register(&environment, &args.qnn_provider)?;
    environment.set_log_level(LogLevel::Error);
    let htp = plugin.session_builder(&HtpOptions {
        backend_path: args.qnn_backend.clone(),
        soc_model: Some(args.soc_model.clone()),
        performance_mode: None,
    })?;
    let mut builder = htp.builder;
    for EpOption { key, value } in &args.ep_option {
        let key = format!("ep.{}.{key}", QNN_EP.to_lowercase());
        let set = builder.with_config_entry(key, value);
        builder = set.map_err(|error| -> ort::Error { error.into() })?;
    }
    let requested = [QNN_EP.to_owned()];
    let input = PlacementInput {
        requested_eps: &requested,
        soc_model: &args.soc_model,
        manifest: manifest.as_ref(),
        known_reasons: &htp.reasons,
    };
    Ok(match inspect_file(builder, &args.model, input) {
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
        Inspection::Failed { error, reason, .. } => Answer::Failed {
            error,
            reason: reason.as_str().to_owned(),
        },
        _ => Answer::without_reason("the SDK gave an answer that this program does not know"),
    })
}

/// Reads a side-car of MACs.
pub(super) fn read_manifest(path: &Path) -> anyhow::Result<ModelManifest> {
    let side_car: SideCar = serde_json::from_slice(&std::fs::read(path)?)?;
    Ok(ModelManifest::try_from(side_car)?)
}
