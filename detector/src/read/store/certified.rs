//! The query for what labs certified, as the collector keeps it.

use clickhouse::{Client, Row};
use serde::Deserialize;

use crate::cohort::ModelKey;
use crate::read::certified::{Certified, CertifiedPlacement};
use crate::read::error::{SourceError, failed};
use crate::read::rows::{PlacementNumbers, placement_of};

/// Every certification, the latest first. Labs certify by hand, so they are few.
const CERTIFIED: &str = "
    SELECT app_id, environment, model_id, model_version, chipset, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised,
        (concat(ort_version, '/', ep_version), n_nodes, npu_nodes, cpu_nodes, cpu_benign_nodes,
            npu_macs_share, macs_attributed) AS numbers
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
    numbers: PlacementNumbers,
}

pub(super) async fn read(client: &Client) -> Result<Certified, SourceError> {
    let client = client.clone().with_validation(false);
    let rows = client.query(CERTIFIED).fetch_all::<CertifiedRow>().await;
    let rows = rows.map_err(failed("certified placements"))?;
    let mut certified = Certified::default();
    for row in rows {
        let method = (
            row.graph_kind,
            row.placement_source,
            row.fingerprint_algorithm,
        );
        let placement = placement_of(method, row.fingerprint_normalised, &row.numbers);
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
