//! Builds cohort windows from rows in any order. It is pure, and needs no store.

mod builder;
mod finish;
mod rows;
mod sum;
#[cfg(test)]
mod tests;
mod vote;

use std::borrow::Cow;

use crate::judge::hash::HashMap;
use crate::read::interner::Texts;

use super::error::SourceError;
use super::reader::{WindowsAsked, WindowsByModel};
use builder::WindowBuilder;
pub(super) use rows::{
    CohortPlacement, DeviceBaseline, ModelId, PlacedSession, SelfQuantiles, SeriesRow, SessionRow,
};
pub(super) use sum::{SeriesHead, SeriesOrder, SeriesSum};

/// Windows of several models that are being built. A model that failed does not hide the others. Rows of other models
/// arrived after the models were listed, and belong to a later evaluation.
pub(super) struct WindowBuilders<'a> {
    /// Texts of the rows. A recording has all of its texts already.
    pub(super) texts: Cow<'a, Texts>,
    builders: HashMap<ModelId, Result<WindowBuilder, SourceError>>,
}

impl<'a> WindowBuilders<'a> {
    /// Begins the requested windows. Rows may already have texts of `texts`.
    pub(super) fn of(asked: WindowsAsked<'_>, mut texts: Cow<'a, Texts>) -> Self {
        let builders = asked.models.iter().map(|found| {
            let builder = WindowBuilder::of(&found.model, asked);
            let known = texts.known_model(&found.model);
            // Borrowed texts are copied for a model without a session.
            let model = known.unwrap_or_else(|| texts.to_mut().model(&found.model));
            (model, Ok(builder))
        });
        Self {
            builders: builders.collect(),
            texts,
        }
    }

    /// Adds a row of a model.
    pub(super) fn add(
        &mut self,
        model: ModelId,
        add: impl FnOnce(&mut WindowBuilder, &Texts) -> Result<(), SourceError>,
    ) {
        if let Some(slot) = self.builders.get_mut(&model)
            && let Ok(builder) = slot
            && let Err(error) = add(builder, &self.texts)
        {
            *slot = Err(error);
        }
    }

    /// Ends the rows of the window, or of a slice of its devices. Returns whether votes need earlier runs.
    pub(super) fn end_votes(&mut self) -> bool {
        let mut need_earlier_runs = false;
        for slot in self.builders.values_mut() {
            if let Ok(builder) = slot {
                match builder.end_votes(&self.texts) {
                    Ok(()) => need_earlier_runs |= builder.needs_earlier_runs(),
                    Err(error) => *slot = Err(error),
                }
            }
        }
        need_earlier_runs
    }

    pub(super) fn finish(self) -> WindowsByModel {
        let mut windows = WindowsByModel::default();
        for (model, builder) in self.builders {
            let model = self.texts.model_key(model);
            let built = builder.and_then(|builder| builder.finish(&self.texts));
            windows.insert(model, built);
        }
        windows
    }
}
