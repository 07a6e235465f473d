//! The SDK's unit tests on arm64 Linux, as on a robot, under qemu's user mode.
//!
//! Needs Debian's `qemu-user`, `gcc-aarch64-linux-gnu` and `libc6-dev-arm64-cross`, and rustup's target.

use std::{io::Write, process::Command};

use epwatch_runtimes::is_nightly;

use crate::c::crate_file;

#[test]
fn the_sdk_works_on_arm64() {
    if !is_nightly("the SDK's unit tests on arm64 Linux under qemu") {
        return;
    }
    let tested = Command::new(env!("CARGO"))
        .args(["test", "--locked", "-p", "epwatch-sdk", "--lib"])
        .args(["--target", "aarch64-unknown-linux-gnu"])
        .current_dir(crate_file("../.."))
        // A folder of its own: another run of cargo must not wait for this one.
        .env("CARGO_TARGET_DIR", crate_file("../../target/arm64"))
        .env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER",
            "aarch64-linux-gnu-gcc",
        )
        .env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
            "qemu-aarch64 -L /usr/aarch64-linux-gnu",
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
