//! Cuts the models of a window into what is read and judged together.

use super::model_windows::FoundModel;

/// Sessions that are read at once: enough that a query's own cost is small, few enough that what the
/// store adds up stays far below its limit.
pub(super) const MAX_SESSIONS: u64 = 100_000;

/// Cuts models into what is read and judged together: whole apps, since their models are each
/// other's controls.
#[must_use]
pub fn batches(models: &[FoundModel]) -> Vec<Vec<FoundModel>> {
    let mut batches: Vec<Vec<FoundModel>> = Vec::new();
    let mut sessions = 0;
    let mut last_app: Option<(String, String)> = None;
    for found in models {
        let app = (found.model.app_id.clone(), found.model.environment.clone());
        let is_new_app = last_app.as_ref() != Some(&app);
        let is_full = sessions >= MAX_SESSIONS;
        last_app = Some(app);
        sessions += found.sessions;
        match batches.last_mut() {
            Some(batch) if !(is_new_app && is_full) => batch.push(found.clone()),
            _ => {
                sessions = found.sessions;
                batches.push(vec![found.clone()]);
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cohort::ModelKey;

    fn found(app: &str, model: &str, sessions: u64) -> FoundModel {
        FoundModel {
            model: ModelKey::of((app, "production"), model),
            cohorts: 1,
            sessions,
        }
    }

    #[test]
    fn small_apps_are_read_together_and_no_app_is_torn() {
        let half = MAX_SESSIONS / 2;
        let models = vec![
            found("a", "1", half),
            found("b", "1", half),
            found("b", "2", half),
            found("c", "1", 1),
            found("d", "1", 1),
        ];
        let batches = batches(&models);
        let apps = |batch: &Vec<FoundModel>| -> String {
            batch.iter().map(|found| &*found.model.app_id).collect()
        };
        let apps: Vec<String> = batches.iter().map(apps).collect();
        assert_eq!(apps, ["abb", "cd"]);
    }
}
