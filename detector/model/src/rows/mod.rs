//! Rows of the store's `_v1` views that more than one crate writes or reads. Fields have the names of the columns.
//!
//! A view has one struct here, with all of its columns in their order. A query that adds rows up, or leaves out the bulk
//! of a row, has a struct of its own next to its SQL. Times are milliseconds since 1970.

mod evidence;
mod incidents;
mod windows;

pub use evidence::CohortEvidenceRow;
pub use incidents::{IncidentOrderRow, StoredIncidentRow};
pub use windows::{CohortWindowRow, JudgedWindowRow};

#[cfg(test)]
mod tests {
    use clickhouse::Row;

    use super::*;

    const VIEWS: &str = include_str!("../../../../docs/views.md");

    /// Returns the columns of a view in the document, which a test of the migrations compares with the store.
    fn columns(view: &str) -> Vec<&'static str> {
        let (_, of_view) = VIEWS.split_once(&format!("\n### {view}\n")).unwrap();
        let columns = of_view.lines().find(|line| line.starts_with('`')).unwrap();
        columns
            .split(", ")
            .map(|one| one.trim_matches('`'))
            .collect()
    }

    #[track_caller]
    fn check<T: Row>(view: &str) {
        assert_eq!(T::COLUMN_NAMES, columns(view), "{view}");
    }

    #[test]
    fn a_row_has_the_columns_of_its_view() {
        check::<CohortEvidenceRow>("cohort_evidence_v1");
        check::<CohortWindowRow>("cohort_windows_v1");
        check::<IncidentOrderRow>("incident_orders_v1");
        check::<JudgedWindowRow>("judged_windows_v1");
        check::<StoredIncidentRow>("incidents_v1");
    }
}
