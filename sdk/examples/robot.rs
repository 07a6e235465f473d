//! A robot that watches its model. `docs/robot.md` describes the setup; `robot.service` in this folder is the systemd
//! unit. Environment variables are the settings:
//!
//! - `MODEL`, `ORT_DYLIB_PATH`: the ONNX model and ONNX Runtime's library;
//! - `QNN_PROVIDER`, `QNN_BACKEND`: the QNN plugin and libQnnHtp.so; without them the model runs on the CPU;
//! - `SOC_MODEL`: QNN's number of the chipset, only for the emulator;
//! - `EPWATCH_ENDPOINT`, `EPWATCH_KEY`: the collector and the app key;
//! - `STATE_DIRECTORY`: the SDK's folder (systemd sets it);
//! - `CONSENT`: a file whose first word is `yes` or `no`, read at the start and at SIGHUP. Without the variable the
//!   owner's contract counts as consent; with it and without the file there is no consent;
//! - `RUNS`: number of runs before the program ends; without the variable it ends at SIGTERM.
#![allow(clippy::print_stdout, reason = "journald stores the output")]

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use epwatch_sdk::{
    ModelInfo, ObservedSession, SdkConfig, Watch,
    preflight::PreflightFacts,
    qnn::{HtpOptions, Plugin},
    runtime,
};
use ort::{environment::Environment, inputs, session::Session, value::Tensor};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

/// Ten frames a second.
const FRAME: Duration = Duration::from_millis(100);

fn main() -> Result<(), Box<dyn Error>> {
    let setting = |name: &str, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
    let (ends, asks_again) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    for signal in [SIGTERM, SIGINT] {
        flag::register(signal, Arc::clone(&ends))?;
    }
    flag::register(SIGHUP, Arc::clone(&asks_again))?;

    let folder = setting("STATE_DIRECTORY", "/var/lib/robot");
    let config = SdkConfig::builder(
        "com.example.robot",
        setting("EPWATCH_ENDPOINT", "http://127.0.0.1:4717"),
        setting("EPWATCH_KEY", "demo-key"),
        Path::new(&folder).join("epwatch"),
    )
    .with_thermal_zones(true)
    .with_consent(has_consent());
    let watch = Watch::start(config.build()?)?;
    // A `no` written while the program was down is a withdrawal too.
    watch.set_consent(has_consent());
    let environment = runtime::load(setting("ORT_DYLIB_PATH", "libonnxruntime.so"))?.build()?;
    let model = PathBuf::from(env::var("MODEL").map_err(|_| "MODEL must name an ONNX model")?);
    let mut session = session(&watch, &environment, &model)?;
    println!("{}", watch.explain());

    let runs: Option<u64> = env::var("RUNS").ok().map(|n| n.parse()).transpose()?;
    for run in 0_u64.. {
        if ends.load(Relaxed) || runs.is_some_and(|runs| run >= runs) {
            break;
        }
        if asks_again.swap(false, Relaxed) {
            // A withdrawal wipes the folder, and the collector deletes its reports.
            watch.set_consent(has_consent());
        }
        frame(&mut session)?;
        thread::sleep(FRAME);
    }
    // A kill loses only runs that are not sealed; an orderly end seals them. The deadline is well below systemd's
    // (TimeoutStopSec).
    watch.stop(Duration::from_secs(5))?;
    println!("stopped; all is sealed");
    Ok(())
}

/// The owner's choice. An unreadable file is not consent.
fn has_consent() -> bool {
    let Some(path) = env::var_os("CONSENT") else {
        return true;
    };
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().next() == Some("yes")
}

/// Makes a session on the NPU if the plugin is given, or else on the CPU.
fn session(
    watch: &Watch,
    environment: &Environment,
    model: &Path,
) -> Result<ObservedSession, Box<dyn Error>> {
    let info = ModelInfo::new("detector", "1")?;
    let (Some(provider), Some(backend)) = (env::var_os("QNN_PROVIDER"), env::var_os("QNN_BACKEND"))
    else {
        let builder = Session::builder(environment)?;
        return Ok(watch.session(info, builder).commit_from_file(model)?);
    };
    let soc_model = env::var("SOC_MODEL").ok();
    let mut facts = PreflightFacts::default();
    facts.backend_path = PathBuf::from(&backend);
    facts.soc_model = soc_model.clone().unwrap_or_default();
    for check in watch.preflight(&facts) {
        println!("{} {} ({})", check.meaning(), check.fix(), check.seen);
    }
    let plugin = Plugin::register(environment, Path::new(&provider))?;
    let plan = watch.plan_within(&info, Duration::from_millis(500));
    let mut htp = HtpOptions::new(&backend).with_performance_mode("sustained_high_performance");
    htp.soc_model = soc_model;
    let asked = plugin.session_builder_for(&plan, &htp)?;
    let session = watch
        .htp_session(info, asked)
        .with_plan(&plan)
        .commit_from_file(model)?;
    Ok(session)
}

/// Runs one inference on an empty picture.
fn frame(session: &mut ObservedSession) -> Result<(), Box<dyn Error>> {
    let input = &session.session().inputs()[0];
    let shape = input
        .dtype()
        .tensor_shape()
        .ok_or("the first input is not a tensor")?;
    let dims: Vec<i64> = shape.iter().map(|dim| (*dim).max(1)).collect();
    let length = usize::try_from(dims.iter().product::<i64>())?;
    session.run(inputs![Tensor::from_array((dims, vec![0.0_f32; length]))?])?;
    Ok(())
}
