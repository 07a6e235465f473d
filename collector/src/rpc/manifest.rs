//! A model manifest: the validated request, and its row in `model_manifests`.

use clickhouse::Row;
use epwatch_proto::{Model, ModelHash, ModelManifest, ParseError, v1};
use serde::Serialize;

use super::certified::required;
use crate::ingest::auth::Scope;

/// A validated request.
#[derive(Debug)]
pub(super) struct ManifestCall {
    model: Model,
    manifest: ModelManifest,
    pub(super) sha256: ModelHash,
}

impl TryFrom<v1::PutModelManifestRequest> for ManifestCall {
    type Error = ParseError;

    fn try_from(request: v1::PutModelManifestRequest) -> Result<Self, ParseError> {
        let model =
            Model::try_from(required("model", request.model)?).map_err(|e| e.inside("model"))?;
        let manifest = ModelManifest::try_from(required("manifest", request.manifest)?)
            .map_err(|e| e.inside("manifest"))?;
        let sha256 = manifest.sha256();
        Ok(Self {
            model,
            manifest,
            sha256,
        })
    }
}

#[derive(Debug, Row, Serialize)]
pub(super) struct ManifestRow<'a> {
    app_id: &'a str,
    environment: &'a str,
    model_id: &'a str,
    model_version: &'a str,
    model_sha256: String,
    manifest_sha256: String,
    stored_at: i64,
    algorithm: u32,
    total_macs: u64,
    node_name: Vec<&'a str>,
    node_op_type: Vec<&'a str>,
    node_macs: Vec<u64>,
}

impl ManifestCall {
    pub(super) fn row<'a>(&'a self, scope: &'a Scope, stored_at: i64) -> ManifestRow<'a> {
        let (model, manifest) = (&self.model, &self.manifest);
        let nodes = manifest.nodes.iter();
        ManifestRow {
            app_id: scope.app(),
            environment: scope.environment(),
            model_id: &model.id,
            model_version: &model.version,
            model_sha256: model
                .sha256
                .map(|hash| hash.to_string())
                .unwrap_or_default(),
            manifest_sha256: self.sha256.to_string(),
            stored_at,
            algorithm: manifest.algorithm,
            total_macs: manifest.total_macs,
            node_name: nodes.clone().map(|node| node.name.as_str()).collect(),
            node_op_type: nodes.clone().map(|node| node.op_type.as_str()).collect(),
            node_macs: nodes.map(|node| node.macs).collect(),
        }
    }
}
