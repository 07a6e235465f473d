//! The library as a package: installed by its recipe, moved, and used from outside the tree by CMake and pkg-config.

use std::{fs, path::Path, process::Command};

use epwatch_runtimes::tool;
use epwatch_strict_collector::Collector;

use crate::c::{KEY, crate_file, library_folder, n_runs};

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

/// The line of the guide gave a program that did not start.
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
