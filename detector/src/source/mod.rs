//! Reads windows from the store's versioned views, or from recorded reports by the same rules. SQL
//! only selects and adds; what it means is decided in Rust.
//!
//! Rows are streamed, and a device's histogram lives only until its quantiles are taken. What is kept
//! from one evaluation to the next is who was in which bucket of the look-back, eight bytes for each
//! device and placement there, up to a bound.

pub mod arrivals;
mod assemble;
mod certified;
mod certified_file;
mod counted;
mod known;
mod look_back;
mod nodes;
mod past;
mod presence;
mod queries;
pub mod recorded;
mod reported;
mod rows;
mod selves;
mod stored;
mod usual;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clickhouse::Client;
use clickhouse::query::Query;
use epwatch_proto::HistScheme;
use jiff::Timestamp;

use crate::baseline::{BaselineLatency, History, PlacementCount, Tally, VersionSeen};
use crate::cohort::ModelKey;
use crate::hash::HashMap;
use crate::rates::{MIN_WINDOWS, Rates};
use crate::signals::SignalId;
use crate::verdict::CpuNodes;
use crate::window::{CohortWindow, Installation, histogram_of};

use arrivals::Flood;
pub use arrivals::{AppArrivals, Arrivals};
use assemble::WindowBuilder;
pub use certified::{Certified, CertifiedPlacement};
pub use certified_file::CertifiedError;
use counted::Counted;
pub use known::{Begun, Known};
pub use look_back::HeldLookBack;
use look_back::LookBack;
use nodes::NodesAsked;
pub use past::PastWindows;
use queries::{ARRIVALS, FLOODED, LATENCY_BEFORE, MODELS, NODES};
pub use recorded::Recording;
use rows::{ArrivalRow, HistogramRow, ModelRow, NodesRow};
pub use selves::SelvesBefore;
use stored::Reader;
pub use stored::{Fetched, VersionOnChipset, batches};
pub use usual::{UsualCv, UsualDevices, UsualOfModel};

/// Why a window could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The store did not answer, or not as expected.
    #[error("failed to read {what}")]
    Store {
        /// What was asked for.
        what: &'static str,
        /// Why.
        #[source]
        source: clickhouse::error::Error,
    },
    /// More devices than the configured bound.
    #[error(
        "failed to read a window of model {model}: more than {limit} votes; raise \
         detector.max_votes or shorten the window"
    )]
    TooManyVotes {
        /// Which model.
        model: String,
        /// The bound.
        limit: usize,
    },
    /// A histogram that cannot be.
    #[error("failed to read a histogram of model {model}")]
    Histogram {
        /// Which model.
        model: String,
        /// Why.
        #[source]
        source: epwatch_stats::HistogramError,
    },
}

impl SourceError {
    /// One for each model that cannot be judged for it: the first is itself, the others say the same.
    pub(crate) fn for_each_model(self) -> impl Iterator<Item = SourceError> {
        let (what, text) = match &self {
            SourceError::Store { what, source } => (*what, source.to_string()),
            other => ("models of the same app", other.to_string()),
        };
        let same = move || SourceError::Store {
            what,
            source: clickhouse::error::Error::Custom(text.clone()),
        };
        std::iter::once(self).chain(std::iter::repeat_with(same))
    }

    /// Whether the store is the cause, and not what it holds: that is told in words of our own.
    pub(crate) fn is_of_the_store(&self) -> bool {
        matches!(self, SourceError::Store { source, .. }
            if !matches!(source, clickhouse::error::Error::Custom(_)))
    }

    /// Whether the same question may be answered later.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            SourceError::Store { source, .. } => matches!(
                source,
                clickhouse::error::Error::Network(_) | clickhouse::error::Error::TimedOut
            ),
            SourceError::TooManyVotes { .. } | SourceError::Histogram { .. } => false,
        }
    }
}

/// The only bucket scheme whose edges this program knows; histograms of others are not read.
fn hist_scheme() -> &'static str {
    HistScheme::HdrUs2sd160s.as_str()
}

fn failed(what: &'static str) -> impl FnOnce(clickhouse::error::Error) -> SourceError {
    move |source| SourceError::Store { what, source }
}

/// The span of time a window is judged in, by receive time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Where the window ends (exclusive).
    pub end: Timestamp,
    /// Its length.
    pub window: Duration,
    /// How far back before its end earlier runs and placements are looked for.
    pub lookback: Duration,
}

impl Span {
    fn end_s(&self) -> i64 {
        self.end.as_second()
    }

    fn start_s(&self) -> i64 {
        self.end_s().saturating_sub_unsigned(self.window.as_secs())
    }

    /// Of windows that overlap, an eighth speaks for the past: those that end so close to a whole
    /// number of lengths before this one.
    fn history_phase_s(&self) -> i64 {
        i64::try_from(self.window.as_secs() / 8).unwrap_or(i64::MAX)
    }

    fn speaks_for_the_past(&self, end_s: i64) -> bool {
        let window = i64::try_from(self.window.as_secs()).unwrap_or(i64::MAX);
        (self.end_s() - end_s) % window.max(1) <= self.history_phase_s()
    }

    fn earliest_s(&self) -> i64 {
        let back = self.lookback.max(self.window).as_secs();
        self.end_s().saturating_sub_unsigned(back).max(0)
    }
}

/// A model that anything arrived for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundModel {
    /// The model.
    pub model: ModelKey,
    /// Versions times chipsets seen.
    pub cohorts: u64,
    /// Sessions in reports of the window: how much there is to read.
    pub sessions: u64,
}

/// Everything read about one model for one window.
#[derive(Debug)]
pub struct ModelWindows {
    /// The model.
    pub model: ModelKey,
    /// One window for each version and chipset.
    pub cohorts: Vec<CohortWindow>,
    /// Placements of the look-back, window included.
    pub census: Vec<PlacementCount>,
    /// Versions with the time they were first seen.
    pub versions: Vec<VersionSeen>,
    /// Counts of earlier healthy windows, by (version, chipset).
    pub histories: Vec<VersionHistory>,
    /// What labs certified, the latest first.
    pub certified: Vec<CertifiedPlacement>,
    /// What earlier windows had.
    pub usual: UsualOfModel,
}

/// One version's counts on one chipset over its earlier healthy windows.
#[derive(Debug, Clone, PartialEq)]
pub struct VersionHistory {
    /// Model version.
    pub model_version: String,
    /// Chipset.
    pub chipset: String,
    /// Signal.
    pub signal: SignalId,
    /// A device once, however many windows it is in.
    pub tally: Tally,
    /// End of the first of those windows, in seconds since 1970.
    pub since_s: i64,
}

impl ModelWindows {
    /// Returns what devices did on a chipset while they were healthy: those of other versions, and as far
    /// as B is asked those of this version, once it is [`MIN_WINDOWS`] windows old.
    ///
    /// B compares a device's p10, which moves little from window to window, so what a version showed for
    /// a week is what it shows: against that a fault that comes without a version stands out. Before that
    /// its fault would be its own normal. Runs that are slow at times come and go with what else the
    /// devices do, so for the other signals earlier versions speak alone.
    #[must_use]
    pub fn history(&self, model_version: &str, chipset: &str, span: &Span) -> History {
        let mut history: BTreeMap<SignalId, Tally> = BTreeMap::new();
        let age_s = span.window.as_secs().saturating_mul(MIN_WINDOWS);
        let old_since_s = span.end_s().saturating_sub_unsigned(age_s);
        let speaks = |row: &&VersionHistory| {
            let is_settled =
                matches!(row.signal, SignalId::ShiftBeyond(_)) && row.since_s <= old_since_s;
            row.chipset == chipset && (row.model_version != model_version || is_settled)
        };
        for row in self.histories.iter().filter(speaks) {
            let is_own = row.model_version == model_version;
            let times = if is_own { own_weight(row.tally) } else { 1 };
            let slot = history.entry(row.signal).or_default();
            slot.hits += row.tally.hits * times;
            slot.devices += row.tally.devices * times;
        }
        History(history)
    }
}

/// Weight of a cohort's own past in devices: no number of calm windows makes the next one surer than that.
const MOST_OWN_DEVICES: u64 = 1_000;

/// How often a cohort's own devices count. The other version's devices are as good as new ones, and count
/// once. One's own are the same that are asked now, and at least [`MIN_WINDOWS`] windows agree on them.
fn own_weight(tally: Tally) -> u64 {
    (MOST_OWN_DEVICES / tally.devices.max(1)).clamp(1, MIN_WINDOWS)
}

/// Where windows come from: a store, or recorded reports in memory.
#[derive(Clone)]
pub struct Source {
    reads: Reads,
    past: Option<Arc<PastWindows>>,
    rates: Arc<Rates>,
    certified: Arc<Certified>,
    max_votes: usize,
}

#[derive(Clone)]
enum Reads {
    Store(Box<Store>),
    Recorded(Arc<Recording>),
}

#[derive(Clone)]
struct Store {
    counted: Counted,
    /// What all evaluations share.
    look_back: Arc<tokio::sync::Mutex<LookBack>>,
    /// What was asked about nodes so far, by one evaluation.
    nodes: Arc<NodesAsked>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source")
            .field("max_votes", &self.max_votes)
            .finish_non_exhaustive()
    }
}

impl Source {
    /// Reads through `client`, whose database has the migrations; at most `max_votes` votes a model.
    #[must_use]
    pub fn new(client: Client, max_votes: usize) -> Self {
        Self {
            reads: Reads::Store(Box::new(Store {
                counted: Counted::new(client),
                look_back: Arc::default(),
                nodes: Arc::default(),
            })),
            past: None,
            rates: Arc::default(),
            certified: Arc::default(),
            max_votes,
        }
    }

    /// Reads from recorded reports; at most `max_votes` votes a model.
    #[must_use]
    pub fn recorded(recording: Arc<Recording>, max_votes: usize) -> Self {
        Self {
            reads: Reads::Recorded(recording),
            past: None,
            rates: Arc::default(),
            certified: Arc::default(),
            max_votes,
        }
    }

    /// Holds a look-back of at most `bytes` between evaluations, instead of 256 MiB; what is larger is
    /// asked of the store each time.
    #[must_use]
    pub fn with_held_look_back(mut self, bytes: usize) -> Self {
        if let Reads::Store(store) = &mut self.reads {
            store.look_back = Arc::new(tokio::sync::Mutex::new(LookBack::of_at_most(bytes)));
        }
        self
    }

    /// Takes earlier verdicts from `past` instead of the store.
    #[must_use]
    pub fn with_past(mut self, past: Arc<PastWindows>) -> Self {
        self.past = Some(past);
        self
    }

    /// Returns a source for one evaluation of a window: what its queries share is read once, and of the
    /// look-back only what the evaluations before did not read. Its answers are the same.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn prepared(&self, span: &Span) -> Result<Source, SourceError> {
        self.settled().await?.with_look_back(span).await
    }

    /// Looks at the copies of open buckets, once for all queries.
    async fn settled(&self) -> Result<Source, SourceError> {
        let Reads::Store(store) = &self.reads else {
            return Ok(self.clone());
        };
        let counted = store.counted.settled().await?;
        Ok(self.with_counted(store, counted))
    }

    /// Reads of the look-back what is not held.
    async fn with_look_back(&self, span: &Span) -> Result<Source, SourceError> {
        let Reads::Store(store) = &self.reads else {
            return Ok(self.clone());
        };
        let mut counted = store.counted.clone();
        counted.presence = store.look_back.lock().await.read(&counted, span).await?;
        Ok(self.with_counted(store, counted))
    }

    fn with_counted(&self, store: &Store, counted: Counted) -> Source {
        let store = Store {
            counted,
            nodes: Arc::default(),
            ..store.clone()
        };
        Source {
            reads: Reads::Store(Box::new(store)),
            ..self.clone()
        }
    }

    /// Returns what is held of the look-back, by this source and its clones; `None` where nothing is:
    /// reports are in memory.
    pub async fn held_look_back(&self) -> Option<HeldLookBack> {
        match &self.reads {
            Reads::Store(store) => Some(store.look_back.lock().await.held()),
            Reads::Recorded(_) => None,
        }
    }

    /// Returns the models that anything arrived for in the window, in order.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn models(&self, span: &Span) -> Result<Vec<FoundModel>, SourceError> {
        let store = match &self.reads {
            Reads::Store(store) => &store.counted,
            Reads::Recorded(recording) => return Ok(recording.models(span)),
        };
        let (from, to) = (span.start_s(), span.end_s());
        let query = store.query(MODELS).bind(from).bind(to).bind(from);
        let rows = query
            .fetch_all::<ModelRow>()
            .await
            .map_err(failed("models"))?;
        Ok(rows.into_iter().map(FoundModel::from).collect())
    }

    /// Returns when the first and the last report were received; `None` without any.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn received(&self) -> Result<Option<(Timestamp, Timestamp)>, SourceError> {
        let store = match &self.reads {
            Reads::Store(store) => &store.counted,
            Reads::Recorded(recording) => return Ok(recording.received()),
        };
        let query = store.query(
            "SELECT toUnixTimestamp64Milli(min(received_at)), \
             toUnixTimestamp64Milli(max(received_at)), count() FROM counted_reports_v1",
        );
        let (first, last, n) = query
            .fetch_one::<(i64, i64, u64)>()
            .await
            .map_err(failed("the first and last report"))?;
        let at = |ms| Timestamp::from_millisecond(ms).ok();
        Ok((n > 0).then(|| at(first).zip(at(last))).flatten())
    }

    /// Takes the fleet's rates from a calibration, until earlier windows at hand teach their own.
    #[must_use]
    pub fn with_rates(mut self, rates: Rates) -> Self {
        self.rates = Arc::new(rates);
        self
    }

    /// Adds certified placements that count before those added so far and those of the store.
    #[must_use]
    pub fn with_certified(mut self, certified: Certified) -> Self {
        let known = std::mem::take(&mut self.certified);
        self.certified = Arc::new(Arc::unwrap_or_clone(known).preceded_by(&certified));
        self
    }

    /// Returns what is known of the fleet's healthy devices.
    #[must_use]
    pub fn rates(&self, span: &Span) -> Rates {
        let learnt = self.past.as_ref().and_then(|past| past.rates(span));
        learnt.unwrap_or_else(|| self.rates.as_ref().clone())
    }

    /// Returns who is new in the window, and who of them is beyond what is usual.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn arrivals(&self, span: &Span) -> Result<Arrivals, SourceError> {
        let mut arrivals = match self.held_arrivals(span) {
            Some(held) => held,
            None => Arrivals::from_rows(self.arrival_rows(span).await?, span),
        };
        for (app, flood) in arrivals.floods() {
            let new = self.new_in(&app, &flood, span).await?;
            arrivals.name_flooded(&app, &flood, new);
        }
        Ok(arrivals)
    }

    /// From the look-back that is held; `None` where times within a bucket decide, which it does not
    /// have.
    fn held_arrivals(&self, span: &Span) -> Option<Arrivals> {
        let Reads::Store(store) = &self.reads else {
            return None;
        };
        let rows = store.counted.presence.as_ref()?.arrivals(span)?;
        let arrivals = Arrivals::from_rows(rows, span);
        (!arrivals.has_unproven()).then_some(arrivals)
    }

    async fn arrival_rows(&self, span: &Span) -> Result<Vec<ArrivalRow>, SourceError> {
        Ok(match &self.reads {
            Reads::Store(store) => {
                let length_ms = span.window.as_millis().max(1);
                let length_ms = i64::try_from(length_ms).unwrap_or(i64::MAX);
                let query = store.counted.query(ARRIVALS).bind(span.start_s() * 1_000);
                let query = query.bind(length_ms).bind(length_ms);
                let query = query.bind(span.earliest_s()).bind(span.end_s());
                let rows = query.bind(span.earliest_s());
                let rows = rows.fetch_all::<ArrivalRow>().await;
                rows.map_err(failed("new installations"))?
            }
            Reads::Recorded(recording) => recording.arrivals(span),
        })
    }

    /// Returns who of an app was new in an earlier window, and when.
    async fn new_in(
        &self,
        (app_id, environment): &(String, String),
        flood: &Flood,
        span: &Span,
    ) -> Result<Vec<(i64, Installation)>, SourceError> {
        let rows = match &self.reads {
            Reads::Store(store) => {
                let query = store.counted.query(FLOODED).bind(app_id).bind(environment);
                let query = query.bind(span.earliest_s()).bind(span.end_s());
                let query = query.bind(span.earliest_s());
                let query = query.bind(flood.from_ms).bind(flood.to_ms);
                let rows = query.fetch_all::<ArrivalRow>().await;
                rows.map_err(failed("installations of a flood"))?
            }
            Reads::Recorded(recording) => {
                let mut rows = recording.arrivals(span);
                rows.retain(|row| {
                    let is_app = (&row.app_id, &row.environment) == (app_id, environment);
                    is_app && (flood.from_ms..flood.to_ms).contains(&row.at_ms)
                });
                rows
            }
        };
        let named = rows.into_iter();
        Ok(named.map(|row| (row.at_ms, row.installation)).collect())
    }

    /// Reads some models of the same or of neighbouring apps, for [`Self::model_windows`]; nothing
    /// where reports are in memory.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn fetch(
        &self,
        models: &[FoundModel],
        span: &Span,
        arrivals: &Arrivals,
    ) -> Result<Fetched, SourceError> {
        let Reads::Store(store) = &self.reads else {
            return Ok(Fetched::default());
        };
        let reader = self.reader(&store.counted, span);
        let mut fetched = reader.windows(models, arrivals).await?;
        if self.past.is_none() {
            reader.add_histories(&mut fetched).await?;
        }
        Ok(fetched)
    }

    /// Returns everything about one model; what the store knows of it is taken out of `fetched`.
    ///
    /// # Errors
    /// The model has more votes than the bound, or a histogram that cannot be.
    pub fn model_windows(
        &self,
        model: &ModelKey,
        span: &Span,
        arrivals: &Arrivals,
        fetched: &mut Fetched,
    ) -> Result<ModelWindows, SourceError> {
        let past = self.past.as_ref().map(|past| past.histories(model, span));
        let recording = match &self.reads {
            Reads::Store(_) => {
                let found = fetched.models.remove(model).unwrap_or_default();
                return Ok(ModelWindows {
                    model: model.clone(),
                    versions: found.versions(),
                    cohorts: found.cohorts.unwrap_or_else(|| Ok(Vec::new()))?,
                    census: found.census,
                    histories: past.unwrap_or(found.histories),
                    certified: Vec::new(),
                    usual: UsualOfModel::default(),
                });
            }
            Reads::Recorded(recording) => recording,
        };
        let census = recording.census(model, span).into_iter();
        let versions = recording.versions(model, span).into_iter();
        // In the order of their names, as they are kept.
        Ok(ModelWindows {
            model: model.clone(),
            cohorts: self.recorded_cohorts(recording, model, span, arrivals)?,
            census: census.map(PlacementCount::from).collect(),
            versions: versions.map(VersionSeen::from).collect(),
            histories: past.unwrap_or_default(),
            certified: Vec::new(),
            usual: UsualOfModel::default(),
        })
    }

    fn reader<'a>(&self, store: &'a Counted, span: &'a Span) -> Reader<'a> {
        Reader {
            store,
            span,
            max_votes: self.max_votes,
        }
    }

    fn builder(&self, model: &ModelKey, span: &Span, arrivals: &Arrivals) -> WindowBuilder {
        let builder = WindowBuilder::new(model.clone(), span.end, span.window, self.max_votes);
        builder.with_arrivals(arrivals.of(model))
    }

    fn recorded_cohorts(
        &self,
        recording: &Recording,
        model: &ModelKey,
        span: &Span,
        arrivals: &Arrivals,
    ) -> Result<Vec<CohortWindow>, SourceError> {
        recording.check_size(model, span, 2 * self.max_votes)?;
        let mut builder = self.builder(model, span, arrivals);
        for row in recording.votes(model, span) {
            builder.add_vote(row)?;
        }
        builder.end_votes()?;
        if builder.needs_earlier_runs() {
            for row in recording.earlier(model, span) {
                builder.add_earlier(row)?;
            }
        }
        for row in recording.placements(model, span) {
            builder.add_placement(row)?;
        }
        builder.finish()
    }

    /// Returns a version's merged clean latency on a chipset before the window, by input shape.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn latency_before(
        &self,
        model: &ModelKey,
        model_version: &str,
        chipset: &str,
        span: &Span,
    ) -> Result<BTreeMap<Arc<str>, BaselineLatency>, SourceError> {
        let rows = match &self.reads {
            Reads::Store(store) => of_model(
                store.counted.query(LATENCY_BEFORE).bind(hist_scheme()),
                model,
            )
            .bind(model_version)
            .bind(chipset)
            .bind(span.earliest_s())
            .bind(span.start_s())
            .fetch_all::<HistogramRow>()
            .await
            .map_err(failed("latency before"))?,
            Reads::Recorded(recording) => {
                recording.latency_before(model, model_version, chipset, span)
            }
        };
        let mut latencies = BTreeMap::new();
        for row in rows {
            let counts = row.hist_bucket.into_iter().zip(row.hist_count);
            let histogram = histogram_of(counts).map_err(|source| SourceError::Histogram {
                model: model.model_id.clone(),
                source,
            })?;
            let (Some(p50_us), Some(p95_us)) = (histogram.quantile(0.5), histogram.quantile(0.95))
            else {
                continue;
            };
            let n = histogram.n();
            latencies.insert(row.shape_key.into(), BaselineLatency { n, p50_us, p95_us });
        }
        Ok(latencies)
    }

    /// Returns what the devices of some versions on chipsets were used to before the window.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn selves_before(
        &self,
        wanted: &[VersionOnChipset],
        span: &Span,
    ) -> Result<HashMap<VersionOnChipset, SelvesBefore>, SourceError> {
        if wanted.is_empty() {
            return Ok(HashMap::default());
        }
        let recording = match &self.reads {
            Reads::Store(store) => {
                return self
                    .reader(&store.counted, span)
                    .selves_before(wanted)
                    .await;
            }
            Reads::Recorded(recording) => recording,
        };
        let mut selves = HashMap::default();
        for key in wanted {
            let (model, version, chipset) = key;
            let rows = recording.selves_before(model, version, chipset, span);
            let built = SelvesBefore::from_rows(version, rows).map_err(|source| {
                SourceError::Histogram {
                    model: model.model_id.clone(),
                    source,
                }
            })?;
            selves.insert(key.clone(), built);
        }
        Ok(selves)
    }

    /// Returns the nodes on the CPU that should not be there, for the fingerprints asked for.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn cpu_nodes(
        &self,
        model: &ModelKey,
        model_version: &str,
        fingerprints: &[u64],
    ) -> Result<CpuNodes, SourceError> {
        let store = match &self.reads {
            Reads::Store(store) => store,
            Reads::Recorded(recording) => {
                let rows = recording.nodes(model, model_version, fingerprints);
                return Ok(nodes::unexpected(rows));
            }
        };
        let version = (model.clone(), model_version.to_owned());
        let unknown = store.nodes.unknown(&version, fingerprints);
        if !unknown.is_empty() {
            let query = of_model(store.counted.plain_query(NODES), model);
            let query = query.bind(model_version).bind(&unknown);
            let rows = query.fetch_all::<NodesRow>().await;
            let rows = rows.map_err(failed("nodes on the CPU"))?;
            store.nodes.add(&version, &unknown, rows);
        }
        Ok(store.nodes.of(&version, fingerprints))
    }
}

fn of_model(query: Query, model: &ModelKey) -> Query {
    query
        .bind(&model.app_id)
        .bind(&model.environment)
        .bind(&model.model_id)
}
