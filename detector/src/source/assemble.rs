//! Puts rows together into cohort windows: pure, so that it needs no store.

mod finish;
mod placed;
#[cfg(test)]
mod tests;
mod vote;

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use epwatch_proto::SparseHistogram as Counted;
use epwatch_stats::{Moments, SparseHistogram};
use jiff::Timestamp;

use crate::cohort::ModelKey;
use crate::hash::{HashMap, HashSet};
use crate::placement::{Placement, PlacementMethod};
use crate::window::{AgainstSelf, Installation, MIN_RUNS_HIGH, VoteLatency, histogram_of};

use super::SourceError;
use super::arrivals::AppArrivals;
use super::rows::{At, EarlierRow, PlacementRow, VoteRow};
use finish::WithoutVote;
use placed::Placed;
pub(super) use vote::Texts;
use vote::{Adding, Told, Unfinished, VoteKey, added_up};

/// (version, chipset) or (firmware, shape).
type Pair = (Arc<str>, Arc<str>);

/// (firmware, shape): its clean runs, added, by bucket index.
type Counts = BTreeMap<Pair, BTreeMap<u16, u64>>;

pub(super) struct WindowBuilder {
    model: ModelKey,
    end: Timestamp,
    length: Duration,
    max_votes: usize,
    texts: Texts,
    methods: HashSet<Arc<PlacementMethod>>,
    latencies: BTreeMap<VoteKey, VoteLatency>,
    /// The latest that a device said, and when.
    device_models: HashMap<Installation, (At, Arc<str>)>,
    adding: HashMap<VoteKey, Adding>,
    unfinished: HashMap<VoteKey, Unfinished>,
    counts: HashMap<Pair, Counts>,
    /// Every placement once for all devices that have it.
    placements: HashMap<(Arc<PlacementMethod>, u64), Vec<Arc<Placement>>>,
    /// Placements of devices, under keys without a shape.
    placed: HashMap<VoteKey, Placed>,
    voteless: HashMap<Pair, WithoutVote>,
    arrivals: Arc<AppArrivals>,
}

impl WindowBuilder {
    pub(super) fn new(model: ModelKey, end: Timestamp, length: Duration, max_votes: usize) -> Self {
        Self {
            model,
            end,
            length,
            max_votes,
            texts: Texts::default(),
            methods: HashSet::default(),
            latencies: BTreeMap::new(),
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

    pub(super) fn add_vote(&mut self, row: VoteRow<'_>) -> Result<(), SourceError> {
        if self.arrivals.unproven.contains(&row.installation) {
            // Its placement counts it.
            return Ok(());
        }
        let key = VoteKey {
            version: self.text(row.model_version),
            chipset: self.text(row.chipset),
            installation: row.installation,
            firmware: self.text(row.firmware),
            shape_key: self.text(row.shape_key),
            method: self.method(
                row.graph_kind,
                row.placement_source,
                row.fingerprint_algorithm,
            ),
            fingerprint: row.fingerprint_normalised,
        };
        let moments = Moments::from_parts(row.n, row.sum_us, row.m2_us2).unwrap_or_default();
        let vote = match self.adding.entry(key) {
            Entry::Vacant(slot) => slot.insert(Adding {
                histogram: Counted::default(),
                moments,
                of_each: Vec::new(),
                told: Told::of(&row, &mut self.texts),
            }),
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
            let cohort = (key.version.clone(), key.chipset.clone());
            let part = (key.firmware.clone(), key.shape_key.clone());
            let said = (vote.told.at, vote.told.device_model);
            let known = self.device_models.entry(key.installation);
            let known = known.or_insert_with(|| said.clone());
            if *known < said {
                *known = said;
            }
            let parts = self.counts.entry(cohort).or_default();
            let counts = parts.entry(part).or_default();
            for (bucket, count) in vote.histogram.buckets() {
                let slot = counts.entry(bucket).or_default();
                *slot = slot.saturating_add(count);
            }
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
                self.latencies.insert(key, latency);
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
    pub(super) fn add_earlier(&mut self, row: EarlierRow<'_>) -> Result<(), SourceError> {
        let key = VoteKey {
            version: self.text(row.model_version),
            chipset: self.text(row.chipset),
            installation: row.installation,
            firmware: self.text(row.firmware),
            shape_key: self.text(row.shape_key),
            method: self.method(
                row.graph_kind,
                row.placement_source,
                row.fingerprint_algorithm,
            ),
            fingerprint: row.fingerprint_normalised,
        };
        let (histogram, moments) = self.sums(
            row.hist_bucket,
            row.hist_count,
            (row.n, row.sum_us, row.m2_us2),
        )?;
        let Some(vote) = self.unfinished.get_mut(&key) else {
            return Ok(());
        };
        if vote.histogram.n() >= MIN_RUNS_HIGH {
            return Ok(());
        }
        vote.histogram =
            vote.histogram
                .merged(&histogram)
                .map_err(|source| SourceError::Histogram {
                    model: self.model.model_id.clone(),
                    source,
                })?;
        vote.moments = vote.moments.merged(&moments);
        Ok(())
    }

    pub(super) fn add_placement(&mut self, row: PlacementRow<'_>) -> Result<(), SourceError> {
        let cohort = (self.text(row.model_version), self.text(row.chipset));
        let is_flood = self.arrivals.unproven.contains(&row.installation);
        if row.directed || !row.votes || is_flood {
            let firmware = self.text(row.firmware);
            let without = self.voteless.entry(cohort).or_default();
            if is_flood {
                without.flood.insert(row.installation);
            } else if row.directed {
                // The later name of two, whichever came first.
                let known = without.directed.entry(row.installation);
                let known = known.or_insert_with(|| firmware.clone());
                *known = firmware.max(known.clone());
            } else {
                without.late_or_unproven.insert(row.installation);
            }
            return Ok(());
        }
        let (version, chipset) = cohort;
        let method = self.method(
            row.graph_kind,
            row.placement_source,
            row.fingerprint_algorithm,
        );
        let key = VoteKey {
            version,
            chipset,
            installation: row.installation,
            firmware: self.text(row.firmware),
            shape_key: self.text(""),
            method,
            fingerprint: row.fingerprint_normalised,
        };
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
            placement: self.placement(&key.method, placement),
            fingerprint_exact,
            has_latency: false,
        };
        self.placed.insert(key, placed);
        self.check_size()
    }

    fn histogram(
        &self,
        counts: impl IntoIterator<Item = (u16, u64)>,
    ) -> Result<SparseHistogram, SourceError> {
        histogram_of(counts).map_err(|source| SourceError::Histogram {
            model: self.model.model_id.clone(),
            source,
        })
    }

    fn placement(&mut self, method: &Arc<PlacementMethod>, placement: Placement) -> Arc<Placement> {
        let id = (method.clone(), placement.fingerprint);
        let variants = self.placements.entry(id).or_default();
        if let Some(known) = variants.iter().find(|known| ***known == placement) {
            return known.clone();
        }
        let placement = Arc::new(placement);
        variants.push(placement.clone());
        placement
    }

    fn sums(
        &self,
        buckets: Vec<u16>,
        counts: Vec<u64>,
        (n, sum_us, m2_us2): (u64, f64, f64),
    ) -> Result<(SparseHistogram, Moments), SourceError> {
        let histogram = self.histogram(buckets.into_iter().zip(counts))?;
        let exact = Moments::from_parts(n, sum_us, m2_us2);
        let moments = exact
            .or_else(|| histogram.estimated_moments())
            .unwrap_or_default();
        Ok((histogram, moments))
    }

    fn text(&mut self, text: &str) -> Arc<str> {
        self.texts.shared(text)
    }

    fn method(&mut self, graph_kind: &str, source: &str, algorithm: u32) -> Arc<PlacementMethod> {
        // A handful in all.
        let known = self.methods.iter().find(|known| {
            known.fingerprint_algorithm == algorithm
                && known.graph_kind == graph_kind
                && known.source == source
        });
        if let Some(known) = known {
            return known.clone();
        }
        let method = Arc::new(PlacementMethod {
            graph_kind: graph_kind.to_owned(),
            source: source.to_owned(),
            fingerprint_algorithm: algorithm,
        });
        self.methods.insert(method.clone());
        method
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
