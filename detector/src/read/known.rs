//! What is read once for all models of a window: what devices told beside latency, what labs
//! certified, and what earlier windows had.

use std::sync::Arc;

use super::certified::{self, Certified};
use super::reported::{self, AllReported, StartRow, TestRow};
use super::usual::Usual;
use super::{Arrivals, FoundModel, ModelWindows, Reads, Source, SourceError, Span};

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
    /// Reads what an evaluation begins with. Questions that do not need each other's answers are asked
    /// side by side: the store works on two at a time, and on one while another's answer is read.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn begun(&self, span: &Span) -> Result<Begun, SourceError> {
        let counted = async {
            let settled = self.settled().await?;
            let prepared = settled.with_look_back(span);
            let models = settled.models(span);
            tokio::try_join!(prepared, models, settled.reported(span))
        };
        let ((source, mut models, reported), certified, usual) =
            tokio::try_join!(counted, self.read_certified(), self.usual(span))?;
        let arrivals = source.arrivals(span).await?;
        let known = Known {
            reported: AllReported::from_rows(reported, &arrivals),
            certified,
            usual,
        };
        known.add_failing(&mut models);
        Ok(Begun {
            source,
            models,
            arrivals,
            known,
        })
    }

    async fn reported(&self, span: &Span) -> Result<(Vec<TestRow>, Vec<StartRow>), SourceError> {
        match &self.reads {
            Reads::Store(store) => reported::read(&store.counted, span).await,
            Reads::Recorded(recording) => Ok(recording.reported(span)),
        }
    }

    async fn read_certified(&self) -> Result<Certified, SourceError> {
        let certified = match &self.reads {
            Reads::Store(store) => certified::read(&store.counted.client).await?,
            Reads::Recorded(_) => Certified::default(),
        };
        Ok(certified.preceded_by(&self.certified))
    }

    async fn usual(&self, span: &Span) -> Result<Arc<Usual>, SourceError> {
        match (&self.past, &self.reads) {
            (Some(past), _) => Ok(past.usual(span).into()),
            (None, Reads::Store(store)) => {
                let told = store.held_past.of(span.past());
                told.usual(&store.counted.client).await
            }
            (None, Reads::Recorded(_)) => Ok(Arc::default()),
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
