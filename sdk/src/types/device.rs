//! The device and its runtime, as the app describes them. No field identifies one device.

use epwatch_proto as proto;

use super::{mirrored::ContextKind, setters::setters};

/// Describes the device. Every field may stay empty, and texts are clipped to the lengths of a report.
///
/// ```
/// use epwatch_sdk::types::Device;
///
/// let device = Device::default().with_chipset("SM8650").with_os("android").with_api_level(36);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Device(proto::Device);

impl Device {
    setters! {
        /// Names the chipset. Android: `Build.SOC_MODEL`.
        with_chipset(chipset_raw: String);
        /// Names the chipset's manufacturer. Android: `Build.SOC_MANUFACTURER`.
        with_soc_manufacturer(soc_manufacturer: String);
        /// Names the board. Android: `Build.BOARD`.
        with_board(board: String);
        /// Names the binary interface, for example `arm64-v8a`.
        with_abi(abi: String);
        /// Names the device's manufacturer.
        with_manufacturer(manufacturer: String);
        /// Names the device's model, which many devices have.
        with_model(model: String);
        /// Names the operating system, for example `android`.
        with_os(os: String);
        /// Names the operating system's version, for example `15`.
        with_os_version(os_version: String);
        /// Sets Android's API level.
        with_api_level(api_level: Option<u32>);
        /// Names the security patch. Android: `Build.VERSION.SECURITY_PATCH`.
        with_security_patch(security_patch: String);
        /// Sets the version of the Hexagon architecture, for example 75.
        with_hexagon_arch(hexagon_arch: Option<u32>);
    }

    /// Sets the firmware from the vendor build fingerprint. Only its hash is kept.
    #[must_use]
    pub fn with_vendor_fingerprint(self, fingerprint: &str) -> Self {
        Self(self.0.with_vendor_fingerprint(fingerprint))
    }

    /// Sets the class of memory. The exact size does not leave the device.
    #[must_use]
    pub fn with_ram_bytes(self, bytes: u64) -> Self {
        Self(self.0.with_ram_bytes(bytes))
    }

    /// Adds conditions of runs that the app will report.
    #[must_use]
    pub fn with_contexts(mut self, contexts: impl IntoIterator<Item = ContextKind>) -> Self {
        let contexts = contexts.into_iter().map(proto::ContextKind::from);
        self.0.reportable_contexts.extend(contexts);
        self
    }
}

#[doc(hidden)]
impl From<proto::Device> for Device {
    fn from(device: proto::Device) -> Self {
        Self(device)
    }
}

#[doc(hidden)]
impl From<Device> for proto::Device {
    fn from(device: Device) -> Self {
        device.0
    }
}

/// Describes the EP's package and back end. ONNX Runtime's version is read from its library.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Runtime(proto::Runtime);

impl Runtime {
    setters! {
        /// Names the package of the EP, for example `onnxruntime-qnn`.
        with_ep_package(ep_package: String);
        /// Sets the version of the EP.
        with_ep_version(ep_version: String);
        /// Sets the version of QAIRT, which has the EP's back end.
        with_qnn_sdk_version(qnn_sdk_version: String);
        /// Sets the build of the back end.
        with_backend_build_id(backend_build_id: String);
    }
}

#[doc(hidden)]
impl From<proto::Runtime> for Runtime {
    fn from(runtime: proto::Runtime) -> Self {
        Self(runtime)
    }
}

#[doc(hidden)]
impl From<Runtime> for proto::Runtime {
    fn from(runtime: Runtime) -> Self {
        runtime.0
    }
}
