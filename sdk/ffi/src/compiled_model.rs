//! The question before a compiled model is loaded: is it for this device?

use std::{
    fs::{self, File},
    io,
};

use epwatch_sdk::{ModelInfo, placement::Compatibility, types::SessionOptions};

use crate::{
    model::{EpwModel, names},
    status::{EpwStatus, Failure, guarded},
    text::{self, EpwText, ResultPlace, Texts},
    watch::EpwWatch,
};

/// Whether a compiled model (EPContext) is for this device, in the numbers of OrtCompiledModelCompatibility.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpwCompatibility {
    /// Nothing speaks against it, or it is not a compiled model.
    Unknown = 0,
    /// It was made for this device. Only an EP gives this answer, and EPs are not asked here.
    Optimal = 1,
    /// It was made for another chipset or runtime: compile it again. It may load.
    PreferRecompilation = 2,
    /// It will not load here.
    Unsupported = 3,
}

/// Refuses a file that cannot be opened: a wrong path would otherwise read as a model that fits.
fn opened(path: &str) -> Result<(), Failure> {
    // Opening a FIFO would wait for a writer.
    let found = fs::metadata(path).and_then(|found| match found.is_file() {
        true => File::open(path).map(|_| ()),
        false => Err(io::Error::other("it is not a regular file")),
    });
    found.map_err(|error| {
        Failure::invalid(format!(
            "failed to open model_file {path:?}: expected a model's file, got: {error}"
        ))
    })
}

/// # Safety
/// The texts must be valid.
pub(crate) unsafe fn compatibility(
    watch: u64,
    model: &EpwModel,
) -> Result<EpwCompatibility, Failure> {
    let watch = crate::watch::watch(watch)?;
    // The fields for observing a session are not read: its log can be taken only once.
    let texts = Texts::default();
    // SAFETY: guaranteed by the caller.
    let text = |text: EpwText| unsafe { texts.get(text) };
    let (file, soc_model) = (text(model.model_file), text(model.soc_model));
    texts.checked()?;
    // SAFETY: guaranteed by the caller.
    let eps = unsafe { names(model.requested_eps, model.n_requested_eps)? };
    if file.is_empty() {
        return Err(Failure::invalid("the model has no model_file"));
    }
    if eps.is_empty() {
        let text = "the model has no requested EP; expected the EP that compiled it, for example QNNExecutionProvider";
        return Err(Failure::invalid(text));
    }
    opened(file)?;
    // The answer depends on the file alone.
    let info = ModelInfo::new("compiled", "1");
    let info = info.map_err(|error| Failure::new(EpwStatus::Config, error.to_string()))?;
    let request = watch
        .attach(info, None)
        .requesting(eps)
        .with_options(SessionOptions::default().with_soc_model(soc_model))
        .with_model_file(file);
    Ok(match request.compatibility() {
        Some(Compatibility::Optimal) => EpwCompatibility::Optimal,
        Some(Compatibility::PreferRecompilation) => EpwCompatibility::PreferRecompilation,
        Some(Compatibility::Unsupported) => EpwCompatibility::Unsupported,
        _ => EpwCompatibility::Unknown,
    })
}

/// Writes whether the compiled model in model_file is for this device, before it is loaded. The chipset and the version of QNN
/// that its file names are compared with soc_model or the device, and with qnn_sdk_version of the configuration. It must be of an
/// EP in requested_eps. Reads the file, and no graph that was compiled. Further fields of the model are not read. Returns
/// EPW_STATUS_INVALID_ARGUMENT if there is no requested EP, or if the file cannot be opened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_compatibility(
    watch: EpwWatch,
    model: *const EpwModel,
    answer: *mut EpwCompatibility,
) -> EpwStatus {
    // SAFETY: the header's first comment states the caller's duties.
    guarded(|| unsafe {
        let answer = ResultPlace::of(answer)?;
        let model = text::read(model)?;
        Ok(answer.write(compatibility(watch.id, &model)?))
    })
}
