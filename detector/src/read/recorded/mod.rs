//! Recorded reports held in memory, answering what the store's views answer.
//!
//! The same rules: a report counts once, by its first receipt; windows and buckets are of receive
//! time; only clean series of sessions that ask for an NPU, in time and changed by no directive,
//! vote. What comes out are the rows that the queries give, so everything after them is one code.

mod intake;
mod packed;
mod reader;
mod reported;
mod sums;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::cohort::ModelKey;
use crate::hash::{HashMap, HashSet};
use crate::window::Installation;

use super::rows::{
    ArrivalRow, At, CensusRow, EarlierRow, HistogramRow, NodesRow, PlacementRow, Ran, SelfRow,
    VersionRow, VoteRow,
};
use super::{Asked, FoundModel, SelvesBefore, SelvesBuilder, SourceError, Span, VersionOnChipset};

pub use intake::{Intake, IntakeSummary};
pub(super) use reader::RecordingReader;
use sums::{Sum, earlier_row};

/// Windows of a vote that are looked at before its own: as many as hold 20 runs at the least.
const MAX_EARLIER_WINDOWS: usize = 20;

/// What makes votes one, the device aside, and where it ran: there are few of them.
#[derive(Debug, PartialEq, Eq, Hash, Clone)]
pub(super) struct Kind {
    model_version: Arc<str>,
    chipset: Arc<str>,
    firmware: Arc<str>,
    graph_kind: &'static str,
    source: &'static str,
    algorithm: u32,
    normalised: u64,
}

/// A placement as a session reports it.
#[derive(Debug, PartialEq, Eq, Hash, Clone)]
pub(super) struct Place {
    kind: u32,
    runtime: Arc<str>,
    exact: u64,
    n_nodes: u32,
    npu_nodes: u32,
    cpu_nodes: u32,
    cpu_benign_nodes: u32,
    /// Bits of an `f32`: what the store keeps.
    npu_macs_share: Option<u32>,
    macs_attributed: Option<u32>,
    reasons: Vec<&'static str>,
    requests_npu: bool,
    is_directed: bool,
}

/// A session in a report.
#[derive(Debug, Clone, Copy)]
struct Seen {
    bucket: i64,
    device: u32,
    place: u32,
    votes: bool,
}

/// A clean series in a report.
#[derive(Debug)]
struct Series {
    bucket: i64,
    /// The latest says what the device was used to.
    order: At,
    device: u32,
    kind: u32,
    shape: u32,
    device_model: u32,
    sum_us: f64,
    m2_us2: f64,
    n: u64,
    /// Indices and counts as varints of differences and counts.
    histogram: Box<[u8]>,
    baselines: Option<Box<Baselines>>,
    absence: &'static str,
}

#[derive(Debug, Default)]
struct Baselines {
    previous: Option<(Arc<str>, Numbers)>,
    earlier: Option<Numbers>,
}

/// n, p10, p50, p95, CV.
type Numbers = (u64, f64, f64, f64, f64);

/// The nodes behind a fingerprint.
#[derive(Debug)]
struct Nodes {
    model_version: Arc<str>,
    normalised: u64,
    row: NodesRow,
}

/// Everything about one model, in the order of its buckets.
#[derive(Debug, Default)]
struct ModelRecord {
    kinds: Vec<Kind>,
    places: Vec<Place>,
    shapes: Vec<Arc<str>>,
    seen: Vec<Seen>,
    series: Vec<Series>,
    /// (algorithm, exact), first seen first.
    nodes: Vec<Nodes>,
    /// Version and when it was received, for each session of a new version and bucket.
    versions: Vec<(i64, Arc<str>, i64)>,
    told: reported::Told,
}

/// An app in an environment.
type App = (Arc<str>, Arc<str>);

/// Recorded reports, counted once.
#[derive(Debug, Default)]
pub struct Recording {
    models: BTreeMap<ModelKey, ModelRecord>,
    devices: Vec<Installation>,
    device_models: Vec<Arc<str>>,
    /// When each device of an app was received, by bucket: (bucket, receive time in ms, device).
    arrivals: BTreeMap<App, Vec<(i64, i64, u32)>>,
    received: Option<(i64, i64)>,
}

/// What votes of one device are told apart by.
type VoteId = (u32, u32, u32);

fn between<T>(rows: &[T], bucket: impl Fn(&T) -> i64, from_s: i64, to_s: i64) -> &[T] {
    let start = rows.partition_point(|row| bucket(row) < from_s);
    let end = rows.partition_point(|row| bucket(row) < to_s);
    rows.get(start..end).unwrap_or_default()
}

impl Recording {
    /// Returns when the first and the last counted report were received; `None` without any.
    #[must_use]
    pub fn received(&self) -> Option<(Timestamp, Timestamp)> {
        let (first, last) = self.received?;
        Some((
            Timestamp::from_millisecond(first).ok()?,
            Timestamp::from_millisecond(last).ok()?,
        ))
    }

    pub(super) fn models(&self, span: &Span) -> Vec<FoundModel> {
        let found = self.models.iter().map(|(model, record)| {
            let seen = between(&record.seen, |row| row.bucket, span.start_s(), span.end_s());
            let kinds: HashSet<u32> = seen.iter().map(|row| record.place(row).kind).collect();
            let cohorts: HashSet<(&str, &str)> = kinds
                .into_iter()
                .map(|kind| record.kind(kind).cohort())
                .collect();
            FoundModel {
                model: model.clone(),
                cohorts: cohorts.len() as u64,
                sessions: seen.len() as u64,
            }
        });
        found.filter(|found| found.cohorts > 0).collect()
    }

    pub(super) fn votes(&self, model: &ModelKey, span: &Span) -> Vec<VoteRow<'_>> {
        let Some(record) = self.models.get(model) else {
            return Vec::new();
        };
        let series = between(
            &record.series,
            |row| row.bucket,
            span.start_s(),
            span.end_s(),
        );
        let mut sums: HashMap<VoteId, Sum<'_>> = HashMap::default();
        for row in series {
            sums.entry(row.vote_id()).or_default().add(row);
        }
        let mut rows: Vec<(VoteId, Sum<'_>)> = sums.into_iter().collect();
        rows.sort_unstable_by_key(|(id, _)| *id);
        rows.into_iter()
            .map(|(id, sum)| self.vote_row(record, id, sum))
            .collect()
    }

    /// Whole windows, the latest first: how often a device reports within one changes nothing.
    pub(super) fn earlier(&self, model: &ModelKey, span: &Span) -> Vec<EarlierRow<'_>> {
        let Some((model, record)) = self.models.get_key_value(model) else {
            return Vec::new();
        };
        let bucket = |row: &Series| row.bucket;
        let mut runs: HashMap<VoteId, u64> = HashMap::default();
        for row in between(&record.series, bucket, span.start_s(), span.end_s()) {
            *runs.entry(row.vote_id()).or_default() += row.n;
        }
        runs.retain(|_, n| *n < crate::window::MIN_RUNS_HIGH);
        let length = (span.end_s() - span.start_s()).max(1);
        let mut sums: BTreeMap<(i64, VoteId), Sum<'_>> = BTreeMap::new();
        for row in between(&record.series, bucket, span.earliest_s(), span.start_s()) {
            if runs.contains_key(&row.vote_id()) {
                let windows_back = (span.start_s() - 1 - row.bucket).div_euclid(length);
                let key = (windows_back, row.vote_id());
                sums.entry(key).or_default().add(row);
            }
        }
        let mut used: HashMap<VoteId, usize> = HashMap::default();
        let mut rows = Vec::new();
        for ((_, id), sum) in sums {
            let used = used.entry(id).or_default();
            *used += 1;
            if *used <= MAX_EARLIER_WINDOWS {
                rows.push(earlier_row(model, self.vote_row(record, id, sum)));
            }
        }
        rows
    }

    fn vote_row<'a>(
        &'a self,
        record: &'a ModelRecord,
        id: VoteId,
        mut sum: Sum<'a>,
    ) -> VoteRow<'a> {
        let (device, kind, shape) = id;
        let (previous, earlier, absence) = sum.baselines();
        let moments = sum.moments();
        VoteRow {
            ran: record.kind(kind).ran(self.devices[device as usize]),
            device_model: &self.device_models[sum.device_model() as usize],
            shape_key: &record.shapes[shape as usize],
            n: moments.n(),
            sum_us: moments.sum(),
            m2_us2: moments.m2(),
            previous,
            earlier,
            absence,
            at: sum.at(),
            hist_bucket: sum.histogram.indices().to_vec(),
            hist_count: sum.histogram.counts().to_vec(),
        }
    }

    pub(super) fn placements(&self, model: &ModelKey, span: &Span) -> Vec<PlacementRow<'_>> {
        let Some(record) = self.models.get(model) else {
            return Vec::new();
        };
        type Key = (u32, u32, bool, bool);
        let mut best: BTreeMap<Key, (u32, BTreeSet<&'static str>)> = BTreeMap::new();
        for row in between(&record.seen, |row| row.bucket, span.start_s(), span.end_s()) {
            let place = record.place(row);
            if !(place.requests_npu || place.is_directed) {
                continue;
            }
            let key = (row.device, place.kind, row.votes, place.is_directed);
            let slot = best
                .entry(key)
                .or_insert_with(|| (row.place, BTreeSet::new()));
            slot.0 = record.first_of(slot.0, row.place);
            slot.1.extend(&place.reasons);
        }
        let rows = best.into_iter().map(|(key, (place, reasons))| {
            let (device, kind, votes, directed) = key;
            PlacementRow {
                ran: record.kind(kind).ran(self.devices[device as usize]),
                votes,
                directed,
                // Put together already.
                fingerprint_exact: 0,
                numbers: record.places[place as usize].numbers(),
                reasons: reasons.into_iter().collect(),
            }
        });
        rows.collect()
    }

    pub(super) fn census(&self, model: &ModelKey, span: &Span) -> Vec<CensusRow> {
        let Some(record) = self.models.get(model) else {
            return Vec::new();
        };
        type Key<'a> = (&'a str, &'a str, &'static str, &'static str, u32, u64);
        let mut counts: BTreeMap<Key<'_>, (u32, HashMap<u32, bool>)> = BTreeMap::new();
        for row in between(
            &record.seen,
            |row| row.bucket,
            span.earliest_s(),
            span.end_s(),
        ) {
            let place = record.place(row);
            if !place.requests_npu || place.is_directed || !row.votes {
                continue;
            }
            let kind = record.kind(place.kind);
            let key = (
                &*kind.model_version,
                &*kind.chipset,
                kind.graph_kind,
                kind.source,
                kind.algorithm,
                kind.normalised,
            );
            let slot = counts
                .entry(key)
                .or_insert_with(|| (row.place, HashMap::default()));
            slot.0 = record.first_of(slot.0, row.place);
            *slot.1.entry(row.device).or_default() |= row.bucket < span.start_s();
        }
        let rows = counts.into_iter().map(|(key, (place, devices))| {
            let (version, chipset, graph_kind, source, algorithm, normalised) = key;
            CensusRow {
                app_id: String::new(),
                environment: String::new(),
                model_id: String::new(),
                model_version: version.to_owned(),
                chipset: chipset.to_owned(),
                graph_kind: graph_kind.to_owned(),
                placement_source: source.to_owned(),
                fingerprint_algorithm: algorithm,
                fingerprint_normalised: normalised,
                numbers: owned(record.places[place as usize].numbers()),
                votes: true,
                // Versions are asked for apart.
                first_seen_ms: 0,
                devices: devices.len() as u64,
                devices_before: devices.values().filter(|before| **before).count() as u64,
            }
        });
        rows.collect()
    }

    pub(super) fn versions(&self, model: &ModelKey, span: &Span) -> Vec<VersionRow> {
        let Some(record) = self.models.get(model) else {
            return Vec::new();
        };
        let mut first: BTreeMap<&str, i64> = BTreeMap::new();
        for (_, version, received) in between(
            &record.versions,
            |row| row.0,
            span.earliest_s(),
            span.end_s(),
        ) {
            let slot = first.entry(version).or_insert(*received);
            *slot = (*slot).min(*received);
        }
        first
            .into_iter()
            .map(|(version, first_seen_ms)| VersionRow {
                model_version: version.to_owned(),
                first_seen_ms,
            })
            .collect()
    }

    pub(super) fn latency_before(
        &self,
        model: &ModelKey,
        model_version: &str,
        chipset: &str,
        (from_s, to_s): (i64, i64),
    ) -> Vec<HistogramRow> {
        let Some(record) = self.models.get(model) else {
            return Vec::new();
        };
        let mut merged: BTreeMap<u32, epwatch_proto::SparseHistogram> = BTreeMap::new();
        let rows = between(&record.series, |row| row.bucket, from_s, to_s);
        for row in rows {
            if record.kind(row.kind).cohort() == (model_version, chipset) {
                row.add_to(merged.entry(row.shape).or_default());
            }
        }
        let rows = merged.into_iter().map(|(shape, histogram)| HistogramRow {
            shape_key: record.shapes[shape as usize].to_string(),
            hist_bucket: histogram.indices().to_vec(),
            hist_count: histogram.counts().to_vec(),
        });
        rows.collect()
    }

    pub(super) fn selves_before(
        &self,
        wanted: &[VersionOnChipset],
        asked: Asked,
        span: &Span,
    ) -> Result<HashMap<VersionOnChipset, SelvesBefore>, SourceError> {
        let mut by_model: BTreeMap<&ModelKey, Vec<&VersionOnChipset>> = BTreeMap::new();
        for key in wanted {
            by_model.entry(&key.0).or_default().push(key);
        }
        let mut selves = HashMap::default();
        for (model, keys) in by_model {
            let Some(record) = self.models.get(model) else {
                continue;
            };
            let mut builders: Vec<SelvesBuilder> = Vec::new();
            builders.resize_with(keys.len(), SelvesBuilder::default);
            for (at, row) in self.selves_rows(record, &keys, span.before(asked.until)) {
                builders[at]
                    .add(row, asked.before)
                    .map_err(|source| SourceError::Histogram {
                        model: model.model_id.clone(),
                        source,
                    })?;
            }
            let built = builders.into_iter().map(SelvesBuilder::finish);
            selves.extend(keys.into_iter().cloned().zip(built));
        }
        Ok(selves)
    }

    /// What each device did with each input shape, with its place in `wanted`.
    fn selves_rows(
        &self,
        record: &ModelRecord,
        wanted: &[&VersionOnChipset],
        (from_s, to_s): (i64, i64),
    ) -> Vec<(usize, SelfRow)> {
        let at_of_kind: Vec<Option<usize>> = record
            .kinds
            .iter()
            .map(|kind| {
                let cohort = kind.cohort();
                let of_cohort = |(_, version, chipset): &&VersionOnChipset| {
                    (version.as_str(), chipset.as_str()) == cohort
                };
                wanted.iter().position(of_cohort)
            })
            .collect();
        let rows = between(&record.series, |row| row.bucket, from_s, to_s);
        let mut sums: HashMap<(usize, u32, u32), Sum<'_>> = HashMap::default();
        for row in rows {
            if let Some(at) = at_of_kind[row.kind as usize] {
                let sum = sums.entry((at, row.device, row.shape)).or_default();
                sum.add(row);
            }
        }
        let rows = sums.into_iter().map(|((at, device, shape), mut sum)| {
            let moments = sum.moments();
            let row = SelfRow {
                app_id: String::new(),
                environment: String::new(),
                model_id: String::new(),
                model_version: wanted[at].1.clone(),
                chipset: String::new(),
                installation: self.devices[device as usize],
                device_model: self.device_models[sum.device_model() as usize].to_string(),
                shape_key: record.shapes[shape as usize].to_string(),
                n: moments.n(),
                sum_us: moments.sum(),
                m2_us2: moments.m2(),
                hist_bucket: sum.histogram.indices().to_vec(),
                hist_count: sum.histogram.counts().to_vec(),
            };
            (at, row)
        });
        rows.collect()
    }

    pub(super) fn nodes(
        &self,
        model: &ModelKey,
        model_version: &str,
        fingerprints: &[u64],
    ) -> Vec<NodesRow> {
        let nodes = self.models.get(model).map(|record| record.nodes.iter());
        let wanted = nodes.into_iter().flatten().filter(|nodes| {
            *nodes.model_version == *model_version && fingerprints.contains(&nodes.normalised)
        });
        wanted.map(|nodes| nodes.row.clone()).collect()
    }

    pub(super) fn arrivals(&self, span: &Span) -> Vec<ArrivalRow> {
        let mut rows = Vec::new();
        for ((app_id, environment), received) in &self.arrivals {
            let mut first: BTreeMap<u32, i64> = BTreeMap::new();
            for (_, at, device) in between(received, |row| row.0, span.earliest_s(), span.end_s()) {
                let slot = first.entry(*device).or_insert(*at);
                *slot = (*slot).min(*at);
            }
            rows.extend(first.into_iter().map(|(device, at_ms)| ArrivalRow {
                app_id: app_id.to_string(),
                environment: environment.to_string(),
                installation: self.devices[device as usize],
                at_ms,
                devices: 1,
            }));
        }
        rows
    }

    /// How many votes a model has in a window at the most: what the bound is held against.
    pub(super) fn check_size(
        &self,
        model: &ModelKey,
        span: &Span,
        max_votes: usize,
    ) -> Result<(), SourceError> {
        let rows = self.models.get(model).map_or(0, |record| {
            let series = between(
                &record.series,
                |row| row.bucket,
                span.start_s(),
                span.end_s(),
            );
            // Not more votes than series.
            if series.len() <= max_votes {
                return 0;
            }
            let votes: HashSet<VoteId> = series.iter().map(Series::vote_id).collect();
            votes.len()
        });
        if rows > max_votes {
            return Err(SourceError::TooManyVotes {
                model: model.model_id.clone(),
                limit: max_votes,
            });
        }
        Ok(())
    }
}

impl Kind {
    fn ran(&self, installation: Installation) -> Ran<'_> {
        Ran {
            model_version: &self.model_version,
            chipset: &self.chipset,
            firmware: &self.firmware,
            installation,
            graph_kind: self.graph_kind,
            placement_source: self.source,
            fingerprint_algorithm: self.algorithm,
            fingerprint_normalised: self.normalised,
        }
    }

    fn cohort(&self) -> (&str, &str) {
        (&self.model_version, &self.chipset)
    }
}

impl ModelRecord {
    fn kind(&self, kind: u32) -> &Kind {
        &self.kinds[kind as usize]
    }

    fn place(&self, row: &Seen) -> &Place {
        &self.places[row.place as usize]
    }

    /// Of two places that differ in what the fingerprint leaves out, the one that speaks.
    fn first_of(&self, one: u32, other: u32) -> u32 {
        let key = |at: u32| {
            let place = &self.places[at as usize];
            (&place.runtime, place.exact)
        };
        if key(other) < key(one) { other } else { one }
    }
}

impl Place {
    fn numbers(&self) -> super::rows::PlacementNumbers<&str> {
        (
            &*self.runtime,
            self.n_nodes,
            self.npu_nodes,
            self.cpu_nodes,
            self.cpu_benign_nodes,
            self.npu_macs_share.map(f32::from_bits),
            self.macs_attributed.map(f32::from_bits),
        )
    }
}

fn owned(numbers: super::rows::PlacementNumbers<&str>) -> super::rows::PlacementNumbers {
    let (runtime, n_nodes, npu_nodes, cpu_nodes, benign, macs, attributed) = numbers;
    let runtime = runtime.to_owned();
    (
        runtime, n_nodes, npu_nodes, cpu_nodes, benign, macs, attributed,
    )
}

impl Series {
    fn vote_id(&self) -> VoteId {
        (self.device, self.kind, self.shape)
    }
}
