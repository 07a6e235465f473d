//! What went wrong or was tested beside the runs: self-tests, sessions that could not be made,
//! runs that failed.

use crate::{
    ids::SessionUid,
    message::{
        Bool, Enum, Finite, I32, Inner, Maybe, MaybeBytes, Name, Positive64, Text, bounded, message,
    },
    placement::EpNames,
    reason::ReasonCode,
    session::Model,
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

bounded! {
    Cosine = f64 as f64, |v| (-1.0..=1.0).contains(v), "-1 to 1";
}

message! {
    mod test_fields: SelfTest = v1::SelfTest {
        1 session_uid: SessionUid,
        2 input_id: Name<64>,
        3 tolerance: Maybe<Finite>,
        4 npu_output_hash: MaybeBytes<[u8; 16], 16>,
        5 cpu_output_hash: MaybeBytes<[u8; 16], 16>,
        6 max_abs: Maybe<Finite>,
        7 cosine: Maybe<Cosine>,
        8 top1_equal: Maybe<Bool>,
        9 error_code: I32,
    }
    keeps u64 = |seen| Some(seen.session_uid);
}

message! {
    mod start_fields: StartFailure = v1::StartFailure {
        1 model: Inner<Model>,
        2 requested_eps: EpNames,
        3 phase: Enum<StartPhase>,
        4 reason: Enum<ReasonCode>,
        5 ort_status_code: I32,
        6 text: Text<512>,
        7 count: Positive64,
    }
}

message! {
    mod error_fields: RunErrors = v1::RunErrors {
        1 session_uid: SessionUid,
        2 ort_status_code: I32,
        3 count: Positive64,
    }
    keeps u64 = |seen| Some(seen.session_uid);
}
