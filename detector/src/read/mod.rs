//! Reads windows from the store's versioned views, or from recorded reports by the same rules. SQL
//! only selects and adds; what it means is decided in Rust.
//!
//! Rows are streamed, and a device's histogram lives only until its quantiles are taken. What is kept
//! from one evaluation to the next is who was in which bucket of the look-back, eight bytes for each
//! device and placement there, up to a bound.

pub mod arrivals;
mod assemble;
mod builders;
mod certified;
mod certified_file;
mod counted;
mod error;
mod held_past;
mod known;
mod look_back;
mod model_windows;
mod newcomers;
mod nodes;
mod past;
mod presence;
mod queries;
pub mod recorded;
mod reported;
mod reports;
mod rows;
mod selves;
mod span;
mod stored;
mod usual;
mod windows;

use std::collections::BTreeMap;
use std::sync::Arc;

use clickhouse::Client;
use clickhouse::query::Query;
use epwatch_proto::HistScheme;
use jiff::Timestamp;

use crate::base_rates::BaseRates;
use crate::baseline::BaselineLatency;
use crate::cohort::ModelKey;
use crate::hash::HashMap;
use crate::verdict::CpuNodes;
use crate::window::histogram_of;

pub use arrivals::{AppArrivals, Arrivals};
pub use certified::{Certified, CertifiedPlacement};
pub use certified_file::CertifiedError;
use counted::Counted;
pub use error::SourceError;
use error::failed;
use held_past::HeldPast;
pub use known::{Begun, Known};
pub use look_back::HeldLookBack;
use look_back::LookBack;
pub use model_windows::{FoundModel, ModelWindows, VersionHistory};
use nodes::NodesAsked;
pub use past::PastWindows;
use queries::{LATENCY_BEFORE, MODELS, NODES, of_clean_series};
pub use recorded::Recording;
use rows::{HistogramRow, ModelRow, NodesRow};
use selves::SelvesBuilder;
pub use selves::{Asked, Before, SelvesBefore};
pub use span::Span;
pub use stored::{Fetched, VersionOnChipset, batches};
pub use usual::{UsualCv, UsualDevices, UsualOfModel};

/// The only bucket scheme whose edges this program knows; histograms of others are not read.
fn hist_scheme() -> &'static str {
    HistScheme::HdrUs2sd160s.as_str()
}

/// Where windows come from: a store, or recorded reports in memory.
#[derive(Clone)]
pub struct Source {
    reads: Reads,
    past: Option<Arc<PastWindows>>,
    rates: Arc<BaseRates>,
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
    held_past: Arc<HeldPast>,
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
                held_past: Arc::default(),
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

    /// Asks beforehand for what the evaluation of a later window needs of the windows before it, while
    /// nobody waits: it is the same for windows that follow each other, until it is another.
    ///
    /// # Errors
    /// The store did not answer; that evaluation asks again.
    pub async fn look_ahead(&self, span: &Span) -> Result<(), SourceError> {
        match (&self.reads, &self.past) {
            (Reads::Store(store), None) => {
                let client = &store.counted.client;
                store.held_past.look_ahead(client, span.past()).await
            }
            _ => Ok(()),
        }
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
    pub fn with_rates(mut self, rates: BaseRates) -> Self {
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
    pub fn rates(&self, span: &Span) -> BaseRates {
        let learnt = self.past.as_ref().and_then(|past| past.rates(span));
        learnt.unwrap_or_else(|| self.rates.as_ref().clone())
    }

    /// Returns a version's merged clean latency on a chipset before the window and before `until`, by input
    /// shape.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn latency_before(
        &self,
        model: &ModelKey,
        model_version: &str,
        chipset: &str,
        until: Timestamp,
        span: &Span,
    ) -> Result<BTreeMap<Arc<str>, BaselineLatency>, SourceError> {
        let before = span.before(until);
        let rows = match &self.reads {
            Reads::Store(store) => {
                let app = [(&*model.app_id, &*model.environment)];
                let query = store.counted.query(LATENCY_BEFORE);
                let query = of_clean_series(query, &app, before, (1, 0));
                let query = query
                    .bind(&model.model_id)
                    .bind(model_version)
                    .bind(chipset);
                let rows = query.fetch_all::<HistogramRow>().await;
                rows.map_err(failed("latency before"))?
            }
            Reads::Recorded(recording) => {
                recording.latency_before(model, model_version, chipset, before)
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

    /// Returns what the devices of some versions of a model on chipsets were used to before the window.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn selves_before(
        &self,
        wanted: &[VersionOnChipset],
        asked: Asked,
        span: &Span,
    ) -> Result<HashMap<VersionOnChipset, SelvesBefore>, SourceError> {
        if wanted.is_empty() {
            return Ok(HashMap::default());
        }
        match &self.reads {
            Reads::Store(store) => {
                let reader = self.reader(&store.counted, span);
                reader.selves_before(wanted, asked).await
            }
            Reads::Recorded(recording) => recording.selves_before(wanted, asked, span),
        }
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
