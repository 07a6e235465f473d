//! Self-tests, sessions that could not be created, and runs that failed.

use crate::{
    ep_device::DeviceType,
    ids::SessionUid,
    message::{
        Bool, Enum, Finite, I32, Inner, Maybe, MaybeBytes, Name, PositiveCount, Text, bounded,
        message,
    },
    placement::EpNames,
    reason::ReasonCode,
    session::Model,
    v1,
    wire_enum::wire_enum,
};

wire_enum! {
    /// Step in which the creation of a session failed.
    #[expect(missing_docs, reason = "the names say it")]
    pub enum StartPhase: StartPhase {
        LibraryLoad = LibraryLoad "library_load",
        EpRegistration = EpRegistration "ep_registration",
        SessionCreation = SessionCreation "session_creation",
        RecreationAfterRunError = RecreationAfterRunError "recreation_after_run_error",
    }
}

/// Result of a golden input that ran on the NPU session and on a CPU session. Holds no tensor.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct SelfTest {
    pub session_uid: SessionUid,
    pub input_id: String,
    pub tolerance: Option<f64>,
    pub npu_output_hash: Option<[u8; 16]>,
    pub cpu_output_hash: Option<[u8; 16]>,
    pub max_abs: Option<f64>,
    pub cosine: Option<f64>,
    pub top1_equal: Option<bool>,
    pub error_code: i32,
    pub first_off_output: String,
}

/// Minimum cosine of two outputs that differ by rounding alone: floor against nearest even, or a last bit
/// (docs/detection.md has the measurement).
pub const ROUNDING_COSINE: f64 = 0.98;

/// A session that could not be created as requested.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct StartFailure {
    pub model: Model,
    pub requested_eps: Vec<String>,
    pub phase: StartPhase,
    pub reason: ReasonCode,
    pub ort_status_code: i32,
    pub text: String,
    pub count: u64,
    pub device_type: Option<DeviceType>,
}

/// Failed runs of one session in the interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct RunErrors {
    pub session_uid: SessionUid,
    pub ort_status_code: i32,
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
        10 first_off_output: Text<128>,
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
        7 count: PositiveCount,
        8 device_type: Maybe<Enum<DeviceType>>,
    }
}

message! {
    mod error_fields: RunErrors = v1::RunErrors {
        1 session_uid: SessionUid,
        2 ort_status_code: I32,
        3 count: PositiveCount,
    }
    keeps u64 = |seen| Some(seen.session_uid);
}
