//! Fresh environments of Python (`venv`), and the wheels that tests install there.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use epwatch_proto::hex;
use sha2::{Digest, Sha256};

use crate::{cached, tool};

/// Versions of CPython whose wheels are pinned.
const VERSIONS: [&str; 3] = ["3.11", "3.12", "3.13"];

/// Returns a folder with the wheels of a file of requirements, each with its hashes, for the `python3` of this machine.
///
/// # Panics
/// Panics if `python3` is not a CPython with pinned wheels, or pip gets a file with another hash.
pub fn wheels(requirements: &Path) -> PathBuf {
    let ours = "import platform, sys; print(platform.python_implementation(), *sys.version_info[:2], sep='.')";
    let version = text(&Environment::run_by("python3", ["-c", ours]));
    let version = version.trim().strip_prefix("CPython.").unwrap_or(&version);
    let platform = (env::consts::OS, env::consts::ARCH);
    assert!(
        VERSIONS.contains(&version) && platform == ("linux", "x86_64"),
        "the wheels of {} are pinned for CPython {} of Linux on x86-64: python3 is {version} on {platform:?}",
        requirements.display(),
        VERSIONS.join(", ")
    );
    let given = fs::read(requirements).unwrap();
    let hash = &hex(&Sha256::digest(&given))[..12];
    let name = format!("wheels-{version}-{hash}");
    let is_whole = |folder: &Path| folder.join("whole").is_file();
    cached(&name, &is_whole, &|_, out| {
        let mut pip = tool("python3");
        pip.args([
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--require-hashes",
        ]);
        pip.args(["--only-binary=:all:", "--disable-pip-version-check", "-r"]);
        pip.arg(requirements).arg("--dest").arg(out);
        let ended = pip.status().expect("python3 starts");
        assert!(
            ended.success(),
            "pip download failed: apt-get install python3-pip, and reach its index"
        );
        fs::write(out.join("whole"), "").unwrap();
    })
}

/// Returns a folder for `PYTHONPATH` with the packages of a file of requirements, as [`wheels`] fetches them.
///
/// # Panics
/// Panics as [`wheels`] does.
pub fn packages(requirements: &Path) -> PathBuf {
    let wheels = wheels(requirements);
    let name = wheels
        .file_name()
        .unwrap()
        .to_string_lossy()
        .replace("wheels", "packages");
    let is_whole = |folder: &Path| folder.join("whole").is_file();
    cached(&name, &is_whole, &|_, out| {
        let mut pip = tool("python3");
        pip.args(["-m", "pip", "install", "-q", "--no-deps", "--no-index"]);
        pip.args(["--disable-pip-version-check", "--target"])
            .arg(out);
        let found = fs::read_dir(&wheels)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        pip.args(found.filter(|path| path.extension() == Some(OsStr::new("whl"))));
        let installed = pip.output().unwrap();
        assert!(installed.status.success(), "{}", text(&installed));
        fs::write(out.join("whole"), "").unwrap();
    })
}

/// Returns the wheels that CI installs next to the wheel of epwatch.
pub fn ci_wheels() -> PathBuf {
    wheels(&of_package("tests/requirements/ci.txt"))
}

/// Packs epwatch's wheel into a folder, with the library that cargo has built next to this executable. Returns its path.
pub fn epwatch_wheel(into: &Path) -> PathBuf {
    let folder = env::current_exe().unwrap().parent().unwrap().to_owned();
    let library = folder.join("libepwatch_native.so");
    assert!(library.exists(), "{library:?}");
    let mut python = tool("python3");
    let packed = python
        .arg(of_package("wheel.py"))
        .args([into, library.as_path()]);
    let packed = packed.output().unwrap();
    assert!(packed.status.success(), "{}", text(&packed));
    let printed = String::from_utf8(packed.stdout).unwrap();
    PathBuf::from(printed.split_once(' ').unwrap().0)
}

/// Returns the path of a file in the Python package's crate.
fn of_package(path: &str) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/python");
    package.join(path)
}

/// A separate Python environment, made by `python3 -m venv`.
#[derive(Debug)]
pub struct Environment {
    folder: PathBuf,
}

impl Environment {
    /// Makes an environment in a folder, which must be empty or new.
    pub fn new(folder: &Path) -> Self {
        let made = tool("python3")
            .args(["-m", "venv"])
            .arg(folder)
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "python3 -m venv failed: apt-get install python3-venv\n{}",
            text(&made)
        );
        Self {
            folder: folder.to_owned(),
        }
    }

    /// Installs packages, from folders of wheels only.
    pub fn install<T: AsRef<OsStr>>(
        &self,
        wheels: &[&Path],
        packages: impl IntoIterator<Item = T>,
    ) {
        let mut pip = Command::new(self.program("python"));
        pip.args([
            "-m",
            "pip",
            "install",
            "-q",
            "--no-index",
            "--disable-pip-version-check",
        ]);
        for folder in wheels {
            pip.arg("--find-links").arg(folder);
        }
        for package in packages {
            pip.arg(package);
        }
        let installed = pip.output().unwrap();
        assert!(installed.status.success(), "{}", text(&installed));
    }

    /// Returns the path of one of the environment's programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }

    fn run_by<'a>(program: &str, args: impl IntoIterator<Item = &'a str>) -> Output {
        tool(program).args(args).output().unwrap()
    }
}

/// Returns the text that a program printed.
fn text(output: &Output) -> String {
    let lines = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&lines).into_owned()
}
