//! The real LiteRT, whose placement the app hands over, and its runs.

use std::collections::BTreeMap;

use epwatch_proto::{PlacementSource, ReasonCode};

use crate::environment::{check_xnnpack, litert, run_in};

#[test]
fn a_session_of_litert_is_placed_by_its_own_list_and_measured() {
    let (printed, reports) = run_in(&litert(), "litert.py", &[]);
    assert!(printed.ends_with("as expected\n"), "{printed}");
    let [report] = &reports[..] else {
        panic!("{} reports", reports.len())
    };
    assert_eq!(report.runtime.ort_version, "LiteRT 2.3.0");
    let sessions = report.sessions.iter();
    let sessions: BTreeMap<_, _> = sessions.map(|s| (&*s.model.id, s)).collect();
    let placed = &sessions["cumsum"];
    check_xnnpack(&placed.placement, 3, "CUMSUM");
    assert!(placed.creation_us.is_some() && placed.model.sha256.is_some());
    let untold = &sessions["early"].placement;
    assert_eq!(untold.source, PlacementSource::Unavailable);
    assert_eq!(untold.reasons, [ReasonCode::RuntimeNotKnown]);
    let runs = |uid| -> u64 {
        let series = report.series.iter().filter(|s| s.session_uid == uid);
        series.map(|s| s.n).sum()
    };
    assert_eq!((runs(placed.uid), runs(sessions["early"].uid)), (6, 1));
    let errors: Vec<_> = report.run_errors.iter().map(|e| e.count).collect();
    assert_eq!(errors, [1]);
}
