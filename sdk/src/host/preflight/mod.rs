//! Pre-flight checks: why the NPU may not start on this device, found before a session is made.
//!
//! The usual causes on phones and robots are silent. The app's manifest does not declare the DSP's library, or the DSP
//! does not find its skeleton library. The back end's library is not in the package, or the runtime is older than the
//! model's export. The app is not allowed to open the driver. Each finding is a [`types::ReasonCode`] with one sentence
//! on the fix. A check reports only observed causes: if the host gives no information, there is no finding.

mod host;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use epwatch_proto::{
    ReasonCode,
    chipset::{QNN_SOC_MODEL_NAMES, SOCS, soc_by_soc_model},
    clipped,
};

use crate::types;
use host::{Host, SystemHost};

/// Folders in which the DSP searches its libraries, separated by `;`.
const LIBRARY_PATH: &str = "ADSP_LIBRARY_PATH";

/// FastRPC's newer name of this variable, which is read first.
const NEWER_LIBRARY_PATH: &str = "DSP_LIBRARY_PATH";

/// Folders of skeleton libraries in Linux distributions, found without a variable.
const LINUX_FOLDERS: [&str; 3] = ["/usr/lib/rfsa/adsp", "/usr/lib/dsp", "/dsp"];

/// Longest [`Check::seen`], in bytes.
const MAX_SEEN_BYTES: usize = 512;

/// The library through which Android's apps reach the DSP, on the vendor partition.
const RPC_LIBRARIES: [&str; 2] = [
    "/vendor/lib64/libcdsprpc.so",
    "/system/vendor/lib64/libcdsprpc.so",
];

/// The DSP's driver on Linux; a kernel has one of them.
const DRIVERS: [&str; 3] = [
    "/dev/fastrpc-cdsp",
    "/dev/fastrpc-cdsp-secure",
    "/dev/adsprpc-smd",
];

/// Kind of machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Platform {
    /// An app on a phone.
    Android,
    /// A robot or another device with a Hexagon DSP.
    Linux,
    /// A machine without a DSP, for example with the HTP emulator. Only the given facts are checked.
    Other,
}

impl Platform {
    /// The kind of machine that this program was built for. x86-64 has no Hexagon DSP.
    pub fn current() -> Self {
        match (std::env::consts::OS, std::env::consts::ARCH) {
            ("android", _) => Self::Android,
            ("linux", "aarch64") => Self::Linux,
            _ => Self::Other,
        }
    }
}

impl Default for Platform {
    fn default() -> Self {
        Self::current()
    }
}

/// Information from the host. A value that is `None` or empty is not checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PreflightFacts {
    /// Kind of machine; the default is the one that this program was built for.
    pub platform: Platform,
    /// Path of the back end as passed to the QNN EP. The system's loader finds a bare name.
    pub backend_path: PathBuf,
    /// Chipset as passed to the QNN EP, by QNN's number or name. QNN has few names, but numbers that epwatch may lack.
    pub soc_model: String,
    /// Version of the Hexagon architecture, for example 75; the default is the version that `soc_model` has.
    pub hexagon_arch: Option<u32>,
    /// Folder of the app's extracted native libraries (`applicationInfo.nativeLibraryDir`).
    pub native_library_dir: Option<PathBuf>,
    /// Whether the app's manifest has `<uses-native-library android:name="libcdsprpc.so">`. A process cannot find this
    /// out by itself.
    pub declares_rpc_library: Option<bool>,
    /// QAIRT version of the model's export, for example `2.51.0`.
    pub model_qairt: String,
    /// QAIRT version of the runtime.
    pub runtime_qairt: String,
    /// Version of the registered QNN plugin, for example `2.7.0`; empty for an EP that is built into ORT.
    pub plugin_version: String,
    /// Android's API level; the default comes from the device's facts.
    pub api_level: Option<u32>,
}

/// One cause that keeps the NPU from starting.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check {
    /// Code of the cause.
    pub reason: types::ReasonCode,
    /// The value or path that was found, at most 512 bytes.
    pub seen: String,
}

impl Check {
    /// Returns one sentence on the cause.
    pub fn meaning(&self) -> &'static str {
        self.reason.meaning()
    }

    /// Returns one sentence on the fix.
    pub fn fix(&self) -> &'static str {
        self.reason.fix()
    }
}

/// Runs all checks. Touches the disk, so do not call it on a thread that draws.
///
/// ```
/// use epwatch_sdk::preflight::{Platform, PreflightFacts, run};
///
/// let mut facts = PreflightFacts::default();
/// facts.platform = Platform::current();
/// facts.soc_model = "snapdragon".to_owned();
/// for check in run(&facts) {
///     println!("{} ({}): {}", check.meaning(), check.seen, check.fix());
/// }
/// ```
pub fn run(facts: &PreflightFacts) -> Vec<Check> {
    run_on(&SystemHost, facts)
}

fn run_on(host: &dyn Host, facts: &PreflightFacts) -> Vec<Check> {
    let checks = [
        backend_library(host, facts),
        soc_model(facts),
        runtime_age(facts),
        plugin_device(facts),
        rpc_library(host, facts),
        library_path(host, facts),
        extracted_libraries(host, facts),
        driver(host, facts),
    ];
    checks.into_iter().flatten().collect()
}

fn check(reason: ReasonCode, seen: impl AsRef<str>) -> Option<Check> {
    let seen = clipped(seen.as_ref(), MAX_SEEN_BYTES);
    let reason = reason.into();
    Some(Check { reason, seen })
}

/// The library must exist at an absolute path. The loader finds a bare name by itself. It also finds a path into an
/// existing APK (`/data/app/base.apk!/lib/arm64-v8a/libQnnHtp.so`).
fn backend_library(host: &dyn Host, facts: &PreflightFacts) -> Option<Check> {
    let path = &facts.backend_path;
    if !path.is_absolute() || host.exists(path) {
        return None;
    }
    let text = path.to_string_lossy();
    if let Some((apk, _)) = text.split_once("!/")
        && host.exists(Path::new(apk))
    {
        return None;
    }
    let seen = format!("nothing at {text}");
    check(ReasonCode::BackendLibraryMissing, seen)
}

/// QNN replaces an unknown text by its default chipset without an error. It refuses an unknown number.
fn soc_model(facts: &PreflightFacts) -> Option<Check> {
    let asked = facts.soc_model.trim();
    let is_number = !asked.is_empty() && asked.bytes().all(|b| b.is_ascii_digit());
    let is_taken = |name: &str| asked.eq_ignore_ascii_case(name);
    if asked.is_empty() || is_number || QNN_SOC_MODEL_NAMES.iter().any(|name| is_taken(name)) {
        return None;
    }
    let seen = match soc_by_soc_model(asked) {
        Some(soc) => format!(
            "soc_model is {asked:?}, a name that QNN does not take; its number is {}",
            soc.qnn_id
        ),
        None => format!("soc_model is {asked:?}"),
    };
    check(ReasonCode::SocModelUnknown, seen)
}

fn runtime_age(facts: &PreflightFacts) -> Option<Check> {
    let (model, runtime) = (&facts.model_qairt, &facts.runtime_qairt);
    if numbers(runtime)? >= numbers(model)? {
        return None;
    }
    let seen = format!("the model is of QAIRT {model}, the runtime of {runtime}");
    check(ReasonCode::RuntimeOlderThanModel, seen)
}

/// The first three numbers of a version such as `v2.51.0.260101`; `2.51` counts as `2.51.0`.
fn numbers(version: &str) -> Option<[u32; 3]> {
    let mut parts = version.trim().trim_start_matches(['v', 'V']).split('.');
    let mut next = |default: Option<u32>| match parts.next() {
        Some(part) => {
            let end = part.find(|c: char| !c.is_ascii_digit());
            part[..end.unwrap_or(part.len())].parse().ok()
        }
        None => default,
    };
    Some([next(None)?, next(None)?, next(Some(0))?])
}

/// Up to this version the plugin looks for the DSP in `/dev`, which no Android app may list (onnxruntime-qnn #679).
const LAST_PLUGIN_WITHOUT_NPU: [u32; 3] = [2, 4, 0];

/// Later plugins read `ro.soc.manufacturer`, which exists from this API level on (Android 12).
const FIRST_API_WITH_SOC_MANUFACTURER: u32 = 31;

/// Some versions of the plugin offer no device to an Android app, and ORT then uses the CPU without an error.
fn plugin_device(facts: &PreflightFacts) -> Option<Check> {
    let version = numbers(&facts.plugin_version)?;
    if facts.platform != Platform::Android {
        return None;
    }
    let plugin = &facts.plugin_version;
    if version <= LAST_PLUGIN_WITHOUT_NPU {
        let seen = format!("plugin {plugin} finds no NPU in an Android app; ship a later one");
        return check(ReasonCode::NoEpDevice, seen);
    }
    let level = facts
        .api_level
        .filter(|level| *level < FIRST_API_WITH_SOC_MANUFACTURER)?;
    let seen = format!(
        "plugin {plugin} finds the NPU from API level {FIRST_API_WITH_SOC_MANUFACTURER} on, this is {level}"
    );
    check(ReasonCode::NoEpDevice, seen)
}

fn rpc_library(host: &dyn Host, facts: &PreflightFacts) -> Option<Check> {
    if facts.platform != Platform::Android || facts.declares_rpc_library != Some(false) {
        return None;
    }
    let there = RPC_LIBRARIES
        .iter()
        .find(|path| host.exists(Path::new(path)))?;
    let seen = format!("{there} is there, the manifest does not declare it");
    check(ReasonCode::NativeLibraryNotDeclared, seen)
}

fn library_path(host: &dyn Host, facts: &PreflightFacts) -> Option<Check> {
    if facts.platform == Platform::Other {
        return None;
    }
    let set = [NEWER_LIBRARY_PATH, LIBRARY_PATH]
        .into_iter()
        .find_map(|name| {
            let value = host.variable(name)?;
            (!value.trim().is_empty()).then_some((name, value))
        });
    let Some((name, value)) = set else {
        if facts.platform == Platform::Linux && is_where_linux_has_it(host, facts) {
            return None;
        }
        return check(
            ReasonCode::AdspLibraryPathUnset,
            format!("{LIBRARY_PATH} is not set"),
        );
    };
    // A path with one folder has neither separator, and these folders never have a `:` in their names.
    if value.contains(':') {
        let seen = format!("{name} is {value:?}");
        return check(ReasonCode::AdspLibraryPathSeparator, seen);
    }
    let skeleton = skeleton_of(arch(facts)?);
    let mut folders = value.split(';').filter(|folder| !folder.is_empty());
    if folders.any(|folder| holds(host, folder, &skeleton)) {
        return None;
    }
    let seen = format!("{skeleton} is in no folder of {name}={value:?}");
    check(ReasonCode::BackendLibraryMissing, seen)
}

/// Whether a distribution's folders hold the skeleton library. If the machine's architecture is not known, any
/// architecture counts.
fn is_where_linux_has_it(host: &dyn Host, facts: &PreflightFacts) -> bool {
    let skeletons: Vec<String> = match arch(facts) {
        Some(arch) => vec![skeleton_of(arch)],
        None => SOCS.iter().map(|s| skeleton_of(s.hexagon_arch)).collect(),
    };
    LINUX_FOLDERS
        .iter()
        .any(|folder| skeletons.iter().any(|name| holds(host, folder, name)))
}

/// FastRPC also searches the folder of the DSP's domain.
fn holds(host: &dyn Host, folder: &str, skeleton: &str) -> bool {
    let folder = Path::new(folder);
    host.exists(&folder.join(skeleton)) || host.exists(&folder.join("cdsp").join(skeleton))
}

/// The DSP reads files, and libraries inside an APK are not files. If other QNN libraries are files here, the skeleton
/// was never packaged.
fn extracted_libraries(host: &dyn Host, facts: &PreflightFacts) -> Option<Check> {
    if facts.platform != Platform::Android {
        return None;
    }
    let folder = facts.native_library_dir.as_ref()?;
    let skeleton = skeleton_of(arch(facts)?);
    if host.exists(&folder.join(&skeleton)) {
        return None;
    }
    let extracted = qnn_libraries(facts).find(|name| host.exists(&folder.join(name)));
    let folder = folder.display();
    match extracted {
        Some(other) => {
            let seen = format!("{skeleton} was not packaged: {folder} holds {other}, but not it");
            check(ReasonCode::BackendLibraryMissing, seen)
        }
        None => {
            let seen = format!("nothing at {folder}/{skeleton}");
            check(ReasonCode::NativeLibrariesNotExtracted, seen)
        }
    }
}

/// QNN's libraries in an app. Skeletons of other chipsets come first, because they are the best evidence.
fn qnn_libraries(facts: &PreflightFacts) -> impl Iterator<Item = String> {
    let backend = facts.backend_path.file_name().unwrap_or_default();
    let backend = backend.to_string_lossy().into_owned();
    let skeletons = SOCS.iter().map(|soc| skeleton_of(soc.hexagon_arch));
    let others = ["libQnnHtp.so", "libQnnSystem.so", "libQnnHtpPrepare.so"].map(str::to_owned);
    let named = [backend].into_iter().filter(|name| !name.is_empty());
    skeletons.chain(others).chain(named)
}

fn driver(host: &dyn Host, facts: &PreflightFacts) -> Option<Check> {
    if facts.platform != Platform::Linux {
        return None;
    }
    let there: Vec<&str> = DRIVERS
        .into_iter()
        .filter(|path| host.exists(Path::new(path)))
        .collect();
    if there.iter().any(|path| host.may_use(Path::new(path))) {
        return None;
    }
    let seen = match there.first() {
        Some(path) => {
            format!(
                "{path} may not be opened: add the process to the group that owns it, or give it \
                 one by a udev rule: KERNEL==\"fastrpc-*|adsprpc-*\", GROUP=\"render\", MODE=\"0660\""
            )
        }
        None => format!(
            "none of {} is there: the kernel lacks the driver",
            DRIVERS.join(", ")
        ),
    };
    check(ReasonCode::BackendSetupFailed, seen)
}

fn arch(facts: &PreflightFacts) -> Option<u32> {
    let asked = || Some(soc_by_soc_model(&facts.soc_model)?.hexagon_arch);
    facts.hexagon_arch.or_else(asked)
}

/// Name of the skeleton library, the half of the back end that runs on the DSP.
fn skeleton_of(arch: u32) -> String {
    format!("libQnnHtpV{arch}Skel.so")
}
