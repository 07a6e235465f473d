//! The windows of some models.

use crate::cohort::ModelKey;

use super::reader::{FoundWindows, WindowsAsked, apps_of};
use super::{Arrivals, FoundModel, ModelWindows, Source, SourceError, Span, UsualOfModel};

impl Source {
    /// Reads some models of the same or of neighbouring apps, for [`Self::model_windows`].
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn fetch(
        &self,
        models: &[FoundModel],
        span: &Span,
        arrivals: &Arrivals,
    ) -> Result<FoundWindows, SourceError> {
        let asked = WindowsAsked {
            models,
            span,
            arrivals,
            max_votes: self.max_votes,
            without_past: self.past.is_some(),
        };
        let mut found = self.reader.windows(asked).await?;
        let census = self.reader.census(span).await?;
        let apps = apps_of(models.iter().map(|found| &found.model));
        for (model, of_model) in census.of_apps(&apps, span) {
            if let Some(slot) = found.models.get_mut(&model) {
                slot.census = of_model;
            }
        }
        Ok(found)
    }

    /// Returns everything about one model, which is taken out of `found`.
    ///
    /// # Errors
    /// The model has more votes than the bound, or a histogram that cannot be.
    pub fn model_windows(
        &self,
        model: &ModelKey,
        span: &Span,
        found: &mut FoundWindows,
    ) -> Result<ModelWindows, SourceError> {
        let found = found.models.remove(model).unwrap_or_default();
        let past = self.past.as_ref();
        Ok(ModelWindows {
            model: model.clone(),
            cohorts: found.cohorts.unwrap_or_else(|| Ok(Vec::new()))?,
            census: found.census.placements,
            versions: found.census.versions,
            histories: past.map_or(found.histories, |past| past.histories(model, span).into()),
            certified: Vec::new(),
            usual: UsualOfModel::default(),
        })
    }
}
