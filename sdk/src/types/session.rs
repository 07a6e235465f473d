//! A session's options, its id in reports, the work of its model, and the result of its self-test.

use std::fmt;

use epwatch_proto as proto;

use super::{
    mirrored::{DeviceType, SelectionPolicy},
    setters::setters,
};

/// Options of a session that change where or how fast the model runs. An empty text is not known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionOptions(proto::SessionOptions);

impl SessionOptions {
    setters! {
        /// Sets QNN's `htp_performance_mode`, for example `burst`.
        with_performance_mode(performance_mode: String);
        /// Sets QNN's `soc_model`, by number or name.
        with_soc_model(soc_model: String);
        /// Sets QNN's `htp_arch`.
        with_htp_arch(htp_arch: String);
        /// Sets ONNX Runtime's level of graph optimisation.
        with_graph_optimization_level(graph_optimization_level: String);
    }

    /// Names the type of device that the EP runs on. See
    /// [`SessionRequest::with_device_type`](crate::SessionRequest::with_device_type).
    #[must_use]
    pub fn with_device_type(mut self, device: impl Into<Option<DeviceType>>) -> Self {
        self.0.device_type = device.into().map(Into::into);
        self
    }

    /// Names the policy by which ONNX Runtime chooses devices by itself. See
    /// [`SessionRequest::with_selection_policy`](crate::SessionRequest::with_selection_policy).
    #[must_use]
    pub fn with_selection_policy(mut self, policy: impl Into<Option<SelectionPolicy>>) -> Self {
        self.0.selection_policy = policy.into().map(Into::into);
        self
    }
}

#[doc(hidden)]
impl From<proto::SessionOptions> for SessionOptions {
    fn from(options: proto::SessionOptions) -> Self {
        Self(options)
    }
}

#[doc(hidden)]
impl From<SessionOptions> for proto::SessionOptions {
    fn from(options: SessionOptions) -> Self {
        options.0
    }
}

/// Id of a session in reports: a random number of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionUid(pub(crate) proto::SessionUid);

impl SessionUid {
    #[doc(hidden)]
    pub fn wire(self) -> proto::SessionUid {
        self.0
    }
}

impl fmt::Display for SessionUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The MACs of a model's nodes, as [`read_side_car`](crate::read_side_car) returns them.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelManifest(proto::ModelManifest);

impl ModelManifest {
    /// Returns the MACs of one run of the model.
    pub fn total_macs(&self) -> u64 {
        self.0.total_macs
    }

    #[doc(hidden)]
    pub fn wire(&self) -> &proto::ModelManifest {
        &self.0
    }
}

#[doc(hidden)]
impl From<proto::ModelManifest> for ModelManifest {
    fn from(manifest: proto::ModelManifest) -> Self {
        Self(manifest)
    }
}

#[doc(hidden)]
impl From<ModelManifest> for proto::ModelManifest {
    fn from(manifest: ModelManifest) -> Self {
        manifest.0
    }
}

/// Result of a golden input that ran on the NPU session and on a CPU session. Holds no tensor.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SelfTest {
    /// The golden input's name.
    pub input_id: String,
    /// The greatest difference that the app accepts.
    pub tolerance: Option<f64>,
    /// Hash of the NPU's outputs; `None` if it returned none.
    pub npu_output_hash: Option<[u8; 16]>,
    /// Hash of the CPU's outputs; `None` if it returned none.
    pub cpu_output_hash: Option<[u8; 16]>,
    /// The greatest absolute difference of two elements; `None` if the outputs were not compared.
    pub max_abs: Option<f64>,
    /// The lowest cosine of an output; `None` if the outputs were not compared.
    pub cosine: Option<f64>,
    /// Whether the largest element of every output is the same one; `None` if the outputs were not compared.
    pub top1_equal: Option<bool>,
    /// 0, ONNX Runtime's code of a failure, or one of [`code`](crate::self_test::code).
    pub error_code: i32,
    /// The first output whose cosine is below 0.98. Empty if there is none, or if the model has one output.
    pub first_off_output: String,
}

#[doc(hidden)]
impl From<proto::SelfTest> for SelfTest {
    fn from(test: proto::SelfTest) -> Self {
        Self {
            input_id: test.input_id,
            tolerance: test.tolerance,
            npu_output_hash: test.npu_output_hash,
            cpu_output_hash: test.cpu_output_hash,
            max_abs: test.max_abs,
            cosine: test.cosine,
            top1_equal: test.top1_equal,
            error_code: test.error_code,
            first_off_output: test.first_off_output,
        }
    }
}
