//! One phone of the demo: a process with the SDK, and with real ONNX Runtime and QNN sessions on the HTP emulator.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
    process::ExitCode,
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
    simulation::simulated_device,
};
use ort::{inputs, logging::LogLevel, value::Tensor};
use prost::Message;
use serde::{Deserialize, Serialize};

use super::models::{APP, MODEL};
use crate::output;

/// Separate cohorts: the emulator's latency must not be mixed with the latency of the fleet.
const ENVIRONMENT: &str = "emulator";
/// The input `x` of the demo's models.
const INPUT_SHAPE: [usize; 4] = [1, 3, 32, 32];
/// Number of runs of a version before the next one: more than a baseline needs.
const RUNS_OF_A_VERSION: usize = 25;
/// Pause between later runs, which leaves the processor to other devices.
const PAUSE: Duration = Duration::from_millis(250);
const REPORT_INTERVAL: Duration = Duration::from_secs(2);
const FLUSH_TIMEOUT: Duration = Duration::from_secs(15);

/// A session of a device process, which is written as one line to its standard output.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SessionLine {
    pub(super) version: String,
    /// An encoded `v1::Placement`.
    pub(super) placement: Vec<u8>,
}

/// A chipset on which the demo runs real sessions.
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

/// The first line of a device process's standard input. Every user of the machine could read arguments.
#[derive(Serialize, Deserialize)]
pub(super) struct Orders {
    /// For example SM8650.
    pub(super) chipset: String,
    /// QNN's number of the chipset.
    pub(super) soc_model: String,
    pub(super) endpoint: String,
    pub(super) app_key: String,
    /// The SDK's folder.
    pub(super) dir: PathBuf,
    pub(super) ort: PathBuf,
    pub(super) qnn_provider: PathBuf,
    pub(super) qnn_version: String,
    pub(super) qnn_backend: PathBuf,
    /// Versions and files of the models, in the order of the app's updates; a side-car lies next to each.
    pub(super) models: Vec<(String, PathBuf)>,
}

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let orders: Orders = serde_json::from_str(&line)
        .context("demo-device is started by `epwatch demo`, not by hand")?;
    let app_ends = stdin_closes()?;
    let Orders {
        endpoint,
        app_key,
        dir,
        ..
    } = &orders;
    let config = SdkConfig::builder(APP, endpoint, app_key, dir)
        .with_consent(true)
        .with_environment(ENVIRONMENT)
        .with_device(simulated_device(&orders.chipset).into())
        .with_runtime(runtime(&orders.qnn_version).into())
        .with_report_interval(REPORT_INTERVAL)
        .with_upload_interval(REPORT_INTERVAL)
        .build()?;
    let watch = Watch::start(config)?;
    let environment = ort::init_from(&orders.ort)?.build()?;
    let plugin = Plugin::register(&environment, &orders.qnn_provider)?;
    // ONNX Runtime's warnings are about this machine's emulator, and the placement says the same more exactly.
    environment.set_log_level(LogLevel::Error);

    let mut session = None;
    for (version, path) in &orders.models {
        // An update of the app ends the session with the old version.
        drop(session.take());
        let mut new = open(&watch, &plugin, &orders, version, path)?;
        tell(&new, version)?;
        for _ in 0..RUNS_OF_A_VERSION {
            run_once(&mut new)?;
        }
        session = Some(new);
    }
    let mut session = session.context("the demo named no model")?;
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
    orders: &Orders,
    version: &str,
    path: &Path,
) -> anyhow::Result<ObservedSession> {
    let htp = HtpOptions::new(&orders.qnn_backend).with_soc_model(&orders.soc_model);
    let htp = plugin.session_builder(&htp)?;
    let side_car = std::fs::read(path.with_extension("macs.json"))?;
    let side_car: SideCar = serde_json::from_slice(&side_car)?;
    let session = watch
        .htp_session(ModelInfo::new(MODEL, version)?, htp)
        .with_manifest(ModelManifest::try_from(side_car)?.into())
        .commit_from_file(path)?;
    Ok(session)
}

fn tell(session: &ObservedSession, version: &str) -> anyhow::Result<()> {
    let placement = v1::Placement::from(session.placement().wire());
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
