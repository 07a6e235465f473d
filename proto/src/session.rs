//! ONNX Runtime sessions: the model, what was asked for, and where it ended up.

use crate::{
    directive::MAX_DIRECTIVE_ID_BYTES,
    ids::{ModelHash, SessionUid},
    message::{
        CheckedMessage, Fields, Inner, InnerOrDefault, Last, Maybe, MaybeBytes, Name, Text, U64,
        UnixMs, message,
    },
    placement::{EpNames, Placement},
    v1,
    wire::each_field,
};

/// A model file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Model {
    /// What the app calls it.
    pub id: String,
    /// Its version.
    pub version: String,
    /// Hash of the file.
    pub sha256: Option<ModelHash>,
    /// For EPContext files: hash of the model it was compiled from.
    pub source_sha256: Option<ModelHash>,
    /// For EPContext files: the text under `ep_compatibility_info.<EP>`.
    pub ep_compatibility: String,
}

/// One ORT session. It spans reports and is repeated in each that refers to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// Random id.
    pub uid: SessionUid,
    /// What it runs.
    pub model: Model,
    /// EPs the app asked for. What was asked for in effect is in the placement.
    pub requested_eps: Vec<String>,
    /// The directive that changed them; empty: none.
    pub directive_id: String,
    /// Options that matter.
    pub options: SessionOptions,
    /// Where it runs.
    pub placement: Placement,
    /// How long the creation took, in microseconds.
    pub creation_us: Option<u64>,
    /// When it was created, by the device's clock.
    pub created_at_unix_ms: i64,
}

/// Session options that change where or how fast a model runs; empty: not given.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct SessionOptions {
    /// QNN's htp_performance_mode.
    pub performance_mode: String,
    /// QNN's soc_model as given.
    pub soc_model: String,
    /// QNN's htp_arch as given.
    pub htp_arch: String,
    /// ORT's graph optimisation level as given.
    pub graph_optimization_level: String,
}

message! {
    mod model_fields: Model = v1::Model {
        1 id: Name<128>,
        2 version: Name<64>,
        3 sha256: MaybeBytes<ModelHash, 32>,
        4 source_sha256: MaybeBytes<ModelHash, 32>,
        5 ep_compatibility: Text<512>,
    }
}

message! {
    mod options_fields: SessionOptions = v1::SessionOptions {
        1 performance_mode: Text<32>,
        2 soc_model: Text<32>,
        3 htp_arch: Text<16>,
        4 graph_optimization_level: Text<16>,
    }
}

message! {
    mod session_fields: Session = v1::Session {
        1 uid: SessionUid,
        2 model: Inner<Model>,
        3 requested_eps: EpNames,
        4 directive_id: Text<MAX_DIRECTIVE_ID_BYTES>,
        5 options: InnerOrDefault<SessionOptions>,
        6 placement: Inner<Placement>,
        7 creation_us: Maybe<U64>,
        8 created_at_unix_ms: UnixMs,
    }
    checked by hand;
}

impl CheckedMessage for Session {
    /// The uid.
    type Kept<'a> = u64;

    #[inline]
    fn check(bytes: &[u8]) -> Option<u64> {
        LastSession::default().check(bytes)
    }
}

/// Valid parts of a session, so that one in the same place of the next report is compared first.
#[derive(Debug, Default)]
pub(crate) struct LastSession<'a> {
    model: Last<'a, Model>,
    options: Last<'a, SessionOptions>,
    placement: Last<'a, Placement>,
}

impl<'a> LastSession<'a> {
    /// Returns the uid of a session that is surely valid.
    #[inline]
    pub(crate) fn check(&mut self, bytes: &'a [u8]) -> Option<u64> {
        let mut fields = session_fields::Seen::default();
        each_field(bytes, |number, value| match number {
            session_fields::field::model => fields.model.set(self.model.check(value.bytes()?)),
            session_fields::field::options => {
                fields.options.set(self.options.check(value.bytes()?))
            }
            session_fields::field::placement => {
                fields.placement.set(self.placement.check(value.bytes()?))
            }
            _ => fields.see(number, value),
        })?;
        fields.is_whole().then_some(fields.uid)
    }
}
