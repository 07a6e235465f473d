//! The error of a window that could not be read, and whether to try again.

use epwatch_model::ModelKey;
use epwatch_stats::{HistogramError, RangeHistogram};

use crate::judge::window::histogram_of;

/// The reason why a window could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The store did not answer, or gave an unexpected answer.
    #[error("failed to read {what}")]
    Store {
        /// Name of the query.
        what: &'static str,
        /// Error of the client or the store.
        #[source]
        source: clickhouse::error::Error,
    },
    /// More devices than the configured bound.
    #[error(
        "failed to read a window of model {model}: more than {limit} votes; raise \
         detector.max_votes or shorten the window"
    )]
    TooManyVotes {
        /// App, environment and model id.
        model: String,
        /// Value of `detector.max_votes`.
        limit: usize,
    },
    /// The temporary file of a recording could not be used.
    #[error("failed to read recorded reports from a temporary file")]
    Spilled(#[source] std::io::Error),
    /// The evaluation panicked, which is a bug in epwatch.
    #[error(
        "failed to judge model {model}: its evaluation panicked, and the log has the place; report it"
    )]
    Panicked {
        /// The model id.
        model: String,
    },
    /// A histogram is impossible.
    #[error("failed to read a histogram of model {model}")]
    Histogram {
        /// App, environment and model id.
        model: String,
        /// Error of the parser.
        #[source]
        source: HistogramError,
    },
}

impl SourceError {
    /// Returns a function that makes an error of a histogram of this model.
    pub(crate) fn histogram(model: &ModelKey) -> impl FnOnce(HistogramError) -> SourceError {
        let model = model.model_id.clone();
        |source| SourceError::Histogram { model, source }
    }

    /// Returns an error for each model that cannot be judged because of this one: first this error, then copies of its
    /// text.
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

    /// Whether the store itself is the cause, and not its data. Errors about data have a text from this crate.
    pub(crate) fn is_of_the_store(&self) -> bool {
        matches!(self, SourceError::Store { source, .. }
            if !matches!(source, clickhouse::error::Error::Custom(_)))
    }

    /// Whether the same query may succeed later.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            SourceError::Store { source, .. } => matches!(
                source,
                clickhouse::error::Error::Network(_) | clickhouse::error::Error::TimedOut
            ),
            SourceError::TooManyVotes { .. }
            | SourceError::Panicked { .. }
            | SourceError::Histogram { .. }
            | SourceError::Spilled(_) => false,
        }
    }
}

/// Builds a histogram of a model's runs from bucket indices and counts.
pub(super) fn histogram_for(
    model: &ModelKey,
    counts: impl IntoIterator<Item = (u16, u64)>,
) -> Result<RangeHistogram, SourceError> {
    histogram_of(counts).map_err(SourceError::histogram(model))
}

pub(super) fn failed(what: &'static str) -> impl FnOnce(clickhouse::error::Error) -> SourceError {
    move |source| SourceError::Store { what, source }
}
