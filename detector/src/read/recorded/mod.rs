//! Recorded reports in memory. They give the same answers as the store's views.
//!
//! The rules are the same. A report counts once, by its first receipt. Windows and buckets are of receive time. Only
//! clean series of sessions that ask for an NPU vote; they must be in time and changed by no directive. Windows are
//! built from the same rows as the store's windows.

mod intake;
mod reader;
mod sender_decision;
mod spill;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_model::{AppEnvironment, Installation, ModelKey, VersionOnChipset};

use crate::judge::hash::{HashMap, HashSet};
use crate::judge::sybil_resistance::Sender;
use crate::judge::window::{MIN_RUNS_HIGH, histogram_of};
use crate::read::interner::{TextId, Texts};

use super::assemble::{CohortPlacement, SeriesSum, WindowBuilders};
use super::census::Census;
use super::cpu_nodes::NodesRow;
use super::error::SourceError;
use super::packed::{KnownSessions, PackedRows, ReportedPlacement, Series};
use super::span::Span;

pub use intake::{Intake, IntakeSummary};
pub use sender_decision::SenderDecision;
use spill::{Extent, Spill};

/// Maximum number of earlier windows that are read for a vote. Each has at least one run, so 20 runs are found.
const MAX_EARLIER_WINDOWS: usize = 20;

/// The nodes behind a fingerprint.
#[derive(Debug)]
struct Nodes {
    version: TextId,
    row: NodesRow,
}

/// Everything about one model, in the order of its buckets.
#[derive(Debug, Default)]
struct ModelRecord {
    buckets: Vec<Rows>,
    /// (algorithm, exact), first seen first.
    nodes: Vec<Nodes>,
}

/// The rows of one bucket, in the order of their receipt.
#[derive(Debug)]
struct Rows {
    bucket: i64,
    seen: Extent,
    series: Extent,
}

/// Recorded reports, counted once.
#[derive(Debug)]
pub struct Recording {
    texts: Texts,
    models: BTreeMap<ModelKey, ModelRecord>,
    devices: Vec<Installation>,
    groups: Vec<ReportedPlacement>,
    /// For each group, the first group with an equal `ran`. A device's sessions in both groups are one vote.
    vote_groups: Vec<u32>,
    received: Option<(i64, i64)>,
    census: Arc<Census>,
    /// The senders by app, in the order of their buckets.
    senders: HashMap<AppEnvironment, Vec<Sent>>,
    rows: Spill,
}

/// The sender of a report of a device that votes.
#[derive(Debug, Clone, Copy)]
struct Sent {
    bucket: i64,
    device: u32,
    by: Sender,
}

/// A vote: its device, its group of [`Recording::vote_groups`], its input shape.
type VoteId = (u32, u32, TextId);

/// A vote with too few runs.
#[derive(Debug, Default)]
struct Lacking {
    n: u64,
    /// Number of earlier windows that had runs of the vote.
    windows: usize,
}

impl Recording {
    /// Returns the senders of the wanted devices' reports in the window, added up as in the store.
    fn senders_of(
        &self,
        all: &[Sent],
        wanted: &HashSet<Installation>,
        span: &Span,
    ) -> Vec<(Installation, Sender)> {
        let start = all.partition_point(|sent| sent.bucket < span.start_s());
        let end = all.partition_point(|sent| sent.bucket < span.end_s());
        let mut senders: HashMap<Installation, Sender> = HashMap::default();
        for sent in all.get(start..end).unwrap_or_default() {
            let device = self.devices[sent.device as usize];
            if !wanted.contains(&device) {
                continue;
            }
            let known = senders.entry(device).or_insert(sent.by);
            known.is_own &= sent.by.is_own;
            let both = known.network.into_iter().chain(sent.by.network);
            known.network = both.min();
        }
        senders.into_iter().collect()
    }

    /// Passes each series of a span of seconds to `take`.
    fn each_series(
        &self,
        record: &ModelRecord,
        span_s: (i64, i64),
        mut take: impl FnMut(i64, &Series<'_>),
    ) -> Result<(), SourceError> {
        for rows in record.between(span_s) {
            let bytes = self.read(rows.series)?;
            let mut rest = &*bytes;
            while let Some(series) = Series::take(&mut rest) {
                take(rows.bucket, &series);
            }
        }
        Ok(())
    }

    fn read(&self, extent: Extent) -> Result<Cow<'_, [u8]>, SourceError> {
        self.rows.read(extent).map_err(SourceError::Spilled)
    }

    /// Adds the window's sessions, each group once per device, and the window's clean series.
    fn add_window(
        &self,
        model: &ModelKey,
        record: &ModelRecord,
        span: &Span,
        builders: &mut WindowBuilders<'_>,
    ) -> Result<(), SourceError> {
        let Some(model) = builders.texts.known_model(model) else {
            return Ok(());
        };
        let mut known = KnownSessions::default();
        for rows in record.between((span.start_s(), span.end_s())) {
            let (seen, series) = (self.read(rows.seen)?, self.read(rows.series)?);
            let packed = PackedRows {
                bucket_s: rows.bucket,
                devices: &self.devices,
                groups: &self.groups,
                seen: &seen,
                series: &series,
            };
            packed.add(model, |_| true, &mut known, builders);
        }
        Ok(())
    }

    /// Adds whole earlier windows, the latest first, until a vote has enough runs. So it does not matter how often a
    /// device reports within a window.
    fn add_earlier(
        &self,
        model: &ModelKey,
        record: &ModelRecord,
        span: &Span,
        builders: &mut WindowBuilders<'_>,
    ) -> Result<(), SourceError> {
        let vote_id = |row: &Series<'_>| -> VoteId {
            (row.device, self.vote_groups[row.group as usize], row.shape)
        };
        let (start_s, earliest_s) = (span.start_s(), span.earliest_s());
        let mut lacking: HashMap<VoteId, Lacking> = HashMap::default();
        self.each_series(record, (start_s, span.end_s()), |_, row| {
            lacking.entry(vote_id(row)).or_default().n += row.n;
        })?;
        lacking.retain(|_, vote| vote.n < MIN_RUNS_HIGH);
        let Some(model) = builders.texts.known_model(model) else {
            return Ok(());
        };
        let length = (span.end_s() - start_s).max(1);
        let mut until_s = start_s;
        while !lacking.is_empty()
            && let Some(latest) = record.between((earliest_s, until_s)).last()
        {
            // The next window is the one with the latest bucket, because windows in between have no rows.
            let windows_back = (start_s - 1 - latest.bucket).div_euclid(length);
            let from_s = (start_s - (windows_back + 1) * length).max(earliest_s);
            let mut sums: HashMap<VoteId, SeriesSum> = HashMap::default();
            self.each_series(record, (from_s, until_s), |_, row| {
                let id = vote_id(row);
                if lacking.contains_key(&id) {
                    row.add_to(&mut sums, id);
                }
            })?;
            for (id, mut sum) in sums {
                let (device, group, shape) = id;
                let ran = self.groups[group as usize].ran;
                let vote = (self.devices[device as usize], ran, shape);
                let runs = (histogram_of(sum.histogram.buckets()), Some(sum.moments()));
                builders.add(model, |builder, _| builder.add_earlier(vote, runs));
                if let Some(vote) = lacking.get_mut(&id) {
                    vote.n += sum.histogram.total();
                    vote.windows += 1;
                }
            }
            lacking.retain(|_, vote| vote.n < MIN_RUNS_HIGH && vote.windows < MAX_EARLIER_WINDOWS);
            until_s = from_s;
        }
        Ok(())
    }

    fn ran(&self, series: &Series<'_>) -> CohortPlacement {
        self.groups[series.group as usize].ran
    }

    /// Passes each clean series of the wanted cohorts in a span of seconds to `take`, with the number of its cohort among
    /// them. A model is read once for all of its cohorts.
    fn each_series_of(
        &self,
        wanted: &[VersionOnChipset],
        span_s: (i64, i64),
        mut take: impl FnMut(usize, &Series<'_>),
    ) -> Result<(), SourceError> {
        let mut by_model: BTreeMap<&ModelKey, HashMap<(TextId, TextId), usize>> = BTreeMap::new();
        for (at, (model, version, chipset)) in wanted.iter().enumerate() {
            let cohort = self.texts.known(version).zip(self.texts.known(chipset));
            if let Some(cohort) = cohort {
                by_model.entry(model).or_default().insert(cohort, at);
            }
        }
        for (model, cohorts) in by_model {
            let Some(record) = self.models.get(model) else {
                continue;
            };
            self.each_series(record, span_s, |_, series| {
                let ran = self.ran(series);
                if let Some(at) = cohorts.get(&(ran.version, ran.chipset)) {
                    take(*at, series);
                }
            })?;
        }
        Ok(())
    }
}

impl ModelRecord {
    /// Returns the buckets of a span of seconds.
    fn between(&self, (from_s, to_s): (i64, i64)) -> &[Rows] {
        let start = self.buckets.partition_point(|rows| rows.bucket < from_s);
        let end = self.buckets.partition_point(|rows| rows.bucket < to_s);
        self.buckets.get(start..end).unwrap_or_default()
    }
}
