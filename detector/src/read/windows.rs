//! Asks for the windows of some models, and puts them together.

use std::sync::Arc;

use crate::baseline::{PlacementCount, VersionSeen};
use crate::cohort::ModelKey;
use crate::window::CohortWindow;

use super::assemble::WindowBuilder;
use super::counted::Counted;
use super::stored::{Fetched, Reader, apps_of};
use super::{
    Arrivals, FoundModel, ModelWindows, Reads, Recording, Source, SourceError, Span, UsualOfModel,
};

impl Source {
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
            let told = store.held_past.of(span.past());
            let apps = apps_of(models.iter().map(|found| &found.model)).into_iter();
            let apps = apps.map(|(app, environment)| (app.to_owned(), environment.to_owned()));
            let client = &store.counted.client;
            told.ask_histories(client, apps.collect()).await?;
            fetched.told = Some(told);
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
        let histories = match (&self.past, &fetched.told) {
            (Some(past), _) => past.histories(model, span).into(),
            (None, Some(told)) => told.of_model(model),
            (None, None) => Arc::default(),
        };
        let recording = match &self.reads {
            Reads::Store(_) => {
                let found = fetched.models.remove(model).unwrap_or_default();
                return Ok(ModelWindows {
                    model: model.clone(),
                    versions: found.versions(),
                    cohorts: found.cohorts.unwrap_or_else(|| Ok(Vec::new()))?,
                    census: found.census,
                    histories,
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
            histories,
            certified: Vec::new(),
            usual: UsualOfModel::default(),
        })
    }

    pub(super) fn reader<'a>(&self, store: &'a Counted, span: &'a Span) -> Reader<'a> {
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
            let key = builder.key_of(&row.ran);
            builder.add_vote(key, row)?;
        }
        builder.end_votes()?;
        if builder.needs_earlier_runs() {
            for row in recording.earlier(model, span) {
                builder.add_earlier(row)?;
            }
        }
        for row in recording.placements(model, span) {
            let key = builder.key_of(&row.ran);
            builder.add_placement(key, row)?;
        }
        builder.finish()
    }
}
