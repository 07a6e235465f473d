//! Describes the device by what Linux shows to every process.

use std::path::Path;

use epwatch_proto::{Chipset, ContextKind, Device, clipped};

use crate::{folder::files, host::thermal_zones};

/// Longest file that is read. Texts about a device are short, so a larger file has none.
const MAX_FACT_BYTES: u64 = 64 << 10;

/// A made-up Android device with this chipset that can report every condition.
#[cfg(any(test, feature = "simulation", feature = "fuzzing"))]
pub fn simulated_device(chipset: &str) -> Device {
    let device = Device {
        chipset_raw: chipset.to_owned(),
        soc_manufacturer: "QTI".to_owned(),
        abi: "arm64-v8a".to_owned(),
        manufacturer: "Example".to_owned(),
        model: format!("Example {chipset}"),
        os: "android".to_owned(),
        os_version: "16".to_owned(),
        api_level: Some(36),
        reportable_contexts: ContextKind::ALL.to_vec(),
        ..Device::default()
    };
    let device = device.with_vendor_fingerprint(&format!("example/{chipset}/1"));
    device.with_ram_bytes(8 << 30).normalised()
}

/// Reads a dozen small files of /proc and /sys. A field without a file stays empty.
pub fn read_linux() -> Device {
    read_from(Path::new("/"))
}

fn read_from(root: &Path) -> Device {
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
    let release = OsRelease::read(root);
    let kernel = read("proc/sys/kernel/osrelease");
    let zones = root.join(thermal_zones::DIR);
    let device = Device {
        manufacturer: vendor_and_name(board).0.to_owned(),
        chipset_raw,
        soc_manufacturer: soc_manufacturer.to_owned(),
        soc_id: soc("soc_id").parse().ok(),
        board: board.to_owned(),
        abi: abi().to_owned(),
        model: read("proc/device-tree/model"),
        os: std::env::consts::OS.to_owned(),
        os_version: release.version(&kernel),
        reportable_contexts: match thermal_zones::has_passive_trips(&zones) {
            true => vec![ContextKind::Thermal],
            false => Vec::new(),
        },
        ..Device::default()
    };
    let mut device = device
        .with_vendor_fingerprint(&release.fingerprint(&kernel))
        .normalised();
    device.hexagon_arch = device.chipset.soc().map(|soc| soc.hexagon_arch);
    match memory_bytes(&read("proc/meminfo")) {
        Some(bytes) => device.with_ram_bytes(bytes),
        None => device,
    }
}

/// Texts of /etc/os-release. Missing texts are empty.
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

    /// For example `ubuntu 24.04, kernel 6.8.0-1051-qcom`. The image comes first, because the end may be clipped.
    fn version(&self, kernel: &str) -> String {
        let image = format!("{} {}", self.id, self.version);
        match (image.trim(), kernel) {
            (image, "") => image.to_owned(),
            ("", kernel) => format!("kernel {kernel}"),
            (image, kernel) => format!("{image}, kernel {kernel}"),
        }
    }

    /// A text that changes with the image and the kernel. All robots with one image have the same text.
    fn fingerprint(&self, kernel: &str) -> String {
        let parts = [&*self.id, &self.version, &self.build, &self.image, kernel];
        match parts.iter().all(|part| part.is_empty()) {
            true => String::new(),
            false => format!("linux/{}", parts.join("/")),
        }
    }
}

/// Android's name of the ABI, so that phones and robots with one chipset can be compared.
fn abi() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64-v8a",
        "arm" => "armeabi-v7a",
        other => other,
    }
}

/// Id of this boot, empty if the system has none.
pub(crate) fn boot_id() -> String {
    text_of(Path::new("/proc/sys/kernel/random/boot_id"))
}

/// Text of a small file, empty if it cannot be read. NUL separates the entries of a device-tree list.
fn text_of(path: &Path) -> String {
    let bytes = files::read_at_most(path, MAX_FACT_BYTES).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
    text.trim().to_owned()
}

/// Returns the chip's name from the socinfo driver, or else from the entry of the device tree that names a known chip.
/// For example, mainline has `qcom,qcs6490-rb3gen2` and then `qcom,qcm6490`. If no entry names a known chip, the result
/// is the last entry, which is the most general.
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

#[cfg(test)]
mod tests;
