//! One phone of the demo: a process with the SDK, and with real ONNX Runtime and QNN sessions on the HTP emulator.

use std::{
    io::{self, Read},
    path::PathBuf,
    process::ExitCode,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Context;
use epwatch_fleet::Chipset;
use epwatch_proto::{EpBackend, EpLinkage, ModelManifest, Runtime, SideCar, v1};
use epwatch_sdk::{
    ModelInfo, ObservedSession, SdkConfig, Watch,
    qnn::{HtpOptions, Plugin},
    simulated_device,
};
use ort::{inputs, logging::LogLevel, value::Tensor};
use prost::Message;
use serde::{Deserialize, Serialize};

use super::models::{APP, MODEL};
use crate::output;

/// The environment variable with the app key.
pub(super) const APP_KEY_ENV: &str = "EPWATCH_DEMO_APP_KEY";
/// Separate cohorts: the emulator's latency must not be mixed with the fleet's.
const ENVIRONMENT: &str = "emulator";
/// The input `x` of the demo's models.
const INPUT_SHAPE: [usize; 4] = [1, 3, 32, 32];
/// Runs of a version before the next one: more than a baseline needs.
const RUNS_OF_A_VERSION: usize = 25;
/// Pause between later runs, which leaves the processor to other devices.
const PAUSE: Duration = Duration::from_millis(250);
const REPORT_INTERVAL: Duration = Duration::from_secs(2);
const FLUSH_TIMEOUT: Duration = Duration::from_secs(15);

/// A session of a device process, written to its standard output, a line each.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SessionLine {
    pub(super) version: String,
    /// An encoded `v1::Placement`.
    pub(super) placement: Vec<u8>,
}

/// A chipset that the demo has real sessions on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Phone {
    pub(super) chipset: Chipset,
    /// QNN's number for it.
    pub(super) soc_model: &'static str,
}

impl Phone {
    /// One chipset whose HTP has FP16, and one without.
    pub(super) const ALL: [Self; 2] = [
        Self {
            chipset: Chipset::Sm8650,
            soc_model: "57",
        },
        Self {
            chipset: Chipset::Sm8635,
            soc_model: "68",
        },
    ];
}

/// Started by `epwatch demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// For example SM8650.
    #[arg(long)]
    chipset: String,
    /// QNN's number of the chipset.
    #[arg(long)]
    soc_model: String,
    /// Address of the collector.
    #[arg(long)]
    endpoint: String,
    /// The SDK's folder.
    #[arg(long)]
    dir: PathBuf,
    /// Path of libonnxruntime.
    #[arg(long)]
    ort: PathBuf,
    /// The QNN plugin, and its version.
    #[arg(long)]
    qnn_provider: PathBuf,
    #[arg(long)]
    qnn_version: String,
    /// Path of libQnnHtp.
    #[arg(long)]
    qnn_backend: PathBuf,
    /// VERSION=PATH of a model, in the order of the app's updates; a side-car lies next to it.
    #[arg(long = "model")]
    models: Vec<VersionedModel>,
}

#[derive(Debug, Clone)]
struct VersionedModel {
    version: String,
    path: PathBuf,
}

impl FromStr for VersionedModel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (version, path) = text.split_once('=').ok_or("expected VERSION=PATH")?;
        Ok(Self {
            version: version.to_owned(),
            path: path.into(),
        })
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let app_ends = stdin_closes()?;
    let app_key = std::env::var(APP_KEY_ENV).context("failed to read the app key")?;
    let config = SdkConfig::builder(APP, &args.endpoint, app_key, &args.dir)
        .with_environment(ENVIRONMENT)
        .with_device(simulated_device(&args.chipset))
        .with_runtime(runtime(&args.qnn_version))
        .with_report_interval(REPORT_INTERVAL)
        .with_upload_interval(REPORT_INTERVAL)
        .build()?;
    let watch = Watch::start(config)?;
    let environment = ort::init_from(&args.ort)?.build()?;
    let plugin = Plugin::register(&environment, &args.qnn_provider)?;
    // Its warnings are about this machine's emulator; the placement is more exact.
    environment.set_log_level(LogLevel::Error);

    let mut session = None;
    for model in &args.models {
        // An update of the app ends the session with the old version.
        drop(session.take());
        let mut new = open(&watch, &plugin, args, model)?;
        tell(&new, &model.version)?;
        for _ in 0..RUNS_OF_A_VERSION {
            run_once(&mut new)?;
        }
        session = Some(new);
    }
    let mut session = session.context("no --model was given")?;
    while !app_ends.load(Ordering::Relaxed) {
        run_once(&mut session)?;
        thread::sleep(PAUSE);
    }
    watch.flush(FLUSH_TIMEOUT)?;
    Ok(ExitCode::SUCCESS)
}

/// The facts that the SDK cannot read by itself.
fn runtime(qnn_version: &str) -> Runtime {
    Runtime {
        ort_version: String::new(),
        ep_package: "onnxruntime-qnn".to_owned(),
        ep_version: qnn_version.to_owned(),
        ep_linkage: EpLinkage::Plugin,
        backend: EpBackend::Htp,
        qnn_sdk_version: String::new(),
        backend_build_id: String::new(),
    }
}

/// Becomes true when the demo closes this process's standard input, or ends.
fn stdin_closes() -> io::Result<Arc<AtomicBool>> {
    let is_closed = Arc::new(AtomicBool::new(false));
    let closed = Arc::clone(&is_closed);
    thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || {
            let mut rest = Vec::new();
            let _ends_either_way = io::stdin().read_to_end(&mut rest);
            closed.store(true, Ordering::Relaxed);
        })?;
    Ok(is_closed)
}

fn open(
    watch: &Watch,
    plugin: &Plugin,
    args: &Args,
    model: &VersionedModel,
) -> anyhow::Result<ObservedSession> {
    let htp = plugin.session_builder(&HtpOptions {
        backend_path: args.qnn_backend.clone(),
        soc_model: Some(args.soc_model.clone()),
        performance_mode: None,
    })?;
    let side_car = std::fs::read(model.path.with_extension("macs.json"))?;
    let side_car: SideCar = serde_json::from_slice(&side_car)?;
    let session = watch
        .session(ModelInfo::new(MODEL, &model.version)?, htp.builder)
        .requesting(htp.requested_eps)
        .with_options(htp.options)
        .with_reasons(htp.reasons)
        .with_manifest(ModelManifest::try_from(side_car)?)
        .commit_from_file(&model.path)?;
    Ok(session)
}

fn tell(session: &ObservedSession, version: &str) -> anyhow::Result<()> {
    let placement = v1::Placement::from(session.placement());
    let line = SessionLine {
        version: version.to_owned(),
        placement: placement.encode_to_vec(),
    };
    output::line(serde_json::to_string(&line)?)?;
    Ok(())
}

fn run_once(session: &mut ObservedSession) -> anyhow::Result<()> {
    let pixels = vec![0.5_f32; INPUT_SHAPE.iter().product()];
    session.run(inputs![Tensor::from_array((INPUT_SHAPE, pixels))?])?;
    Ok(())
}
