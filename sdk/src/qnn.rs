//! Sessions on Qualcomm's plugin execution provider, with its traps handled.
//!
//! The plugin is registered once in the process's one environment. After that every session
//! builder of `ort` carries an automatic policy that may choose it, so a session always names its
//! device: the QNN one by the EP's name (on x86, where the HTP is emulated, its device type says
//! CPU), or the CPU.

use std::path::{Path, PathBuf};

use epwatch_proto::placement::{CPU_EP, QNN_EP};
use ort::{
    environment::Environment,
    session::{Session, builder::SessionBuilder},
};

/// A plugin that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QnnError {
    /// The library could not be registered; often it is older than ONNX Runtime wants.
    #[error("failed to register the QNN plugin {path}")]
    Register {
        /// The library.
        path: PathBuf,
        /// What ONNX Runtime said.
        #[source]
        source: ort::Error,
    },
    /// ONNX Runtime lists no device of this EP: the plugin found no NPU, or is not registered.
    #[error("no device of {ep} is there; is the plugin registered, and does this machine have one?")]
    NoDevice {
        /// The EP.
        ep: &'static str,
    },
    /// The session options were refused.
    #[error("failed to set up a session on {ep}")]
    Options {
        /// The EP.
        ep: &'static str,
        /// What ONNX Runtime said.
        #[source]
        source: ort::Error,
    },
}

/// Provider options; empty ones keep the plugin's default.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct QnnOptions {
    entries: Vec<(String, String)>,
}

impl QnnOptions {
    /// The back end library, for example `libQnnHtp.so`.
    pub fn with_backend(self, path: &Path) -> Self {
        self.with("backend_path", &path.display().to_string())
    }

    /// The chipset as a number of QNN's own (`57`) or a name (`SM8650`). On a phone leave it out.
    pub fn with_soc_model(self, soc_model: &str) -> Self {
        self.with("soc_model", soc_model)
    }

    /// For example `burst`.
    pub fn with_performance_mode(self, mode: &str) -> Self {
        self.with("htp_performance_mode", mode)
    }

    /// Any other provider option, without the plugin's prefix.
    pub fn with(mut self, key: &str, value: &str) -> Self {
        // `ort` passes on only what carries the EP's name.
        self.entries.push((format!("{QNN_EP}.{key}"), value.to_owned()));
        self
    }
}

/// Registers the plugin library. Once per process.
///
/// # Errors
/// [`QnnError::Register`].
pub fn register(environment: &Environment, library: &Path) -> Result<(), QnnError> {
    environment
        .register_ep_library(QNN_EP, library)
        .map_err(|source| QnnError::Register { path: library.to_owned(), source })
}

/// Returns a session builder on the QNN device, with the CPU behind it as always.
///
/// # Errors
/// [`QnnError::NoDevice`], [`QnnError::Options`].
pub fn session_builder(
    environment: &Environment,
    options: &QnnOptions,
) -> Result<SessionBuilder, QnnError> {
    on_device(environment, QNN_EP, &options.entries)
}

/// Returns a session builder for the CPU alone, whatever is registered.
///
/// # Errors
/// [`QnnError::NoDevice`], [`QnnError::Options`].
pub fn cpu_session_builder(environment: &Environment) -> Result<SessionBuilder, QnnError> {
    on_device(environment, CPU_EP, &[])
}

fn on_device(
    environment: &Environment,
    ep: &'static str,
    entries: &[(String, String)],
) -> Result<SessionBuilder, QnnError> {
    let refused = |source| QnnError::Options { ep, source };
    let devices: Vec<_> = environment
        .devices()
        .filter(|device| device.ep().is_ok_and(|name| name == ep))
        .collect();
    if devices.is_empty() {
        return Err(QnnError::NoDevice { ep });
    }
    Session::builder(environment)
        .map_err(refused)?
        .with_devices(devices, Some(entries))
        .map_err(|error| refused(error.into()))
}
