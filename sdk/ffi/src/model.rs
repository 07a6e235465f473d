//! A model as the host describes it, and the plan that its session follows.

use epwatch_proto::unhex;
use epwatch_sdk::{ModelInfo, SessionPlan};

use crate::{
    handle::Table,
    log::EpwLog,
    status::{EpwStatus, Failure},
    text::{self, EpwText, array},
};

pub(crate) static PLANS: Table<SessionPlan> = Table::new(2);

/// Maximum number of EPs or reasons of a model.
const MAX_NAMES: usize = 64;

/// The changes that the operator's directives ask of a session.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpwPlan {
    /// 0 is none.
    pub id: u64,
}

/// A model, and how its session is made.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpwModel {
    /// sizeof(EpwModel)
    pub size: usize,
    /// 1 to 128 bytes.
    pub id: EpwText,
    /// 1 to 64 bytes.
    pub version: EpwText,
    /// SHA-256 of the file as 64 hexadecimal digits, or empty.
    pub sha256: EpwText,
    /// The EPs that the app asks for, for example "QNNExecutionProvider", without the CPU EP.
    pub requested_eps: *const EpwText,
    /// Length of requested_eps.
    pub n_requested_eps: usize,
    /// Codes of reasons that the host knows, for example "no_ep_device".
    pub reasons: *const EpwText,
    /// Length of reasons.
    pub n_reasons: usize,
    /// QNN's htp_performance_mode.
    pub performance_mode: EpwText,
    /// QNN's soc_model.
    pub soc_model: EpwText,
    /// QNN's htp_arch.
    pub htp_arch: EpwText,
    /// The variant that was loaded, if the plan prefers one.
    pub variant: EpwText,
    /// The plan that the session follows, or 0.
    pub plan: EpwPlan,
    /// Time that the session's creation took; 0 means not known.
    pub creation_ns: u64,
    /// Not 0: the session replaces one whose run failed, for example because the DSP restarted.
    pub after_run_error: i32,
    /// 0. Fills the padding that a compiler would insert.
    pub reserved: i32,
    /// Path of the model's file, or empty. The SDK's thread computes its SHA-256 if sha256 is empty. With
    /// consent the call that observes the session reads from it whether a compiled model is for this device.
    pub model_file: EpwText,
    /// The model's side-car, as `epwatch manifest` writes it: JSON with the MACs of each node, or empty. At most 64 MiB.
    pub side_car: EpwText,
    /// The log of a session like this one, from epw_capture_log, or 0. The call takes the log's content.
    pub log: EpwLog,
    /// The policy by which ONNX Runtime chooses devices by itself, for example "PREFER_NPU", or empty. It counts if
    /// requested_eps names no EP. A text that OrtExecutionProviderDevicePolicy does not have is an unknown policy.
    pub selection_policy: EpwText,
    /// The device that the EP runs on, if it has several: "NPU", "GPU" or "CPU", for example what OpenVINO's option
    /// device_type is given, or empty. Sessions on different devices are judged apart.
    pub device_type: EpwText,
}

// SAFETY: all fields are numbers, pointers, or texts made of both.
unsafe impl text::Versioned for EpwModel {
    const NAME: &'static str = "EpwModel";
}

/// # Safety
/// The texts must be valid.
pub(crate) unsafe fn model_info(model: &EpwModel) -> Result<ModelInfo, Failure> {
    // SAFETY: guaranteed by the caller.
    let (id, version, sha256) =
        unsafe { (model.id.get()?, model.version.get()?, model.sha256.get()?) };
    let info = ModelInfo::new(id, version);
    let info = info.map_err(|error| Failure::new(EpwStatus::Config, error.to_string()))?;
    if sha256.is_empty() {
        return Ok(info);
    }
    let hash = unhex(sha256).and_then(|bytes| bytes.try_into().ok());
    let hash = hash.ok_or_else(|| Failure::invalid("sha256 is not 64 hexadecimal digits"))?;
    Ok(info.with_sha256(hash))
}

/// # Safety
/// The array and its texts must be valid.
pub(crate) unsafe fn names(data: *const EpwText, length: usize) -> Result<Vec<String>, Failure> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let texts = array(data, length, MAX_NAMES)?.iter();
        texts.map(|text| text.get().map(str::to_owned)).collect()
    }
}
