//! `epwatch gate calibrate`: measures a model in turn with itself, to find out what a gate can decide on this device.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use epwatch_engines::QnnVersion;
use epwatch_gate::{
    calibration::{Calibration, SCHEMA},
    launches::MeasuredFile,
    policy::Policy,
    read::ReadOptions,
};
use epwatch_manifest::{FreeDim, InputShape};
use epwatch_run::{ReportKind, replace_report};

use super::{
    device::{DeviceArgs, LeftBehind, Measured},
    policy_file,
    reports::check_apart,
    runs,
};
use crate::{
    input_file::{self, FilePurpose},
    inspect::{EpOption, SocModel},
    output::{self, WrongUse},
};

/// Measures a model in turn with itself: what a gate can decide on this device, and the floor of each limit.
///
/// Of a model that did not change, a gate may call at most 1 % slower. The floor of a limit is the smallest number that keeps
/// so. `epwatch gate --calibration FILE` names limits below it. Exit code 0: calibrated. Exit code 2: wrong use. Exit code 3: a
/// launch could not be made.
#[derive(Debug, clap::Args)]
pub(super) struct GateCalibrateArgs {
    /// The ONNX model.
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Pairs of launches, 12 to 200.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(12..=200))]
    pairs: u32,
    /// The policy, whose limits are compared with their floors. Floors are of gates with its `latency.launches`.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The app's ONNX Runtime for this machine [default: a fetched one].
    #[arg(long, value_name = "LIB")]
    ort: Option<PathBuf>,
    /// The chipset that QNN's emulator stands for. Its run times say nothing of a phone.
    #[arg(long, value_name = "NAME")]
    soc: Option<SocModel>,
    /// Option of the EP, as the app gives it. Once for each.
    #[arg(long, value_name = "KEY=VALUE")]
    ep_option: Vec<EpOption>,
    /// Size of a dimension that the model leaves open: batch=1. Once for each.
    #[arg(long, value_name = "NAME=SIZE")]
    dim: Vec<FreeDim>,
    /// The app's library of custom ops, built for the device. Once for each.
    #[arg(long, value_name = "LIB")]
    custom_ops: Vec<PathBuf>,
    /// Version of QNN's emulator.
    #[arg(long, value_name = "VERSION", default_value_t)]
    qnn_version: QnnVersion,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    /// Where the document epwatch.calibration/1 goes, for --calibration.
    #[arg(long, value_name = "FILE", default_value = "calibration.json")]
    out: PathBuf,
    /// Print the document.
    #[arg(long)]
    json: bool,
}

pub(super) async fn calibrate(
    args: &GateCalibrateArgs,
    left: &LeftBehind,
) -> anyhow::Result<ExitCode> {
    if args.device.option().is_none() {
        let text = "calibrate measures on a device: give --local, --ssh or --adb";
        return Err(WrongUse(text.to_owned()).into());
    }
    let policy = match &args.policy {
        Some(path) => policy_file::read(path)?.0,
        None => Policy::default(),
    };
    let mut measured = policy.clone();
    measured.latency.launches = Some(args.pairs);
    let shapes: Vec<InputShape> = args.dim.iter().map(InputShape::from).collect();
    let of = Measured {
        model: &args.model,
        ort: args.ort.as_deref(),
        baseline: Some(&args.model),
        soc: args.soc.as_ref(),
        qnn_version: args.qnn_version,
        ep_options: &args.ep_option,
        dims: &args.dim,
        custom_ops: &args.custom_ops,
        shapes: &shapes,
        policy: &measured,
        policy_folder: policy_file::folder(args.policy.as_deref()),
    };
    output::check_report("--out", &args.out, ReportKind::Json("/schema", SCHEMA))?;
    if let Some(report) = args.device.report() {
        check_apart(&[("--out", &args.out), ("--report", report)])?;
    }
    let made = args.device.measure(&of, left, None).await?;
    let read = |paths: &[PathBuf]| -> Result<Vec<MeasuredFile>, WrongUse> {
        let each = paths
            .iter()
            .map(|path| runs::measured(path, ReadOptions::default()));
        Ok(each.collect::<Result<Vec<_>, _>>()?.concat())
    };
    let (candidate, baseline) = (read(&made.candidate)?, read(&made.baseline)?);
    let found = Calibration::of_files(candidate, baseline, &policy)?;
    let shown = args.out.display();
    let text = serde_json::to_string_pretty(&found)? + "\n";
    replace_report(&args.out, &text).with_context(|| format!("failed to write --out {shown}"))?;
    if args.json {
        output::json(&found)?;
    } else {
        output::line(found.in_words())?;
        output::line(format_args!(
            "{shown} has this for `epwatch gate --calibration {shown}`"
        ))?;
    }
    for mistake in found.below_floor(&policy.latency, &policy.load) {
        output::remark(format_args!("{}; {}", mistake.why, mistake.fix));
    }
    match made.unwritten {
        Some(error) => Err(error.context("calibrated, and --report was not written")),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Reads a calibration.
pub(super) fn read(path: &Path) -> Result<Calibration, WrongUse> {
    let shown = path.display();
    let text = input_file::read_text(path, FilePurpose::Document)
        .map_err(|error| WrongUse(format!("failed to read --calibration {shown}: {error}")))?;
    let read: Calibration = serde_json::from_str(&text).map_err(|error| {
        WrongUse(format!(
            "--calibration {shown}: {error}; expected a document {SCHEMA}, as `epwatch gate calibrate` writes it"
        ))
    })?;
    match read.schema == SCHEMA {
        true => Ok(read),
        false => Err(WrongUse(format!(
            "--calibration {shown} is of another version; expected {SCHEMA}"
        ))),
    }
}
