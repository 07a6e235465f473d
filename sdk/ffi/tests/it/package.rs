//! The library as a package: installed by its recipe, moved, and used from outside the tree by CMake and pkg-config.

use std::{fs, path::Path, process::Command};

use epwatch_runtimes::tool;
use epwatch_strict_collector::Collector;

use crate::{
    c::{KEY, crate_file, library_folder, n_runs},
    guide::{Guide, given},
};

/// Runs a program to its end, and returns its output.
#[track_caller]
fn done(command: &mut Command) -> String {
    let ran = command.output().unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success(), "{command:?}\n{out}\n{err}");
    out.into_owned()
}

/// Installs the tests' library, and moves the package.
fn installed(into: &Path) -> std::path::PathBuf {
    let (first, prefix) = (into.join("first"), into.join("opt"));
    let library = library_folder().join("libepwatch.so");
    done(
        Command::new(crate_file("install"))
            .arg(&first)
            .arg("--library")
            .arg(library),
    );
    fs::rename(first, &prefix).unwrap();
    prefix
}

#[test]
fn a_cmake_project_outside_the_tree_reports() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = installed(folder.path());
    let (source, build) = (folder.path().join("camera"), folder.path().join("build"));
    fs::create_dir(&source).unwrap();
    for file in ["CMakeLists.txt", "camera.cpp", "version.c"] {
        fs::copy(crate_file("tests/package").join(file), source.join(file)).unwrap();
    }
    done(
        tool("cmake")
            .args(["-S".as_ref(), source.as_os_str()])
            .args(["-B".as_ref(), build.as_os_str()])
            .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())),
    );
    done(tool("cmake").arg("--build").arg(&build));
    done(&mut Command::new(build.join("version")));
    let collector = Collector::start(KEY);
    let printed = done(
        Command::new(build.join("camera"))
            .arg(collector.endpoint())
            .arg(folder.path().join("data")),
    );
    assert!(printed.contains("app id"), "{printed}");
    let reports = collector.reports();
    assert_eq!(n_runs(&reports), 12);
    let errors = reports.iter().flat_map(|report| &report.run_errors);
    let codes: Vec<_> = errors.map(|error| error.ort_status_code).collect();
    assert_eq!(codes, [1, 6]);
}

/// From an empty folder to the first report, by the document's program and commands.
#[test]
fn the_first_contact_of_the_guide_leads_to_a_report() {
    let section = Guide::read("c.md").section("## First contact");
    let folder = tempfile::tempdir().unwrap();
    let prefix = installed(folder.path());
    let collector = Collector::start(KEY);
    let program = given(
        section.block("c"),
        "http://127.0.0.1:4717",
        &collector.endpoint(),
    );
    let commands = given(
        section.block("sh"),
        "/opt/epwatch",
        prefix.to_str().unwrap(),
    );
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    fs::write(empty.join("first.c"), program).unwrap();
    let mut shell = Command::new("sh");
    let printed = done(shell.args(["-e", "-c", &commands]).current_dir(&empty));
    assert!(printed.contains("\"last_upload\":{"), "{printed}");
    assert_eq!(n_runs(&collector.reports()), 100);
}

/// Regression test: the guide's command made a program that did not start.
#[test]
fn a_program_linked_by_pkg_config_starts() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = installed(folder.path());
    let flags = done(
        tool("pkg-config")
            .args(["--cflags", "--libs", "epwatch"])
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")),
    );
    let program = folder.path().join("version");
    done(
        Command::new("cc")
            .arg(crate_file("tests/package/version.c"))
            .arg("-o")
            .arg(&program)
            .args(flags.split_whitespace()),
    );
    done(&mut Command::new(program));
}
