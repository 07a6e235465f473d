//! Qualcomm's plugin EP, registered and asked for the way it works.
//!
//! What goes wrong without this, each silently: a session option without the EP's prefix is not
//! passed on; the device is found by type, which is CPU on a Linux host with the HTP emulator; a
//! session meant for the CPU goes to the NPU, because every builder has an automatic EP policy;
//! and the environment of a custom logger is at its most verbose.

use std::path::{Path, PathBuf};

use crate::directives::SessionPlan;
use epwatch_proto::{
    ReasonCode, SessionOptions,
    placement::{CPU_EP, QNN_EP},
};
use ort::{environment::Environment, ep::ExecutionProvider, session::builder::SessionBuilder};

use crate::placement;

/// The plugin cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QnnError {
    /// The library is missing, of another platform, or too old for this ORT.
    #[error("failed to register the QNN EP from {library}")]
    Register {
        /// The plugin's library.
        library: PathBuf,
        /// What ORT says.
        #[source]
        source: ort::Error,
    },
    /// A builder refused an option.
    #[error("failed to prepare a session for {ep}")]
    Builder {
        /// The EP it was for.
        ep: &'static str,
        /// What ORT says.
        #[source]
        source: ort::Error,
    },
}

/// How a session uses the HTP. Empty or `None`: the plugin's default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HtpOptions {
    /// The HTP back end, `libQnnHtp.so`.
    pub backend_path: PathBuf,
    /// Chipset by QNN's number or name, for example `57` or `SM8650`. Needed by the emulator,
    /// which is an SM8350 otherwise; a phone knows its own.
    pub soc_model: Option<String>,
    /// For example `burst`.
    pub performance_mode: Option<String>,
}

/// A builder for the HTP, and what to tell the SDK about it.
pub struct HtpBuilder {
    /// The builder, ready but for the host's own options.
    pub builder: SessionBuilder,
    /// EPs asked for: for [`SessionRequest::requesting`](crate::SessionRequest::requesting).
    pub requested_eps: Vec<String>,
    /// For [`SessionRequest::with_options`](crate::SessionRequest::with_options).
    pub options: SessionOptions,
    /// For [`SessionRequest::with_reasons`](crate::SessionRequest::with_reasons): that the EP is
    /// there and offers no device, so that the session will be on the CPU.
    pub reasons: Vec<ReasonCode>,
}

impl std::fmt::Debug for HtpBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HtpBuilder")
            .field("requested_eps", &self.requested_eps)
            .field("options", &self.options)
            .field("reasons", &self.reasons)
            .finish_non_exhaustive()
    }
}

/// Why a session of this environment cannot get the QNN EP: it is neither built in, nor is there a
/// device of a registered plugin. `None` if it can. For hosts that make their builders themselves, and
/// hand it to [`SessionRequest::with_reasons`](crate::SessionRequest::with_reasons): ORT takes such
/// a request without a word.
pub fn missing(environment: &Environment) -> Option<ReasonCode> {
    let is_built_in = BuiltIn::is_available().unwrap_or(false);
    let has_device = has_device(environment);
    // A registered plugin without a device looks like none; `Plugin` knows the difference.
    (!is_built_in && !has_device).then_some(ReasonCode::EpNotAvailable)
}

/// ORT 1.22 lists devices on Windows alone; elsewhere its list is a null pointer, which `ort` makes a
/// slice of.
fn has_device(environment: &Environment) -> bool {
    let lists_devices = placement::ort_version()
        .and_then(|v| v.split('.').nth(1)?.parse::<u32>().ok())
        .is_some_and(|minor| minor >= 23);
    lists_devices
        && environment
            .devices()
            .any(|d| d.ep().is_ok_and(|ep| ep == QNN_EP))
}

/// The EP by name only: `ort` has a type for it in builds with its feature `qnn` alone, and asks ORT
/// by type.
struct BuiltIn;

impl ExecutionProvider for BuiltIn {
    const NAME: &'static str = QNN_EP;

    fn register(&self, _: &mut SessionBuilder) -> ort::Result<()> {
        Err(ort::Error::new("only asked for, never registered"))
    }
}

/// The registered plugin. One a process.
#[derive(Debug)]
pub struct Plugin {
    environment: Environment,
}

impl Plugin {
    /// Registers the plugin's library with the host's environment and quiets its log to warnings.
    ///
    /// # Errors
    /// ORT's own, for example when the plugin was built for an older ORT.
    pub fn register(environment: &Environment, library: &Path) -> Result<Self, QnnError> {
        environment.set_log_level(ort::logging::LogLevel::Warning);
        environment
            .register_ep_library(QNN_EP, library)
            .map_err(|source| QnnError::Register {
                library: library.to_owned(),
                source,
            })?;
        Ok(Self {
            environment: environment.clone(),
        })
    }

    /// Whether the plugin offers a device here.
    pub fn has_device(&self) -> bool {
        has_device(&self.environment)
    }

    /// A builder whose session asks for the HTP. Where the plugin offers no device it will be on
    /// the CPU, and its reasons say so.
    ///
    /// # Errors
    /// If ORT refuses an option.
    pub fn session_builder(&self, htp: &HtpOptions) -> Result<HtpBuilder, QnnError> {
        let (builder, reasons) = if self.has_device() {
            (
                self.builder_for(QNN_EP, &provider_options(htp))?,
                Vec::new(),
            )
        } else {
            (self.cpu_session_builder()?, vec![ReasonCode::NoEpDevice])
        };
        Ok(HtpBuilder {
            builder,
            requested_eps: vec![QNN_EP.to_owned()],
            options: session_options(htp),
            reasons,
        })
    }

    /// As [`Self::session_builder`], but on the CPU alone where the plan says so: then the reasons
    /// name it, and what was asked for stays the HTP.
    ///
    /// # Errors
    /// If ORT refuses an option.
    pub fn session_builder_for(
        &self,
        plan: &SessionPlan,
        htp: &HtpOptions,
    ) -> Result<HtpBuilder, QnnError> {
        if plan.use_npu() {
            return self.session_builder(htp);
        }
        Ok(HtpBuilder {
            builder: self.cpu_session_builder()?,
            requested_eps: vec![QNN_EP.to_owned()],
            options: session_options(htp),
            reasons: vec![ReasonCode::NpuOffByDirective],
        })
    }

    /// A builder whose session is on the CPU and nowhere else.
    ///
    /// # Errors
    /// If ORT refuses it.
    pub fn cpu_session_builder(&self) -> Result<SessionBuilder, QnnError> {
        self.builder_for(CPU_EP, &[])
    }

    /// Names the EP's first device: two of one EP would be two back ends.
    fn builder_for(
        &self,
        ep: &'static str,
        options: &[(String, String)],
    ) -> Result<SessionBuilder, QnnError> {
        let refused = |source| QnnError::Builder { ep, source };
        let builder = SessionBuilder::new(&self.environment).map_err(refused)?;
        let is_its = |d: &ort::device::Device<'_>| d.ep().is_ok_and(|name| name == ep);
        let devices: Vec<_> = self.environment.devices().filter(is_its).take(1).collect();
        builder
            .with_devices(devices, Some(options))
            .map_err(|error| refused(error.into()))
    }
}

fn session_options(htp: &HtpOptions) -> SessionOptions {
    SessionOptions {
        performance_mode: htp.performance_mode.clone().unwrap_or_default(),
        soc_model: htp.soc_model.clone().unwrap_or_default(),
        ..SessionOptions::default()
    }
}

fn provider_options(htp: &HtpOptions) -> Vec<(String, String)> {
    let mut options = Vec::new();
    let mut add = |key: &str, value: &str| {
        if !value.is_empty() {
            options.push((format!("{QNN_EP}.{key}"), value.to_owned()));
        }
    };
    add("backend_path", &htp.backend_path.to_string_lossy());
    add("soc_model", htp.soc_model.as_deref().unwrap_or_default());
    let mode = htp.performance_mode.as_deref();
    add("htp_performance_mode", mode.unwrap_or_default());
    options
}
