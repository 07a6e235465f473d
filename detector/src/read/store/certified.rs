//! The query for what labs certified, as the collector keeps it.

use clickhouse::{Client, Row};
use serde::Deserialize;

use crate::cohort::ModelKey;
use crate::placement::{NodeCounts, PlacementMethod};
use crate::read::certified::{Certified, CertifiedPlacement};
use crate::read::error::{SourceError, failed};

/// Every certification, the latest first. Labs certify by hand, so they are few.
const CERTIFIED: &str = "
    SELECT app_id, environment, model_id, model_version, chipset, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised, concat(ort_version, '/', ep_version) AS runtime,
        n_nodes, npu_nodes, cpu_nodes, cpu_benign_nodes, npu_macs_share, macs_attributed
    FROM certified_placements_v1
    ORDER BY stored_at DESC, ort_version, ep_version";

#[derive(Debug, Row, Deserialize)]
struct CertifiedRow {
    app_id: String,
    environment: String,
    model_id: String,
    model_version: String,
    chipset: String,
    graph_kind: String,
    placement_source: String,
    fingerprint_algorithm: u32,
    fingerprint_normalised: u64,
    runtime: String,
    n_nodes: u32,
    npu_nodes: u32,
    cpu_nodes: u32,
    cpu_benign_nodes: u32,
    npu_macs_share: Option<f32>,
    macs_attributed: Option<f32>,
}

pub(super) async fn read(client: &Client) -> Result<Certified, SourceError> {
    let client = client.clone().with_validation(false);
    let rows = client.query(CERTIFIED).fetch_all::<CertifiedRow>().await;
    let rows = rows.map_err(failed("certified placements"))?;
    let mut certified = Certified::default();
    for row in rows {
        let method = PlacementMethod {
            graph_kind: row.graph_kind,
            source: row.placement_source,
            fingerprint_algorithm: row.fingerprint_algorithm,
        };
        let counts = NodeCounts {
            n_nodes: row.n_nodes,
            npu_nodes: row.npu_nodes,
            cpu_nodes: row.cpu_nodes,
            cpu_benign_nodes: row.cpu_benign_nodes,
            npu_macs_share: row.npu_macs_share,
            macs_attributed: row.macs_attributed,
        };
        let placement = counts.placement(method, row.fingerprint_normalised, row.runtime);
        let model = ModelKey {
            app_id: row.app_id,
            environment: row.environment,
            model_id: row.model_id,
        };
        let placement = CertifiedPlacement {
            model_version: row.model_version,
            chipset: row.chipset,
            placement,
        };
        certified.push(model, placement);
    }
    Ok(certified)
}
