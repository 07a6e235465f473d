//! Qualcomm's plugin EP: registration, and builders whose sessions really use it.
//!
//! This module avoids four mistakes that give no error. A session option without the EP's prefix is ignored. The device
//! is found by its type, which is CPU on a Linux host with the HTP emulator. A session meant for the CPU goes to the
//! NPU, because every builder has an automatic EP policy. An environment with a custom logger logs everything.

use std::path::{Path, PathBuf};

use crate::{
    directives::SessionPlan,
    types::{self, SessionOptions},
};
use epwatch_proto::{
    Accelerator, ReasonCode,
    placement::{CPU_EP, QNN_EP},
};
use ort::{environment::Environment, ep::ExecutionProvider, session::builder::SessionBuilder};

use crate::placement::{RuntimeNames, ep_devices};

/// Why the plugin cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QnnError {
    /// The library is missing, built for another platform, or too old for this ORT.
    #[error("failed to register the QNN EP from {library}")]
    Register {
        /// The plugin's library.
        library: PathBuf,
        /// ORT's error.
        #[source]
        source: ort::Error,
    },
    /// A builder refused an option.
    #[error("failed to prepare a session for {ep}")]
    Builder {
        /// The EP of the builder.
        ep: &'static str,
        /// ORT's error.
        #[source]
        source: ort::Error,
    },
}

/// Options of a session on the HTP. An empty value or `None` means the plugin's default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct HtpOptions {
    /// The HTP back end, `libQnnHtp.so`.
    pub backend_path: PathBuf,
    /// Chipset by QNN's number or name, for example `57` or `SM8650`. The emulator needs it, because its default is
    /// an SM8350; a phone needs none.
    pub soc_model: Option<String>,
    /// For example `burst`.
    pub performance_mode: Option<String>,
}

impl HtpOptions {
    /// The plugin's defaults with this back end, `libQnnHtp.so`.
    pub fn new(backend_path: impl Into<PathBuf>) -> Self {
        Self {
            backend_path: backend_path.into(),
            ..Self::default()
        }
    }

    /// Names the chipset by QNN's number or name.
    #[must_use]
    pub fn with_soc_model(mut self, soc_model: impl Into<String>) -> Self {
        self.soc_model = Some(soc_model.into());
        self
    }

    /// Sets QNN's `htp_performance_mode`, for example `burst`.
    #[must_use]
    pub fn with_performance_mode(mut self, mode: impl Into<String>) -> Self {
        self.performance_mode = Some(mode.into());
        self
    }
}

/// A builder for the HTP, with everything that [`Watch::htp_session`](crate::Watch::htp_session) needs to know about
/// it.
#[non_exhaustive]
pub struct HtpBuilder {
    /// The builder; the host may add its own options.
    pub builder: SessionBuilder,
    /// For [`SessionRequest::requesting`](crate::SessionRequest::requesting).
    pub requested_eps: Vec<String>,
    /// For [`SessionRequest::with_options`](crate::SessionRequest::with_options).
    pub options: SessionOptions,
    /// For [`SessionRequest::with_reasons`](crate::SessionRequest::with_reasons): the EP has no device here, or a
    /// directive forbids it.
    pub reasons: Vec<types::ReasonCode>,
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

/// Returns why no session of this process can use the QNN EP: it is not built in, and no registered plugin has a
/// device. The app may have registered the plugin under a name of its own. `None` if a session can use it. ORT ignores
/// a request for a missing EP, and returns no error.
pub(crate) fn missing() -> Option<ReasonCode> {
    let is_built_in = BuiltIn::is_available().unwrap_or(false);
    // A registered plugin without a device looks the same; `Plugin` distinguishes them.
    let names = RuntimeNames::read();
    let has_device = names.any(|ep| Accelerator::of_ep(ep).is_plain_npu());
    (!is_built_in && !has_device).then_some(ReasonCode::EpNotAvailable)
}

/// The built-in QNN EP, identified by name. `ort` has a type for it only in builds with its feature `qnn`, and queries
/// ORT by type.
struct BuiltIn;

impl ExecutionProvider for BuiltIn {
    const NAME: &'static str = QNN_EP;

    fn register(&self, _: &mut SessionBuilder) -> ort::Result<()> {
        Err(ort::Error::new("only asked for, never registered"))
    }
}

/// The registered plugin. Register it once per process.
#[derive(Debug)]
pub struct Plugin {
    environment: Environment,
}

impl Plugin {
    /// Registers the plugin's library with the host's environment, and limits its log to warnings.
    ///
    /// # Errors
    /// ORT's error, for example for a plugin built for an older ORT.
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

    /// Whether the plugin has a device here.
    pub fn has_device(&self) -> bool {
        ep_devices().iter().any(|device| device.ep == QNN_EP)
    }

    /// Returns a builder for a session on the HTP. If the plugin has no device, the session will run on the CPU, and
    /// the builder's reasons say so.
    ///
    /// # Errors
    /// Fails if ORT refuses an option.
    pub fn session_builder(&self, htp: &HtpOptions) -> Result<HtpBuilder, QnnError> {
        let missing = (!self.has_device()).then_some(ReasonCode::NoEpDevice);
        self.htp_builder(htp, missing)
    }

    /// Does the same as [`Self::session_builder`], and follows a plan. If the plan forbids the NPU, the builder is for
    /// the CPU alone. The requested EP is still the HTP, and the reasons name the directive.
    ///
    /// # Errors
    /// Fails if ORT refuses an option.
    pub fn session_builder_for(
        &self,
        plan: &SessionPlan,
        htp: &HtpOptions,
    ) -> Result<HtpBuilder, QnnError> {
        match plan.use_npu() {
            true => self.session_builder(htp),
            false => self.htp_builder(htp, Some(ReasonCode::NpuOffByDirective)),
        }
    }

    fn htp_builder(
        &self,
        htp: &HtpOptions,
        cpu_only: Option<ReasonCode>,
    ) -> Result<HtpBuilder, QnnError> {
        let builder = match cpu_only {
            None => self.builder_for(QNN_EP, &provider_options(htp))?,
            Some(_) => self.cpu_session_builder()?,
        };
        Ok(HtpBuilder {
            builder,
            requested_eps: vec![QNN_EP.to_owned()],
            options: SessionOptions::default()
                .with_performance_mode(htp.performance_mode.clone().unwrap_or_default())
                .with_soc_model(htp.soc_model.clone().unwrap_or_default()),
            reasons: cpu_only.into_iter().map(Into::into).collect(),
        })
    }

    /// Returns a builder for a session on the CPU only.
    ///
    /// # Errors
    /// Fails if ORT refuses it.
    pub fn cpu_session_builder(&self) -> Result<SessionBuilder, QnnError> {
        self.builder_for(CPU_EP, &[])
    }

    /// Uses only the EP's first device, because two devices of one EP would be two back ends.
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
