//! What is read once for all models of a window: what devices told beside latency, what labs
//! certified, and what earlier windows had.

use super::certified::{self, Certified};
use super::reported::{self, AllReported};
use super::usual::{self, Usual};
use super::{Arrivals, FoundModel, ModelWindows, Reads, Source, SourceError, Span};

/// What is known of all models.
#[derive(Debug, Default)]
pub struct Known {
    reported: AllReported,
    certified: Certified,
    usual: Usual,
}

impl Source {
    /// Reads it.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn known(&self, span: &Span, arrivals: &Arrivals) -> Result<Known, SourceError> {
        let (rows, certified, usual) = match &self.reads {
            Reads::Store(store) => (
                reported::read(&store.counted, span).await?,
                certified::read(&store.counted.client).await?,
                match &self.past {
                    Some(past) => past.usual(span),
                    None => usual::read(&store.counted.client, span).await?,
                },
            ),
            Reads::Recorded(recording) => (
                recording.reported(span),
                Certified::default(),
                self.past
                    .as_ref()
                    .map(|past| past.usual(span))
                    .unwrap_or_default(),
            ),
        };
        Ok(Known {
            reported: AllReported::from_rows(rows, arrivals),
            certified: certified.preceded_by(&self.certified),
            usual,
        })
    }
}

impl Known {
    /// Adds models that only failed to start, in order.
    pub fn add_failing(&self, models: &mut Vec<FoundModel>) {
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
