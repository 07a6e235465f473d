//! How each engine comes: npm for libchdb, pip for onnxruntime and its QNN plugin, apt for
//! Alertmanager and ZooKeeper. The package managers' own settings (registry, proxy, certificates) apply.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    EngineError, Progress,
    command::{self, DOWNLOAD_TIMEOUT, Purpose, UNPACK_TIMEOUT},
    entry::{self, Staging},
    pins::{Plan, Source},
};

/// Downloads and unpacks what `plan` names; returns the version it got.
pub(crate) fn fetch(
    plan: &Plan,
    staging: &Staging<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<String, EngineError> {
    match &plan.source {
        Source::Npm { package } => npm(plan, package, staging, progress)?,
        Source::Pip {
            package,
            platforms,
            keep,
        } => {
            pip(plan, package, platforms, keep, staging, progress)?;
        }
        Source::Apt { packages } => return apt(plan, packages, staging, progress),
    }
    Ok(plan.version.to_owned())
}

fn npm(
    plan: &Plan,
    package: &str,
    staging: &Staging<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), EngineError> {
    let mut pack = Command::new("npm");
    pack.args([
        "pack",
        "--ignore-scripts",
        "--no-update-notifier",
        "--loglevel=error",
    ]);
    // Its log would be in the work folder, which is gone when the user goes to look.
    pack.arg("--logs-max=0");
    // Offline, npm's defaults take over a minute to say so.
    pack.args([
        "--fetch-retry-mintimeout=1000",
        "--fetch-retry-maxtimeout=5000",
    ]);
    // A cache of its own: its growth is the progress, and 180 MB do not stay in the user's.
    pack.arg("--cache").arg(staging.work.join("npm-cache"));
    pack.arg(format!("{package}@{}", plan.version));
    download(pack, plan, staging, npm_hint(&plan.name), progress)?;

    progress(Progress::Unpacking {
        name: plan.name.clone(),
    });
    let archive = entry::find_one(&plan.name, staging.work, "*.tgz", |name| {
        name.ends_with(".tgz")
    })?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf")
        .arg(&archive)
        .args(["--no-same-owner", "-C"])
        .arg(staging.work);
    let hint = Hint {
        install: "install tar".to_owned(),
        way_out: damaged_archive(&plan.name),
    };
    unpack(tar, plan, staging, &hint)?;
    // The package also holds a Node binding; the library alone is what epwatch loads.
    let unpacked = staging.work.join("package");
    let library = plan.pins[0].path;
    rename(&unpacked.join(library), &staging.out.join(library))
}

fn pip(
    plan: &Plan,
    package: &str,
    platforms: &[&str],
    keep: &[&str],
    staging: &Staging<'_>,
    progress: &mut dyn FnMut(Progress),
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
    // Nothing is installed, so a user's rule against installing outside a venv has no say.
    download_wheel.env("PIP_REQUIRE_VIRTUALENV", "0");
    download(
        download_wheel,
        plan,
        staging,
        pip_hint(&plan.name),
        progress,
    )?;

    progress(Progress::Unpacking {
        name: plan.name.clone(),
    });
    let wheel = entry::find_one(&plan.name, staging.work, "*.whl", |name| {
        name.ends_with(".whl")
    })?;
    let unpacked = staging.work.join("unpacked");
    let mut unzip = Command::new(python());
    unzip
        .args(["-m", "zipfile", "-e"])
        .arg(&wheel)
        .arg(&unpacked);
    let hint = Hint {
        way_out: damaged_archive(&plan.name),
        ..pip_hint(&plan.name)
    };
    unpack(unzip, plan, staging, &hint)?;
    for folder in keep {
        keep_libraries(&unpacked.join(folder), &staging.out.join(folder))?;
    }
    Ok(())
}

fn apt(
    plan: &Plan,
    packages: &[&str],
    staging: &Staging<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<String, EngineError> {
    let get = || {
        let mut get = Command::new("apt-get");
        get.args(["download", "-q"]).args(packages);
        get
    };
    if let Err(error) = download(get(), plan, staging, apt_hint(&plan.name), progress) {
        // A fresh container has no package lists; only root can get them.
        if !matches!(error, EngineError::CommandFailed { .. }) || !is_root() {
            return Err(error);
        }
        let mut update = Command::new("apt-get");
        update.args(["update", "-q"]);
        download(update, plan, staging, apt_hint(&plan.name), progress)?;
        download(get(), plan, staging, apt_hint(&plan.name), progress)?;
    }

    progress(Progress::Unpacking {
        name: plan.name.clone(),
    });
    let unpacked = staging.work.join("unpacked");
    let mut version = None;
    for package in packages {
        let begin = format!("{package}_");
        let is_it = |name: &str| name.starts_with(&begin) && name.ends_with(".deb");
        let archive = entry::find_one(&plan.name, staging.work, "*.deb", is_it)?;
        let mut extract = Command::new("dpkg-deb");
        extract.arg("-x").arg(&archive).arg(&unpacked);
        unpack(extract, plan, staging, &apt_hint(&plan.name))?;
        version = version.or_else(|| Some(deb_version(&archive)));
    }
    for pin in &plan.pins {
        rename(&followed(&unpacked, pin.path)?, &staging.out.join(pin.path))?;
    }
    Ok(version.unwrap_or_default())
}

/// The file itself: jars are often links to the one with the version in its name.
fn followed(unpacked: &Path, path: &str) -> Result<PathBuf, EngineError> {
    let real = |path: &Path| fs::canonicalize(path).map_err(EngineError::io("find", path));
    let file = real(&unpacked.join(path))?;
    if file.starts_with(real(unpacked)?) {
        return Ok(file);
    }
    // A link out of the package names a file of the machine, which is not ours to move.
    let outside = io::Error::other("it is a link out of its package");
    Err(EngineError::io("find", file)(outside))
}

/// Debian's file name is `<package>_<version>_<arch>.deb`, with `:` of an epoch as `%3a`.
fn deb_version(archive: &Path) -> String {
    let stem = archive.file_stem().unwrap_or_default().to_string_lossy();
    stem.split('_')
        .nth(1)
        .unwrap_or("unknown")
        .replace("%3a", ":")
}

/// No libc for one number: `/proc/self` belongs to the process's user.
fn is_root() -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
    }
    #[cfg(not(unix))]
    false
}

fn python() -> &'static str {
    if cfg!(windows) { "python" } else { "python3" }
}

struct Hint {
    install: String,
    way_out: String,
}

impl Hint {
    fn purpose<'a>(&'a self, plan: &'a Plan) -> Purpose<'a> {
        Purpose {
            name: &plan.name,
            install: &self.install,
            way_out: &self.way_out,
        }
    }
}

/// Every failure has the same second way out: a cache filled elsewhere.
fn filled_cache(name: &str) -> String {
    format!(
        "set EPWATCH_CACHE to a folder that holds {name}/ \
         (copied from a machine where `epwatch engines fetch` worked)"
    )
}

fn npm_hint(name: &str) -> Hint {
    let filled = filled_cache(name);
    Hint {
        install: format!(
            "install npm (Debian, Ubuntu: `apt-get install npm`; macOS: `brew install node`), or {filled}"
        ),
        way_out: format!("check that npm reaches its registry (`npm ping`), or {filled}"),
    }
}

fn pip_hint(name: &str) -> Hint {
    let filled = filled_cache(name);
    Hint {
        install: format!(
            "install Python 3.9 or later with pip (Debian, Ubuntu: `apt-get install python3-pip`; \
             macOS: `brew install python`), or {filled}"
        ),
        way_out: format!(
            "check that pip reaches its index (`pip index versions pip`), or {filled}"
        ),
    }
}

fn apt_hint(name: &str) -> Hint {
    let filled = filled_cache(name);
    Hint {
        install: format!("it comes from Debian's or Ubuntu's packages; elsewhere {filled}"),
        way_out: format!("run `apt-get update` as root, or {filled}"),
    }
}

fn damaged_archive(name: &str) -> String {
    format!(
        "the archive is damaged or the disk is full; try again, or {}",
        filled_cache(name)
    )
}

fn download(
    command: Command,
    plan: &Plan,
    staging: &Staging<'_>,
    hint: Hint,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), EngineError> {
    let mut last = 0;
    command::run(
        command,
        staging.work,
        DOWNLOAD_TIMEOUT,
        hint.purpose(plan),
        &mut || {
            let bytes = entry::tree_bytes(staging.work);
            if bytes != last {
                last = bytes;
                progress(Progress::Downloading {
                    name: plan.name.clone(),
                    bytes,
                });
            }
        },
    )
}

fn unpack(
    command: Command,
    plan: &Plan,
    staging: &Staging<'_>,
    hint: &Hint,
) -> Result<(), EngineError> {
    command::run(
        command,
        staging.work,
        UNPACK_TIMEOUT,
        hint.purpose(plan),
        &mut || (),
    )
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
