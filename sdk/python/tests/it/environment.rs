//! One environment for the tests of this executable, with the wheel of the library that cargo has built.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use epwatch_proto::{Accelerator, Placement, PlacementSource, Report};
use epwatch_runtimes::{Environment, ci_wheels, epwatch_wheel, wheels};
use epwatch_strict_collector::Collector;

pub(crate) const KEY: &str = "demo-key";

pub(crate) fn crate_file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub(crate) fn model(name: &str) -> PathBuf {
    crate_file("../../tests/fixtures/models").join(name)
}

/// A new folder below cargo's for tests.
pub(crate) fn new_folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Packs the wheel of the library that cargo has built next to this executable, once. Returns its path.
pub(crate) fn wheel() -> &'static Path {
    static WHEEL: OnceLock<PathBuf> = OnceLock::new();
    WHEEL.get_or_init(|| epwatch_wheel(&new_folder("wheel")))
}

/// A Python environment with the wheel and some packages.
fn environment_with(name: &str, wheels: &[&Path], packages: &[&str]) -> Environment {
    let environment = Environment::new(&new_folder(name));
    let all = packages.iter().map(Path::new).chain([wheel()]);
    environment.install(wheels, all);
    environment
}

/// An environment with this version of a package, for nightly runs.
pub(crate) fn environment_of(package: &str, version: &str) -> Environment {
    let name = format!("{package}-{version}");
    let own = wheels(&crate_file(&format!("tests/requirements/{name}.txt")));
    let pinned = format!("{package}=={version}");
    let runtime = "onnxruntime";
    environment_with(&name, &[&own, &ci_wheels()], &[&pinned, runtime])
}

/// An environment with LiteRT in place of onnxruntime.
pub(crate) fn litert() -> Environment {
    let own = wheels(&crate_file("tests/requirements/litert-2.3.0.txt"));
    environment_with(
        "litert",
        &[&own, &ci_wheels()],
        &["ai-edge-litert==2.3.0", "numpy"],
    )
}

/// The environment of most tests.
pub(crate) fn environment() -> &'static Environment {
    static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| {
        let packages = ["onnxruntime==1.31.1", "pytest", "mypy", "gunicorn"];
        environment_with("environment", &[&ci_wheels()], &packages)
    })
}

/// A program of Python, without the variables of this process that Python or epwatch read.
pub(crate) fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(env!("CARGO_TARGET_TMPDIR"));
    for (name, _) in
        env::vars().filter(|(name, _)| name.starts_with("PYTHON") || name.starts_with("EPWATCH_"))
    {
        command.env_remove(name);
    }
    // Cargo's library path would make Python find libraries of the tests.
    command.env_remove("LD_LIBRARY_PATH");
    command
}

/// Python with the settings of an app, whose data is in this folder.
pub(crate) fn app(collector: &Collector, environment: &Environment, folder: &Path) -> Command {
    let mut python = command(&environment.program("python"));
    python
        .env("EPWATCH_APP", "com.example.robot")
        .env("EPWATCH_ENDPOINT", collector.endpoint())
        .env("EPWATCH_KEY", KEY)
        .env("EPWATCH_FOLDER", folder.join("data"))
        .env("EPWATCH_CONSENT", "yes")
        .stdin(Stdio::null());
    python
}

/// Runs one of the programs to its end against a collector; returns its output and the reports that arrived.
pub(crate) fn run_in(
    environment: &Environment,
    program: &str,
    args: &[&Path],
) -> (String, Vec<Report>) {
    let collector = Collector::start(KEY);
    let printed = run_with(&collector, environment, program, args);
    (printed, collector.reports())
}

/// Runs one of the programs to its end against this collector, and returns its output.
pub(crate) fn run_with(
    collector: &Collector,
    environment: &Environment,
    program: &str,
    args: &[&Path],
) -> String {
    let folder = tempfile::tempdir().unwrap();
    let ran = app(collector, environment, folder.path())
        .arg(crate_file("tests/programs").join(program))
        .args(args)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    let printed = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.status.success(), "{program}: {printed}\n{said}");
    printed
}

pub(crate) fn run(program: &str, args: &[&Path]) -> (String, Vec<Report>) {
    run_in(environment(), program, args)
}

pub(crate) fn n_runs(reports: &[Report]) -> u64 {
    reports.iter().flat_map(|r| &r.series).map(|s| s.n).sum()
}

/// Checks a placement that the app has read: XNNPACK has these nodes in two partitions, and the CPU has one of this op.
#[track_caller]
pub(crate) fn check_xnnpack(placement: &Placement, nodes: u32, cpu_op: &str) {
    assert_eq!(placement.source, PlacementSource::Host);
    let asked = placement.asked().map(|asked| asked.accelerator);
    assert_eq!(asked, Some(Accelerator::Xnnpack));
    let counts = (
        placement.n_npu_nodes(),
        placement.n_npu_partitions(),
        placement.n_cpu_nodes(),
    );
    assert_eq!(counts, (nodes, 2, 1));
    assert_eq!(placement.cpu_ops(), [cpu_op]);
}
