//! The package in one process with torch, whose libraries bring threads and symbols of their own.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
};

use epwatch_runtimes::is_nightly;
use epwatch_strict_collector::Collector;

use crate::environment::{KEY, app, crate_file, environment, model, n_runs};

/// The folders below this one that hold shared libraries. Python finds its own.
fn library_folders(folder: &Path) -> BTreeSet<PathBuf> {
    let (mut found, mut open) = (BTreeSet::new(), vec![folder.to_owned()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let name = entry.file_name();
            if entry.file_type().unwrap().is_dir() && name != "python3" {
                open.push(entry.path());
            } else if name.to_string_lossy().contains(".so.") {
                found.insert(folder.clone());
            }
        }
    }
    found
}

#[test]
fn beside_torch_outputs_are_the_same_and_one_report_arrives() {
    if !is_nightly("the Python package beside torch") {
        return;
    }
    let Some(root) = epwatch_runtimes::torch() else {
        return;
    };
    let libraries = env::join_paths(library_folders(&root)).unwrap();
    let packages = Path::new("usr/lib/python3/dist-packages");
    let packages = env::join_paths([root.join(packages), Path::new("/").join(packages)]).unwrap();
    let of = |imports: &str| {
        let (folder, collector) = (tempfile::tempdir().unwrap(), Collector::start(KEY));
        let ran = app(&collector, environment(), folder.path())
            .arg(crate_file("tests/programs/beside_torch.py"))
            .arg(model("d_mlp.fp32.onnx"))
            .arg(imports)
            .env("PYTHONPATH", &packages)
            .env("LD_LIBRARY_PATH", &libraries)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{imports}: {said}");
        (String::from_utf8(ran.stdout).unwrap(), collector.reports())
    };
    let (expected, none) = of("torch,onnxruntime");
    assert_eq!((expected.len(), none.len()), (65, 0));
    for imports in [
        "torch,onnxruntime,epwatch",
        "onnxruntime,torch,epwatch",
        "epwatch,onnxruntime,torch",
        "epwatch,torch,onnxruntime",
    ] {
        let (printed, reports) = of(imports);
        assert_eq!(printed, expected, "{imports}");
        assert_eq!((reports.len(), n_runs(&reports)), (1, 20), "{imports}");
    }
}
