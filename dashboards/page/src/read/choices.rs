//! The apps and environments that a page can show.

use clickhouse::Row;
use serde::{Deserialize, Serialize};

use super::progress::Progress;
use super::scope::Scope;
use super::store::{ReadError, StoreReader};

/// An app in an environment, with its devices.
#[derive(Debug, Clone, PartialEq, Eq, Row, Serialize, Deserialize)]
pub(crate) struct Choice {
    pub(crate) app: String,
    pub(crate) environment: String,
    /// Most devices of one of its cohorts in a window.
    pub(crate) devices: u64,
    /// Its open incidents of severity `page`.
    pub(crate) pages: u64,
}

const SQL: &str = "
SELECT app, environment, max(n) AS devices, sum(open) AS pages
FROM (
    SELECT toString(app_id) AS app, toString(w.environment) AS environment, max(w.devices) AS n, toUInt64(0) AS open
    FROM cohort_windows_v1 AS w
    WHERE (? = 1 OR has(?, w.app_id)) AND w.firmware = '' AND w.window_end > fromUnixTimestamp64Milli(?) - INTERVAL 1 DAY
    GROUP BY app, environment
    UNION ALL
    SELECT toString(app_id) AS app, toString(i.environment) AS environment, toUInt64(0) AS n,
        countIf(i.severity = 'page') AS open
    FROM incidents_v1 AS i
    WHERE (? = 1 OR has(?, i.app_id)) AND i.state IN ('firing', 'mitigated')
    GROUP BY app, environment
)
GROUP BY app, environment
ORDER BY pages > 0 DESC, devices DESC, app, environment
LIMIT 500";

/// Returns what was judged in the last day or has an open incident: open pages first, then by devices.
pub(crate) async fn choices(
    store: &StoreReader,
    progress: &Progress,
    scope: &Scope,
) -> Result<Vec<Choice>, ReadError> {
    let until = progress.judged_until.map_or(0, |at| at.as_millisecond());
    store
        .rows(SQL, |query| scope.bind(scope.bind(query).bind(until)))
        .await
}

/// Returns the choice that was asked for; without one, or with an app alone, the first that fits.
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
    // An app in an environment that it does not have is shown in one that it has.
    let found = found.or_else(|| choices.iter().find(|choice| app == Some(&*choice.app)));
    let of = |choice: &Choice| (choice.app.clone(), choice.environment.clone());
    match (found, app) {
        (Some(choice), _) => Some(of(choice)),
        (None, Some(app)) => Some((app.to_owned(), environment.unwrap_or_default().to_owned())),
        (None, None) => None,
    }
}
