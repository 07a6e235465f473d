//! Facts of the device: given by the host, or read from what Linux tells everyone.

use std::path::Path;

use epwatch_proto::{
    Chipset, ContextKind, Device, RamClass, Runtime, SessionOptions, clipped,
    device::vendor_fingerprint_hash,
};

use crate::{folder::files, host::thermal_zones};

/// A fact of the device is a short text; a larger file is something else.
const MAX_FACT_BYTES: u64 = 64 << 10;

/// What a host knows of its device. Everything may be left empty; longer texts are clipped to what
/// a report holds. Nothing here may identify one device: no serial, no account, no advertising id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceFacts {
    /// The chipset as the platform says it, for example `QTI SM8750-AC` (Android: Build.SOC_MODEL).
    pub chipset_raw: String,
    /// Android: Build.SOC_MANUFACTURER.
    pub soc_manufacturer: String,
    /// /sys/devices/soc0/soc_id.
    pub soc_id: Option<u32>,
    /// ro.board.platform, or the device tree's compatible.
    pub board: String,
    /// For example `arm64-v8a`.
    pub abi: String,
    /// Manufacturer of the device.
    pub manufacturer: String,
    /// Device model.
    pub model: String,
    /// `android` or `linux`.
    pub os: String,
    /// Its version.
    pub os_version: String,
    /// Android's API level.
    pub api_level: Option<u32>,
    /// The vendor build fingerprint (ro.vendor.build.fingerprint). Only its hash is reported.
    pub vendor_fingerprint: String,
    /// For example `2026-05-01`.
    pub security_patch: String,
    /// Hexagon architecture version, for example 75.
    pub hexagon_arch: Option<u32>,
    /// Memory in bytes; reported as one of five classes.
    pub ram_bytes: Option<u64>,
    /// What the host can tell of a run's conditions: "thermal unknown" on a device that can report
    /// it differs from one that cannot.
    pub reportable_contexts: Vec<ContextKind>,
}

impl DeviceFacts {
    /// A made-up Android device with this chipset that can report every condition.
    pub fn simulated(chipset: &str) -> Self {
        Self {
            chipset_raw: chipset.to_owned(),
            soc_manufacturer: "QTI".to_owned(),
            abi: "arm64-v8a".to_owned(),
            manufacturer: "Example".to_owned(),
            model: format!("Example {chipset}"),
            os: "android".to_owned(),
            os_version: "16".to_owned(),
            api_level: Some(36),
            vendor_fingerprint: format!("example/{chipset}/1"),
            ram_bytes: Some(8 << 30),
            reportable_contexts: ContextKind::ALL.to_vec(),
            ..Self::default()
        }
    }

    /// What Linux tells of this machine. Reads a dozen small files of /proc and /sys; what is not
    /// there stays empty.
    pub fn read_linux() -> Self {
        Self::read_from(Path::new("/"))
    }

    fn read_from(root: &Path) -> Self {
        let read = |path: &str| text_of(&root.join(path));
        let soc = |name: &str| read(&format!("sys/devices/soc0/{name}"));
        let compatible = read("proc/device-tree/compatible");
        let entries: Vec<_> = compatible.split_whitespace().collect();
        let board = entries.first().copied().unwrap_or_default();
        let is_qualcomm =
            soc("family") == "Snapdragon" || entries.iter().any(|entry| entry.starts_with("qcom,"));
        let (soc_manufacturer, chipset_raw) = match is_qualcomm {
            true => ("Qualcomm", qualcomm_chipset(&soc("machine"), &entries)),
            // Elsewhere `machine` is the board.
            false => {
                let (vendor, chip) = vendor_and_name(entries.last().copied().unwrap_or_default());
                (vendor, chip.to_owned())
            }
        };
        let chipset = Chipset::normalise(&chipset_raw, soc_manufacturer, board);
        let release = OsRelease::read(root);
        let kernel = read("proc/sys/kernel/osrelease");
        let zones = root.join(thermal_zones::DIR);
        Self {
            hexagon_arch: chipset.soc().map(|soc| soc.hexagon_arch),
            manufacturer: vendor_and_name(board).0.to_owned(),
            chipset_raw,
            soc_manufacturer: soc_manufacturer.to_owned(),
            soc_id: soc("soc_id").parse().ok(),
            board: board.to_owned(),
            abi: abi().to_owned(),
            model: read("proc/device-tree/model"),
            os: std::env::consts::OS.to_owned(),
            os_version: release.version(&kernel),
            vendor_fingerprint: release.fingerprint(&kernel),
            ram_bytes: memory_bytes(&read("proc/meminfo")),
            reportable_contexts: match thermal_zones::has_passive_trips(&zones) {
                true => vec![ContextKind::Thermal],
                false => Vec::new(),
            },
            ..Self::default()
        }
    }
}

/// What /etc/os-release says of an image; each text empty where it does not.
#[derive(Debug, Default)]
struct OsRelease {
    id: String,
    version: String,
    build: String,
    image: String,
}

impl OsRelease {
    fn read(root: &Path) -> Self {
        let paths = ["etc/os-release", "usr/lib/os-release"];
        let texts = paths.iter().map(|path| text_of(&root.join(path)));
        let text = texts.into_iter().find(|t| !t.is_empty());
        let mut release = Self::default();
        for line in text.unwrap_or_default().lines() {
            let Some((name, value)) = line.trim().split_once('=') else {
                continue;
            };
            let field = match name {
                "ID" => &mut release.id,
                "VERSION_ID" => &mut release.version,
                "BUILD_ID" => &mut release.build,
                "IMAGE_VERSION" => &mut release.image,
                _ => continue,
            };
            *field = clipped(value.trim_matches(['"', '\'']), 64);
        }
        release
    }

    /// For example `ubuntu 24.04, kernel 6.8.0-1051-qcom`; the end is clipped, so the image first.
    fn version(&self, kernel: &str) -> String {
        let image = format!("{} {}", self.id, self.version);
        match (image.trim(), kernel) {
            (image, "") => image.to_owned(),
            ("", kernel) => format!("kernel {kernel}"),
            (image, kernel) => format!("{image}, kernel {kernel}"),
        }
    }

    /// Changes with the image and the kernel, and is one for all robots of an image.
    fn fingerprint(&self, kernel: &str) -> String {
        let parts = [&*self.id, &self.version, &self.build, &self.image, kernel];
        match parts.iter().all(|part| part.is_empty()) {
            true => String::new(),
            false => format!("linux/{}", parts.join("/")),
        }
    }
}

/// As Android names it, so that a chipset's phones and robots compare.
fn abi() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64-v8a",
        "arm" => "armeabi-v7a",
        other => other,
    }
}

/// Id of this boot; empty where the system gives none.
pub(crate) fn boot_id() -> String {
    text_of(Path::new("/proc/sys/kernel/random/boot_id"))
}

/// A small file's text: NUL separates the entries of a device-tree list. Empty if unreadable.
fn text_of(path: &Path) -> String {
    let bytes = files::read_at_most(path, MAX_FACT_BYTES).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
    text.trim().to_owned()
}

/// The socinfo driver's name of the chip, if it is one, else the entry of the device tree that
/// names a chip we know something of: mainline says `qcom,qcs6490-rb3gen2` and then `qcom,qcm6490`.
/// Else the last, which is the most general one.
fn qualcomm_chipset(machine: &str, entries: &[&str]) -> String {
    let chipset = |text: &str| Chipset::normalise(text, "Qualcomm", "");
    let names = || entries.iter().filter_map(|e| e.strip_prefix("qcom,")).rev();
    let listed = |c: &Chipset| c.soc().is_some_and(|soc| soc.soc == c.as_str());
    let known = || names().find(|name| listed(&chipset(name)));
    let same_silicon = || names().find(|name| chipset(name).soc().is_some());
    let named = || names().find(|name| chipset(name).is_qualcomm());
    if chipset(machine).is_qualcomm() {
        return machine.to_owned();
    }
    let tree = known()
        .or_else(same_silicon)
        .or_else(named)
        .or_else(|| names().next());
    match (tree, machine) {
        (Some(name), _) => name.to_ascii_uppercase(),
        (None, machine) => machine.to_owned(),
    }
}

/// The two halves of a device tree's `vendor,name`.
fn vendor_and_name(entry: &str) -> (&str, &str) {
    match entry.split_once(',') {
        Some(("qcom", name)) => ("Qualcomm", name),
        Some(halves) => halves,
        None => ("", entry),
    }
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let mut lines = meminfo.lines();
    let rest = lines.find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = rest.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The kernel keeps some memory for itself, so a phone sold with 8 GB shows a little less: each
/// class reaches a little below its name.
fn ram_class(bytes: Option<u64>) -> RamClass {
    let Some(bytes) = bytes else {
        return RamClass::Unknown;
    };
    let tenths_of_gib = bytes.saturating_mul(10) >> 30;
    match tenths_of_gib {
        0..35 => RamClass::Under4Gib,
        35..55 => RamClass::From4To6Gib,
        55..75 => RamClass::From6To8Gib,
        75..115 => RamClass::From8To12Gib,
        _ => RamClass::Over12Gib,
    }
}

impl From<DeviceFacts> for Device {
    fn from(f: DeviceFacts) -> Self {
        let mut contexts = f.reportable_contexts;
        contexts.sort();
        contexts.dedup();
        let board = clipped(&f.board, 64);
        let chipset_raw = clipped(&f.chipset_raw, 128);
        let soc_manufacturer = clipped(&f.soc_manufacturer, 64);
        Self {
            chipset: Chipset::normalise(&chipset_raw, &soc_manufacturer, &board),
            chipset_raw,
            soc_manufacturer,
            soc_id: f.soc_id,
            board,
            abi: clipped(&f.abi, 32),
            manufacturer: clipped(&f.manufacturer, 64),
            model: clipped(&f.model, 64),
            os: clipped(&f.os, 32),
            os_version: clipped(&f.os_version, 64),
            api_level: f.api_level,
            vendor_fingerprint_hash: vendor_fingerprint_hash(&f.vendor_fingerprint),
            security_patch: clipped(&f.security_patch, 16),
            hexagon_arch: f.hexagon_arch,
            ram_class: ram_class(f.ram_bytes),
            reportable_contexts: contexts,
        }
    }
}

/// A runtime whose texts fit a report.
pub(crate) fn clipped_runtime(runtime: Runtime) -> Runtime {
    Runtime {
        ort_version: clipped(&runtime.ort_version, 32),
        ep_package: clipped(&runtime.ep_package, 64),
        ep_version: clipped(&runtime.ep_version, 32),
        qnn_sdk_version: clipped(&runtime.qnn_sdk_version, 64),
        backend_build_id: clipped(&runtime.backend_build_id, 128),
        ..runtime
    }
}

/// Options whose texts fit a report.
pub(crate) fn clipped_options(options: SessionOptions) -> SessionOptions {
    SessionOptions {
        performance_mode: clipped(&options.performance_mode, 32),
        soc_model: clipped(&options.soc_model, 32),
        htp_arch: clipped(&options.htp_arch, 16),
        graph_optimization_level: clipped(&options.graph_optimization_level, 16),
    }
}

#[cfg(test)]
mod tests;
