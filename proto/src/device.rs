//! Where a report comes from: app, device, runtime and SDK. Nothing here identifies a device.

use sha2::{Digest, Sha256};

use crate::{
    bounds::{each_once, list, required_text, text},
    chipset::Chipset,
    error::ParseError,
    text::hex,
    v1,
    wire_enum::wire_enum,
};

wire_enum! {
    /// Size of the device's memory.
    pub enum RamClass: RamClass {
        /// Not known.
        Unknown = Unknown "unknown",
        /// Under 4 GiB.
        Under4Gib = Under4Gib "under_4_gib",
        /// 4 to 6 GiB.
        From4To6Gib = RamClass4To6Gib "4_to_6_gib",
        /// 6 to 8 GiB.
        From6To8Gib = RamClass6To8Gib "6_to_8_gib",
        /// 8 to 12 GiB.
        From8To12Gib = RamClass8To12Gib "8_to_12_gib",
        /// Over 12 GiB.
        Over12Gib = Over12Gib "over_12_gib",
    }
}

wire_enum! {
    /// A context that a device can report at all.
    pub enum ContextKind: ContextKind {
        /// Thermal status.
        Thermal = Thermal "thermal",
        /// Power save.
        PowerSave = PowerSave "power_save",
        /// Performance mode.
        PerformanceMode = PerformanceMode "performance_mode",
        /// Input shapes.
        InputShape = InputShape "input_shape",
    }
}

wire_enum! {
    /// How the EP comes into the process.
    pub enum EpLinkage: EpLinkage {
        /// Not known.
        Unknown = Unknown "unknown",
        /// Built into ONNX Runtime.
        BuiltIn = BuiltIn "built_in",
        /// A library of its own.
        Plugin = Plugin "plugin",
    }
}

wire_enum! {
    /// What the EP's back end computes on.
    pub enum EpBackend: EpBackend {
        /// Not known.
        Unknown = Unknown "unknown",
        /// The NPU.
        Htp = Htp "htp",
        /// The GPU.
        Gpu = Gpu "gpu",
        /// The CPU.
        Cpu = Cpu "cpu",
    }
}

/// Most roll-out labels of an app.
pub const MAX_ROLLOUT_LABELS: usize = 8;
/// Characters of a vendor fingerprint's hash.
pub const VENDOR_FINGERPRINT_HASH_CHARS: usize = 32;

/// The app that embeds the SDK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct App {
    /// As registered with the collector.
    pub id: String,
    /// What its users see.
    pub version: String,
    /// Build.
    pub build: String,
    /// For example `production`.
    pub environment: String,
    /// Roll-out groups, key and value.
    pub rollout_labels: Vec<(String, String)>,
}

/// The SDK itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sdk {
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
    /// Language of the binding that the host uses.
    pub language: String,
}

/// Facts of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The chipset as the platform says it.
    pub chipset_raw: String,
    /// Normalised. Derived again from the raw text by whoever parses: never the sender's word.
    pub chipset: Chipset,
    /// Manufacturer of the SoC.
    pub soc_manufacturer: String,
    /// The kernel's soc_id.
    pub soc_id: Option<u32>,
    /// Board.
    pub board: String,
    /// For example `arm64-v8a`.
    pub abi: String,
    /// Manufacturer of the device.
    pub manufacturer: String,
    /// Device model.
    pub model: String,
    /// `android`, `linux`.
    pub os: String,
    /// Its version.
    pub os_version: String,
    /// Android's API level.
    pub api_level: Option<u32>,
    /// The firmware: [`vendor_fingerprint_hash`], or empty.
    pub vendor_fingerprint_hash: String,
    /// For example `2026-05-01`.
    pub security_patch: String,
    /// Hexagon architecture version.
    pub hexagon_arch: Option<u32>,
    /// Size of memory.
    pub ram_class: RamClass,
    /// What this device can report at all, each once.
    pub reportable_contexts: Vec<ContextKind>,
}

/// The inference runtime in the process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Runtime {
    /// As the library says it.
    pub ort_version: String,
    /// For example `onnxruntime-qnn`.
    pub ep_package: String,
    /// Its version.
    pub ep_version: String,
    /// Built in or plugin.
    pub ep_linkage: EpLinkage,
    /// What its back end computes on.
    pub backend: EpBackend,
    /// QNN SDK that the EP was built with.
    pub qnn_sdk_version: String,
    /// Build id of the back end.
    pub backend_build_id: String,
}

impl Runtime {
    /// The name under which runtimes are compared and shown: `<ORT version>/<EP version>`.
    pub fn name(&self) -> String {
        runtime_name(&self.ort_version, &self.ep_version)
    }
}

/// Name of the runtime that has these versions: see [`Runtime::name`].
pub fn runtime_name(ort_version: &str, ep_version: &str) -> String {
    format!("{ort_version}/{ep_version}")
}

/// Hash of a vendor build fingerprint: lower-case hex of the first 16 bytes of SHA-256; empty for
/// an empty fingerprint.
pub fn vendor_fingerprint_hash(fingerprint: &str) -> String {
    if fingerprint.is_empty() {
        return String::new();
    }
    hex(&Sha256::digest(fingerprint.as_bytes())[..VENDOR_FINGERPRINT_HASH_CHARS / 2])
}

fn parse_firmware(field: &str, value: String) -> Result<String, ParseError> {
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let whole = value.len() == VENDOR_FINGERPRINT_HASH_CHARS && value.bytes().all(is_hex);
    if whole || value.is_empty() {
        return Ok(value);
    }
    let expected = "32 lower-case hexadecimal digits or nothing";
    Err(ParseError::malformed(field, expected, value))
}

impl TryFrom<v1::App> for App {
    type Error = ParseError;

    fn try_from(a: v1::App) -> Result<Self, ParseError> {
        let label = |l: v1::Label| {
            let key = required_text("key", l.key, 32)?;
            Ok((key, text("value", l.value, 64)?))
        };
        let labels = list(
            "rollout_labels",
            a.rollout_labels,
            MAX_ROLLOUT_LABELS,
            label,
        )?;
        each_once("rollout_labels", &labels, |(key, _)| key)?;
        Ok(Self {
            id: required_text("id", a.id, 128)?,
            version: text("version", a.version, 64)?,
            build: text("build", a.build, 64)?,
            environment: required_text("environment", a.environment, 32)?,
            rollout_labels: labels,
        })
    }
}

impl TryFrom<v1::Sdk> for Sdk {
    type Error = ParseError;

    fn try_from(s: v1::Sdk) -> Result<Self, ParseError> {
        Ok(Self {
            name: text("name", s.name, 32)?,
            version: text("version", s.version, 32)?,
            language: text("language", s.language, 16)?,
        })
    }
}

impl TryFrom<v1::Device> for Device {
    type Error = ParseError;

    fn try_from(d: v1::Device) -> Result<Self, ParseError> {
        let chipset_raw = text("chipset_raw", d.chipset_raw, 128)?;
        text("chipset", d.chipset, 64)?;
        let soc_manufacturer = text("soc_manufacturer", d.soc_manufacturer, 64)?;
        let board = text("board", d.board, 64)?;
        let firmware = d.vendor_fingerprint_hash;
        let context = |c| ContextKind::parse("", c);
        let most = ContextKind::ALL.len();
        let contexts = list("reportable_contexts", d.reportable_contexts, most, context)?;
        each_once("reportable_contexts", &contexts, |c| *c)?;
        Ok(Self {
            chipset: Chipset::normalise(&chipset_raw, &soc_manufacturer, &board),
            chipset_raw,
            soc_manufacturer,
            soc_id: d.soc_id,
            board,
            abi: text("abi", d.abi, 32)?,
            manufacturer: text("manufacturer", d.manufacturer, 64)?,
            model: text("model", d.model, 64)?,
            os: text("os", d.os, 32)?,
            os_version: text("os_version", d.os_version, 64)?,
            api_level: d.api_level,
            vendor_fingerprint_hash: parse_firmware("vendor_fingerprint_hash", firmware)?,
            security_patch: text("security_patch", d.security_patch, 16)?,
            hexagon_arch: d.hexagon_arch,
            ram_class: RamClass::parse("ram_class", d.ram_class)?,
            reportable_contexts: contexts,
        })
    }
}

impl TryFrom<v1::Runtime> for Runtime {
    type Error = ParseError;

    fn try_from(r: v1::Runtime) -> Result<Self, ParseError> {
        Ok(Self {
            ort_version: text("ort_version", r.ort_version, 32)?,
            ep_package: text("ep_package", r.ep_package, 64)?,
            ep_version: text("ep_version", r.ep_version, 32)?,
            ep_linkage: EpLinkage::parse("ep_linkage", r.ep_linkage)?,
            backend: EpBackend::parse("backend", r.backend)?,
            qnn_sdk_version: text("qnn_sdk_version", r.qnn_sdk_version, 64)?,
            backend_build_id: text("backend_build_id", r.backend_build_id, 128)?,
        })
    }
}

impl From<&App> for v1::App {
    fn from(a: &App) -> Self {
        let label = |(key, value): &(String, String)| v1::Label {
            key: key.clone(),
            value: value.clone(),
        };
        Self {
            id: a.id.clone(),
            version: a.version.clone(),
            build: a.build.clone(),
            environment: a.environment.clone(),
            rollout_labels: a.rollout_labels.iter().map(label).collect(),
        }
    }
}

impl From<&Sdk> for v1::Sdk {
    fn from(s: &Sdk) -> Self {
        Self {
            name: s.name.clone(),
            version: s.version.clone(),
            language: s.language.clone(),
        }
    }
}

impl From<&Device> for v1::Device {
    fn from(d: &Device) -> Self {
        Self {
            chipset_raw: d.chipset_raw.clone(),
            chipset: d.chipset.as_str().to_owned(),
            soc_manufacturer: d.soc_manufacturer.clone(),
            soc_id: d.soc_id,
            board: d.board.clone(),
            abi: d.abi.clone(),
            manufacturer: d.manufacturer.clone(),
            model: d.model.clone(),
            os: d.os.clone(),
            os_version: d.os_version.clone(),
            api_level: d.api_level,
            vendor_fingerprint_hash: d.vendor_fingerprint_hash.clone(),
            security_patch: d.security_patch.clone(),
            hexagon_arch: d.hexagon_arch,
            ram_class: d.ram_class.to_wire(),
            reportable_contexts: d.reportable_contexts.iter().map(|c| c.to_wire()).collect(),
        }
    }
}

impl From<&Runtime> for v1::Runtime {
    fn from(r: &Runtime) -> Self {
        Self {
            ort_version: r.ort_version.clone(),
            ep_package: r.ep_package.clone(),
            ep_version: r.ep_version.clone(),
            ep_linkage: r.ep_linkage.to_wire(),
            backend: r.backend.to_wire(),
            qnn_sdk_version: r.qnn_sdk_version.clone(),
            backend_build_id: r.backend_build_id.clone(),
        }
    }
}
