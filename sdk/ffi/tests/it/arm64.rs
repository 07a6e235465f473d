//! The SDK's unit tests on arm64 Linux, as on a robot, under qemu's user mode, with the ONNX Runtime of arm64.
//!
//! Needs Debian's `qemu-user`, `gcc-aarch64-linux-gnu` and `libc6-dev-arm64-cross`, and rustup's target.

use std::{fs, io::Write, os::unix::fs::symlink, path::Path, process::Command};

use epwatch_runtimes::is_nightly;

use crate::c::crate_file;

/// A processor as arm64 Linux lists it after its number. qemu shows programs the list of its host, which ONNX Runtime does
/// not survive.
const PROCESSOR: &str = "\
Features\t: fp asimd aes pmull sha1 sha2 crc32 atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd0b
CPU revision\t: 0
";

/// Makes the folder whose files a program under qemu sees instead of the host's.
fn make_root(root: &Path) {
    let _ = fs::remove_dir_all(root);
    fs::create_dir_all(root.join("proc")).unwrap();
    let processors = [0, 1].map(|number| format!("processor\t: {number}\n{PROCESSOR}\n"));
    fs::write(root.join("proc/cpuinfo"), processors.concat()).unwrap();
    symlink("/usr/aarch64-linux-gnu/lib", root.join("lib")).unwrap();
}

#[test]
fn the_sdk_works_on_arm64() {
    if !is_nightly("the SDK's unit tests on arm64 Linux under qemu") {
        return;
    }
    let target = crate_file("../../target/arm64");
    let root = target.join("root");
    make_root(&root);
    let tested = Command::new(env!("CARGO"))
        .args(["test", "--locked", "-p", "epwatch-sdk", "--lib"])
        .args(["--target", "aarch64-unknown-linux-gnu"])
        // It starts itself, and without binfmt_misc the host's kernel takes no program of arm64.
        .args(["--", "--skip", "a_killed_process_loses_nothing_it_had_kept"])
        .current_dir(crate_file("../.."))
        // A folder of its own: another run of cargo must not wait for this one.
        .env("CARGO_TARGET_DIR", &target)
        // Its runtimes would take the place of this machine's.
        .env("EPWATCH_CACHE", target.join("cache"))
        .env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER",
            "aarch64-linux-gnu-gcc",
        )
        .env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
            format!("qemu-aarch64 -cpu cortex-a76 -L {}", root.display()),
        )
        // It names libraries of this machine's processor.
        .env_remove("LD_LIBRARY_PATH")
        // A day's number of made-up lives: qemu takes ten times as long.
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
