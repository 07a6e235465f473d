//! ONNX Runtime sessions: the model, what was asked for, and where it ended up.

use crate::{
    bounds::{bytes_or_empty, optional_bytes, required, required_text, text, unix_ms},
    error::{Inside, ParseError},
    ids::{ModelHash, SessionUid},
    placement::{Placement, parse_eps},
    v1,
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

impl TryFrom<v1::Model> for Model {
    type Error = ParseError;

    fn try_from(m: v1::Model) -> Result<Self, ParseError> {
        let source = optional_bytes("source_sha256", &m.source_sha256)?;
        Ok(Self {
            id: required_text("id", m.id, 128)?,
            version: required_text("version", m.version, 64)?,
            sha256: optional_bytes("sha256", &m.sha256)?.map(ModelHash::from_bytes),
            source_sha256: source.map(ModelHash::from_bytes),
            ep_compatibility: text("ep_compatibility", m.ep_compatibility, 512)?,
        })
    }
}

pub(crate) fn required_model(field: &str, model: Option<v1::Model>) -> Result<Model, ParseError> {
    Model::try_from(required(field, model)?).inside(field)
}

impl TryFrom<v1::SessionOptions> for SessionOptions {
    type Error = ParseError;

    fn try_from(o: v1::SessionOptions) -> Result<Self, ParseError> {
        let level = o.graph_optimization_level;
        Ok(Self {
            performance_mode: text("performance_mode", o.performance_mode, 32)?,
            soc_model: text("soc_model", o.soc_model, 32)?,
            htp_arch: text("htp_arch", o.htp_arch, 16)?,
            graph_optimization_level: text("graph_optimization_level", level, 16)?,
        })
    }
}

impl TryFrom<v1::Session> for Session {
    type Error = ParseError;

    fn try_from(s: v1::Session) -> Result<Self, ParseError> {
        let options = s.options.unwrap_or_default();
        let placement = required("placement", s.placement)?;
        Ok(Self {
            uid: SessionUid::parse("uid", s.uid)?,
            model: required_model("model", s.model)?,
            requested_eps: parse_eps("requested_eps", s.requested_eps)?,
            directive_id: text("directive_id", s.directive_id, 64)?,
            options: SessionOptions::try_from(options).inside("options")?,
            placement: Placement::try_from(placement).inside("placement")?,
            creation_us: s.creation_us,
            created_at_unix_ms: unix_ms("created_at_unix_ms", s.created_at_unix_ms)?,
        })
    }
}

impl From<&Model> for v1::Model {
    fn from(m: &Model) -> Self {
        let bytes = |hash: &Option<ModelHash>| {
            bytes_or_empty(hash.as_ref().map(|h| h.as_bytes().as_slice()))
        };
        Self {
            id: m.id.clone(),
            version: m.version.clone(),
            sha256: bytes(&m.sha256),
            source_sha256: bytes(&m.source_sha256),
            ep_compatibility: m.ep_compatibility.clone(),
        }
    }
}

impl From<&SessionOptions> for v1::SessionOptions {
    fn from(o: &SessionOptions) -> Self {
        Self {
            performance_mode: o.performance_mode.clone(),
            soc_model: o.soc_model.clone(),
            htp_arch: o.htp_arch.clone(),
            graph_optimization_level: o.graph_optimization_level.clone(),
        }
    }
}

impl From<&Session> for v1::Session {
    fn from(s: &Session) -> Self {
        Self {
            uid: s.uid.get(),
            model: Some((&s.model).into()),
            requested_eps: s.requested_eps.clone(),
            directive_id: s.directive_id.clone(),
            options: Some((&s.options).into()),
            placement: Some((&s.placement).into()),
            creation_us: s.creation_us,
            created_at_unix_ms: s.created_at_unix_ms,
        }
    }
}
