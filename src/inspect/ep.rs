//! EPs of `--ep`: QNN's EP with emulated chipsets, and EPs that are built into an ONNX Runtime for this machine.

use std::path::{Path, PathBuf};

use anyhow::Context;
use epwatch_engines::Engine;
use epwatch_proto::{Accelerator, accelerator::CPU_EP, placement::QNN_EP};

use super::SocModel;
use crate::{
    engines,
    input_file::{self, FilePurpose},
    output::WrongUse,
};

/// An EP whose placements are inspected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum InspectedEp {
    #[default]
    Qnn,
    Openvino,
    Xnnpack,
    Coreml,
    Webgpu,
    Cpu,
}

/// An ONNX Runtime that has an EP built in.
#[derive(Debug)]
pub(crate) struct BuiltIn {
    pub(super) library: PathBuf,
    /// The runtime's name in reports, for example `ONNX Runtime 1.24.1, OpenVINO`.
    pub(crate) name: String,
}

impl InspectedEp {
    /// Returns the EP's name for `--ep`.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Qnn => "qnn",
            Self::Openvino => "openvino",
            Self::Xnnpack => "xnnpack",
            Self::Coreml => "coreml",
            Self::Webgpu => "webgpu",
            Self::Cpu => "cpu",
        }
    }

    /// Returns the EP's name in ONNX Runtime's placements.
    pub(crate) fn ep(self) -> &'static str {
        match self {
            Self::Qnn => QNN_EP,
            Self::Openvino => "OpenVINOExecutionProvider",
            Self::Xnnpack => "XnnpackExecutionProvider",
            Self::Coreml => "CoreMLExecutionProvider",
            Self::Webgpu => "WebGpuExecutionProvider",
            Self::Cpu => CPU_EP,
        }
    }

    /// Returns the EP's name in ONNX Runtime's general call; `None` if it needs another call or none.
    pub(super) fn built_in(self) -> Option<&'static str> {
        match self {
            Self::Qnn | Self::Cpu => None,
            Self::Openvino => Some("OpenVINO"),
            Self::Xnnpack => Some("XNNPACK"),
            Self::Coreml => Some("CoreML"),
            Self::Webgpu => Some("WebGPU"),
        }
    }

    pub(super) fn accelerator(self) -> Accelerator {
        Accelerator::of_ep(self.ep())
    }

    /// Returns the EPs that a session requests.
    pub(super) fn requested(self) -> Vec<String> {
        match self {
            Self::Cpu => Vec::new(),
            ep => vec![ep.ep().to_owned()],
        }
    }

    /// Returns the place where the EP's session runs; `None` for QNN's EP, which has chipsets.
    pub(crate) fn place(self) -> Option<SocModel> {
        let label = self.accelerator().label();
        (self != Self::Qnn).then(|| SocModel {
            asked: format!("this machine [{label}]"),
            qnn_id: None,
        })
    }

    /// Refuses options of the other kind of EP.
    pub(crate) fn check(self, has_socs: bool, ort: Option<&Path>) -> Result<(), WrongUse> {
        match (self, ort) {
            (Self::Qnn, Some(_)) => Err(WrongUse(
                "--ort is for the other EPs of --ep: epwatch brings the ONNX Runtime of qnn"
                    .to_owned(),
            )),
            (Self::Qnn, None) => Ok(()),
            _ if has_socs => Err(WrongUse(format!(
                "--soc names chipsets of --ep qnn; {} runs on this machine as it is",
                self.word()
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the library with the EP: the given one, else one that is fetched.
    pub(crate) async fn runtime(self, ort: Option<&Path>) -> anyhow::Result<BuiltIn> {
        let label = self.accelerator().label();
        if let Some(path) = ort {
            let absolute = || std::path::absolute(path).map_err(|error| error.to_string());
            let found = input_file::check(path, FilePurpose::Library).and_then(|()| absolute());
            let shown = path.display();
            let library = found
                .map_err(|error| WrongUse(format!("failed to read --ort {shown}: {error}")))?;
            let file = library.file_name().unwrap_or_default().to_string_lossy();
            let name = format!("{file}, {label}");
            return Ok(BuiltIn { library, name });
        }
        let installed = match self {
            Self::Openvino => engines::ensure_openvino().await,
            _ => engines::ensure(Engine::OnnxRuntime).await,
        };
        let installed = installed.with_context(|| {
            format!(
                "without ONNX Runtime there is no placement by {}",
                self.word()
            )
        })?;
        Ok(BuiltIn {
            library: installed.ort_library(),
            name: format!("ONNX Runtime {}, {label}", installed.version()),
        })
    }
}
