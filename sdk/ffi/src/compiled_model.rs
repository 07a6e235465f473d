//! The question before a compiled model is loaded: is it for this device?

use epwatch_sdk::placement::Compatibility;

use crate::{
    model::EpwModel,
    session::request,
    status::{EpwStatus, Failure, guarded},
    text::{self, Place},
    watch::EpwWatch,
};

/// Whether a compiled model (EPContext) is for this device. Numbers are OrtCompiledModelCompatibility's.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpwCompatibility {
    /// Nothing speaks against it, or it is not a compiled model.
    Unknown = 0,
    /// It was made for this device.
    Optimal = 1,
    /// It was made for another chipset or runtime: compile it again. It may load.
    PreferRecompilation = 2,
    /// It will not load here.
    Unsupported = 3,
}

/// # Safety
/// The texts must be valid.
pub(crate) unsafe fn compatibility(
    watch: u64,
    model: &EpwModel,
) -> Result<EpwCompatibility, Failure> {
    let watch = crate::watch::watch(watch)?;
    if model.model_file.length == 0 {
        return Err(Failure::invalid("the model has no model_file"));
    }
    // SAFETY: guaranteed by the caller.
    let request = unsafe { request(&watch, None, model)? };
    Ok(match request.compatibility() {
        Some(Compatibility::Optimal) => EpwCompatibility::Optimal,
        Some(Compatibility::PreferRecompilation) => EpwCompatibility::PreferRecompilation,
        Some(Compatibility::Unsupported) => EpwCompatibility::Unsupported,
        _ => EpwCompatibility::Unknown,
    })
}

/// Writes whether the compiled model in model_file is for this device, before it is loaded. The chipset and the version of QNN
/// that its file names are compared with soc_model or the device, and with qnn_sdk_version of the configuration. It must be of an
/// EP in requested_eps. Reads the file, and no graph that was compiled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_compatibility(
    watch: EpwWatch,
    model: *const EpwModel,
    answer: *mut EpwCompatibility,
) -> EpwStatus {
    // SAFETY: the head of the header.
    guarded(|| unsafe {
        let answer = Place::of(answer)?;
        let model = text::read(model)?;
        Ok(answer.write(compatibility(watch.id, &model)?))
    })
}
