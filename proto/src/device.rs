//! Sender of a report: app, device, runtime and SDK. Nothing here identifies a device.

use sha2::{Digest, Sha256};

use crate::{
    chipset::Chipset,
    error::ParseError,
    message::{
        Checked, CheckedMessage, Enum, EnumSet, Few, Kind, List, Maybe, Message, Name, Text, U32,
        each_once, message,
    },
    text::hex,
    v1,
    wire::Value,
    wire_enum::wire_enum,
};

wire_enum! {
    /// Size of the device's memory.
    #[expect(missing_docs, reason = "the names say it")]
    #[derive(Default)]
    pub enum RamClass: RamClass {
        #[default]
        Unknown = Unknown "unknown",
        Under4Gib = Under4Gib "under_4_gib",
        From4To6Gib = RamClass4To6Gib "4_to_6_gib",
        From6To8Gib = RamClass6To8Gib "6_to_8_gib",
        From8To12Gib = RamClass8To12Gib "8_to_12_gib",
        Over12Gib = Over12Gib "over_12_gib",
    }
}

wire_enum! {
    /// A context that a device can report at all.
    #[expect(missing_docs, reason = "the names say it")]
    pub enum ContextKind: ContextKind {
        Thermal = Thermal "thermal",
        PowerSave = PowerSave "power_save",
        PerformanceMode = PerformanceMode "performance_mode",
        InputShape = InputShape "input_shape",
    }
}

wire_enum! {
    /// How the EP came into the process.
    #[expect(missing_docs, reason = "the names say it")]
    #[derive(Default)]
    pub enum EpLinkage: EpLinkage {
        #[default]
        Unknown = Unknown "unknown",
        BuiltIn = BuiltIn "built_in",
        Plugin = Plugin "plugin",
    }
}

wire_enum! {
    /// Processor of the EP's back end.
    #[expect(missing_docs, reason = "the names say it")]
    #[derive(Default)]
    pub enum EpBackend: EpBackend {
        #[default]
        Unknown = Unknown "unknown",
        Htp = Htp "htp",
        Gpu = Gpu "gpu",
        Cpu = Cpu "cpu",
    }
}

pub(crate) const MAX_APP_ID_BYTES: usize = 128;
pub(crate) const MAX_ENVIRONMENT_BYTES: usize = 32;
/// Longest version of ONNX Runtime or an EP, in bytes.
pub(crate) const MAX_RUNTIME_VERSION_BYTES: usize = 32;
/// Maximum number of roll-out labels of an app.
pub const MAX_ROLLOUT_LABELS: usize = 8;
/// Number of characters of a vendor fingerprint's hash.
pub const VENDOR_FINGERPRINT_HASH_CHARS: usize = 32;

/// The app that embeds the SDK.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct App {
    pub id: String,
    pub version: String,
    pub build: String,
    pub environment: String,
    pub rollout_labels: Vec<(String, String)>,
}

/// The SDK itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct Sdk {
    pub name: String,
    pub version: String,
    pub language: String,
}

/// Describes the device; no field identifies it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct Device {
    pub chipset_raw: String,
    /// Normalised. The parser derives it from the other fields and ignores the sender's value.
    pub chipset: Chipset,
    pub soc_manufacturer: String,
    pub soc_id: Option<u32>,
    pub board: String,
    pub abi: String,
    pub manufacturer: String,
    pub model: String,
    pub os: String,
    pub os_version: String,
    pub api_level: Option<u32>,
    /// The firmware: [`vendor_fingerprint_hash`], or empty.
    pub vendor_fingerprint_hash: String,
    pub security_patch: String,
    pub hexagon_arch: Option<u32>,
    pub ram_class: RamClass,
    pub reportable_contexts: Vec<ContextKind>,
}

impl Device {
    /// Sets the firmware from the vendor build fingerprint. Only its hash is reported.
    pub fn with_vendor_fingerprint(mut self, fingerprint: &str) -> Self {
        self.vendor_fingerprint_hash = vendor_fingerprint_hash(fingerprint);
        self
    }

    /// Sets the class of memory. The kernel reserves some memory, so a phone sold with 8 GB shows a little less: each
    /// class begins a little below its name.
    pub fn with_ram_bytes(mut self, bytes: u64) -> Self {
        let tenths_of_gib = bytes.saturating_mul(10) >> 30;
        self.ram_class = match tenths_of_gib {
            0..35 => RamClass::Under4Gib,
            35..55 => RamClass::From4To6Gib,
            55..75 => RamClass::From6To8Gib,
            75..115 => RamClass::From8To12Gib,
            _ => RamClass::Over12Gib,
        };
        self
    }

    /// Makes data from a platform fit a report: clips texts, derives the chipset, sorts the contexts, and hashes a
    /// fingerprint that is not a hash.
    pub fn normalised(mut self) -> Self {
        self.fit();
        self.reportable_contexts.sort();
        self.reportable_contexts.dedup();
        self.with_own_chipset()
    }

    fn with_own_chipset(mut self) -> Self {
        self.chipset = Chipset::normalise(&self.chipset_raw, &self.soc_manufacturer, &self.board);
        self
    }
}

/// The inference runtime of a report's sessions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct Runtime {
    pub ort_version: String,
    pub ep_package: String,
    pub ep_version: String,
    pub ep_linkage: EpLinkage,
    pub backend: EpBackend,
    pub qnn_sdk_version: String,
    pub backend_build_id: String,
}

impl Runtime {
    /// Clips texts to the lengths of a report.
    pub fn normalised(mut self) -> Self {
        self.fit();
        self
    }

    /// Returns the name by which runtimes are compared and shown: `<ORT version>/<EP version>`.
    pub fn name(&self) -> String {
        runtime_name(&self.ort_version, &self.ep_version)
    }
}

/// Returns the name of the runtime with these versions: see [`Runtime::name`].
pub fn runtime_name(ort_version: &str, ep_version: &str) -> String {
    format!("{ort_version}/{ep_version}")
}

/// Returns the hash of a vendor build fingerprint: lower-case hex of the first 16 bytes of SHA-256. It is empty
/// for an empty fingerprint.
pub fn vendor_fingerprint_hash(fingerprint: &str) -> String {
    if fingerprint.is_empty() {
        return String::new();
    }
    hex(&Sha256::digest(fingerprint.as_bytes())[..VENDOR_FINGERPRINT_HASH_CHARS / 2])
}

/// The hash of a firmware, or none.
pub(crate) struct Firmware;

impl Kind for Firmware {
    type Wire = String;
    type Parsed = String;

    fn parse(field: &str, value: String) -> Result<String, ParseError> {
        if is_firmware(value.as_bytes()) {
            return Ok(value);
        }
        let expected = "32 lower-case hexadecimal digits or nothing";
        Err(ParseError::malformed(field, expected, value))
    }

    fn encode(value: &String) -> String {
        value.clone()
    }

    /// Hashes a fingerprint that is not a hash.
    fn fit(value: &mut String) {
        if !is_firmware(value.as_bytes()) {
            *value = vendor_fingerprint_hash(value);
        }
    }
}

impl Checked for Firmware {
    type Seen<'a> = ();

    #[inline]
    fn see<'a>(_seen: &mut (), value: Value<'a>) -> Option<()> {
        is_firmware(value.bytes()?).then_some(())
    }
}

/// Whether this is what [`vendor_fingerprint_hash`] returns.
pub fn is_vendor_fingerprint_hash(text: &str) -> bool {
    is_firmware(text.as_bytes())
}

fn is_firmware(text: &[u8]) -> bool {
    let is_hex = |b: &u8| b.is_ascii_digit() || (b'a'..=b'f').contains(b);
    let is_hash = text.len() == VENDOR_FINGERPRINT_HASH_CHARS && text.iter().all(is_hex);
    is_hash || text.is_empty()
}

/// Roll-out groups, each key once.
pub(crate) struct Labels;

impl Kind for Labels {
    type Wire = Vec<v1::Label>;
    type Parsed = Vec<(String, String)>;

    fn parse(field: &str, labels: Vec<v1::Label>) -> Result<Self::Parsed, ParseError> {
        let labels = List::<Label, MAX_ROLLOUT_LABELS>::parse(field, labels)?;
        each_once(field, &labels, |label| &label.key)?;
        Ok(labels.into_iter().map(|l| (l.key, l.value)).collect())
    }

    fn encode(labels: &Self::Parsed) -> Vec<v1::Label> {
        let label = |(key, value): &(String, String)| v1::Label {
            key: key.clone(),
            value: value.clone(),
        };
        labels.iter().map(label).collect()
    }
}

impl Checked for Labels {
    type Seen<'a> = Few<&'a [u8], MAX_ROLLOUT_LABELS>;

    #[inline]
    fn see<'a>(seen: &mut Self::Seen<'a>, value: Value<'a>) -> Option<()> {
        seen.add(Label::check(value.bytes()?)?)
    }
}

struct Label {
    key: String,
    value: String,
}

message! {
    mod label_fields: Label = v1::Label {
        1 key: Name<32>,
        2 value: Text<64>,
    }
    keeps &'a [u8] = |seen| Some(seen.key);
}

message! {
    mod app_fields: App = v1::App {
        1 id: Name<MAX_APP_ID_BYTES>,
        2 version: Text<64>,
        3 build: Text<64>,
        4 environment: Name<MAX_ENVIRONMENT_BYTES>,
        5 rollout_labels: Labels,
    }
    keeps (&'a str, &'a str) = |seen| Some((
        std::str::from_utf8(seen.id).ok()?,
        std::str::from_utf8(seen.environment).ok()?,
    ));
}

message! {
    mod sdk_fields: Sdk = v1::Sdk {
        1 name: Text<32>,
        2 version: Text<32>,
        3 language: Text<16>,
    }
}

message! {
    mod device_fields: Device = v1::Device {
        1 chipset_raw: Text<128>,
        2 chipset: Chipset,
        3 soc_manufacturer: Text<64>,
        4 soc_id: Maybe<U32>,
        5 board: Text<64>,
        6 abi: Text<32>,
        7 manufacturer: Text<64>,
        8 model: Text<64>,
        9 os: Text<32>,
        10 os_version: Text<64>,
        11 api_level: Maybe<U32>,
        12 vendor_fingerprint_hash: Firmware,
        13 security_patch: Text<16>,
        14 hexagon_arch: Maybe<U32>,
        15 ram_class: Enum<RamClass>,
        16 reportable_contexts: EnumSet<ContextKind>,
    }
    rule |device: Device| Ok::<_, ParseError>(device.with_own_chipset());
}

message! {
    mod runtime_fields: Runtime = v1::Runtime {
        1 ort_version: Text<MAX_RUNTIME_VERSION_BYTES>,
        2 ep_package: Text<64>,
        3 ep_version: Text<MAX_RUNTIME_VERSION_BYTES>,
        4 ep_linkage: Enum<EpLinkage>,
        5 backend: Enum<EpBackend>,
        6 qnn_sdk_version: Text<64>,
        7 backend_build_id: Text<128>,
    }
}
