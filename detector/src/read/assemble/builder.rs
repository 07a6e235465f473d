//! Builds the windows of one model from rows.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use epwatch_model::{Installation, ModelKey};
use epwatch_proto::SparseHistogram;
use jiff::Timestamp;

use crate::judge::hash::{HashMap, HashSet};
use crate::judge::window::VoteLatency;
use crate::read::error::SourceError;
use crate::read::interner::{TextId, Texts};
use crate::read::reader::WindowsAsked;

use super::rows::{CohortPlacement, PlacedSession, SeriesRow, SessionRow};
use super::sum::SeriesOrder;
use super::vote::{Adding, EarlierRuns, Unfinished};

/// Version, chipset.
pub(super) type CohortId = (TextId, TextId);

/// A device, its cohort and placement, and the input shape.
pub(in crate::read) type VoteKey = (Installation, CohortPlacement, TextId);

/// Sums of clean runs by firmware and input shape.
pub(super) type CohortCounts = HashMap<(TextId, TextId), SparseHistogram>;

pub(in crate::read) struct WindowBuilder {
    pub(super) model: ModelKey,
    pub(super) end: Timestamp,
    pub(super) length: Duration,
    max_votes: usize,
    pub(super) newcomers: Arc<HashSet<Installation>>,
    pub(super) latencies: Vec<(VoteKey, VoteLatency)>,
    /// The latest device model that a device reported, and its order in time.
    pub(super) device_models: HashMap<Installation, (SeriesOrder, TextId)>,
    /// Devices with a clean run whose thermal state is known.
    pub(super) report_heat: HashSet<Installation>,
    /// Boxed, because the map moves its values when it grows.
    adding: HashMap<VoteKey, Box<Adding>>,
    pub(super) unfinished: HashMap<VoteKey, Unfinished>,
    pub(super) counts: HashMap<CohortId, CohortCounts>,
    pub(super) placed: HashMap<(Installation, CohortPlacement), DevicePlacement>,
    pub(super) voteless: HashMap<CohortId, WithoutVote>,
}

/// The placement with which a device ran.
pub(super) struct DevicePlacement {
    pub(super) session: PlacedSession,
    /// Creation of its first and its last session.
    pub(super) created_s: (i64, i64),
    /// Whether a vote with latency has this placement too.
    pub(super) has_latency: bool,
}

/// Devices that took part without a vote.
#[derive(Default)]
pub(super) struct WithoutVote {
    /// Devices under a directive, with their firmware.
    pub(super) directed: HashMap<Installation, TextId>,
    pub(super) unproven: HashSet<Installation>,
}

impl WindowBuilder {
    pub(super) fn of(model: &ModelKey, asked: WindowsAsked<'_>) -> Self {
        Self {
            model: model.clone(),
            end: asked.span.end,
            length: asked.span.window,
            max_votes: asked.max_votes,
            newcomers: asked.arrivals.of(model).cloned().unwrap_or_default(),
            latencies: Vec::new(),
            device_models: HashMap::default(),
            report_heat: HashSet::default(),
            adding: HashMap::default(),
            unfinished: HashMap::default(),
            counts: HashMap::default(),
            placed: HashMap::default(),
            voteless: HashMap::default(),
        }
    }

    /// Adds a session's placement.
    pub(in crate::read) fn add_session(
        &mut self,
        row: SessionRow,
        texts: &Texts,
    ) -> Result<(), SourceError> {
        let device = row.installation;
        if row.is_directed || row.is_late || row.is_unproven {
            let cohort = (row.ran.version, row.ran.chipset);
            let without = self.voteless.entry(cohort).or_default();
            if row.is_unproven {
                without.unproven.insert(device);
            } else if row.is_directed {
                // Of two firmware names the later one in the alphabet is kept, so that the order of rows does not
                // matter.
                let known = without.directed.entry(device).or_insert(row.ran.firmware);
                if texts.get(*known) < texts.get(row.ran.firmware) {
                    *known = row.ran.firmware;
                }
            }
            return Ok(());
        }
        match self.placed.entry((device, row.ran)) {
            Entry::Occupied(slot) => {
                let known = slot.into_mut();
                known.session.join(row.placed, texts);
                let (first, last) = known.created_s;
                known.created_s = (first.min(row.created_s), last.max(row.created_s));
            }
            Entry::Vacant(slot) => {
                slot.insert(DevicePlacement {
                    session: row.placed,
                    created_s: (row.created_s, row.created_s),
                    has_latency: false,
                });
                self.check_size()?;
            }
        }
        Ok(())
    }

    /// Adds clean runs of a session that votes.
    pub(in crate::read) fn add_series(
        &mut self,
        row: &SeriesRow,
        buckets: impl IntoIterator<Item = (u16, u64)>,
    ) -> Result<(), SourceError> {
        match self
            .adding
            .entry((row.installation, row.ran, row.shape_key))
        {
            Entry::Occupied(mut slot) => slot.get_mut().add(row, buckets),
            Entry::Vacant(slot) => {
                slot.insert(Box::new(Adding::of(row, buckets)));
                self.check_size()?;
            }
        }
        Ok(())
    }

    /// Takes quantiles of the votes that have enough runs.
    pub(super) fn end_votes(&mut self, texts: &Texts) -> Result<(), SourceError> {
        for (key, vote) in std::mem::take(&mut self.adding) {
            let (installation, ran, shape_key) = key;
            let latest = (vote.runs.order, vote.runs.device_model);
            let known = self.device_models.entry(installation).or_insert(latest);
            *known = latest.max(*known);
            if vote.reports_heat {
                self.report_heat.insert(installation);
            }
            let parts = self.counts.entry((ran.version, ran.chipset)).or_default();
            let part = parts.entry((ran.firmware, shape_key)).or_default();
            part.merge(&vote.runs.histogram);
            let ended = vote.end(ran.version, texts);
            match ended.map_err(SourceError::histogram(&self.model))? {
                Ok(latency) => self.latencies.push((key, latency)),
                Err(unfinished) => drop(self.unfinished.insert(key, unfinished)),
            }
        }
        Ok(())
    }

    pub(super) fn needs_earlier_runs(&self) -> bool {
        !self.unfinished.is_empty()
    }

    /// Adds a vote's runs of an earlier window; the latest window must come first.
    pub(in crate::read) fn add_earlier(
        &mut self,
        key: VoteKey,
        runs: EarlierRuns,
    ) -> Result<(), SourceError> {
        let vote = self.unfinished.get_mut(&key);
        let added = vote.map_or(Ok(()), |vote| vote.add(runs));
        added.map_err(SourceError::histogram(&self.model))
    }

    fn check_size(&self) -> Result<(), SourceError> {
        let with_latency = self.adding.len() + self.latencies.len() + self.unfinished.len();
        let votes = with_latency + self.placed.len();
        if votes > 2 * self.max_votes {
            // A vote may be counted twice, by its latency and by its placement.
            return Err(SourceError::TooManyVotes {
                model: self.model.model_id.clone(),
                limit: self.max_votes,
            });
        }
        Ok(())
    }
}

impl PlacedSession {
    /// Adds another session of the device. Some differ in fields that the normalised fingerprint leaves out. The first
    /// by runtime and exact fingerprint is kept, with the reasons of all.
    fn join(&mut self, other: PlacedSession, texts: &Texts) {
        let order = |one: &Self| (texts.get(one.runtime).clone(), one.fingerprint_exact);
        let is_same =
            (self.runtime, self.fingerprint_exact) == (other.runtime, other.fingerprint_exact);
        if !is_same && order(&other) < order(self) {
            self.runtime = other.runtime;
            self.fingerprint_exact = other.fingerprint_exact;
            self.counts = other.counts;
        }
        for reason in other.reasons {
            if !self.reasons.contains(&reason) {
                self.reasons.push(reason);
            }
        }
    }
}
