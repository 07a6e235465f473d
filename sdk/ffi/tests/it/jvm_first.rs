//! From an empty folder to the first report on a JVM, by the files and commands of docs/android.md.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use epwatch_runtimes::is_nightly;

use crate::{
    c::{crate_file, library_folder, n_runs},
    guide::{Guide, given},
    jvm::Receiver,
};

/// Maven's cache with a separate folder for installed artifacts, so that the user's own repository stays unchanged.
fn own_repository(into: &Path) {
    let cache = Path::new(&std::env::var_os("HOME").unwrap()).join(".m2/repository");
    fs::create_dir(into).unwrap();
    for group in fs::read_dir(cache).into_iter().flatten() {
        let group = group.unwrap();
        if group.file_name() != "dev" {
            symlink(group.path(), into.join(group.file_name())).unwrap();
        }
    }
}

#[test]
fn the_first_contact_of_the_guide_leads_to_a_report() {
    if !is_nightly("the first program of docs/android.md, from an empty folder (Maven)") {
        return;
    }
    let section = Guide::read("android.md").section("## First contact on a JVM");
    let folder = tempfile::tempdir().unwrap();
    let (app, maven) = (folder.path().join("camera"), folder.path().join("maven"));
    own_repository(&maven);
    symlink(crate_file("../.."), folder.path().join("epwatch")).unwrap();
    let receiver = Receiver::start();
    let program = given(
        section.block("kotlin"),
        "http://127.0.0.1:4717",
        &receiver.endpoint,
    );
    fs::create_dir_all(app.join("src/main/kotlin")).unwrap();
    fs::write(app.join("pom.xml"), section.block("xml")).unwrap();
    fs::write(app.join("src/main/kotlin/First.kt"), program).unwrap();
    // The test has built the library already.
    let (build, commands) = section.block("sh").split_once('\n').unwrap();
    assert!(
        build.starts_with("cargo build --release -p epwatch-ffi"),
        "{build}"
    );
    let built = library_folder();
    let commands = given(
        commands,
        "../epwatch/target/release",
        built.to_str().unwrap(),
    );
    let output = folder.path().join("output");
    let commands = given(&commands, "/tmp/epwatch-jvm", output.to_str().unwrap());
    let ran = Command::new("sh")
        .args(["-e", "-c", &commands])
        .env(
            "MAVEN_OPTS",
            format!("-Dmaven.repo.local={}", maven.display()),
        )
        .current_dir(&app)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&ran.stdout);
    let err = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{out}\n{err}");
    assert!(
        out.contains("SENT\n") && out.contains("\"source\":\"assignment_api\""),
        "{out}"
    );
    assert_eq!(n_runs(&receiver.reports()), 100);
}
