//! Reads windows from the store's versioned views, or from recorded reports by the same rules: one trait
//! (`ReportReader`) with two implementations. Nothing is decided here.

pub mod arrivals;
mod assemble;
mod batches;
mod builders;
mod census;
mod certified;
mod certified_file;
mod error;
mod known;
mod model_windows;
mod newcomers;
mod past;
mod reader;
pub mod recorded;
mod reported;
mod rows;
mod selves;
mod span;
mod store;
mod usual;
mod windows;

use std::collections::BTreeMap;
use std::sync::Arc;

use clickhouse::Client;
use epwatch_proto::HistScheme;
use jiff::Timestamp;

use crate::base_rates::BaseRates;
use crate::baseline::BaselineLatency;
use crate::cohort::ModelKey;
use crate::hash::HashMap;
use crate::verdict::CpuNodes;
use crate::window::histogram_of;

pub use arrivals::{AppArrivals, Arrivals};
pub use batches::batches;
pub use certified::{Certified, CertifiedPlacement};
pub use certified_file::CertifiedError;
pub use error::SourceError;
pub use known::{Begun, Known};
pub use model_windows::{FoundModel, ModelWindows, VersionHistory};
pub use past::PastWindows;
use reader::ReportReader;
pub use reader::{FoundWindows, VersionOnChipset};
pub use recorded::Recording;
use recorded::RecordingReader;
use selves::SelvesBuilder;
pub use selves::{Asked, Before, SelvesBefore};
pub use span::Span;
pub use store::HeldLookBack;
use store::StoreReader;
pub use usual::{UsualCv, UsualDevices, UsualOfModel};

/// The only bucket scheme whose edges this program knows; histograms of others are not read.
fn hist_scheme() -> &'static str {
    HistScheme::HdrUs2sd160s.as_str()
}

/// Where windows come from: a store, or recorded reports in memory.
#[derive(Clone)]
pub struct Source {
    reader: Arc<dyn ReportReader>,
    past: Option<Arc<PastWindows>>,
    rates: Arc<BaseRates>,
    certified: Arc<Certified>,
    max_votes: usize,
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
        Self::holding(client, max_votes, store::MAX_HELD_BYTES)
    }

    /// As [`Self::new`], and holds a look-back of at most `bytes` between evaluations, instead of 256 MiB;
    /// what is larger is read from the store each time.
    #[must_use]
    pub fn holding(client: Client, max_votes: usize, bytes: usize) -> Self {
        Self::of(Arc::new(StoreReader::new(client, bytes)), max_votes)
    }

    /// Reads from recorded reports; at most `max_votes` votes a model.
    #[must_use]
    pub fn recorded(recording: Arc<Recording>, max_votes: usize) -> Self {
        Self::of(Arc::new(RecordingReader(recording)), max_votes)
    }

    fn of(reader: Arc<dyn ReportReader>, max_votes: usize) -> Self {
        Self {
            reader,
            past: None,
            rates: Arc::default(),
            certified: Arc::default(),
            max_votes,
        }
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
        Ok(Source {
            reader: self.reader.prepared(span).await?,
            ..self.clone()
        })
    }

    /// Reads ahead what the evaluation of a later window needs of the windows before it, so that the
    /// evaluation does not wait for it. Nothing is read that is held.
    ///
    /// # Errors
    /// The store did not answer; that evaluation asks again.
    pub async fn look_ahead(&self, span: &Span) -> Result<(), SourceError> {
        match &self.past {
            None => self.reader.look_ahead(span.past()).await,
            Some(_) => Ok(()),
        }
    }

    /// Returns what is held of the look-back, by this source and its clones; `None` where nothing is:
    /// reports are in memory.
    pub async fn held_look_back(&self) -> Option<HeldLookBack> {
        self.reader.held_look_back().await
    }

    /// Returns the models that anything arrived for in the window, in order.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn models(&self, span: &Span) -> Result<Vec<FoundModel>, SourceError> {
        Ok(self.reader.census(span).await?.models(span))
    }

    /// Returns when the first and the last report were received; `None` without any.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn received(&self) -> Result<Option<(Timestamp, Timestamp)>, SourceError> {
        self.reader.received().await
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
        version: &VersionOnChipset,
        until: Timestamp,
        span: &Span,
    ) -> Result<BTreeMap<Arc<str>, BaselineLatency>, SourceError> {
        let rows = self.reader.histograms(version, span.before(until)).await?;
        let mut latencies = BTreeMap::new();
        for row in rows {
            let counts = row.hist_bucket.into_iter().zip(row.hist_count);
            let histogram = histogram_of(counts).map_err(|source| SourceError::Histogram {
                model: version.0.model_id.clone(),
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
        self.reader.selves_before(wanted, asked, span).await
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
        let version = (model, model_version);
        self.reader.cpu_nodes(version, fingerprints).await
    }
}
