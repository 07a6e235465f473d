//! ExecuTorch: the placement of a recorded run, and the example with the real wheel.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use epwatch_proto::Report;
use epwatch_runtimes::{is_nightly, packages, tool};
use epwatch_strict_collector::Collector;
use serde_json::Value;

use crate::environment::{app, check_xnnpack, crate_file, environment, n_runs, new_folder, run};

fn recorded(name: &str) -> PathBuf {
    crate_file("../../tests/fixtures/executorch").join(name)
}

/// Checks the only session: XNNPACK has four ops in two partitions, and the CPU has one.
#[track_caller]
fn check(reports: &[Report]) {
    let report = reports.first().unwrap();
    assert_eq!(report.runtime.ort_version, "ExecuTorch 1.5.1");
    let placement = &report.sessions[0].placement;
    check_xnnpack(placement, 4, "aten.cumsum.default");
    assert_eq!(n_runs(reports), 20);
}

#[test]
fn a_recorded_run_gives_the_placement() {
    let files = [recorded("scenes.etdp"), recorded("scenes.json")];
    let (printed, reports) = run(
        "executorch_recorded.py",
        &files.each_ref().map(|file| &**file),
    );
    assert!(printed.ends_with("as expected\n"), "{printed}");
    check(&reports);
}

/// PyTorch on PyPI is built for NVIDIA's GPUs, and its libraries need NVIDIA's by name. Without a GPU it calls only two of
/// them. The others are empty here, and functions are looked up at their first call.
struct PyTorch {
    packages: PathBuf,
    /// The empty libraries.
    empty: PathBuf,
}

const EMPTY: [&str; 11] = [
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcudnn.so.9",
    "libcufft.so.12",
    "libcufile.so.0",
    "libcurand.so.10",
    "libcusparse.so.12",
    "libcusparseLt.so.0",
    "libnccl.so.2",
    "libnvrtc.so.13",
    "libnvshmem_host.so.3",
];

impl PyTorch {
    fn new() -> Self {
        let empty = new_folder("executorch-libraries");
        for name in EMPTY {
            let mut cc = tool("cc");
            cc.args(["-shared", "-x", "c", "/dev/null"]);
            cc.arg(format!("-Wl,-soname,{name}"));
            let made = cc.arg("-o").arg(empty.join(name)).status().unwrap();
            assert!(made.success(), "{name}");
        }
        let lazily = "import os, sys\nsys.setdlopenflags(os.RTLD_LAZY)\n";
        fs::write(empty.join("sitecustomize.py"), lazily).unwrap();
        Self {
            packages: packages(&crate_file("tests/requirements/executorch-1.5.1.txt")),
            empty,
        }
    }

    /// Lets a program of Python import PyTorch and ExecuTorch.
    fn add_to(&self, python: &mut Command) {
        let folders = [&self.empty, &self.packages];
        python.env("PYTHONPATH", env::join_paths(folders).unwrap());
        let nvidia = self.packages.join("nvidia/cu13/lib");
        let folders = [&self.empty, &nvidia];
        python.env("LD_LIBRARY_PATH", env::join_paths(folders).unwrap());
    }
}

#[track_caller]
fn printed(python: &mut Command) -> String {
    let ran = python.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    String::from_utf8(ran.stdout).unwrap()
}

/// With `EPWATCH_BLESS` the run becomes the recorded one.
#[test]
fn the_example_runs_with_the_real_wheel_as_it_was_recorded() {
    if !is_nightly("ExecuTorch's own wheel in Python, with PyTorch: 613 MB") {
        return;
    }
    let (torch, folder) = (PyTorch::new(), tempfile::tempdir().unwrap());
    let collector = Collector::start(crate::environment::KEY);
    let python = |program: &str, args: &[&Path]| {
        let mut python = app(&collector, environment(), folder.path());
        torch.add_to(&mut python);
        python.arg(crate_file(program)).args(args);
        python
    };
    let mut example = python("examples/executorch_app.py", &[folder.path()]);
    let explained = printed(&mut example);
    assert!(explained.contains("aten.cumsum.default"), "{explained}");
    check(&collector.reports());
    let files = ["scenes.etdp", "scenes.etrecord"].map(|name| folder.path().join(name));
    let args = files.each_ref().map(|file| &**file);
    let events = printed(&mut python("tests/programs/executorch_events.py", &args));
    if env::var_os("EPWATCH_BLESS").is_some() {
        fs::write(recorded("scenes.json"), &events).unwrap();
        fs::copy(&files[0], recorded("scenes.etdp")).unwrap();
    }
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let expected = fs::read_to_string(recorded("scenes.json")).unwrap();
    assert_eq!(parsed(&events), parsed(&expected));
}
