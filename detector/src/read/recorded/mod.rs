//! Recorded reports held in memory, answering what the store's views answer.
//!
//! The same rules: a report counts once, by its first receipt; windows and buckets are of receive
//! time; only clean series of sessions that ask for an NPU, in time and changed by no directive,
//! vote. What comes out are the rows that the queries give, so everything after them is one code.

mod intake;
mod packed;
mod reader;
mod sums;

use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_proto::SparseHistogram as Counted;
use epwatch_stats::SparseHistogram;
use jiff::Timestamp;

use crate::cohort::{App, Installation, ModelKey, VersionOnChipset};
use crate::hash::{HashMap, HashSet};
use crate::placement::NodeCounts;
use crate::window::{MIN_RUNS_HIGH, histogram_of};

use super::arrivals::Flood;
use super::assemble::{VoteKey, WindowBuilder};
use super::census::{Census, CensusSession, PlaceId};
use super::cpu_nodes::NodesRow;
use super::error::SourceError;
use super::rows::{At, PlacementRow, Ran, VoteRow};
use super::selves::{Asked, DeviceSums, SelvesBefore, SelvesBuilder};
use super::span::Span;

pub use intake::{Intake, IntakeSummary};
pub(super) use reader::RecordingReader;
use sums::Sum;

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
    /// Numbers of `places` in the census, for sessions of reports that do not vote and of those that do.
    census_places: Vec<[Option<PlaceId>; 2]>,
    shapes: Vec<Arc<str>>,
    seen: Vec<Seen>,
    series: Vec<Series>,
    /// (algorithm, exact), first seen first.
    nodes: Vec<Nodes>,
}

/// First receipt of a device in a bucket: (bucket, receive time in ms, device).
type Arrival = (i64, i64, u32);

/// Recorded reports, counted once.
#[derive(Debug, Default)]
pub struct Recording {
    models: BTreeMap<ModelKey, ModelRecord>,
    devices: Vec<Installation>,
    device_models: Vec<Arc<str>>,
    /// By app and environment.
    arrivals: BTreeMap<(Arc<str>, Arc<str>), Vec<Arrival>>,
    received: Option<(i64, i64)>,
    census: Arc<Census>,
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

    /// Returns the window's clean series of a model, each with the number of its kind.
    pub(super) fn votes(&self, model: &ModelKey, span: &Span) -> Vec<(u32, VoteRow<'_>)> {
        let Some(record) = self.models.get(model) else {
            return Vec::new();
        };
        let series = record.series_between(span.start_s(), span.end_s()).iter();
        let rows = series.map(|series| (series.kind, self.vote_row(record, series)));
        rows.collect()
    }

    /// Adds whole windows, the latest first: how often a device reports within one changes nothing.
    pub(super) fn add_earlier(
        &self,
        model: &ModelKey,
        span: &Span,
        keys: &mut HashMap<u32, VoteKey>,
        builder: &mut WindowBuilder,
    ) -> Result<(), SourceError> {
        let Some(record) = self.models.get(model) else {
            return Ok(());
        };
        let mut runs: HashMap<VoteId, u64> = HashMap::default();
        for row in record.series_between(span.start_s(), span.end_s()) {
            *runs.entry(row.vote_id()).or_default() += row.n;
        }
        runs.retain(|_, n| *n < MIN_RUNS_HIGH);
        let length = (span.end_s() - span.start_s()).max(1);
        let mut sums: BTreeMap<(i64, VoteId), Sum<'_>> = BTreeMap::new();
        for row in record.series_between(span.earliest_s(), span.start_s()) {
            if runs.contains_key(&row.vote_id()) {
                let windows_back = (span.start_s() - 1 - row.bucket).div_euclid(length);
                let key = (windows_back, row.vote_id());
                sums.entry(key).or_default().add(row);
            }
        }
        let mut used: HashMap<VoteId, usize> = HashMap::default();
        for ((_, id), mut sum) in sums {
            let used = used.entry(id).or_default();
            *used += 1;
            if *used <= MAX_EARLIER_WINDOWS {
                let (device, kind, shape) = id;
                let installation = self.devices[device as usize];
                let ran = record.kind(kind).ran(installation);
                let key = *keys.entry(kind).or_insert_with(|| builder.key_of(&ran));
                let shape = &record.shapes[shape as usize];
                let histogram = builder.histogram(sum.histogram.buckets())?;
                let runs = (histogram, Some(sum.moments()));
                builder.add_earlier(key.of(installation), shape, runs)?;
            }
        }
        Ok(())
    }

    fn vote_row<'a>(&'a self, record: &'a ModelRecord, series: &'a Series) -> VoteRow<'a> {
        let mut histogram = Counted::default();
        series.add_to(&mut histogram);
        let known = series.baselines.as_deref();
        let previous = known.and_then(|known| known.previous.as_ref());
        let previous = previous
            .map(|(version, (n, p10, p50, p95, cv))| (version.as_ref(), *n, *p10, *p50, *p95, *cv));
        VoteRow {
            ran: record
                .kind(series.kind)
                .ran(self.devices[series.device as usize]),
            device_model: &self.device_models[series.device_model as usize],
            shape_key: &record.shapes[series.shape as usize],
            n: series.n,
            sum_us: series.sum_us,
            m2_us2: series.m2_us2,
            previous: previous.unwrap_or_default(),
            earlier: known.and_then(|known| known.earlier).unwrap_or_default(),
            absence: series.absence,
            at: series.order,
            hist_bucket: histogram.indices().to_vec(),
            hist_count: histogram.counts().to_vec(),
        }
    }

    /// Returns where the window's sessions of a model ran, each place of a device once, with the number of its
    /// kind.
    pub(super) fn placements(&self, model: &ModelKey, span: &Span) -> Vec<(u32, PlacementRow<'_>)> {
        let Some(record) = self.models.get(model) else {
            return Vec::new();
        };
        let mut known: HashSet<(u32, u32, bool)> = HashSet::default();
        let mut rows = Vec::new();
        for seen in between(&record.seen, |row| row.bucket, span.start_s(), span.end_s()) {
            let place = record.place(seen);
            let takes_part = place.requests_npu || place.is_directed;
            if !takes_part || !known.insert((seen.device, seen.place, seen.votes)) {
                continue;
            }
            let row = PlacementRow {
                ran: record
                    .kind(place.kind)
                    .ran(self.devices[seen.device as usize]),
                votes: seen.votes,
                directed: place.is_directed,
                fingerprint_exact: place.exact,
                runtime: &place.runtime,
                counts: place.counts(),
                reasons: place.reasons.clone(),
            };
            rows.push((place.kind, row));
        }
        rows
    }

    pub(super) fn latency_before(
        &self,
        model: &ModelKey,
        cohort: (&str, &str),
        (from_s, to_s): (i64, i64),
    ) -> Result<Vec<(Arc<str>, SparseHistogram)>, SourceError> {
        let Some(record) = self.models.get(model) else {
            return Ok(Vec::new());
        };
        let mut merged: BTreeMap<u32, Counted> = BTreeMap::new();
        for row in record.series_between(from_s, to_s) {
            if record.kind(row.kind).cohort() == cohort {
                row.add_to(merged.entry(row.shape).or_default());
            }
        }
        let histograms = merged.into_iter().map(|(shape, counts)| {
            let histogram = histogram_of(counts.buckets());
            let histogram = histogram.map_err(SourceError::histogram(model))?;
            Ok((record.shapes[shape as usize].clone(), histogram))
        });
        histograms.collect()
    }

    /// Adds up what each device did with each input shape.
    pub(super) fn selves_before(
        &self,
        wanted: &[VersionOnChipset],
        asked: Asked,
        span: &Span,
    ) -> Result<HashMap<VersionOnChipset, SelvesBefore>, SourceError> {
        let (from_s, to_s) = span.before(asked.until);
        let mut selves = HashMap::default();
        for key in wanted {
            let (model, version, chipset) = key;
            let Some(record) = self.models.get(model) else {
                continue;
            };
            let kinds = record.kinds.iter();
            let is_wanted: Vec<bool> = kinds
                .map(|kind| kind.cohort() == (version.as_str(), chipset.as_str()))
                .collect();
            let mut sums: HashMap<(u32, u32), Sum<'_>> = HashMap::default();
            for row in record.series_between(from_s, to_s) {
                if is_wanted[row.kind as usize] {
                    sums.entry((row.device, row.shape)).or_default().add(row);
                }
            }
            let mut builder = SelvesBuilder::default();
            for ((device, shape), mut sum) in sums {
                let histogram = histogram_of(sum.histogram.buckets());
                let runs = DeviceSums {
                    model_version: version,
                    installation: self.devices[device as usize],
                    device_model: &self.device_models[sum.device_model() as usize],
                    shape_key: &record.shapes[shape as usize],
                    histogram: histogram.map_err(SourceError::histogram(model))?,
                    moments: Some(sum.moments()),
                };
                builder.add(&runs, asked.before);
            }
            selves.insert(key.clone(), builder.finish());
        }
        Ok(selves)
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

    pub(super) fn arrivals_in(
        &self,
        (app_id, environment): &App,
        flood: &Flood,
        span: &Span,
    ) -> Vec<(i64, Installation)> {
        let app = (app_id.as_str().into(), environment.as_str().into());
        let received = self.arrivals.get(&app).map_or(&[][..], Vec::as_slice);
        let mut first: HashMap<u32, (i64, i64)> = HashMap::default();
        for row in between(received, |row| row.0, span.earliest_s(), span.end_s()) {
            let (bucket, received_ms, device) = *row;
            first.entry(device).or_insert((bucket, received_ms));
        }
        let is_new =
            |(_, (bucket, _)): &(u32, (i64, i64))| (flood.from_s..flood.to_s).contains(bucket);
        first
            .into_iter()
            .filter(is_new)
            .map(|(device, (_, received_ms))| (received_ms, self.devices[device as usize]))
            .collect()
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

    fn series_between(&self, from_s: i64, to_s: i64) -> &[Series] {
        between(&self.series, |series| series.bucket, from_s, to_s)
    }
}

impl Place {
    fn counts(&self) -> NodeCounts {
        NodeCounts {
            n_nodes: self.n_nodes,
            npu_nodes: self.npu_nodes,
            cpu_nodes: self.cpu_nodes,
            cpu_benign_nodes: self.cpu_benign_nodes,
            npu_macs_share: self.npu_macs_share.map(f32::from_bits),
            macs_attributed: self.macs_attributed.map(f32::from_bits),
        }
    }

    /// What the census counts of a session; `votes` where its report does.
    fn session<'a>(&'a self, model_id: &'a str, kind: &'a Kind, votes: bool) -> CensusSession<'a> {
        CensusSession {
            model_id,
            model_version: &kind.model_version,
            chipset: &kind.chipset,
            votes: votes && self.requests_npu && !self.is_directed,
            graph_kind: kind.graph_kind,
            placement_source: kind.source,
            fingerprint_algorithm: kind.algorithm,
            fingerprint_normalised: kind.normalised,
            fingerprint_exact: self.exact,
            runtime: &self.runtime,
            counts: self.counts(),
        }
    }
}

impl Series {
    fn vote_id(&self) -> VoteId {
        (self.device, self.kind, self.shape)
    }
}
