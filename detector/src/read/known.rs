//! What is read once for all models of a window: what devices told beside latency, what labs
//! certified, and what earlier windows had.

use std::sync::Arc;

use super::certified::Certified;
use super::reported::AllReported;
use super::usual::Usual;
use super::{Arrivals, FoundModel, ModelWindows, Source, SourceError, Span};

/// What is known of all models.
#[derive(Debug, Default)]
pub struct Known {
    reported: AllReported,
    certified: Certified,
    usual: Arc<Usual>,
}

/// What one evaluation begins with.
#[derive(Debug)]
pub struct Begun {
    /// Answers for this evaluation, as [`Source::prepared`].
    pub source: Source,
    /// Models that anything arrived for, those that only failed to start among them.
    pub models: Vec<FoundModel>,
    /// Who is new.
    pub arrivals: Arrivals,
    /// What is known of all models.
    pub known: Known,
}

impl Source {
    /// Reads what an evaluation begins with.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn begun(&self, span: &Span) -> Result<Begun, SourceError> {
        let (begun, usual) = tokio::try_join!(self.reader.begin(span), self.usual(span))?;
        let source = Source {
            reader: begun.reader,
            ..self.clone()
        };
        let arrivals = source.arrivals(span).await?;
        let known = Known {
            reported: AllReported::from_rows(begun.reported, &arrivals),
            certified: begun.certified.preceded_by(&self.certified),
            usual,
        };
        let mut models = source.models(span).await?;
        known.add_failing(&mut models);
        Ok(Begun {
            source,
            models,
            arrivals,
            known,
        })
    }

    async fn usual(&self, span: &Span) -> Result<Arc<Usual>, SourceError> {
        match &self.past {
            Some(past) => Ok(past.usual(span).into()),
            None => self.reader.usual(span.past()).await,
        }
    }
}

impl Known {
    /// Adds models that only failed to start, in order.
    fn add_failing(&self, models: &mut Vec<FoundModel>) {
        for (model, cohorts) in self.reported.failing() {
            if !models.iter().any(|found| found.model == model) {
                models.push(FoundModel {
                    model,
                    cohorts,
                    sessions: 0,
                });
            }
        }
        models.sort_by(|a, b| a.model.cmp(&b.model));
    }

    /// Gives a model's cohorts what is known of them.
    pub fn attach(&self, read: &mut ModelWindows, span: &Span) {
        self.reported.attach(read, span);
        read.certified = self.certified.of(&read.model);
        read.usual = self.usual.of(&read.model);
    }
}
