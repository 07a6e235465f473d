//! The reports of a window, each once, with its sessions, which show placements, and its series, which show latency.
//! Rust selects the sessions and series that count, because joining and filtering arrays costs the store more than
//! sending them. The rows go into windows at once, or are held for several evaluations.

use std::collections::BTreeMap;

use clickhouse::error::Error;
use epwatch_proto::{ParseError, SparseHistogram, Thermal};
use epwatch_stats::Moments;
use epwatch_store::native::decode::{Block, FixedBytes, List, Millis, columns};

use crate::judge::placement::NodeCounts;
use crate::read::assemble::{
    CohortPlacement, DeviceBaseline, ModelId, PlacedSession, SelfQuantiles, SeriesHead, SeriesRow,
    SessionRow, WindowBuilders,
};
use crate::read::interner::Texts;
use crate::read::span::Bucket;

use super::queries::hist_scheme;
use super::text_cache::TextCache;

columns!(Heads of Head, is_array: false, "" {
    app_id: &'a str,
    environment: &'a str,
    firmware: &'a str,
    device_model: &'a str,
    installation: FixedBytes<16>,
    ort_version: &'a str,
    ep_version: &'a str,
    is_late: bool,
    is_unproven: bool,
    received_at: Millis,
    stream_id: u64,
    sequence: u64,
    at_s: u32,
    copy: u64,
});

columns!(Sessions of Session, is_array: true, "session_" {
    uid: u64,
    chipset: &'a str,
    model_id: &'a str,
    model_version: &'a str,
    directive_id: &'a str,
    created_at: Millis,
    requests_npu: bool,
    graph_kind: &'a str,
    placement_source: &'a str,
    fingerprint_algorithm: u32,
    fingerprint_exact: u64,
    fingerprint_normalised: u64,
    n_nodes: u32,
    npu_nodes: u32,
    cpu_nodes: u32,
    cpu_benign_nodes: u32,
    npu_macs_share: Option<f32>,
    macs_attributed: Option<f32>,
    reasons: List<'a, &'a str>,
});

columns!(ManySeries of Series, is_array: true, "series_" {
    session: u16,
    is_clean: bool,
    thermal: &'a str,
    shape_key: &'a str,
    hist_scheme: &'a str,
    hist_bucket: List<'a, u16>,
    hist_count: List<'a, u64>,
    n: u64,
    sum_us: f64,
    m2_us2: f64,
    previous_version: &'a str,
    previous_n: u64,
    previous_p10_us: f64,
    previous_p50_us: f64,
    previous_p95_us: f64,
    previous_cv: f64,
    earlier_n: u64,
    earlier_p10_us: f64,
    earlier_p50_us: f64,
    earlier_p95_us: f64,
    earlier_cv: f64,
    baseline_absence: &'a str,
});

/// The query, with a condition. The copy is the hash that [`super::queries::COUNTED_COPIES`] adds up.
fn query(condition: &str) -> String {
    let names = [Heads::NAMES, Sessions::NAMES, ManySeries::NAMES].concat();
    format!(
        "WITH toUInt32(bucket) AS at_s, cityHash64(collector_id, wal_offset) AS copy \
         SELECT {} FROM counted_reports_v1 WHERE {condition}",
        names.join(", ")
    )
}

/// The reports of some apps. `received_at` only prunes partitions; `bucket` decides what is in the window. Binds: apps,
/// window, start of the window, slices, slice.
pub(super) fn of_apps() -> String {
    query(
        "(app_id, environment) IN ? AND bucket >= toDateTime(?) AND bucket < toDateTime(?) \
         AND received_at >= toDateTime(?) AND sipHash64(installation) % ? = ?",
    )
}

/// The reports of some buckets. Binds: buckets, the first of them.
pub(super) fn of_buckets() -> String {
    query("bucket IN ? AND received_at >= toDateTime(?)")
}

/// Receives reports. After each report come its sessions that take part, and after each session its series that vote.
pub(super) trait ReportSink {
    fn texts(&mut self) -> &mut Texts;
    fn report(&mut self, bucket: Bucket, copy: u64);
    fn session(&mut self, model: ModelId, row: SessionRow);
    fn series(&mut self, model: ModelId, row: &SeriesRow, counts: &SparseHistogram);
}

impl ReportSink for WindowBuilders<'_> {
    fn texts(&mut self) -> &mut Texts {
        self.texts.to_mut()
    }

    fn report(&mut self, _bucket: Bucket, _copy: u64) {}

    fn session(&mut self, model: ModelId, row: SessionRow) {
        self.add(model, |builder, texts| builder.add_session(row, texts));
    }

    fn series(&mut self, model: ModelId, row: &SeriesRow, counts: &SparseHistogram) {
        self.add(model, |builder, _| {
            builder.add_series(row, counts.buckets())
        });
    }
}

/// Columns of texts in a row of each kind.
const HEAD_TEXTS: usize = 6;
const SESSION_TEXTS: usize = 5;
const SERIES_TEXTS: usize = 3;

/// Passes a block's reports to the sink.
pub(super) fn read(block: &Block, sink: &mut impl ReportSink) -> Result<(), Error> {
    let heads = Heads::of(block)?;
    let sessions = Sessions::of(block)?;
    let series = ManySeries::of(block)?;
    let mut cache = TextCache::of_columns(HEAD_TEXTS + SESSION_TEXTS + SERIES_TEXTS);
    let mut of_report = Vec::new();
    for report in 0..block.n_rows() {
        let head = heads.rows(report).next().ok_or(Error::NotEnoughData)??;
        let (is_late, is_unproven) = (head.is_late, head.is_unproven);
        let counts = !(is_late || is_unproven);
        sink.report(head.at_s, head.copy);
        let texts = sink.texts();
        let [app, environment, firmware, device_model, ort, ep] = cache.ids(0, head.texts(), texts);
        let runtime = texts.runtime(ort, ep);
        of_report.clear();
        for one in series.rows(report) {
            let one = one?;
            if counts && one.counts() {
                of_report.push(one);
            }
        }
        of_report.sort_by_key(|one| one.session);
        // Series name their session by its number in the report, from 1.
        let mut rest = of_report.as_slice();
        for (session, nth) in sessions.rows(report).zip(1_usize..) {
            let session = session?;
            let of_session;
            rest = &rest[rest.partition_point(|one| usize::from(one.session) < nth)..];
            let n_series = rest.partition_point(|one| usize::from(one.session) == nth);
            (of_session, rest) = rest.split_at(n_series);
            let is_directed = !session.directive_id.is_empty();
            if !session.requests_npu && !is_directed {
                continue;
            }
            let texts = sink.texts();
            let [chipset, model_id, version, graph_kind, source] =
                cache.ids(HEAD_TEXTS, session.texts(), texts);
            let model = (app, environment, model_id);
            let ran = CohortPlacement {
                version,
                chipset,
                firmware,
                graph_kind,
                source,
                fingerprint_algorithm: session.fingerprint_algorithm,
                fingerprint: session.fingerprint_normalised,
            };
            let installation = head.installation.0;
            let reasons = session.reasons.collected().into_iter();
            let row = SessionRow {
                installation,
                ran,
                placed: PlacedSession {
                    runtime,
                    fingerprint_exact: session.fingerprint_exact,
                    counts: session.counts(),
                    reasons: reasons.map(|reason| texts.id(reason)).collect(),
                },
                created_s: session.created_at.0.div_euclid(1_000),
                is_late,
                is_unproven,
                is_directed,
            };
            sink.session(model, row);
            if !session.requests_npu || is_directed {
                continue;
            }
            for one in of_session {
                let [shape_key, previous, absence] =
                    cache.ids(HEAD_TEXTS + SESSION_TEXTS, one.texts(), sink.texts());
                let moments = Moments::from_parts(one.n, one.sum_us, one.m2_us2);
                let received_ms = head.received_at.0;
                let row = SeriesRow {
                    installation,
                    ran,
                    shape_key,
                    reports_heat: one.thermal != Thermal::Unknown.as_str(),
                    head: SeriesHead {
                        moments: moments.unwrap_or_default(),
                        order: (received_ms, head.stream_id, head.sequence, session.uid),
                        device_model,
                    },
                    earlier: DeviceBaseline {
                        previous: one.previous().map(|numbers| (previous, numbers)),
                        runtime: one.earlier(),
                        absence,
                    },
                };
                sink.series(model, &row, &one.histogram()?);
            }
        }
    }
    Ok(())
}

impl<'a> Head<'a> {
    fn texts(&self) -> [&'a str; HEAD_TEXTS] {
        [
            self.app_id,
            self.environment,
            self.firmware,
            self.device_model,
            self.ort_version,
            self.ep_version,
        ]
    }
}

impl<'a> Session<'a> {
    fn texts(&self) -> [&'a str; SESSION_TEXTS] {
        [
            self.chipset,
            self.model_id,
            self.model_version,
            self.graph_kind,
            self.placement_source,
        ]
    }

    fn counts(&self) -> NodeCounts {
        NodeCounts {
            n_nodes: self.n_nodes,
            npu_nodes: self.npu_nodes,
            cpu_nodes: self.cpu_nodes,
            cpu_benign_nodes: self.cpu_benign_nodes,
            npu_macs_share: self.npu_macs_share,
            macs_attributed: self.macs_attributed,
        }
    }
}

impl<'a> Series<'a> {
    fn counts(&self) -> bool {
        self.is_clean && self.hist_scheme == hist_scheme()
    }

    fn texts(&self) -> [&'a str; SERIES_TEXTS] {
        [self.shape_key, self.previous_version, self.baseline_absence]
    }

    /// Buckets may come in any order: only the collector's rows are known to be sorted.
    fn histogram(&self) -> Result<SparseHistogram, Error> {
        let (buckets, counts) = (self.hist_bucket.collected(), self.hist_count.collected());
        let invalid = |error: ParseError| Error::Custom(format!("a histogram: {error}"));
        if buckets.is_sorted_by(|a, b| a < b) && !counts.contains(&0) {
            return SparseHistogram::from_parts(buckets, counts).map_err(invalid);
        }
        let mut sums: BTreeMap<u16, u64> = BTreeMap::new();
        for (bucket, count) in buckets.into_iter().zip(counts).filter(|(_, n)| *n > 0) {
            let slot = sums.entry(bucket).or_default();
            *slot = slot.saturating_add(count);
        }
        let (buckets, counts) = sums.into_iter().unzip();
        SparseHistogram::from_parts(buckets, counts).map_err(invalid)
    }

    fn previous(&self) -> Option<SelfQuantiles> {
        (self.previous_n > 0).then_some(SelfQuantiles {
            n: self.previous_n,
            p10_us: self.previous_p10_us,
            p50_us: self.previous_p50_us,
            p95_us: self.previous_p95_us,
            cv: self.previous_cv,
        })
    }

    fn earlier(&self) -> Option<SelfQuantiles> {
        (self.earlier_n > 0).then_some(SelfQuantiles {
            n: self.earlier_n,
            p10_us: self.earlier_p10_us,
            p50_us: self.earlier_p50_us,
            p95_us: self.earlier_p95_us,
            cv: self.earlier_cv,
        })
    }
}
