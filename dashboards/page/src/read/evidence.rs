//! The evidence behind verdicts, as the detector stored it. So plots draw exactly the data that was judged.

use std::collections::HashMap;

use clickhouse::Row;
use epwatch_model::{Mixture, RATIO_BINS};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::progress::time;
use super::store::{ReadError, StoreReader};
use super::windows::{CohortName, Slower};
use crate::histogram::{Latencies, Quantiles};
use crate::text::number;

/// Days after which a version that is gone from a chipset is no longer shown.
const DAYS: u32 = 30;

/// The data that one window's verdict was made from.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct PlottedEvidence {
    pub(crate) window_end: Option<Timestamp>,
    pub(crate) latencies: Option<Latencies>,
    /// The version before in the same window.
    pub(crate) reference: Option<Reference>,
    pub(crate) ratios: Ratios,
    /// Two groups of runs, if two fit better than one.
    pub(crate) mixture: Option<Mixture>,
    /// Two modes and the depth of the valley between them.
    pub(crate) modes: Option<PlottedModes>,
}

/// The version before on the same chipset.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Reference {
    pub(crate) version: String,
    pub(crate) latencies: Latencies,
}

/// Devices by the ratio of their p10 to their own earlier one. Bins are equally wide on a logarithmic axis.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Ratios {
    pub(crate) bins_per_octave: f64,
    /// The first bin begins at 2 to the power of this over `bins_per_octave`.
    pub(crate) first: i32,
    pub(crate) on_npu: Vec<u32>,
    pub(crate) on_cpu: Vec<u32>,
    pub(crate) without_past: u64,
}

/// Two modes of latency.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct PlottedModes {
    pub(crate) fast_us: f64,
    pub(crate) slow_us: f64,
    pub(crate) valley_depth: f64,
}

impl PlottedEvidence {
    /// Returns a sentence on the devices by ratio to their own past, with the signal's counts.
    pub(crate) fn ratio_words(&self, slower: Option<Slower>) -> String {
        match slower {
            Some(slower) => slower.words(self.ratios.without_past),
            None => format!(
                "{} with a past.",
                number::of_them(self.ratios.devices(), "device")
            ),
        }
    }
}

impl Ratios {
    /// Returns the middle of each bin with the devices on the NPU and on the CPU.
    pub(crate) fn bins(&self) -> impl Iterator<Item = (f64, u32, u32)> {
        let both = self.on_npu.iter().zip(&self.on_cpu).enumerate();
        both.map(|(at, (on_npu, on_cpu))| {
            let bin = f64::from(self.first) + at as f64 + 0.5;
            ((bin / self.bins_per_octave).exp2(), *on_npu, *on_cpu)
        })
    }

    pub(crate) fn devices(&self) -> u64 {
        let all = self.on_npu.iter().chain(&self.on_cpu);
        all.map(|devices| u64::from(*devices)).sum()
    }
}

/// The columns of a row that are drawn.
#[derive(Debug, Row, Deserialize)]
struct EvidenceSelect {
    window_end: i64,
    model_id: String,
    model_version: String,
    chipset: String,
    p10_us: Option<f64>,
    p50_us: Option<f64>,
    p90_us: Option<f64>,
    hist_first: i32,
    hist_runs: Vec<u64>,
    reference_version: String,
    reference_p50_us: Option<f64>,
    reference_hist_first: i32,
    reference_hist_runs: Vec<u64>,
    ratio_first: i32,
    ratio_npu_devices: Vec<u32>,
    ratio_cpu_devices: Vec<u32>,
    devices_without_past: u64,
    mixture_slow_share: Option<f64>,
    mixture_fast_us: Option<f64>,
    mixture_slow_us: Option<f64>,
    mixture_separation: Option<f64>,
    mode_fast_us: Option<f64>,
    mode_slow_us: Option<f64>,
    valley_depth: Option<f64>,
}

macro_rules! select {
    ($rest:literal) => {
        concat!("SELECT ?fields FROM cohort_evidence_v1 AS e ", $rest)
    };
}

const LATEST: &str = select!(
    "WHERE e.app_id = ? AND e.environment = ?
       AND (e.model_id, e.chipset, e.model_version, e.place) IN (
         SELECT l.model_id, l.chipset, l.model_version, argMax(l.place, l.window_end)
         FROM cohort_evidence_v1 AS l
         WHERE l.app_id = ? AND l.environment = ? AND l.window_end > fromUnixTimestamp64Milli(?) - INTERVAL ? DAY
         GROUP BY l.model_id, l.chipset, l.model_version)
     ORDER BY e.window_end DESC
     LIMIT 1 BY e.model_id, e.chipset, e.model_version
     LIMIT 2000"
);

/// Of one model only the versions of a chipset and the chipsets of a version. They have few windows with findings, so these
/// are sorted. [`LATEST`] reads the view twice, which costs more there.
const OF_COHORT: &str = select!(
    "WHERE e.app_id = ? AND e.environment = ? AND e.model_id = ? AND (e.chipset = ? OR e.model_version = ?)
       AND e.window_end > fromUnixTimestamp64Milli(?) - INTERVAL ? DAY
     ORDER BY e.window_end DESC
     LIMIT 1 BY e.chipset, e.model_version
     LIMIT 2000"
);

const OF_WINDOW: &str = select!(
    "WHERE e.app_id = ? AND e.environment = ? AND e.model_id = ? AND e.chipset = ? AND e.model_version = ?
       AND e.place = fromUnixTimestamp64Milli(?)
     LIMIT 1"
);

/// The latest window of a version up to a given window; if there is none, its latest of all.
const BEFORE: &str = select!(
    "WHERE e.app_id = ? AND e.environment = ? AND e.model_id = ? AND e.chipset = ? AND e.model_version = ? AND e.runs > 0
     ORDER BY e.window_end <= fromUnixTimestamp64Milli(?) DESC, e.window_end DESC
     LIMIT 1"
);

/// Returns the name of a row's cohort, and the evidence.
fn split(row: EvidenceSelect) -> (CohortName, PlottedEvidence) {
    let quantiles = |p10_us: Option<f64>, p50_us: Option<f64>, p90_us: Option<f64>| {
        Some(Quantiles {
            p10_us: p10_us?,
            p50_us: p50_us?,
            p90_us: p90_us?,
        })
    };
    let of = quantiles(row.p10_us, row.p50_us, row.p90_us);
    let latencies = of.and_then(|of| Latencies::of(of, row.hist_first, &row.hist_runs));
    // Of the reference's quantiles only the median is stored; the others are computed from its bins.
    let bins = Latencies::of_bins(row.reference_hist_first, &row.reference_hist_runs);
    let reference = bins.map(|mut latencies| {
        let p50_us = row.reference_p50_us;
        latencies.quantiles.p50_us = p50_us.unwrap_or(latencies.quantiles.p50_us);
        Reference {
            version: row.reference_version,
            latencies,
        }
    });
    let modes = row.mode_fast_us.zip(row.mode_slow_us).zip(row.valley_depth);
    let evidence = PlottedEvidence {
        window_end: time(row.window_end),
        latencies,
        reference,
        ratios: Ratios {
            bins_per_octave: RATIO_BINS,
            first: row.ratio_first,
            on_npu: row.ratio_npu_devices,
            on_cpu: row.ratio_cpu_devices,
            without_past: row.devices_without_past,
        },
        mixture: mixture(
            row.mixture_slow_share,
            row.mixture_fast_us.zip(row.mixture_slow_us),
            row.mixture_separation,
        ),
        modes: modes.map(|((fast_us, slow_us), valley_depth)| PlottedModes {
            fast_us,
            slow_us,
            valley_depth,
        }),
    };
    ((row.model_id, row.chipset, row.model_version), evidence)
}

fn mixture(
    slow_share: Option<f64>,
    medians_us: Option<(f64, f64)>,
    separation: Option<f64>,
) -> Option<Mixture> {
    let (fast_us, slow_us) = medians_us?;
    Some(Mixture {
        slow_share: slow_share?,
        fast_us,
        slow_us,
        separation: separation?,
    })
}

/// Returns the latest evidence of each cohort. A version that no device runs any more is there for 30 days.
pub(crate) async fn latest(
    store: &StoreReader,
    (app, environment): (&str, &str),
    until: Timestamp,
) -> Result<HashMap<CohortName, PlottedEvidence>, ReadError> {
    let rows: Vec<EvidenceSelect> = store
        .rows(LATEST, |query| {
            let query = query.bind(app).bind(environment);
            let query = query.bind(app).bind(environment);
            query.bind(until.as_millisecond()).bind(DAYS)
        })
        .await?;
    Ok(rows.into_iter().map(split).collect())
}

/// Returns the same of one model: its versions on a chipset, and one of them on other chipsets.
pub(crate) async fn of_cohort(
    store: &StoreReader,
    (app, environment): (&str, &str),
    (model, chipset, version): (&str, &str, &str),
    until: Timestamp,
) -> Result<HashMap<CohortName, PlottedEvidence>, ReadError> {
    let rows: Vec<EvidenceSelect> = store
        .rows(OF_COHORT, |query| {
            let query = query.bind(app).bind(environment).bind(model);
            let query = query.bind(chipset).bind(version);
            query.bind(until.as_millisecond()).bind(DAYS)
        })
        .await?;
    Ok(rows.into_iter().map(split).collect())
}

/// Returns the evidence of one window with a finding. If no device ran the version before in that window, the latest
/// window of `follows` is its reference.
pub(crate) async fn of_window(
    store: &StoreReader,
    (app, environment): (&str, &str),
    (model, chipset, version): (&str, &str, &str),
    follows: Option<&str>,
    window_end: Timestamp,
) -> Result<Option<PlottedEvidence>, ReadError> {
    let end_ms = window_end.as_millisecond();
    let rows: Vec<EvidenceSelect> = store
        .rows(OF_WINDOW, |query| {
            let query = query.bind(app).bind(environment).bind(model);
            query.bind(chipset).bind(version).bind(end_ms)
        })
        .await?;
    let Some(mut evidence) = rows.into_iter().next().map(|row| split(row).1) else {
        return Ok(None);
    };
    if let Some(before) = follows.filter(|_| evidence.reference.is_none()) {
        let rows: Vec<EvidenceSelect> = store
            .rows(BEFORE, |query| {
                let query = query.bind(app).bind(environment).bind(model);
                query.bind(chipset).bind(before).bind(end_ms)
            })
            .await?;
        let last = rows.into_iter().next().map(|row| split(row).1);
        evidence.reference = last.and_then(|last| {
            Some(Reference {
                version: before.to_owned(),
                latencies: last.latencies?,
            })
        });
    }
    Ok(Some(evidence))
}
