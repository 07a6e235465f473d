//! When the fault of an open incident was last seen, if the last judged window no longer shows it. Pages then write
//! about it in the past tense.

use epwatch_model::VerdictClass;
use jiff::Timestamp;

use super::document::IncidentDocument;
use super::incidents::IncidentRow;
use super::windows::CohortRow;

/// Returns the end of the last window that shows the fault; `None` if the window that was judged last does. `latest` has the
/// latest window of each cohort. Versions that are parts of the incident count, too.
pub(super) fn last_seen(
    (row, document): (&IncidentRow, &IncidentDocument),
    latest: &[CohortRow],
    judged_until: Option<Timestamp>,
) -> Option<Timestamp> {
    // A silent app has no cohort with new windows.
    if row.class() == Some(VerdictClass::DataQuality) {
        return None;
    }
    let versions = document.incident.as_ref()?.versions();
    let told = document.cohorts().iter();
    let told = told.map(|cohort| cohort.verdict.window_end);
    let shows = |cohort: &&CohortRow| {
        cohort.model == row.model
            && versions.contains(&&*cohort.version)
            && row.chipsets.contains(&cohort.chipset)
            && cohort.is_finding()
    };
    let shown = latest.iter().filter(shows);
    let shown = shown.filter_map(|cohort| cohort.window_end);
    let last = told.chain(shown).max()?;
    judged_until.filter(|until| last < *until).map(|_| last)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::read::incident::tests::fallback;

    /// Checks [O3]: texts are in the present tense while a version with the fault is judged, and in the past tense
    /// afterwards.
    #[test]
    fn a_fault_is_over_once_no_version_with_it_is_in_the_last_window() {
        let page = fallback("");
        let seen = page.lead().unwrap().window_end;
        let later = seen + SignedDuration::from_hours(1);
        let latest = |version: &str, severity: &str| CohortRow {
            model: page.row.model.clone(),
            version: version.to_owned(),
            chipset: "SM8635".to_owned(),
            window_end: Some(later),
            verdict: "partial_fallback".to_owned(),
            severity: severity.to_owned(),
            ..CohortRow::default()
        };
        let of = |page: &crate::read::incident::IncidentPage, latest: &[CohortRow], until| {
            last_seen((&page.row, &page.document), latest, Some(until))
        };
        assert_eq!(of(&page, &[], seen), None);
        assert_eq!(of(&page, &[], later), Some(seen));
        assert_eq!(of(&page, &[latest("2", "page")], later), None);
        assert_eq!(of(&page, &[latest("2", "none")], later), Some(seen));
        assert_eq!(of(&page, &[latest("3", "page")], later), Some(seen));
        let mut with_part = fallback("");
        let incident = with_part.document.incident.as_mut().unwrap();
        incident.parts.insert("scenes 3".to_owned());
        assert_eq!(of(&with_part, &[latest("3", "page")], later), None);
        let much_later = later + SignedDuration::from_hours(1);
        let last = of(&with_part, &[latest("3", "page")], much_later);
        assert_eq!(last, Some(later));
    }
}
