//! A robot that watches its model: `docs/robot.md` says how it is set up, `robot.service` beside
//! this file runs it. Settings come from the environment:
//!
//! - `MODEL`, `ORT_DYLIB_PATH`: the ONNX model and ONNX Runtime's library;
//! - `QNN_PROVIDER`, `QNN_BACKEND`: the QNN plugin and libQnnHtp.so; without them it runs on the CPU;
//! - `EPWATCH_ENDPOINT`, `EPWATCH_KEY`: the collector and the app key;
//! - `STATE_DIRECTORY`: the SDK's folder (systemd sets it);
//! - `RUNS`: end after so many runs; without it, at SIGTERM by systemd.
#![allow(
    clippy::print_stdout,
    reason = "an example talks, and journald listens"
)]

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use epwatch_proto::Thermal;
use epwatch_sdk::{
    Conditions, ModelInfo, ObservedSession, SdkConfig, Watch,
    preflight::{Platform, PreflightFacts},
    qnn::{HtpOptions, Plugin},
};
use ort::{environment::Environment, inputs, session::Session, value::Tensor};

/// Ten frames a second.
const FRAME: Duration = Duration::from_millis(100);
/// How often the thermal zones are read: never on the path of a frame that is late.
const LOOK_AT_HEAT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let setting = |name: &str, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
    let folder = setting("STATE_DIRECTORY", "/var/lib/robot");
    let config = SdkConfig::builder(
        "com.example.robot",
        setting("EPWATCH_ENDPOINT", "http://127.0.0.1:4717"),
        setting("EPWATCH_KEY", "demo-key"),
        Path::new(&folder).join("epwatch"),
    );
    let watch = Watch::start(config.build()?)?;
    let environment = ort::init_from(setting("ORT_DYLIB_PATH", "libonnxruntime.so"))?.build()?;
    let model = PathBuf::from(env::var("MODEL").map_err(|_| "MODEL must name an ONNX model")?);
    let mut session = session(&watch, &environment, &model)?;
    println!("{}", watch.explain());

    let runs: Option<u64> = env::var("RUNS").ok().map(|n| n.parse()).transpose()?;
    let mut looked = None::<Instant>;
    for run in 0_u64.. {
        if runs.is_some_and(|runs| run >= runs) {
            break;
        }
        if looked.is_none_or(|at| at.elapsed() >= LOOK_AT_HEAT) {
            let thermal = thermal(Path::new("/sys/class/thermal"));
            watch.set_conditions(&Conditions::unknown().with_thermal(thermal));
            looked = Some(Instant::now());
        }
        frame(&mut session)?;
        thread::sleep(FRAME);
    }
    // A kill costs nothing that was sealed; an orderly end seals the rest, too.
    watch.stop(Duration::from_secs(5));
    Ok(())
}

/// On the NPU where the plugin is, else on the CPU; either way the SDK knows what was asked for.
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
    let facts = PreflightFacts {
        platform: Platform::current(),
        backend_path: PathBuf::from(&backend),
        ..PreflightFacts::default()
    };
    for check in watch.preflight(&facts) {
        println!("{} {} ({})", check.meaning(), check.fix(), check.seen);
    }
    let plugin = Plugin::register(environment, Path::new(&provider))?;
    let plan = watch.plan_within(&info, Duration::from_millis(500));
    let asked = plugin.session_builder_for(
        &plan,
        &HtpOptions {
            backend_path: backend.into(),
            soc_model: env::var("SOC_MODEL").ok(),
            performance_mode: Some("sustained_high_performance".to_owned()),
        },
    )?;
    let session = watch
        .session(info, asked.builder)
        .requesting(asked.requested_eps)
        .with_options(asked.options)
        .with_reasons(asked.reasons)
        .with_plan(&plan)
        .commit_from_file(model)?;
    Ok(session)
}

/// One inference on an empty picture.
fn frame(session: &mut ObservedSession) -> Result<(), Box<dyn Error>> {
    let input = &session.session().inputs()[0];
    let shape = input
        .dtype()
        .tensor_shape()
        .ok_or("the first input is no tensor")?;
    let dims: Vec<i64> = shape.iter().map(|dim| (*dim).max(1)).collect();
    let length = usize::try_from(dims.iter().product::<i64>())?;
    session.run(inputs![Tensor::from_array((dims, vec![0.0_f32; length]))?])?;
    Ok(())
}

/// The hottest zone against its own trip points: `passive` is where the kernel begins to slow
/// things down, `hot` and `critical` are beyond. Unknown where no zone has a passive one.
fn thermal(zones: &Path) -> Thermal {
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<i64>().ok();
    let mut worst = Thermal::Unknown;
    for zone in fs::read_dir(zones).into_iter().flatten().flatten() {
        let zone = zone.path();
        let Some(now) = number(zone.join("temp")) else {
            continue;
        };
        for trip in 0..16 {
            let kind = fs::read_to_string(zone.join(format!("trip_point_{trip}_type")));
            let limit = number(zone.join(format!("trip_point_{trip}_temp")));
            let (Ok(kind), Some(limit)) = (kind, limit) else {
                break;
            };
            let state = match (kind.trim(), now >= limit) {
                ("passive", false) => Thermal::None,
                ("passive", true) => Thermal::Moderate,
                ("hot" | "critical", true) => Thermal::Severe,
                _ => continue,
            };
            if rank(state) > rank(worst) {
                worst = state;
            }
        }
    }
    worst
}

fn rank(thermal: Thermal) -> u8 {
    match thermal {
        Thermal::None => 1,
        Thermal::Moderate => 2,
        Thermal::Severe => 3,
        _ => 0,
    }
}
