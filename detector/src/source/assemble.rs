//! Puts rows together into cohort windows: pure, so that it needs no store.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use epwatch_proto::{ParseError, SparseHistogram as Counted};
use epwatch_stats::{Moments, SparseHistogram};
use jiff::Timestamp;

use crate::cohort::{CohortKey, ModelKey};
use crate::hash::{HashMap, HashSet};
use crate::placement::{Placement, PlacementMethod};
use crate::reported::Reported;
use crate::window::{
    BaselineAbsence, CohortWindow, DeviceVote, Installation, MIN_RUNS_HIGH, SelfBaseline,
    SelfBaselineKind, VoteLatency, Voteless, histogram_of,
};

use super::SourceError;
use super::arrivals::AppArrivals;
use super::rows::{At, EarlierRow, PlacementRow, VoteRow};

/// What makes a vote one. Texts are shared: there are few of them and many votes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct VoteKey {
    version: Arc<str>,
    chipset: Arc<str>,
    installation: Installation,
    firmware: Arc<str>,
    shape_key: Arc<str>,
    method: Arc<PlacementMethod>,
    fingerprint: u64,
}

/// A vote with too few runs, until earlier windows are added.
struct Unfinished {
    histogram: SparseHistogram,
    moments: Moments,
    earlier_self: Result<SelfBaseline, BaselineAbsence>,
}

/// A vote whose rows are still coming.
struct Adding {
    histogram: Counted,
    moments: Moments,
    told: Told,
}

/// What the latest series of a vote says of its device.
struct Told {
    at: At,
    device_model: Arc<str>,
    earlier_self: Result<SelfBaseline, BaselineAbsence>,
}

impl Told {
    fn of(row: &VoteRow<'_>, texts: &mut Texts) -> Told {
        Told {
            at: row.at,
            device_model: texts.shared(row.device_model),
            earlier_self: earlier_self(row, texts),
        }
    }
}

impl Placed {
    /// Makes `placement`, told by another session of the same device, what both say; returns the
    /// exact fingerprint that spoke.
    fn joined(&self, placement: &mut Placement, fingerprint_exact: u64) -> u64 {
        let mut reasons = std::mem::take(&mut placement.reasons);
        reasons.extend(self.placement.reasons.iter().cloned());
        reasons.sort_unstable();
        reasons.dedup();
        let known = (&self.placement.runtime, self.fingerprint_exact);
        let is_first = (&placement.runtime, fingerprint_exact) < known;
        let speaks = if is_first {
            fingerprint_exact
        } else {
            *placement = Placement::clone(&self.placement);
            self.fingerprint_exact
        };
        placement.reasons = reasons;
        speaks
    }
}

/// Every text once.
#[derive(Default)]
struct Texts(HashSet<Arc<str>>);

impl Texts {
    fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return known.clone();
        }
        let text: Arc<str> = text.into();
        self.0.insert(text.clone());
        text
    }
}

/// Where a device ran.
struct Placed {
    placement: Arc<Placement>,
    /// Of sessions that differ in what the normalised fingerprint leaves out, the first by runtime
    /// and exact fingerprint speaks.
    fingerprint_exact: u64,
    /// Whether a vote with latency has it too.
    has_latency: bool,
}

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
    voteless: HashMap<Pair, [HashSet<Installation>; 3]>,
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
        let vote = match self.adding.entry(key) {
            Entry::Vacant(slot) => {
                let told = Told::of(&row, &mut self.texts);
                slot.insert(Adding {
                    histogram: Counted::default(),
                    moments: Moments::default(),
                    told,
                })
            }
            Entry::Occupied(slot) => {
                let slot = slot.into_mut();
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
        let exact = Moments::from_parts(row.n, row.sum_us, row.m2_us2);
        vote.moments = vote.moments.merged(&exact.unwrap_or_default());
        if vote.histogram.is_empty() {
            vote.histogram = added;
        } else {
            vote.histogram.merge(&added);
        }
        self.check_size()
    }

    /// Takes quantiles of the votes that have enough runs.
    pub(super) fn end_votes(&mut self) -> Result<(), SourceError> {
        for (key, vote) in std::mem::take(&mut self.adding) {
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
            let moments = if vote.moments.n() == histogram.n() {
                vote.moments
            } else {
                // Some series told sums that cannot be.
                histogram.estimated_moments().unwrap_or_default()
            };
            let earlier_self = vote.told.earlier_self;
            if histogram.n() >= MIN_RUNS_HIGH {
                let latency = VoteLatency::from_sums(&histogram, moments, earlier_self);
                self.latencies.insert(key, latency);
            } else {
                let unfinished = Unfinished {
                    histogram,
                    moments,
                    earlier_self,
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
            let why = if is_flood {
                2
            } else {
                usize::from(row.directed)
            };
            let slot = &mut self.voteless.entry(cohort).or_default()[why];
            slot.insert(row.installation);
            return Ok(());
        }
        let (version, chipset) = cohort;
        let method = self.method(
            row.graph_kind,
            row.placement_source,
            row.fingerprint_algorithm,
        );
        let fingerprint_exact = row.fingerprint_exact;
        let mut placement = row.placement();
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

    pub(super) fn finish(mut self) -> Result<Vec<CohortWindow>, SourceError> {
        for (key, vote) in std::mem::take(&mut self.unfinished) {
            let latency = VoteLatency {
                is_filled_up: true,
                ..VoteLatency::from_sums(&vote.histogram, vote.moments, vote.earlier_self)
            };
            self.latencies.insert(key, latency);
        }
        let mut votes: BTreeMap<Pair, Vec<DeviceVote>> = BTreeMap::new();
        for (key, latency) in std::mem::take(&mut self.latencies) {
            let without_shape = VoteKey {
                shape_key: self.text(""),
                ..key.clone()
            };
            let placement = match self.placed.get_mut(&without_shape) {
                Some(placed) => {
                    placed.has_latency = true;
                    placed.placement.clone()
                }
                // A report that arrived between the two queries has latency alone.
                None => Arc::new(unknown_placement(&key)),
            };
            let is_proven = !self.arrivals.newcomers.contains(&key.installation);
            add_vote_to(&mut votes, key, placement, Some(latency), is_proven);
        }
        for (key, placed) in std::mem::take(&mut self.placed) {
            if !placed.has_latency {
                let is_proven = !self.arrivals.newcomers.contains(&key.installation);
                add_vote_to(&mut votes, key, placed.placement, None, is_proven);
            }
        }

        // Where a directive holds every device nobody votes, and the incident must hear of it.
        for (cohort, [_, directed, _]) in &self.voteless {
            if !directed.is_empty() {
                votes.entry(cohort.clone()).or_default();
            }
        }

        let mut cohorts: Vec<CohortWindow> = Vec::new();
        for ((version, chipset), mut votes) in votes {
            votes.sort_by(|a, b| {
                (
                    a.installation,
                    &a.firmware,
                    &a.shape_key,
                    a.placement.fingerprint,
                )
                    .cmp(&(
                        b.installation,
                        &b.firmware,
                        &b.shape_key,
                        b.placement.fingerprint,
                    ))
            });
            let cohort = (version, chipset);
            for vote in &mut votes {
                if let Some((_, model)) = self.device_models.get(&vote.installation) {
                    vote.device_model = model.clone();
                }
            }
            let [unvoted, directed, flood] = self.voteless.remove(&cohort).unwrap_or_default();
            cohorts.push(CohortWindow {
                end: self.end,
                length: self.length,
                votes,
                histograms: self.histograms(&cohort)?,
                voteless: Voteless {
                    late_or_unproven: unvoted.len() as u64,
                    directed: directed.len() as u64,
                    flood: flood.len() as u64,
                },
                reported: Reported::default(),
                key: CohortKey {
                    model: self.model.clone(),
                    model_version: cohort.0.to_string(),
                    chipset: cohort.1.to_string(),
                    firmware: None,
                },
            });
        }
        Ok(cohorts)
    }

    fn histograms(
        &mut self,
        cohort: &Pair,
    ) -> Result<BTreeMap<Pair, SparseHistogram>, SourceError> {
        let parts = self.counts.remove(cohort).unwrap_or_default().into_iter();
        let built = parts.map(|(part, counts)| Ok((part, self.histogram(counts)?)));
        built.collect()
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

/// Buckets as a row holds them; in any order, since only the collector's rows are known to be sorted.
fn added_up(buckets: Vec<u16>, counts: Vec<u64>) -> Result<Counted, ParseError> {
    if buckets.is_sorted_by(|a, b| a < b) && !counts.contains(&0) {
        return Counted::from_parts(buckets, counts);
    }
    let mut sums: BTreeMap<u16, u64> = BTreeMap::new();
    for (bucket, count) in buckets.into_iter().zip(counts).filter(|(_, n)| *n > 0) {
        let slot = sums.entry(bucket).or_default();
        *slot = slot.saturating_add(count);
    }
    let (buckets, counts) = sums.into_iter().unzip();
    Counted::from_parts(buckets, counts)
}

/// The baseline that says what a change of version did; within a version, of runtime.
fn earlier_self(row: &VoteRow<'_>, texts: &mut Texts) -> Result<SelfBaseline, BaselineAbsence> {
    let (previous_version, n, p10_us, p50_us, p95_us, cv) = &row.previous;
    let of_version = *n > 0 && *previous_version != row.model_version;
    let (kind, n, p10_us, p50_us, p95_us, cv) = if of_version {
        let kind = SelfBaselineKind::PreviousVersion(texts.shared(previous_version));
        (kind, n, p10_us, p50_us, p95_us, cv)
    } else {
        let (_, _, n, p10_us, p50_us, p95_us, cv) = &row.earlier;
        let kind = SelfBaselineKind::EarlierRuntime;
        (kind, n, p10_us, p50_us, p95_us, cv)
    };
    if *n == 0 {
        return Err(match row.absence {
            "" | "unspecified" => BaselineAbsence::Unknown,
            told => BaselineAbsence::Told(texts.shared(told)),
        });
    }
    SelfBaseline {
        kind,
        n: *n,
        p10_us: *p10_us,
        p50_us: *p50_us,
        p95_us: *p95_us,
        cv: *cv,
    }
    .checked()
}

fn unknown_placement(key: &VoteKey) -> Placement {
    Placement {
        method: PlacementMethod::clone(&key.method),
        fingerprint: key.fingerprint,
        runtime: String::new(),
        n_nodes: 0,
        npu_nodes: 0,
        cpu_nodes: 0,
        npu_macs_share: None,
        reasons: Vec::new(),
    }
}

fn add_vote_to(
    votes: &mut BTreeMap<Pair, Vec<DeviceVote>>,
    key: VoteKey,
    placement: Arc<Placement>,
    latency: Option<VoteLatency>,
    is_proven: bool,
) {
    votes
        .entry((key.version, key.chipset))
        .or_default()
        .push(DeviceVote {
            installation: key.installation,
            firmware: key.firmware,
            device_model: "".into(),
            shape_key: key.shape_key,
            placement,
            latency,
            is_proven,
        });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, model};

    const NONE: (u64, f64, f64, f64, f64) = (0, 0.0, 0.0, 0.0, 0.0);
    const SOME: (u64, f64, f64, f64, f64) = (50, 9.0, 10.0, 12.0, 0.1);

    fn row(
        previous: (&'static str, (u64, f64, f64, f64, f64)),
        earlier: (u64, f64, f64, f64, f64),
    ) -> VoteRow<'static> {
        let (version, (n, p10, p50, p95, cv)) = previous;
        let (earlier_n, earlier_p10, earlier_p50, earlier_p95, earlier_cv) = earlier;
        VoteRow {
            app_id: "",
            environment: "",
            model_id: "",
            model_version: "2",
            chipset: "SM8635",
            firmware: "f",
            device_model: "phone",
            installation: [1; 16],
            graph_kind: "jit",
            placement_source: "assignment_api",
            fingerprint_algorithm: 1,
            fingerprint_normalised: 7,
            shape_key: "static",
            hist_bucket: vec![500],
            hist_count: vec![30],
            n: 30,
            sum_us: 30_000.0,
            m2_us2: 0.0,
            previous: (version, n, p10, p50, p95, cv),
            earlier: (
                "f0",
                "1.30/2.6",
                earlier_n,
                earlier_p10,
                earlier_p50,
                earlier_p95,
                earlier_cv,
            ),
            absence: "too_few_runs",
            at: (0, 0, 0),
        }
    }

    fn built(rows: Vec<VoteRow<'_>>) -> Vec<CohortWindow> {
        let mut builder = WindowBuilder::new(model(), at(0), Duration::from_secs(60), 100);
        for row in rows {
            builder.add_vote(row).unwrap();
        }
        builder.end_votes().unwrap();
        builder.finish().unwrap()
    }

    #[track_caller]
    fn check(row: VoteRow<'_>, expected: Result<SelfBaselineKind, BaselineAbsence>) {
        let windows = built(vec![row]);
        let latency = windows[0].votes[0].latency.clone().unwrap();
        assert_eq!(latency.earlier_self.map(|earlier| earlier.kind), expected);
    }

    #[test]
    fn the_version_before_is_the_earlier_self_and_else_the_runtime_before() {
        let version = SelfBaselineKind::PreviousVersion("1".into());
        check(row(("1", SOME), SOME), Ok(version));
        check(row(("2", SOME), SOME), Ok(SelfBaselineKind::EarlierRuntime));
        check(row(("", NONE), SOME), Ok(SelfBaselineKind::EarlierRuntime));
        let told = BaselineAbsence::Told("too_few_runs".into());
        check(row(("", NONE), NONE), Err(told));
        check(
            row(("1", (3, 9.0, 10.0, 12.0, 0.1)), NONE),
            Err(BaselineAbsence::TooFewRuns),
        );
    }

    #[test]
    fn a_device_with_two_shapes_is_one_device_and_its_runs_add_up() {
        let mut other = row(("1", SOME), NONE);
        other.shape_key = "x:1x3x448x448";
        let windows = built(vec![row(("1", SOME), NONE), other]);
        assert_eq!((windows.len(), windows[0].votes.len()), (1, 2));
        assert_eq!((windows[0].n_devices(), windows[0].n_runs()), (1, 60));
        assert_eq!(windows[0].main_shape().unwrap().unwrap().histogram.n(), 30);
    }

    fn placed(runtime: &'static str, exact: u64, reason: &'static str) -> PlacementRow<'static> {
        PlacementRow {
            app_id: "",
            environment: "",
            model_id: "",
            model_version: "2",
            chipset: "SM8635",
            firmware: "f",
            installation: [1; 16],
            graph_kind: "jit",
            placement_source: "assignment_api",
            fingerprint_algorithm: 1,
            fingerprint_normalised: 7,
            votes: true,
            directed: false,
            fingerprint_exact: exact,
            numbers: (runtime, 43, 42, 1, 0, None, None),
            reasons: vec![reason],
        }
    }

    /// A runtime that renames nodes leaves the normalised fingerprint as it is.
    #[test]
    fn sessions_of_one_placement_are_one_vote_in_whichever_order_they_come() {
        let rows = [
            placed("1.31/2.8", 3, "a"),
            placed("1.31/2.7", 5, "c"),
            placed("1.31/2.7", 4, "b"),
        ];
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            let mut builder = WindowBuilder::new(model(), at(0), Duration::from_secs(60), 100);
            for one in order {
                let mut row = placed("", 0, rows[one].reasons[0]);
                row.fingerprint_exact = rows[one].fingerprint_exact;
                row.numbers = rows[one].numbers;
                // The nodes tell which one spoke.
                row.numbers.1 = u32::try_from(row.fingerprint_exact).unwrap();
                builder.add_placement(row).unwrap();
            }
            let windows = builder.finish().unwrap();
            assert_eq!(windows[0].votes.len(), 1);
            let placement = &windows[0].votes[0].placement;
            assert_eq!((&*placement.runtime, placement.n_nodes), ("1.31/2.7", 4));
            assert_eq!(placement.reasons, ["a", "b", "c"]);
        }
    }

    /// Latency that came between the queries has no placement to blame.
    #[test]
    fn a_vote_without_its_placement_says_nothing_of_where_it_ran() {
        let windows = built(vec![row(("1", SOME), NONE)]);
        assert_eq!(windows[0].votes[0].placement.npu_share(), None);
    }
}
