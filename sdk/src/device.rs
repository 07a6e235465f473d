//! Facts of the device: given by the host, or read from what Linux tells everyone.

use std::path::Path;

use epwatch_proto::{
    Chipset, ContextKind, Device, RamClass, Runtime, SessionOptions, clipped,
    device::vendor_fingerprint_hash,
};

use crate::files;

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
        let machine = soc("machine");
        let chipset_raw = match machine.is_empty() {
            true => chipset_of_compatible(&compatible),
            false => machine,
        };
        let is_qualcomm = compatible.contains("qcom,") || soc("family") == "Snapdragon";
        let soc_manufacturer = match is_qualcomm {
            true => "Qualcomm".to_owned(),
            false => soc("vendor"),
        };
        let board = compatible.split(' ').next().unwrap_or_default().to_owned();
        let chipset = Chipset::normalise(&chipset_raw, &soc_manufacturer, &board);
        Self {
            hexagon_arch: chipset.soc().map(|soc| soc.hexagon_arch),
            // The first entry is `maker,board`.
            manufacturer: board
                .split_once(',')
                .map_or("", |(maker, _)| maker)
                .to_owned(),
            chipset_raw,
            soc_manufacturer,
            soc_id: soc("soc_id").parse().ok(),
            board,
            abi: abi().to_owned(),
            model: read("proc/device-tree/model"),
            os: std::env::consts::OS.to_owned(),
            os_version: read("proc/sys/kernel/osrelease"),
            ram_bytes: memory_bytes(&read("proc/meminfo")),
            ..Self::default()
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

/// `qcom,qcs6490` among `radxa,dragon-q6a qcom,qcs6490`: the last entry is the most general one.
fn chipset_of_compatible(compatible: &str) -> String {
    let entries = compatible.split(' ').rev();
    let soc = entries
        .filter_map(|entry| entry.strip_prefix("qcom,"))
        .next();
    soc.unwrap_or_default().to_ascii_uppercase()
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let rest = meminfo.strip_prefix("MemTotal:")?;
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
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_robot_tells_its_chipset_by_its_device_tree() {
        let root = tempfile::tempdir().unwrap();
        let tree = root.path().join("proc/device-tree");
        fs::create_dir_all(&tree).unwrap();
        fs::write(tree.join("compatible"), b"radxa,dragon-q6a\0qcom,qcs6490\0").unwrap();
        fs::write(tree.join("model"), b"Radxa Dragon Q6A\0").unwrap();
        fs::write(root.path().join("proc/meminfo"), "MemTotal:  8000000 kB\nx").unwrap();
        let device = Device::from(DeviceFacts::read_from(root.path()));
        assert_eq!(device.chipset.as_str(), "QCS6490");
        assert_eq!(device.model, "Radxa Dragon Q6A");
        assert_eq!(device.manufacturer, "radxa");
        assert_eq!(device.hexagon_arch, Some(68));
        assert_eq!(device.ram_class, RamClass::From8To12Gib);
    }

    #[test]
    fn a_machine_without_any_of_it_is_unknown_and_not_refused() {
        let root = tempfile::tempdir().unwrap();
        let device = Device::from(DeviceFacts::read_from(root.path()));
        assert_eq!(device.chipset.as_str(), "other:unknown");
        assert_eq!(device.ram_class, RamClass::Unknown);
    }
}
