//! The identity of a simulated device: chipset, device model, firmware, reportable contexts.

use epwatch_proto::{App, ContextKind, Device, EpBackend, EpLinkage, Runtime};

use crate::chance::Chance;
use crate::chipsets::Chipset;
use crate::scenario::Scenario;

/// Runtime versions of the recorded placements.
const ORT_VERSION: &str = "1.31.1";
const QNN_EP_VERSION: &str = "2.7.0";
const QNN_SDK_VERSION: &str = "2.51";

/// Share of a device model's devices on its newer firmware.
const NEWER_FIRMWARE: f64 = 0.7;

/// The properties of a device that never change.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) chipset: Chipset,
    /// The installation's secret.
    pub(crate) secret: [u8; 32],
    pub(crate) stream: u64,
    pub(crate) boot_id: String,
    pub(crate) device: Device,
}

impl Identity {
    /// Draws device number `index`. `reports_context` is the physics' draw.
    pub(crate) fn draw(
        scenario: &Scenario,
        index: u64,
        chipset: Chipset,
        reports_context: bool,
    ) -> Self {
        let mut chance = Chance::split(scenario.seed, "identity", index);
        let [usual, other] = chipset.device_models();
        let model = if chance.happens(0.6) { usual } else { other };
        let patch = if chance.happens(NEWER_FIRMWARE) {
            "2026-09-01"
        } else {
            "2026-06-01"
        };
        Self {
            chipset,
            secret: chance.bytes32(),
            stream: chance.bits(),
            boot_id: format!("{:016x}{:016x}", chance.bits(), chance.bits()),
            device: device(chipset, model, patch, reports_context),
        }
    }
}

fn device(chipset: Chipset, model: &str, security_patch: &str, reports_context: bool) -> Device {
    let soc_manufacturer = "QTI".to_owned();
    let chipset_raw = format!("{soc_manufacturer} {}", chipset.name());
    let normalised = epwatch_proto::Chipset::normalise(&chipset_raw, &soc_manufacturer, "");
    let hexagon_arch = normalised.soc().map(|soc| soc.hexagon_arch);
    let fingerprint = format!("simulated/{model}/{}:16/{security_patch}", chipset.name());
    let mut reportable_contexts = vec![ContextKind::InputShape];
    if reports_context {
        reportable_contexts.extend([ContextKind::Thermal, ContextKind::PowerSave]);
    }
    let device = Device {
        chipset_raw,
        soc_manufacturer,
        abi: "arm64-v8a".to_owned(),
        manufacturer: "Simulated".to_owned(),
        model: model.to_owned(),
        os: "android".to_owned(),
        os_version: "16".to_owned(),
        api_level: Some(36),
        security_patch: security_patch.to_owned(),
        hexagon_arch,
        reportable_contexts,
        ..Device::default()
    };
    device
        .with_vendor_fingerprint(&fingerprint)
        .with_ram_bytes(8 << 30)
}

pub(crate) fn app(scenario: &Scenario) -> App {
    App {
        id: scenario.app_id.clone(),
        version: scenario.app_version.clone(),
        build: String::new(),
        environment: scenario.environment.clone(),
        rollout_labels: Vec::new(),
    }
}

/// The runtime that the recorded placements come from.
pub(crate) fn runtime() -> Runtime {
    Runtime {
        ort_version: ORT_VERSION.to_owned(),
        ep_package: "onnxruntime-qnn".to_owned(),
        ep_version: QNN_EP_VERSION.to_owned(),
        ep_linkage: EpLinkage::Plugin,
        backend: EpBackend::Htp,
        qnn_sdk_version: QNN_SDK_VERSION.to_owned(),
        backend_build_id: String::new(),
    }
}
