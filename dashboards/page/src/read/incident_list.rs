//! The list of incidents.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::document::IncidentDocument;
use super::incidents::{IncidentRow, IncidentSelect, select};
use super::last_seen::last_seen;
use super::progress::Progress;
use super::scope::AppScope;
use super::store::{LeftOut, ReadError, StoreReader, filtered};
use super::windows::{self, CohortRow};

/// Open incidents are shown whatever their age.
const LIST: &str = select!(
    "if(i.state IN ('firing', 'mitigated'), i.document, '')",
    "WHERE (? = 1 OR has(?, i.app_id)) AND (? = 0 OR i.app_id = ?)
       AND (i.state IN ('firing', 'mitigated', 'pending')
            OR i.state = 'resolved' AND i.changed_at > now64(3) - INTERVAL ? DAY)
     ORDER BY i.state IN ('firing', 'mitigated') DESC, i.severity = 'page' DESC, i.started_at DESC, i.incident_id
     LIMIT 500"
);

/// Maximum number of rows of the list.
pub(crate) const MOST: usize = 500;

/// Days for which resolved incidents are listed.
pub(crate) const DAYS: u32 = 30;

/// Most apps with open incidents for which the list says when faults were last seen, a query each.
const MOST_APPS: usize = 8;

/// The page of incidents.
#[derive(Debug, Default, Serialize)]
pub(crate) struct IncidentsPage {
    pub(crate) app: Option<String>,
    pub(crate) days: u32,
    pub(crate) incidents: Vec<ListedIncident>,
    pub(crate) left_out: LeftOut,
}

/// An incident of the page.
#[derive(Debug, Serialize)]
pub(crate) struct ListedIncident {
    #[serde(flatten)]
    pub(crate) row: IncidentRow,
    /// End of the last window that shows the fault of an open incident; `None` if the window that was judged last does.
    pub(crate) last_seen: Option<Timestamp>,
}

impl IncidentsPage {
    /// Whether older incidents may have been left out.
    pub(crate) fn is_cut(&self) -> bool {
        self.incidents.len() >= MOST
    }
}

pub(crate) async fn read(
    store: &StoreReader,
    progress: &Progress,
    app: Option<&str>,
    scope: &AppScope,
) -> Result<IncidentsPage, ReadError> {
    let rows: Vec<IncidentSelect> = store
        .rows(LIST, |query| filtered(scope.bind(query), app).bind(DAYS))
        .await?;
    let mut left_out = LeftOut::default();
    let mut latest: BTreeMap<(String, String), Option<Vec<CohortRow>>> = BTreeMap::new();
    let mut incidents = Vec::new();
    for row in rows {
        let document = IncidentDocument::read(&row.document);
        let row = IncidentRow::from(row);
        let of = (row.app.clone(), row.environment.clone());
        let is_new = !latest.contains_key(&of) && latest.len() < MOST_APPS;
        if let Some(until) = progress.judged_until.filter(|_| row.is_open() && is_new) {
            let cohorts = windows::latest(store, (&of.0, &of.1), None, until).await;
            let cohorts = left_out.part("last sights", cohorts.map(Some));
            latest.insert(of.clone(), cohorts);
        }
        let cohorts = latest.get(&of).and_then(Option::as_ref);
        let cohorts = cohorts.filter(|_| row.is_open());
        incidents.push(ListedIncident {
            last_seen: cohorts
                .and_then(|cohorts| last_seen((&row, &document), cohorts, progress.judged_until)),
            row,
        });
    }
    Ok(IncidentsPage {
        app: app.map(str::to_owned),
        days: DAYS,
        incidents,
        left_out,
    })
}
