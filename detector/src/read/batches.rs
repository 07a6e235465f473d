//! Cuts the models of a window into batches that are read and judged together.

use super::model_windows::FoundModel;

/// Number of sessions that are read at once. There are enough that a query's own cost is small, and few enough that the
/// store's sums stay far below its limit.
pub(super) const MAX_SESSIONS: u64 = 100_000;

/// Cuts models into batches of whole apps, because an app's models are each other's controls.
#[must_use]
pub fn batches(models: &[FoundModel]) -> Vec<Vec<FoundModel>> {
    let mut batches: Vec<Vec<FoundModel>> = Vec::new();
    let mut sessions = 0;
    for of_app in models.chunk_by(|a, b| a.model.app() == b.model.app()) {
        match batches.last_mut() {
            Some(batch) if sessions < MAX_SESSIONS => batch.extend_from_slice(of_app),
            _ => {
                sessions = 0;
                batches.push(of_app.to_vec());
            }
        }
        sessions += of_app.iter().map(|found| found.sessions).sum::<u64>();
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use epwatch_model::ModelKey;

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
