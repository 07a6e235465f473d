//! Windows that are being put together, of several models; one that failed does not hide the others. A
//! row finds its own without a copy of its names.

use crate::cohort::ModelKey;
use crate::hash::HashMap;

use super::SourceError;
use super::assemble::WindowBuilder;

/// By app, environment and model.
#[derive(Default)]
pub(super) struct Builders(HashMap<String, HashMap<String, OfEnvironment>>);

/// By model.
type OfEnvironment = HashMap<String, Result<WindowBuilder, SourceError>>;

impl Builders {
    pub(super) fn insert(&mut self, model: &ModelKey, builder: WindowBuilder) {
        let of_app = self.0.entry(model.app_id.clone()).or_default();
        let of_environment = of_app.entry(model.environment.clone()).or_default();
        of_environment.insert(model.model_id.clone(), Ok(builder));
    }

    /// Gives a row to its model's. What arrived since the models were listed belongs to a later
    /// evaluation.
    pub(super) fn add(
        &mut self,
        (app, environment, model): (&str, &str, &str),
        add: impl FnOnce(&mut WindowBuilder) -> Result<(), SourceError>,
    ) {
        let of_app = self.0.get_mut(app);
        let of_environment = of_app.and_then(|found| found.get_mut(environment));
        if let Some(slot) = of_environment.and_then(|found| found.get_mut(model))
            && let Ok(builder) = slot
            && let Err(error) = add(builder)
        {
            *slot = Err(error);
        }
    }

    pub(super) fn end_votes(&mut self) {
        let of_apps = self.0.values_mut().flat_map(HashMap::values_mut);
        for slot in of_apps.flat_map(HashMap::values_mut) {
            if let Ok(builder) = slot
                && let Err(error) = builder.end_votes()
            {
                *slot = Err(error);
            }
        }
    }

    pub(super) fn need_earlier_runs(&self) -> bool {
        let of_apps = self.0.values().flat_map(HashMap::values);
        let mut builders = of_apps.flat_map(HashMap::values).flatten();
        builders.any(WindowBuilder::needs_earlier_runs)
    }

    pub(super) fn into_all(
        self,
    ) -> impl Iterator<Item = (ModelKey, Result<WindowBuilder, SourceError>)> {
        self.0.into_iter().flat_map(|(app_id, of_app)| {
            of_app.into_iter().flat_map(move |(environment, models)| {
                let app_id = app_id.clone();
                models.into_iter().map(move |(model_id, builder)| {
                    let model = ModelKey {
                        app_id: app_id.clone(),
                        environment: environment.clone(),
                        model_id,
                    };
                    (model, builder)
                })
            })
        })
    }
}
