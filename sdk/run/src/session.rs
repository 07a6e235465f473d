//! The session of a launch, as the app makes it.

use std::path::PathBuf;

use anyhow::Context;
use epwatch_proto::{
    ModelManifest, ReasonCode,
    placement::{CPU_EP, QNN_EP},
};
use epwatch_sdk::{
    placement::{self, PlacementInput},
    qnn::{HtpOptions, Plugin},
    runtime::{self, FIRST_WITH_ASSIGNMENT_API, RuntimeError},
};
use ort::{environment::Environment, session::builder::SessionBuilder};

use crate::{
    job::{Ep, Job, KeyValue},
    settings::sha256_of,
    wrong_use::WrongUse,
};

/// Minor version of the oldest ONNX Runtime 1.x for launches. `ort` gives each session a policy for choosing its EP, and
/// 1.22 aborts the process because of it if it has no device.
const OLDEST: u32 = 23;

/// The runtime of this process, with the EP's plugin.
pub(crate) struct LoadedRuntime {
    environment: Environment,
    plugin: Option<Plugin>,
}

/// A builder and what the SDK needs to explain its sessions.
pub(crate) struct Builder {
    pub(crate) builder: SessionBuilder,
    pub(crate) requested: Vec<String>,
    pub(crate) reasons: Vec<ReasonCode>,
}

impl LoadedRuntime {
    pub(crate) fn load(job: &Job) -> anyhow::Result<Self> {
        let too_old = |found: &str| {
            WrongUse(format!(
                "--ort {}: ONNX Runtime {found} is too old for launches; give 1.{OLDEST} or later (1.{FIRST_WITH_ASSIGNMENT_API} or \
                 later also reports where each node runs)",
                job.ort.display()
            ))
        };
        let environment = match runtime::load(&job.ort) {
            Err(RuntimeError::TooOld { found, .. }) => return Err(too_old(&found).into()),
            loaded => loaded?.build()?,
        };
        let version = placement::ort_version().unwrap_or_default();
        let minor = version
            .strip_prefix("1.")
            .and_then(|rest| rest.split('.').next());
        let minor: Option<u32> = minor.and_then(|minor| minor.parse().ok());
        if minor.is_some_and(|minor| minor < OLDEST) {
            return Err(too_old(&version).into());
        }
        let plugin = match &job.ep {
            Ep::Qnn { provider, .. } => Some(Plugin::register(&environment, provider)?),
            Ep::Cpu => None,
        };
        environment.set_log_level(ort::logging::LogLevel::Error);
        Ok(Self {
            environment,
            plugin,
        })
    }

    /// A builder for the EP that is measured.
    pub(crate) fn builder(&self, job: &Job) -> anyhow::Result<Builder> {
        let (
            Ep::Qnn {
                backend,
                soc_model,
                options,
                ..
            },
            Some(plugin),
        ) = (&job.ep, &self.plugin)
        else {
            return Ok(Builder {
                builder: self.cpu_builder(job)?,
                requested: Vec::new(),
                reasons: Vec::new(),
            });
        };
        let mut htp = HtpOptions::new(backend);
        if let Some(soc_model) = soc_model {
            htp = htp.with_soc_model(soc_model);
        }
        let htp = plugin.session_builder(&htp)?;
        let builder = as_the_app(htp.builder, job)?;
        Ok(Builder {
            builder: with_ep_options(builder, options)?,
            requested: htp.requested_eps,
            reasons: htp.reasons.into_iter().map(ReasonCode::from).collect(),
        })
    }

    /// A builder for the CPU alone.
    pub(crate) fn cpu_builder(&self, job: &Job) -> anyhow::Result<SessionBuilder> {
        let builder = match &self.plugin {
            Some(plugin) => plugin.cpu_session_builder()?,
            None => SessionBuilder::new(&self.environment)?,
        };
        as_the_app(builder, job)
    }
}

/// Sets the session options that the app sets.
fn as_the_app(builder: SessionBuilder, job: &Job) -> anyhow::Result<SessionBuilder> {
    let builder = with_dims(builder, &job.dims)?;
    Ok(with_custom_ops(builder, &job.custom_ops)?)
}

/// The sentence about a model whose ops (`domain:Op`, ..) are in a library that was not given.
pub fn needs_custom_ops(ops: &str) -> String {
    format!("the model needs a custom-op library, for {ops}; give the app's with --custom-ops LIB")
}

/// The sentence about libraries without the model's ops.
pub fn lacks_custom_ops(ops: &str) -> String {
    format!("the libraries of --custom-ops must have {ops}")
}

/// Registers the app's libraries of custom ops.
///
/// # Errors
/// ONNX Runtime cannot load a library, or does not find `RegisterCustomOps` in it.
pub fn with_custom_ops(
    mut builder: SessionBuilder,
    libraries: &[PathBuf],
) -> Result<SessionBuilder, WrongUse> {
    let mut known: Vec<(String, &PathBuf)> = Vec::new();
    for library in libraries {
        // ONNX Runtime would say that a domain is set already, as if the model were broken.
        let sha256 =
            sha256_of(library).map_err(|error| WrongUse(format!("--custom-ops: {error:#}")))?;
        if let Some((_, first)) = known.iter().find(|(other, _)| *other == sha256) {
            return Err(WrongUse(format!(
                "--custom-ops {} is the same library as {}; give each once",
                library.display(),
                first.display()
            )));
        }
        known.push((sha256, library));
        builder = builder.with_operator_library(library).map_err(|error| {
            let error: ort::Error = error.into();
            WrongUse(format!(
                "--custom-ops {} cannot be used: {}; expected a library of this machine with RegisterCustomOps",
                library.display(),
                error.message().trim()
            ))
        })?;
    }
    Ok(builder)
}

/// Sets options of QNN's EP. A later one replaces an earlier one.
pub(crate) fn with_ep_options(
    mut builder: SessionBuilder,
    options: &[KeyValue],
) -> anyhow::Result<SessionBuilder> {
    for KeyValue { key, value } in options {
        let key = format!("ep.{}.{key}", QNN_EP.to_lowercase());
        let set = builder.with_config_entry(key, value);
        builder = set.map_err(|error| -> ort::Error { error.into() })?;
    }
    Ok(builder)
}

fn with_dims(mut builder: SessionBuilder, dims: &[KeyValue]) -> anyhow::Result<SessionBuilder> {
    for KeyValue { key, value } in dims {
        let size = value.parse::<i64>().ok().filter(|size| *size > 0);
        let size =
            size.with_context(|| format!("--dim {key}={value}: expected a size of 1 or more"))?;
        let set = builder.with_dimension_override(key, size);
        builder = set.map_err(|error| -> ort::Error { error.into() })?;
    }
    Ok(builder)
}

impl Builder {
    pub(crate) fn input<'a>(
        &'a self,
        soc_model: &'a str,
        manifest: Option<&'a ModelManifest>,
    ) -> PlacementInput<'a> {
        PlacementInput {
            requested_eps: &self.requested,
            soc_model,
            manifest,
            known_reasons: &self.reasons,
        }
    }
}

/// The MACs of the model's nodes.
pub(crate) fn manifest(job: &Job) -> anyhow::Result<Option<ModelManifest>> {
    let manifest = job.manifest.clone().map(ModelManifest::try_from);
    Ok(manifest.transpose()?)
}

impl Ep {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Cpu => CPU_EP,
            Self::Qnn { .. } => QNN_EP,
        }
    }

    pub(crate) fn is_npu(&self) -> bool {
        matches!(self, Self::Qnn { .. })
    }

    /// The runtime whose code makes the session.
    pub(crate) fn runtime(&self) -> &'static str {
        match self {
            Self::Cpu => "ONNX Runtime",
            Self::Qnn { .. } => "QNN",
        }
    }

    /// Number of the chipset that QNN's emulator stands for; empty on a device, where QNN finds its own.
    pub(crate) fn soc_model(&self) -> &str {
        match self {
            Self::Qnn { soc_model, .. } => soc_model.as_deref().unwrap_or_default(),
            Self::Cpu => "",
        }
    }
}
