//! The wheel as `.ci/dist` packs it for a release.

use std::{fs, process::Command};

use epwatch_runtimes::tool;

use crate::environment::crate_file;

/// Returns a file of a wheel.
#[track_caller]
fn file_of(wheel: &str, name: &str) -> String {
    let read = "import sys, zipfile; print(zipfile.ZipFile(sys.argv[1]).read(sys.argv[2]).decode(), end='')";
    done(tool("python3").args(["-c", read, wheel, name]))
}

#[track_caller]
fn done(command: &mut Command) -> String {
    let ran = command.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn a_wheel_of_a_release_has_its_version_and_the_licences_of_its_crates() {
    let folder = tempfile::tempdir().unwrap();
    let (library, licences) = (
        folder.path().join("library.so"),
        folder.path().join("licences"),
    );
    // The head of a library for x86-64, and the version of glibc that it needs.
    let mut bytes = vec![0; 64];
    bytes[..4].copy_from_slice(b"\x7fELF");
    bytes[18] = 62;
    bytes.extend(b"GLIBC_2.17\0");
    fs::write(&library, bytes).unwrap();
    fs::write(&licences, "a crate's licence\n").unwrap();
    let printed = done(
        tool("python3")
            .arg(crate_file("wheel.py"))
            .args([folder.path(), &library])
            .env("WHEEL_VERSION", "0.1.0+dirty")
            .env("WHEEL_LICENCES", &licences),
    );
    let (wheel, _) = printed.split_once(' ').unwrap();
    assert!(
        wheel.ends_with("/epwatch-0.1.0+dirty-cp39-abi3-manylinux_2_17_x86_64.whl"),
        "{wheel}"
    );
    let of_info = |name: &str| file_of(wheel, &format!("epwatch-0.1.0+dirty.dist-info/{name}"));
    let metadata = of_info("METADATA");
    for line in [
        "Version: 0.1.0+dirty\n",
        "License-File: LICENSE\n",
        "License-File: THIRD-PARTY-LICENCES.txt\n",
    ] {
        assert!(metadata.contains(line), "{metadata}");
    }
    assert_eq!(
        of_info("licenses/THIRD-PARTY-LICENCES.txt"),
        "a crate's licence\n"
    );
}
