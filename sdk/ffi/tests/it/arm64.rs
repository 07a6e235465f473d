//! The SDK's unit tests and the runner on arm64 Linux, as on a robot, under qemu's user mode, with the ONNX Runtime of arm64.
//!
//! Needs Debian's `qemu-user`, `gcc-aarch64-linux-gnu` and `libc6-dev-arm64-cross`, and rustup's target.

use std::{fs, io::Write, os::unix::fs::symlink, path::Path, process::Command};

use epwatch_runtimes::{is_nightly, onnxruntime_arm64, tool};
use serde_json::Value;

use crate::c::crate_file;

/// A processor's lines in arm64 Linux's list, after its number. qemu shows programs the host's list, and ONNX Runtime
/// crashes on it.
const PROCESSOR: &str = "\
Features\t: fp asimd aes pmull sha1 sha2 crc32 atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd0b
CPU revision\t: 0
";

/// Makes the folder whose files a program under qemu sees instead of the files of the host.
fn make_root(root: &Path) {
    let _ = fs::remove_dir_all(root);
    fs::create_dir_all(root.join("proc")).unwrap();
    let processors = [0, 1].map(|number| format!("processor\t: {number}\n{PROCESSOR}\n"));
    fs::write(root.join("proc/cpuinfo"), processors.concat()).unwrap();
    symlink("/usr/aarch64-linux-gnu/lib", root.join("lib")).unwrap();
}

/// A call of cargo for arm64, in a folder of its own: another run of cargo must not wait for it.
fn cargo(words: &[&str], target: &Path) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(words)
        .args(["--locked", "--target", "aarch64-unknown-linux-gnu"])
        .current_dir(crate_file("../.."))
        .env("CARGO_TARGET_DIR", target)
        .env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER",
            "aarch64-linux-gnu-gcc",
        );
    cargo
}

/// Whole launches, each a process of its own, on the CPU that qemu plays.
#[test]
fn the_runner_works_on_arm64() {
    if !is_nightly("the runner on arm64 Linux under qemu") {
        return;
    }
    let target = crate_file("../../target/arm64");
    let built = cargo(&["build", "-p", "epwatch-run"], &target).output();
    let built = built.unwrap();
    let err = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{err}");
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    make_root(&root);
    let preloaded = folder.path().join("started_by_qemu.so");
    let compiled = tool("aarch64-linux-gnu-gcc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&preloaded)
        .arg(crate_file("tests/it/started_by_qemu.c"))
        .status();
    assert!(compiled.unwrap().success());
    let out = folder.path().join("launches");
    let ran = tool("qemu-aarch64")
        .arg(target.join("aarch64-unknown-linux-gnu/debug/epwatch-run"))
        .arg(crate_file("../../tests/fixtures/models/d_mlp.fp32.onnx"))
        .arg("--ort")
        .arg(onnxruntime_arm64())
        .args(["--launches", "2", "--runs", "21", "--steady-seconds", "0"])
        .arg("--out")
        .arg(&out)
        .env("QEMU_CPU", "cortex-a76")
        .env("QEMU_LD_PREFIX", &root)
        .env(
            "QEMU_SET_ENV",
            format!("LD_PRELOAD={}", preloaded.display()),
        )
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{err}");
    for name in ["candidate-001.json", "candidate-002.json"] {
        let launch: Value = serde_json::from_slice(&fs::read(out.join(name)).unwrap()).unwrap();
        let os = launch["target"]["os"].as_str().unwrap();
        assert!(os.contains("arm64"), "{launch:#}");
        assert_eq!(launch["runtime"]["ort"], "1.31.1", "{launch:#}");
        assert_eq!(launch["runs_us"].as_array().unwrap().len(), 24);
        assert!(launch["load_us"].as_u64().unwrap() > 0, "{launch:#}");
        // Both sessions are of the same CPU.
        assert_eq!(launch["outputs"]["max_abs"], 0.0, "{launch:#}");
        let placement = &launch["placement"];
        assert_eq!(placement["session"], "ok", "{launch:#}");
        assert!(
            placement["eps"]["CPUExecutionProvider"]["nodes"]
                .as_u64()
                .unwrap()
                > 0
        );
        let profile = &launch["profile"];
        assert_eq!(profile["files"][0], "candidate-ort-profile.json");
        assert!(
            profile["nodes"][0]["share"].as_f64().unwrap() > 0.0,
            "{profile:#}"
        );
    }
}

#[test]
fn the_sdk_works_on_arm64() {
    if !is_nightly("the SDK's unit tests on arm64 Linux under qemu") {
        return;
    }
    let target = crate_file("../../target/arm64");
    let root = target.join("root");
    make_root(&root);
    let tested = cargo(&["test", "-p", "epwatch-sdk", "--lib"], &target)
        // This test starts its own program again. Without binfmt_misc the host's kernel starts no arm64 program.
        .args(["--", "--skip", "a_killed_process_loses_nothing_it_had_kept"])
        // The arm64 runtimes would replace this machine's in the usual cache.
        .env("EPWATCH_CACHE", target.join("cache"))
        .env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
            format!("qemu-aarch64 -cpu cortex-a76 -L {}", root.display()),
        )
        // This variable names libraries for this machine's processor.
        .env_remove("LD_LIBRARY_PATH")
        // Runs the daily number of random histories, because qemu takes ten times as long.
        .env_remove("EPWATCH_NIGHTLY")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&tested.stdout);
    let err = String::from_utf8_lossy(&tested.stderr);
    assert!(tested.status.success(), "{said}\n{err}");
    let passed = said.lines().find(|line| line.contains("test result: ok."));
    let passed = format!("arm64: {}\n", passed.unwrap());
    // Not `println!`, whose lines are hidden where the test passes.
    std::io::stderr().write_all(passed.as_bytes()).unwrap();
}
