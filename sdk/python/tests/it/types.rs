//! The package and a program that uses it are clean under mypy's strict rules.

use std::path::Path;

use crate::environment::{command, crate_file, environment};

#[track_caller]
fn check(folder: &Path, source: &str) {
    let ran = command(&environment().program("python"))
        .args(["-m", "mypy", "--strict", "--python-version", "3.10"])
        .args(["--cache-dir=/dev/null", source])
        .current_dir(folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{source}: {said}");
    assert!(said.contains("no issues found"), "{source}: {said}");
}

#[test]
fn the_package_is_clean_under_mypy_and_so_is_its_user() {
    check(&crate_file(""), "epwatch");
    check(&crate_file(""), "epwatch_pytest.py");
    // The installed package: `py.typed` has mypy read its types.
    check(&crate_file("tests/programs"), "typed.py");
    check(&crate_file("examples"), "ros_node.py");
}
