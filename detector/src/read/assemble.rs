//! Puts rows together into cohort windows: pure, so that it needs no store.

mod finish;
mod placed;
#[cfg(test)]
mod tests;
mod vote;

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use epwatch_proto::SparseHistogram as Counted;
use epwatch_stats::{Moments, SparseHistogram};
use jiff::Timestamp;

use crate::cohort::ModelKey;
use crate::hash::{HashMap, HashSet};
use crate::interner::{TextId, Texts};
use crate::placement::Placement;
use crate::window::{AgainstSelf, Installation, MIN_RUNS_HIGH, VoteLatency, histogram_of};

use super::SourceError;
use super::arrivals::AppArrivals;
use super::rows::{At, PlacementRow, Ran, VoteRow};
use placed::Placed;
pub(super) use vote::VoteKey;
use vote::{Adding, Method, Told, Unfinished, added_up};

/// (version, chipset) or (firmware, shape).
type Pair = (TextId, TextId);

/// (firmware, shape): its clean runs, added.
type Counts = HashMap<Pair, Counted>;

pub(super) struct WindowBuilder {
    model: ModelKey,
    end: Timestamp,
    length: Duration,
    max_votes: usize,
    texts: Texts,
    latencies: Vec<(VoteKey, VoteLatency)>,
    /// The latest that a device said, and when.
    device_models: HashMap<Installation, (At, Arc<str>)>,
    /// In boxes: the map grows, and moves what it holds.
    adding: HashMap<VoteKey, Box<Adding>>,
    unfinished: HashMap<VoteKey, Unfinished>,
    counts: HashMap<Pair, Counts>,
    /// Every placement once for all devices that have it.
    placements: HashMap<(Method, u64), Vec<Arc<Placement>>>,
    /// Placements of devices, under keys without a shape.
    placed: HashMap<VoteKey, Placed>,
    voteless: HashMap<Pair, WithoutVote>,
    arrivals: Arc<AppArrivals>,
}

/// Devices that took part without a vote.
#[derive(Default)]
struct WithoutVote {
    late_or_unproven: HashSet<Installation>,
    /// With their firmware.
    directed: HashMap<Installation, Arc<str>>,
    flood: HashSet<Installation>,
}

impl WindowBuilder {
    pub(super) fn new(model: ModelKey, end: Timestamp, length: Duration, max_votes: usize) -> Self {
        Self {
            model,
            end,
            length,
            max_votes,
            texts: Texts::default(),
            latencies: Vec::new(),
            device_models: HashMap::default(),
            adding: HashMap::default(),
            unfinished: HashMap::default(),
            counts: HashMap::default(),
            placements: HashMap::default(),
            placed: HashMap::default(),
            voteless: HashMap::default(),
            arrivals: Arc::default(),
        }
    }

    /// Says who is new; those beyond the usual number do not vote.
    pub(super) fn with_arrivals(mut self, arrivals: Option<&Arc<AppArrivals>>) -> Self {
        self.arrivals = arrivals.cloned().unwrap_or_default();
        self
    }

    /// Returns the key of a device's votes, and of its placement: without a shape.
    pub(super) fn key_of(&mut self, ran: &Ran<'_>) -> VoteKey {
        VoteKey {
            version: self.texts.id(ran.model_version),
            chipset: self.texts.id(ran.chipset),
            installation: ran.installation,
            firmware: self.texts.id(ran.firmware),
            shape_key: self.texts.id(""),
            method: Method {
                graph_kind: self.texts.id(ran.graph_kind),
                source: self.texts.id(ran.placement_source),
                algorithm: ran.fingerprint_algorithm,
            },
            fingerprint: ran.fingerprint_normalised,
        }
    }

    /// Adds clean runs, of the device that `key` is of.
    pub(super) fn add_vote(&mut self, key: VoteKey, row: VoteRow<'_>) -> Result<(), SourceError> {
        if self.arrivals.unproven.contains(&key.installation) {
            // Its placement counts it.
            return Ok(());
        }
        let shape_key = self.texts.id(row.shape_key);
        let key = VoteKey { shape_key, ..key };
        let moments = Moments::from_parts(row.n, row.sum_us, row.m2_us2).unwrap_or_default();
        let vote = match self.adding.entry(key) {
            Entry::Vacant(slot) => slot.insert(Box::new(Adding {
                histogram: Counted::default(),
                moments,
                of_each: Vec::new(),
                told: Told::of(&row, &mut self.texts),
            })),
            Entry::Occupied(slot) => {
                let slot = slot.into_mut();
                slot.add_moments(row.at, moments);
                if slot.told.at < row.at {
                    slot.told = Told::of(&row, &mut self.texts);
                }
                slot
            }
        };
        let added = added_up(row.hist_bucket, row.hist_count).map_err(|error| {
            let source = clickhouse::error::Error::Custom(error.to_string());
            SourceError::Store {
                what: "a histogram",
                source,
            }
        })?;
        if vote.histogram.is_empty() {
            vote.histogram = added;
        } else {
            vote.histogram.merge(&added);
        }
        self.check_size()
    }

    /// Takes quantiles of the votes that have enough runs.
    pub(super) fn end_votes(&mut self) -> Result<(), SourceError> {
        for (key, mut vote) in std::mem::take(&mut self.adding) {
            let moments = vote.moments();
            let cohort = (key.version, key.chipset);
            let part = (key.firmware, key.shape_key);
            let said = (vote.told.at, vote.told.device_model);
            let known = self.device_models.entry(key.installation);
            let known = known.or_insert_with(|| said.clone());
            if *known < said {
                *known = said;
            }
            let parts = self.counts.entry(cohort).or_default();
            parts.entry(part).or_default().merge(&vote.histogram);
            let histogram = self.histogram(vote.histogram.buckets())?;
            let moments = if moments.n() == histogram.n() {
                moments
            } else {
                // Some series told sums that cannot be.
                histogram.estimated_moments().unwrap_or_default()
            };
            let earlier_self = vote.told.earlier_self;
            if histogram.n() >= MIN_RUNS_HIGH {
                let latency = VoteLatency::from_sums(&histogram, moments, earlier_self);
                self.latencies.push((key, latency));
            } else {
                let known = earlier_self.as_ref().ok();
                let own = known.and_then(|earlier| AgainstSelf::counted(&histogram, earlier));
                let unfinished = Unfinished {
                    histogram,
                    moments,
                    earlier_self,
                    own_against_self: own.map(Box::new),
                };
                self.unfinished.insert(key, unfinished);
            }
        }
        Ok(())
    }

    pub(super) fn needs_earlier_runs(&self) -> bool {
        !self.unfinished.is_empty()
    }

    /// Adds an earlier window of a vote; the latest must come first.
    pub(super) fn add_earlier(
        &mut self,
        key: VoteKey,
        shape_key: &str,
        (histogram, moments): (SparseHistogram, Option<Moments>),
    ) -> Result<(), SourceError> {
        let shape_key = self.texts.id(shape_key);
        let Some(vote) = self.unfinished.get_mut(&VoteKey { shape_key, ..key }) else {
            return Ok(());
        };
        if vote.histogram.n() >= MIN_RUNS_HIGH {
            return Ok(());
        }
        let moments = moments.or_else(|| histogram.estimated_moments());
        vote.moments = vote.moments.merged(&moments.unwrap_or_default());
        let merged = vote.histogram.merged(&histogram);
        vote.histogram = merged.map_err(SourceError::histogram(&self.model))?;
        Ok(())
    }

    /// Adds where a session ran, of the device that `key` is of.
    pub(super) fn add_placement(
        &mut self,
        key: VoteKey,
        row: PlacementRow<'_>,
    ) -> Result<(), SourceError> {
        let device = key.installation;
        let is_flood = self.arrivals.unproven.contains(&device);
        if row.directed || !row.votes || is_flood {
            let cohort = (key.version, key.chipset);
            let without = self.voteless.entry(cohort).or_default();
            if is_flood {
                without.flood.insert(device);
            } else if row.directed {
                // The later name of two, whichever came first.
                let firmware = self.texts.get(key.firmware).clone();
                let known = without.directed.entry(device);
                let known = known.or_insert_with(|| firmware.clone());
                *known = firmware.max(known.clone());
            } else {
                without.late_or_unproven.insert(device);
            }
            return Ok(());
        }
        let known = self.placed.get(&key);
        if known.is_some_and(|known| known.says(&row)) {
            return Ok(());
        }
        let fingerprint_exact = row.fingerprint_exact;
        let mut placement = row.placement();
        let fingerprint_exact = known.map_or(fingerprint_exact, |known| {
            known.joined(&mut placement, fingerprint_exact)
        });
        let placed = Placed {
            placement: self.placement(key.method, placement),
            fingerprint_exact,
            has_latency: false,
        };
        self.placed.insert(key, placed);
        self.check_size()
    }

    pub(super) fn histogram(
        &self,
        counts: impl IntoIterator<Item = (u16, u64)>,
    ) -> Result<SparseHistogram, SourceError> {
        histogram_of(counts).map_err(SourceError::histogram(&self.model))
    }

    fn placement(&mut self, method: Method, placement: Placement) -> Arc<Placement> {
        let id = (method, placement.fingerprint);
        let variants = self.placements.entry(id).or_default();
        if let Some(known) = variants.iter().find(|known| ***known == placement) {
            return known.clone();
        }
        let placement = Arc::new(placement);
        variants.push(placement.clone());
        placement
    }

    fn check_size(&self) -> Result<(), SourceError> {
        let with_latency = self.adding.len() + self.latencies.len() + self.unfinished.len();
        let votes = with_latency + self.placed.len();
        if votes > 2 * self.max_votes {
            // Each vote may be known by its latency and by its placement.
            return Err(SourceError::TooManyVotes {
                model: self.model.model_id.clone(),
                limit: self.max_votes,
            });
        }
        Ok(())
    }
}
