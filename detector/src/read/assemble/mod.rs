//! Builds cohort windows from rows, in any order: pure, so that it needs no store.

mod builder;
mod finish;
mod rows;
#[cfg(test)]
mod tests;
mod vote;

use crate::hash::HashMap;
use crate::interner::Texts;

use super::error::SourceError;
use super::reader::{WindowsAsked, WindowsByModel};
use builder::{VoteKey, WindowBuilder};
pub(super) use rows::{
    CohortPlacement, EarlierSelf, ModelId, PlacedSession, SelfQuantiles, SeriesOrder, SeriesRow,
    SessionRow,
};
use vote::EarlierRuns;

/// Windows that are being built, of several models; one that failed does not hide the others. Rows of models that
/// are not among them arrived since the models were listed, and belong to a later evaluation.
pub(super) struct WindowBuilders {
    /// Texts of the rows.
    pub(super) texts: Texts,
    builders: HashMap<ModelId, Result<WindowBuilder, SourceError>>,
}

impl WindowBuilders {
    /// Begins the windows that are asked for; rows may have texts of `texts` already.
    pub(super) fn of(asked: WindowsAsked<'_>, mut texts: Texts) -> Self {
        let builders = asked.models.iter().map(|found| {
            let builder = WindowBuilder::of(&found.model, asked);
            (texts.model(&found.model), Ok(builder))
        });
        Self {
            builders: builders.collect(),
            texts,
        }
    }

    pub(super) fn add_session(&mut self, model: ModelId, row: SessionRow) {
        let texts = &self.texts;
        add_to(&mut self.builders, model, |builder| {
            builder.add_session(row, texts)
        });
    }

    /// Adds clean runs of a session that votes.
    pub(super) fn add_series(&mut self, model: ModelId, row: SeriesRow) {
        add_to(&mut self.builders, model, |builder| builder.add_series(row));
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

    /// Adds a vote's runs of an earlier window; the latest window must come first.
    pub(super) fn add_earlier(&mut self, model: ModelId, vote: VoteKey, runs: EarlierRuns) {
        add_to(&mut self.builders, model, |builder| {
            builder.add_earlier(vote, runs)
        });
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

fn add_to(
    builders: &mut HashMap<ModelId, Result<WindowBuilder, SourceError>>,
    model: ModelId,
    add: impl FnOnce(&mut WindowBuilder) -> Result<(), SourceError>,
) {
    if let Some(slot) = builders.get_mut(&model)
        && let Ok(builder) = slot
        && let Err(error) = add(builder)
    {
        *slot = Err(error);
    }
}
