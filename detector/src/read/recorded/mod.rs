//! Recorded reports held in memory, answering what the store's views answer.
//!
//! The same rules: a report counts once, by its first receipt; windows and buckets are of receive
//! time; only clean series of sessions that ask for an NPU, in time and changed by no directive,
//! vote. Windows are built from the same rows as those of the store.

mod intake;
mod packed;
mod reader;

use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_stats::Moments;

use crate::cohort::{App, Installation, ModelKey, VersionOnChipset};
use crate::hash::{HashMap, HashSet};
use crate::interner::{TextId, Texts};
use crate::placement::NodeCounts;
use crate::standing::Sender;
use crate::window::{MIN_RUNS_HIGH, histogram_of};

use super::assemble::{
    CohortPlacement, EarlierSelf, PlacedSession, SelfQuantiles, SeriesOrder, SeriesRow, SeriesSum,
    SessionRow, WindowBuilders,
};
use super::census::Census;
use super::cpu_nodes::NodesRow;
use super::span::Span;

pub use intake::{Intake, IntakeSummary, Mark};

/// Windows of a vote that are looked at before its own: as many as hold 20 runs at the least.
const MAX_EARLIER_WINDOWS: usize = 20;

/// A placement as a session reports it: there are few of them.
#[derive(Debug, PartialEq, Eq, Hash, Clone)]
struct Place {
    ran: CohortPlacement,
    runtime: TextId,
    exact: u64,
    /// All nodes, those on the NPU, on the CPU, and benign ones of these.
    nodes: [u32; 4],
    /// Share of MACs on the NPU, and attributed; bits of an `f32`, which the store keeps.
    macs: [Option<u32>; 2],
    reasons: Vec<TextId>,
    requests_npu: bool,
    is_directed: bool,
}

/// A session in a report.
#[derive(Debug, Clone, Copy)]
struct Seen {
    bucket: i64,
    device: u32,
    place: u32,
    /// Creation of the session, in seconds from the bucket on.
    created_s: i32,
    is_late: bool,
    is_unproven: bool,
    is_own: bool,
}

/// A clean series in a report.
#[derive(Debug)]
struct Series {
    bucket: i64,
    order: SeriesOrder,
    device: u32,
    place: u32,
    shape: TextId,
    device_model: TextId,
    reports_heat: bool,
    sum_us: f64,
    m2_us2: f64,
    n: u64,
    /// Indices and counts as varints of differences and counts.
    histogram: Box<[u8]>,
    baselines: Option<Box<Baselines>>,
    absence: TextId,
}

#[derive(Debug, Default)]
struct Baselines {
    previous: Option<(TextId, SelfQuantiles)>,
    runtime: Option<SelfQuantiles>,
}

/// The nodes behind a fingerprint.
#[derive(Debug)]
struct Nodes {
    version: TextId,
    row: NodesRow,
}

/// Everything about one model, in the order of its buckets.
#[derive(Debug, Default)]
struct ModelRecord {
    seen: Vec<Seen>,
    series: Vec<Series>,
    /// (algorithm, exact), first seen first.
    nodes: Vec<Nodes>,
}

/// Recorded reports, counted once.
#[derive(Debug, Default)]
pub struct Recording {
    texts: Texts,
    models: BTreeMap<ModelKey, ModelRecord>,
    devices: Vec<Installation>,
    places: Vec<Place>,
    received: Option<(i64, i64)>,
    census: Arc<Census>,
    /// By app, in the order of their buckets.
    senders: HashMap<App, Vec<Sent>>,
}

/// Who sent a report of a device that votes.
#[derive(Debug, Clone, Copy)]
struct Sent {
    bucket: i64,
    device: u32,
    by: Sender,
}

/// What votes of one device are told apart by: device, where it ran, shape.
type VoteId = (u32, CohortPlacement, TextId);

fn between<T>(rows: &[T], bucket: impl Fn(&T) -> i64, from_s: i64, to_s: i64) -> &[T] {
    let start = rows.partition_point(|row| bucket(row) < from_s);
    let end = rows.partition_point(|row| bucket(row) < to_s);
    rows.get(start..end).unwrap_or_default()
}

impl Recording {
    /// Returns who sent each device's reports in the window, as the store adds them up.
    fn senders_of(&self, all: &[Sent], span: &Span) -> Vec<(Installation, Sender)> {
        let mut senders: HashMap<u32, Sender> = HashMap::default();
        for sent in between(all, |sent| sent.bucket, span.start_s(), span.end_s()) {
            let known = senders.entry(sent.device).or_insert(sent.by);
            known.is_own &= sent.by.is_own;
            let both = known.network.into_iter().chain(sent.by.network);
            known.network = both.min();
        }
        let senders = senders.into_iter();
        senders
            .map(|(device, sender)| (self.devices[device as usize], sender))
            .collect()
    }

    /// Adds the window's sessions, each place of a device once, and its clean series.
    fn add_window(
        &self,
        model: &ModelKey,
        record: &ModelRecord,
        span: &Span,
        builders: &mut WindowBuilders,
    ) {
        let model = builders.texts.model(model);
        let mut known: HashSet<(u32, u32, bool, bool, i64)> = HashSet::default();
        for seen in between(&record.seen, |row| row.bucket, span.start_s(), span.end_s()) {
            let place = &self.places[seen.place as usize];
            let takes_part = place.requests_npu || place.is_directed;
            let created_s = seen.bucket.saturating_add(seen.created_s.into());
            let (late, unproven) = (seen.is_late, seen.is_unproven);
            let id = (seen.device, seen.place, late, unproven, created_s);
            if !takes_part || !known.insert(id) {
                continue;
            }
            let row = SessionRow {
                installation: self.devices[seen.device as usize],
                ran: place.ran,
                placed: PlacedSession {
                    runtime: place.runtime,
                    fingerprint_exact: place.exact,
                    counts: place.counts(),
                    reasons: place.reasons.clone(),
                },
                created_s,
                is_late: seen.is_late,
                is_unproven: seen.is_unproven,
                is_directed: place.is_directed,
            };
            builders.add(model, |builder, texts| builder.add_session(row, texts));
        }
        for series in record.series_between(span.start_s(), span.end_s()) {
            let known = series.baselines.as_deref();
            let row = SeriesRow {
                installation: self.devices[series.device as usize],
                ran: self.ran(series),
                shape_key: series.shape,
                runs: series.runs(),
                reports_heat: series.reports_heat,
                earlier: EarlierSelf {
                    previous: known.and_then(|known| known.previous),
                    runtime: known.and_then(|known| known.runtime),
                    absence: series.absence,
                },
            };
            builders.add(model, |builder, _| builder.add_series(row));
        }
    }

    /// Adds whole windows, the latest first: how often a device reports within one changes nothing.
    fn add_earlier(
        &self,
        model: &ModelKey,
        record: &ModelRecord,
        span: &Span,
        builders: &mut WindowBuilders,
    ) {
        let vote_id = |row: &Series| -> VoteId { (row.device, self.ran(row), row.shape) };
        let mut runs: HashMap<VoteId, u64> = HashMap::default();
        for row in record.series_between(span.start_s(), span.end_s()) {
            *runs.entry(vote_id(row)).or_default() += row.n;
        }
        runs.retain(|_, n| *n < MIN_RUNS_HIGH);
        let length = (span.end_s() - span.start_s()).max(1);
        let mut sums: BTreeMap<i64, HashMap<VoteId, SeriesSum>> = BTreeMap::new();
        for row in record.series_between(span.earliest_s(), span.start_s()) {
            let id = vote_id(row);
            if runs.contains_key(&id) {
                let windows_back = (span.start_s() - 1 - row.bucket).div_euclid(length);
                row.runs().add_to(sums.entry(windows_back).or_default(), id);
            }
        }
        let model = builders.texts.model(model);
        let mut used: HashMap<VoteId, usize> = HashMap::default();
        for (id, mut sum) in sums.into_values().flatten() {
            let used = used.entry(id).or_default();
            *used += 1;
            if *used <= MAX_EARLIER_WINDOWS {
                let (device, ran, shape) = id;
                let vote = (self.devices[device as usize], ran, shape);
                let runs = (histogram_of(sum.histogram.buckets()), Some(sum.moments()));
                builders.add(model, |builder, _| builder.add_earlier(vote, runs));
            }
        }
    }

    fn ran(&self, series: &Series) -> CohortPlacement {
        self.places[series.place as usize].ran
    }

    /// Returns the clean series of a version on a chipset in a span of seconds.
    fn series_of<'a>(
        &'a self,
        (model, version, chipset): &VersionOnChipset,
        (from_s, to_s): (i64, i64),
    ) -> impl Iterator<Item = &'a Series> {
        let record = self.models.get(model);
        let series = record.map_or(&[][..], |record| record.series_between(from_s, to_s));
        let is = |id, name: &str| &**self.texts.get(id) == name;
        series.iter().filter(move |series| {
            let ran = self.ran(series);
            is(ran.version, version) && is(ran.chipset, chipset)
        })
    }
}

impl ModelRecord {
    fn series_between(&self, from_s: i64, to_s: i64) -> &[Series] {
        between(&self.series, |series| series.bucket, from_s, to_s)
    }
}

impl Series {
    fn runs(&self) -> SeriesSum {
        let moments = Moments::from_parts(self.n, self.sum_us, self.m2_us2);
        let histogram = packed::unpack(&self.histogram);
        SeriesSum::of(histogram, moments, self.order, self.device_model)
    }
}

impl Place {
    fn counts(&self) -> NodeCounts {
        let [n_nodes, npu_nodes, cpu_nodes, cpu_benign_nodes] = self.nodes;
        let [npu_macs_share, macs_attributed] = self.macs.map(|bits| bits.map(f32::from_bits));
        NodeCounts {
            n_nodes,
            npu_nodes,
            cpu_nodes,
            cpu_benign_nodes,
            npu_macs_share,
            macs_attributed,
        }
    }
}
