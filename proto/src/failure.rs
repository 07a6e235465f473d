//! What went wrong or was tested beside the runs: self-tests, sessions that could not be made,
//! runs that failed.

use crate::{
    bounds::{bytes_or_empty, finite, optional_bytes, positive, required_text, text, within},
    error::ParseError,
    ids::SessionUid,
    placement::parse_eps,
    reason::ReasonCode,
    session::{Model, required_model},
    v1,
    wire_enum::wire_enum,
};

wire_enum! {
    /// How far a session came that could not be made as asked.
    pub enum StartPhase: StartPhase {
        /// Loading the runtime's library.
        LibraryLoad = LibraryLoad "library_load",
        /// Registering the EP.
        EpRegistration = EpRegistration "ep_registration",
        /// Creating the session.
        SessionCreation = SessionCreation "session_creation",
        /// Creating it again after a failed run.
        RecreationAfterRunError = RecreationAfterRunError "recreation_after_run_error",
    }
}

/// A golden input run on the NPU session and on a CPU session. Never a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct SelfTest {
    /// The session, described in the same report.
    pub session_uid: SessionUid,
    /// Which input.
    pub input_id: String,
    /// Greatest absolute difference that the model's owner accepts.
    pub tolerance: Option<f64>,
    /// Cut SHA-256 of the NPU's output.
    pub npu_output_hash: Option<[u8; 16]>,
    /// Cut SHA-256 of the CPU's output.
    pub cpu_output_hash: Option<[u8; 16]>,
    /// Greatest absolute difference.
    pub max_abs: Option<f64>,
    /// Cosine of the outputs, -1 to 1.
    pub cosine: Option<f64>,
    /// Whether the largest element is the same.
    pub top1_equal: Option<bool>,
    /// ORT status code when a run failed; 0 is OK; below 0 what the SDK itself found.
    pub error_code: i32,
}

/// A session that could not be made as asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFailure {
    /// What it should have run.
    pub model: Model,
    /// EPs that were asked for in effect.
    pub requested_eps: Vec<String>,
    /// How far it came.
    pub phase: StartPhase,
    /// Why it failed.
    pub reason: ReasonCode,
    /// OrtErrorCode; 0 when ORT was not reached.
    pub ort_status_code: i32,
    /// First line of the error, scrubbed.
    pub text: String,
    /// How often, 1 or more.
    pub count: u64,
}

/// Failed runs of one session in the interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunErrors {
    /// The session, described in the same report.
    pub session_uid: SessionUid,
    /// OrtErrorCode.
    pub ort_status_code: i32,
    /// How often, 1 or more.
    pub count: u64,
}

impl TryFrom<v1::SelfTest> for SelfTest {
    type Error = ParseError;

    fn try_from(t: v1::SelfTest) -> Result<Self, ParseError> {
        let finite = |field, value: Option<f64>| value.map(|v| finite(field, v)).transpose();
        let cosine = t
            .cosine
            .map(|c| within("cosine", c, -1.0, 1.0))
            .transpose()?;
        Ok(Self {
            session_uid: SessionUid::parse("session_uid", t.session_uid)?,
            input_id: required_text("input_id", t.input_id, 64)?,
            tolerance: finite("tolerance", t.tolerance)?,
            npu_output_hash: optional_bytes("npu_output_hash", &t.npu_output_hash)?,
            cpu_output_hash: optional_bytes("cpu_output_hash", &t.cpu_output_hash)?,
            max_abs: finite("max_abs", t.max_abs)?,
            cosine,
            top1_equal: t.top1_equal,
            error_code: t.error_code,
        })
    }
}

impl TryFrom<v1::StartFailure> for StartFailure {
    type Error = ParseError;

    fn try_from(f: v1::StartFailure) -> Result<Self, ParseError> {
        Ok(Self {
            model: required_model("model", f.model)?,
            requested_eps: parse_eps("requested_eps", f.requested_eps)?,
            phase: StartPhase::parse("phase", f.phase)?,
            reason: ReasonCode::parse("reason", f.reason)?,
            ort_status_code: f.ort_status_code,
            text: text("text", f.text, 512)?,
            count: positive("count", f.count)?,
        })
    }
}

impl TryFrom<v1::RunErrors> for RunErrors {
    type Error = ParseError;

    fn try_from(e: v1::RunErrors) -> Result<Self, ParseError> {
        Ok(Self {
            session_uid: SessionUid::parse("session_uid", e.session_uid)?,
            ort_status_code: e.ort_status_code,
            count: positive("count", e.count)?,
        })
    }
}

impl From<&SelfTest> for v1::SelfTest {
    fn from(t: &SelfTest) -> Self {
        let bytes = |hash: &Option<[u8; 16]>| bytes_or_empty(hash.as_ref().map(|h| h.as_slice()));
        Self {
            session_uid: t.session_uid.get(),
            input_id: t.input_id.clone(),
            tolerance: t.tolerance,
            npu_output_hash: bytes(&t.npu_output_hash),
            cpu_output_hash: bytes(&t.cpu_output_hash),
            max_abs: t.max_abs,
            cosine: t.cosine,
            top1_equal: t.top1_equal,
            error_code: t.error_code,
        }
    }
}

impl From<&StartFailure> for v1::StartFailure {
    fn from(f: &StartFailure) -> Self {
        Self {
            model: Some((&f.model).into()),
            requested_eps: f.requested_eps.clone(),
            phase: f.phase.to_wire(),
            reason: f.reason.to_wire(),
            ort_status_code: f.ort_status_code,
            text: f.text.clone(),
            count: f.count,
        }
    }
}

impl From<&RunErrors> for v1::RunErrors {
    fn from(e: &RunErrors) -> Self {
        Self {
            session_uid: e.session_uid.get(),
            ort_status_code: e.ort_status_code,
            count: e.count,
        }
    }
}
