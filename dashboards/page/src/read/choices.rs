//! The apps and environments that a page can show.

use clickhouse::Row;
use serde::{Deserialize, Serialize};

use super::progress::Progress;
use super::scope::AppScope;
use super::store::{ReadError, StoreReader};

/// An app in an environment, with its devices.
#[derive(Debug, Clone, PartialEq, Eq, Row, Serialize, Deserialize)]
pub(crate) struct Choice {
    pub(crate) app: String,
    pub(crate) environment: String,
    /// Devices in the largest window of any of its cohorts.
    pub(crate) devices: u64,
    /// Its open incidents of severity `page`.
    pub(crate) pages: u64,
}

/// Apps that were judged in the last day, and apps with open incidents. An app in an environment has a row of each
/// kind.
const SQL: &str = "
SELECT w.app_id AS app, w.environment AS environment, max(w.devices) AS devices, toUInt64(0) AS pages
FROM cohort_windows_v1 AS w
WHERE (? = 1 OR has(?, w.app_id)) AND w.firmware = '' AND w.window_end > fromUnixTimestamp64Milli(?) - INTERVAL 1 DAY
GROUP BY app, environment
ORDER BY devices DESC
LIMIT 500
UNION ALL
SELECT i.app_id AS app, i.environment AS environment, toUInt64(0) AS devices, countIf(i.severity = 'page') AS pages
FROM incidents_v1 AS i
WHERE (? = 1 OR has(?, i.app_id)) AND i.state IN ('firing', 'mitigated')
GROUP BY app, environment
ORDER BY pages DESC
LIMIT 500";

/// Returns the apps that were judged in the last day or have an open incident: open pages first, then by devices.
pub(crate) async fn choices(
    store: &StoreReader,
    progress: &Progress,
    scope: &AppScope,
) -> Result<Vec<Choice>, ReadError> {
    let until = progress.judged_until.map_or(0, |at| at.as_millisecond());
    let rows = store
        .rows(SQL, |query| scope.bind(scope.bind(query).bind(until)))
        .await?;
    Ok(merged(rows))
}

/// Merges the rows of an app in an environment, and sorts: open pages first, then by devices.
fn merged(rows: Vec<Choice>) -> Vec<Choice> {
    let mut choices: Vec<Choice> = Vec::new();
    for row in rows {
        let same =
            |choice: &&mut Choice| choice.app == row.app && choice.environment == row.environment;
        match choices.iter_mut().find(same) {
            Some(choice) => {
                choice.devices = choice.devices.max(row.devices);
                choice.pages += row.pages;
            }
            None => choices.push(row),
        }
    }
    choices.sort_by(|a, b| {
        let key = |choice: &Choice| (choice.pages == 0, u64::MAX - choice.devices);
        key(a)
            .cmp(&key(b))
            .then_with(|| (&a.app, &a.environment).cmp(&(&b.app, &b.environment)))
    });
    choices
}

/// Returns the requested choice. If the request is empty or names an app alone, returns the first that fits.
pub(crate) fn chosen(
    choices: &[Choice],
    app: Option<&str>,
    environment: Option<&str>,
) -> Option<(String, String)> {
    let fits = |choice: &&Choice| {
        app.is_none_or(|app| choice.app == app)
            && environment.is_none_or(|environment| choice.environment == environment)
    };
    let found = choices.iter().find(fits);
    // If the app does not have the environment, it is shown in an environment that it has.
    let found = found.or_else(|| choices.iter().find(|choice| app == Some(&*choice.app)));
    let of = |choice: &Choice| (choice.app.clone(), choice.environment.clone());
    match (found, app) {
        (Some(choice), _) => Some(of(choice)),
        (None, Some(app)) => Some((app.to_owned(), environment.unwrap_or_default().to_owned())),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_app_is_one_choice_and_open_pages_come_first() {
        let row = |app: &str, devices, pages| Choice {
            app: app.to_owned(),
            environment: "production".to_owned(),
            devices,
            pages,
        };
        let judged = [row("large", 900, 0), row("small", 5, 0), row("alike", 5, 0)];
        let open = [row("gone", 0, 1), row("small", 0, 2), row("large", 0, 0)];
        let choices = merged(judged.into_iter().chain(open).collect());
        let expected = [
            row("small", 5, 2),
            row("gone", 0, 1),
            row("large", 900, 0),
            row("alike", 5, 0),
        ];
        assert_eq!(choices, expected);
    }
}
