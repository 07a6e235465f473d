//! A model manifest: the validated request, and its row in `model_manifests`.

use std::sync::Arc;

use epwatch_proto::{Model, ModelHash, ModelManifest, ParseError, v1};
use epwatch_store::native::encode::{ColumnDef, column};

use super::block::{Fill, required};
use crate::encode::{TIME, WORD, WORDS};
use crate::ingest::auth::Scope;

/// A validated request.
#[derive(Debug)]
pub(super) struct ManifestCall {
    scope: Arc<Scope>,
    stored_at_ms: i64,
    model: Model,
    manifest: ModelManifest,
    pub(super) sha256: ModelHash,
}

impl ManifestCall {
    pub(super) fn read(
        request: v1::PutModelManifestRequest,
        scope: Arc<Scope>,
        stored_at_ms: i64,
    ) -> Result<Self, ParseError> {
        let model =
            Model::try_from(required("model", request.model)?).map_err(|e| e.inside("model"))?;
        let manifest = ModelManifest::try_from(required("manifest", request.manifest)?)
            .map_err(|e| e.inside("manifest"))?;
        Ok(Self {
            scope,
            stored_at_ms,
            model,
            sha256: manifest.sha256(),
            manifest,
        })
    }
}

/// One line per column.
#[rustfmt::skip]
pub(super) static MANIFESTS: [ColumnDef<Fill<ManifestCall>>; 12] = [
    column("app_id", WORD, |c, m| c.word(m.scope.app())),
    column("environment", WORD, |c, m| c.word(m.scope.environment())),
    column("model_id", WORD, |c, m| c.word(&m.model.id)),
    column("model_version", WORD, |c, m| c.word(&m.model.version)),
    column("model_sha256", "String", |c, m| c.text(&m.model.sha256.map_or_else(String::new, |hash| hash.to_string()))),
    column("manifest_sha256", "String", |c, m| c.text(&m.sha256.to_string())),
    column("stored_at", TIME, |c, m| c.put(m.stored_at_ms)),
    column("algorithm", "UInt32", |c, m| c.put(m.manifest.algorithm)),
    column("total_macs", "UInt64", |c, m| c.put(m.manifest.total_macs)),
    column("node_name", "Array(String)", |c, m| c.list(&m.manifest.nodes, |c, node| c.text(&node.name))),
    column("node_op_type", WORDS, |c, m| c.list(&m.manifest.nodes, |c, node| c.word(&node.op_type))),
    column("node_macs", "Array(UInt64)", |c, m| c.list(&m.manifest.nodes, |c, node| c.put(node.macs))),
];
