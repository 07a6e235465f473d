//! Checks of judged launches, for several files of tests.

use epwatch_gate::{
    launches::{JudgedLaunches, LaunchesError},
    verdict::{Check, Outcome},
};

#[track_caller]
pub(crate) fn check(judged: &JudgedLaunches, id: &str, result: Outcome) -> Check {
    let checks = &judged.targets[0].checks;
    let found = checks.iter().find(|check| check.id == id);
    let found = found.unwrap_or_else(|| panic!("{checks:#?}"));
    assert_eq!(found.result, result, "{found:#?}");
    found.clone()
}

#[track_caller]
pub(crate) fn check_mistake(judged: &JudgedLaunches, id: &str) {
    let mistakes = &judged.targets[0].mistakes;
    assert!(
        mistakes.iter().any(|mistake| mistake.id == id),
        "{mistakes:#?}"
    );
}

#[track_caller]
pub(crate) fn check_refused(judged: Result<JudgedLaunches, LaunchesError>, says: &str) {
    let error = judged.unwrap_err().to_string();
    assert!(error.contains(says), "{error}");
}
