//! ONNX Runtime sessions: the model, the request, and the placement.

use crate::{
    ids::{MAX_DIRECTIVE_ID_BYTES, ModelHash, SessionUid},
    message::{
        CheckedMessage, Count, Fields, Inner, InnerOrDefault, Last, Maybe, MaybeBytes, Message,
        Name, Text, UnixMs, message, once,
    },
    placement::{EpNames, Placement},
    stratum::MAX_PERFORMANCE_MODE_BYTES,
    v1,
    wire::each_field,
};

pub(crate) const MAX_MODEL_ID_BYTES: usize = 128;
pub(crate) const MAX_MODEL_VERSION_BYTES: usize = 64;

/// A model file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct Model {
    pub id: String,
    pub version: String,
    pub sha256: Option<ModelHash>,
    pub source_sha256: Option<ModelHash>,
    pub ep_compatibility: String,
}

/// One ORT session. It spans reports and is repeated in each that refers to it.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct Session {
    pub uid: SessionUid,
    pub model: Model,
    pub requested_eps: Vec<String>,
    pub directive_id: String,
    pub options: SessionOptions,
    pub placement: Placement,
    pub creation_us: Option<u64>,
    pub created_at_unix_ms: i64,
}

/// Session options that change where or how fast a model runs; empty: not given.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct SessionOptions {
    pub performance_mode: String,
    pub soc_model: String,
    pub htp_arch: String,
    pub graph_optimization_level: String,
}

impl SessionOptions {
    /// Clips texts to the lengths of a report.
    pub fn normalised(mut self) -> Self {
        self.fit();
        self
    }
}

message! {
    mod model_fields: Model = v1::Model {
        1 id: Name<MAX_MODEL_ID_BYTES>,
        2 version: Name<MAX_MODEL_VERSION_BYTES>,
        3 sha256: MaybeBytes<ModelHash, 32>,
        4 source_sha256: MaybeBytes<ModelHash, 32>,
        5 ep_compatibility: Text<512>,
    }
}

message! {
    mod options_fields: SessionOptions = v1::SessionOptions {
        1 performance_mode: Text<MAX_PERFORMANCE_MODE_BYTES>,
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
        7 creation_us: Maybe<Count>,
        8 created_at_unix_ms: UnixMs,
    }
    checked by hand;
}

impl CheckedMessage for Session {
    /// The uid, for the check of references.
    type Kept<'a> = u64;

    #[inline]
    fn check(bytes: &[u8]) -> Option<u64> {
        LastSession::default().check(bytes)
    }
}

/// Valid parts of a session. The session at the same position of the next report is compared with them first.
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
            session_fields::field::model => {
                once(&mut fields.model, self.model.check(value.bytes()?))
            }
            session_fields::field::options => {
                once(&mut fields.options, self.options.check(value.bytes()?))
            }
            session_fields::field::placement => {
                once(&mut fields.placement, self.placement.check(value.bytes()?))
            }
            _ => fields.see(number, value),
        })?;
        fields.is_whole().then_some(fields.uid)
    }
}
