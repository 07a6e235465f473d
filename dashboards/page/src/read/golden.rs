//! Distances of golden outputs by chipset, as collectors sum them up for each day.

use clickhouse::Row;
use epwatch_model::{CohortVerdict, Reason};
use serde::{Deserialize, Serialize};

use super::incidents::IncidentRow;
use super::store::{ReadError, StoreReader};
use crate::text::name::visible;
use crate::text::number;

/// How far one chipset's outputs are from the outputs of its devices' own CPUs, on the day with most devices.
#[derive(Debug, Clone, PartialEq, Row, Serialize, Deserialize)]
pub(crate) struct GoldenRow {
    pub(crate) chipset: String,
    pub(crate) input: String,
    pub(crate) devices: u64,
    pub(crate) median_cosine: f64,
    pub(crate) worst_cosine: f64,
}

/// Days without a comparison have no row.
const ROWS: &str = "
SELECT t.chipset AS chipset, t.input_id AS input, max(t.devices) AS devices,
    argMax(t.median_cosine, t.devices) AS median_cosine, min(t.worst_cosine) AS worst_cosine
FROM self_tests_daily_v1 AS t
WHERE t.app_id = ? AND t.environment = ? AND t.model_id = ? AND t.model_version = ? AND t.npu_hash = ''
  AND t.devices > t.devices_failed AND t.day > toDate(fromUnixTimestamp64Milli(?)) - 30
GROUP BY chipset, input
ORDER BY median_cosine, chipset, input
LIMIT 200";

impl GoldenRow {
    /// Returns 1 - cosine of the median device and of the worst one.
    pub(crate) fn drops(&self) -> (f64, f64) {
        (1.0 - self.median_cosine, 1.0 - self.worst_cosine)
    }
}

/// Returns the distances of one input by chipset, the furthest first; none unless the incident is about outputs.
pub(crate) async fn of_incident(
    store: &StoreReader,
    row: &IncidentRow,
    lead: Option<&CohortVerdict>,
) -> Result<Vec<GoldenRow>, ReadError> {
    let is_of_outputs = row.class().is_some_and(|class| class.is_of_outputs());
    let Some(lead) = lead.filter(|_| is_of_outputs) else {
        return Ok(Vec::new());
    };
    let mut rows: Vec<GoldenRow> = store
        .rows(ROWS, |query| {
            let query = query.bind(&row.app).bind(&row.environment);
            let query = query.bind(&row.model).bind(&row.version);
            query.bind(lead.window_end.as_millisecond())
        })
        .await?;
    let judged = lead.reasons.iter().find_map(|reason| match reason {
        Reason::OutputDrop { drop } => Some(drop.input.clone()),
        _ => None,
    });
    let of_input = |input: &str| rows.iter().filter(|row| row.input == input).count();
    let judged = judged.filter(|input| of_input(input) > 0);
    let widest = rows.iter().rev().max_by_key(|row| of_input(&row.input));
    if let Some(input) = judged.or(widest.map(|row| row.input.clone())) {
        rows.retain(|row| row.input == input);
    }
    Ok(rows)
}

/// Returns a sentence about the distances; empty without rows.
pub(crate) fn words(rows: &[GoldenRow]) -> String {
    let chipsets = rows.iter().map(|row| {
        let (chipset, devices) = (
            visible(&row.chipset),
            number::of_them(row.devices, "device"),
        );
        let (median, worst) = (row.median_cosine, row.worst_cosine);
        format!("{chipset}: a median cosine of {median:.4}, the worst {worst:.4}, {devices}")
    });
    let all: Vec<String> = chipsets.collect();
    match rows.first() {
        Some(first) => format!("Input {}. {}.", visible(&first.input), all.join("; ")),
        None => String::new(),
    }
}
