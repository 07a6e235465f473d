//! The source of windows: a store, or recorded reports in memory.

use std::sync::Arc;

use clickhouse::Client;
use jiff::Timestamp;

use crate::judge::base_rates::BaseRates;
use crate::judge::certified::Certified;

use super::error::SourceError;
use super::evaluation_inputs::EvaluationInputs;
use super::feedback::Feedback;
use super::history::HistoryByModel;
use super::past::PastWindows;
use super::reader::{HeldLookBack, ReportReader};
use super::recorded::Recording;
use super::span::Span;
use super::store::{MAX_HELD_BYTES, StoreReader};

/// The source of windows: a store, or recorded reports in memory.
#[derive(Debug, Clone)]
pub struct Source {
    reader: Arc<dyn ReportReader>,
    past: Option<Arc<PastWindows>>,
    rates: Arc<BaseRates>,
    certified: Arc<Certified>,
    max_votes: usize,
}

impl Source {
    /// Reads through `client`, whose database has the migrations; at most `max_votes` votes per model.
    #[must_use]
    pub fn new(client: Client, max_votes: usize) -> Self {
        Self::holding(client, max_votes, MAX_HELD_BYTES)
    }

    /// Same as [`Self::new`], and holds a look-back and the rows of a window of at most `bytes` each between
    /// evaluations, instead of 256 MiB. A larger look-back or window is read from the store each time.
    #[must_use]
    pub fn holding(client: Client, max_votes: usize, bytes: usize) -> Self {
        Self::of(Arc::new(StoreReader::new(client, bytes)), max_votes)
    }

    /// Reads from recorded reports; at most `max_votes` votes per model.
    #[must_use]
    pub fn recorded(recording: Arc<Recording>, max_votes: usize) -> Self {
        Self::of(Arc::new(recording), max_votes)
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

    /// Uses these base rates until enough earlier windows are available.
    #[must_use]
    pub fn with_rates(mut self, rates: BaseRates) -> Self {
        self.rates = Arc::new(rates);
        self
    }

    /// Adds certified placements that go before the ones added so far and before the store's.
    #[must_use]
    pub fn with_certified(mut self, certified: Certified) -> Self {
        let known = std::mem::take(&mut self.certified);
        self.certified = Arc::new(Arc::unwrap_or_clone(known).preceded_by(&certified));
        self
    }

    /// Returns how often healthy devices of the fleet are hit.
    #[must_use]
    pub fn rates(&self, span: &Span) -> BaseRates {
        let learnt = self.past.as_ref().and_then(|past| past.rates(span));
        learnt.unwrap_or_else(|| self.rates.as_ref().clone())
    }

    /// Returns when the first and the last report were received; `None` without any.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn received(&self) -> Result<Option<(Timestamp, Timestamp)>, SourceError> {
        self.reader.received().await
    }

    /// Returns the incidents of a span of time that people called false; `None` if reports are in memory, because there
    /// are no orders then.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn feedback(
        &self,
        time: (Timestamp, Timestamp),
    ) -> Result<Option<Feedback>, SourceError> {
        self.reader.feedback(time).await
    }

    /// Returns figures of the look-back that this source and its clones hold; `None` if reports are in memory, because
    /// none is held then.
    pub async fn held_look_back(&self) -> Option<HeldLookBack> {
        self.reader.held_look_back().await
    }

    /// Reads the earlier windows that the evaluation of a later window needs, so that the evaluation does not wait for
    /// them. Windows that are already held are not read again.
    ///
    /// # Errors
    /// The store did not answer; the later evaluation queries again.
    pub async fn look_ahead(&self, span: &Span) -> Result<(), SourceError> {
        match &self.past {
            None => self.reader.history(span.past()).await.map(drop),
            Some(_) => Ok(()),
        }
    }

    /// Reads the data that all models of one evaluation share. Of the look-back, only buckets that earlier evaluations
    /// did not read are read.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn begin(&self, span: &Span) -> Result<EvaluationInputs, SourceError> {
        let (mut begun, history) = tokio::try_join!(self.reader.begin(span), self.history(span))?;
        begun.certified = begun.certified.preceded_by(&self.certified);
        Ok(EvaluationInputs::of(begun, history, *span, self.max_votes))
    }

    async fn history(&self, span: &Span) -> Result<Arc<HistoryByModel>, SourceError> {
        if span.stands_alone {
            return Ok(Arc::default());
        }
        match &self.past {
            Some(past) => Ok(Arc::new(past.history(span))),
            None => self.reader.history(span.past()).await,
        }
    }
}
