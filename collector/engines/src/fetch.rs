//! Fetches an engine's package: libchdb by npm, onnxruntime and its QNN plugin by pip. The package managers' own
//! settings (registry, proxy, certificates) apply.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    EngineError,
    command::{self, DOWNLOAD_TIMEOUT, Purpose, UNPACK_TIMEOUT},
    entry::{self, Staging},
    pins::{Plan, Source},
    programs::{self, python},
    progress::FetchProgress,
    resume,
};

/// Downloads the package of `plan` and unpacks it into `staging.out`.
pub(crate) fn fetch(
    plan: &Plan,
    staging: &Staging<'_>,
    progress: &FetchProgress,
) -> Result<(), EngineError> {
    programs::check(&[plan])?;
    let size = entry::megabytes(plan.download_bytes);
    progress.say(&format!(
        "fetching {} ({size}), {}",
        plan.name, plan.purpose
    ));
    match &plan.source {
        Source::Npm { package } => npm(plan, package, staging, progress),
        Source::Pip {
            package,
            platforms,
            keep,
        } => pip(plan, package, platforms, keep, staging, progress),
    }
}

fn npm(
    plan: &Plan,
    package: &str,
    staging: &Staging<'_>,
    progress: &FetchProgress,
) -> Result<(), EngineError> {
    let package = format!("{package}@{}", plan.version);
    let purpose = purpose(&plan.name, INSTALL_NPM, REACH_NPM);
    let view = npm_command(&["view", "--json", &package, "dist.tarball"], staging);
    let archive = match resume::download(view, plan, staging, &purpose, progress)? {
        Some(archive) => archive,
        None => {
            let pack = npm_command(&["pack", "--ignore-scripts", &package], staging);
            download(pack, plan, staging, &purpose, progress)?;
            find_archive(plan, staging, "tgz")?
        }
    };
    progress.end(plan);

    progress.say(&format!("unpacking {}", plan.name));
    let mut tar = Command::new("tar");
    tar.arg("-xzf")
        .arg(&archive)
        .args(["--no-same-owner", "-C"])
        .arg(staging.work);
    unpack(tar, staging, &self::purpose(&plan.name, "tar", DAMAGED))?;
    // The package also holds a Node binding; the library alone is what epwatch loads.
    let unpacked = staging.work.join("package");
    let library = plan.pins[0].path;
    rename(&unpacked.join(library), &staging.out.join(library))
}

/// Returns an npm command with the settings that all calls share.
fn npm_command(words: &[&str], staging: &Staging<'_>) -> Command {
    let mut npm = Command::new("npm");
    npm.args(words);
    // The log of npm would be useless, because it is in the work folder, which is removed.
    npm.args([
        "--no-update-notifier",
        "--loglevel=error",
        "--logs-max=0",
        // Offline, npm's defaults take over a minute to fail.
        "--fetch-retry-mintimeout=1000",
        "--fetch-retry-maxtimeout=5000",
    ]);
    // A separate cache, so that its growth shows the progress, and 180 MB do not stay in the user's cache.
    npm.arg("--cache").arg(staging.work.join("npm-cache"));
    npm
}

fn pip(
    plan: &Plan,
    package: &str,
    platforms: &[&str],
    keep: &[&str],
    staging: &Staging<'_>,
    progress: &FetchProgress,
) -> Result<(), EngineError> {
    let mut download_wheel = Command::new(python());
    // The tags name the wheel, so the host's own Python version does not matter.
    download_wheel.args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:"]);
    download_wheel.args([
        "--disable-pip-version-check",
        "--no-input",
        "--python-version",
        "3.11",
    ]);
    for platform in platforms {
        download_wheel.args(["--platform", platform]);
    }
    download_wheel
        .args(["--dest", "."])
        .arg(format!("{package}=={}", plan.version));
    // pip downloads into TMPDIR first: inside the work folder it counts as progress.
    download_wheel.env("TMPDIR", staging.work);
    // Nothing is installed, so a rule against installing outside a venv must not apply.
    download_wheel.env("PIP_REQUIRE_VIRTUALENV", "0");
    if resumes(staging) {
        download_wheel.args(["--resume-retries", "20"]);
    }
    let purpose_of = |way_out| purpose(&plan.name, INSTALL_PIP, way_out);
    download(
        download_wheel,
        plan,
        staging,
        &purpose_of(REACH_PIP),
        progress,
    )?;
    progress.end(plan);

    progress.say(&format!("unpacking {}", plan.name));
    let wheel = find_archive(plan, staging, "whl")?;
    let unpacked = staging.work.join("unpacked");
    let mut unzip = Command::new(python());
    unzip
        .args(["-m", "zipfile", "-e"])
        .arg(&wheel)
        .arg(&unpacked);
    unpack(unzip, staging, &purpose_of(DAMAGED))?;
    for folder in keep {
        keep_libraries(&unpacked.join(folder), &staging.out.join(folder))?;
    }
    Ok(())
}

/// Returns whether this pip continues a broken download, as it does from 25.1 on.
fn resumes(staging: &Staging<'_>) -> bool {
    let mut help = Command::new(python());
    help.args(["-m", "pip", "download", "--help"])
        .current_dir(staging.work);
    let said = help
        .output()
        .map(|output| output.stdout)
        .unwrap_or_default();
    String::from_utf8_lossy(&said).contains("--resume-retries")
}

const INSTALL_NPM: &str = "npm (Debian, Ubuntu: `apt-get install npm`; macOS: `brew install node`)";
const INSTALL_PIP: &str = "Python 3.9 or later with pip (Debian, Ubuntu: `apt-get install python3-pip`; \
                           macOS: `brew install python`)";
const REACH_NPM: &str = "check that npm reaches its registry (`npm ping`)";
const REACH_PIP: &str = "check that pip reaches its index (`pip index versions pip`)";
const DAMAGED: &str = "the archive is damaged or the disk is full; try again";

/// Adds the way out that every failure has: to import an engine that was fetched elsewhere.
fn purpose(name: &str, install: &str, way_out: &str) -> Purpose {
    let filled = format!(
        "bring {name} from a machine where `epwatch engines fetch` works: `epwatch engines export FILE` there, \
         `epwatch engines import FILE` here"
    );
    Purpose {
        name: name.to_owned(),
        install: format!("install {install}, or {filled}"),
        way_out: format!("{way_out}, or {filled}"),
    }
}

fn find_archive(
    plan: &Plan,
    staging: &Staging<'_>,
    extension: &str,
) -> Result<PathBuf, EngineError> {
    let entries = fs::read_dir(staging.work).map_err(EngineError::io("list", staging.work))?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    let is_it = |path: &PathBuf| path.extension().is_some_and(|e| e == extension);
    paths.find(is_it).ok_or_else(|| EngineError::FileMissing {
        name: plan.name.clone(),
        file: format!("*.{extension}"),
        dir: staging.work.to_owned(),
    })
}

/// Runs a command that downloads into the work folder, and reports the folder's growth.
fn download(
    command: Command,
    plan: &Plan,
    staging: &Staging<'_>,
    purpose: &Purpose,
    progress: &FetchProgress,
) -> Result<(), EngineError> {
    progress.begin(plan, 0);
    let mut report = || progress.reached(plan, entry::tree_bytes(staging.work));
    command::run(
        command,
        staging.work,
        DOWNLOAD_TIMEOUT,
        purpose,
        &mut report,
    )
}

fn unpack(command: Command, staging: &Staging<'_>, purpose: &Purpose) -> Result<(), EngineError> {
    command::run(command, staging.work, UNPACK_TIMEOUT, purpose, &mut || ())
}

/// Moves the shared libraries and licence texts of one folder of a wheel, leaving its Python.
fn keep_libraries(from: &Path, to: &Path) -> Result<(), EngineError> {
    for item in fs::read_dir(from).map_err(EngineError::io("list", from))? {
        let item = item.map_err(EngineError::io("list", from))?;
        let name = item.file_name().to_string_lossy().into_owned();
        // CPython's extension module is the one library that is of no use here.
        let is_library = (name.contains(".so") || name.contains(".dylib"))
            && !name.starts_with("onnxruntime_pybind11_state");
        if is_library || name.contains("LICENSE") || name.starts_with("ThirdPartyNotices") {
            rename(&item.path(), &to.join(name))?;
        }
    }
    Ok(())
}

fn rename(from: &Path, to: &Path) -> Result<(), EngineError> {
    let parent: PathBuf = to.parent().map(Path::to_owned).unwrap_or_default();
    fs::create_dir_all(&parent).map_err(EngineError::io("create", parent))?;
    fs::rename(from, to).map_err(EngineError::io("move", from))
}
