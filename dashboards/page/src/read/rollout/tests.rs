use jiff::Timestamp;

use super::decide::*;
use crate::read::incidents::IncidentRow;
use crate::read::windows::CohortRow;

const NEEDED: Needed = Needed::OF_THE_DETECTOR;

fn query() -> RolloutQuery {
    RolloutQuery {
        app: "app".to_owned(),
        environment: "production".to_owned(),
        model: "m".to_owned(),
        version: "2".to_owned(),
    }
}

fn row(version: &str, verdict: &str, severity: &str, compared: u64) -> CohortRow {
    let at = |hours: i64| Timestamp::from_second(1_800_000_000 + 3600 * hours).ok();
    CohortRow {
        model: "m".to_owned(),
        version: version.to_owned(),
        chipset: "SM8635".to_owned(),
        first: at(0),
        window_end: at(3),
        window_seconds: 3600.0,
        verdict: verdict.to_owned(),
        severity: severity.to_owned(),
        devices: compared + 2,
        eligible: compared,
        devices_on_chipset: 100,
        npu_share: Some(1.0),
        reasons: vec!["the first reason".to_owned()],
        ..CohortRow::default()
    }
}

fn incident(severity: &str, state: &str, chipsets: &[&str]) -> IncidentRow {
    IncidentRow {
        incident: "0123-45".to_owned(),
        state: state.to_owned(),
        severity: severity.to_owned(),
        verdict: "partial_fallback".to_owned(),
        app: "app".to_owned(),
        environment: "production".to_owned(),
        model: "m".to_owned(),
        version: "2".to_owned(),
        chipsets: chipsets.iter().map(|name| (*name).to_owned()).collect(),
        started_at: None,
        changed_at: None,
        devices_hit: 0,
        devices_seen: 0,
        latency_ratio: None,
        cpu_ops: Vec::new(),
        cpu_macs_share: None,
        acknowledged_by: None,
        muted_until: None,
        part_of: None,
    }
}

fn one(rows: &[CohortRow], open: &[IncidentRow]) -> ChipsetAnswer {
    let all = answers(&query(), rows, open, NEEDED, &[]);
    assert_eq!(all.len(), 1, "{all:?}");
    all.into_iter().next().unwrap()
}

#[test]
fn the_detectors_own_verdict_and_the_number_of_devices_decide() {
    use RolloutAnswer::{Go, NotYet, Stop};
    for (verdict, severity, compared, expected, why) in [
        ("healthy", "none", 8, Go, "healthy: 8 devices compared"),
        (
            "healthy",
            "none",
            7,
            NotYet,
            "7 devices of the 8 that are needed could be compared: 1 more",
        ),
        ("not_enough_data", "none", 9, NotYet, "the first reason"),
        (
            "partial_fallback",
            "page",
            5,
            Stop,
            "Partial CPU fallback: the first reason",
        ),
        (
            "some_devices_fallback",
            "ticket",
            90,
            Stop,
            "CPU fallback on some devices: the first reason",
        ),
        (
            "thermal_or_load",
            "info",
            90,
            NotYet,
            "Devices hot or busy: the first reason",
        ),
    ] {
        let found = one(&[row("2", verdict, severity, compared)], &[]);
        assert_eq!(found.answer, expected, "{verdict} {compared}");
        assert!(found.why.contains(why), "{verdict}: {}", found.why);
    }
}

/// A firmware with enough devices has its own answer, and decides for its chipset if it is worse.
#[test]
fn a_firmware_at_fault_stops_its_chipset() {
    let firmware = |name: &str, verdict: &str, severity: &str, eligible| FirmwareRow {
        chipset: "SM8635".to_owned(),
        firmware: name.to_owned(),
        window_end: 1_800_010_800_000,
        verdict: verdict.to_owned(),
        severity: severity.to_owned(),
        devices: eligible,
        eligible,
        p50_us: None,
        latency_ratio: None,
        npu_share: Some(1.0),
        reasons: vec!["the first reason".to_owned()],
        signal_id: Vec::new(),
        signal_devices: Vec::new(),
    };
    let judged = |rows: Vec<FirmwareRow>| {
        let healthy = [row("2", "healthy", "none", 50)];
        let mut all = answers(&query(), &healthy, &[], NEEDED, &[]);
        add_firmwares(&mut all, rows, &query(), &[]);
        let names = all[0]
            .firmwares
            .iter()
            .map(|of| format!("{} {:?}", of.firmware, of.answer));
        (all[0].answer, all[0].why.clone(), names.collect::<Vec<_>>())
    };
    let (answer, _, names) = judged(vec![
        firmware("f1", "healthy", "none", 40),
        firmware("f2", "healthy", "none", 7),
    ]);
    assert_eq!(
        (answer, names),
        (RolloutAnswer::Go, vec!["f1 Go".to_owned()])
    );
    let (answer, why, names) = judged(vec![
        firmware("f1", "healthy", "none", 40),
        firmware("f3", "partial_fallback", "page", 5),
    ]);
    assert_eq!(answer, RolloutAnswer::Stop);
    assert_eq!(
        why,
        "on firmware f3: Partial CPU fallback: the first reason"
    );
    assert_eq!(names, ["f3 Stop", "f1 Go"]);
    let (answer, ..) = judged(vec![firmware("f4", "thermal_or_load", "info", 9)]);
    assert_eq!(answer, RolloutAnswer::NotYet);
}

/// A person's feedback counts for tickets of the verdict and the chipset that it was about, and for no page.
#[test]
fn a_ticket_that_a_person_called_false_stops_nothing() {
    use RolloutAnswer::{Go, NotYet, Stop};
    let called = |verdict: &str, chipset: &str| FalseRow {
        chipsets: vec![chipset.to_owned()],
        verdict: verdict.to_owned(),
        who: "Ada".to_owned(),
        why: "lab phones".to_owned(),
    };
    let its = called("some_devices_fallback", "SM8635");
    for (severity, compared, called, expected) in [
        ("ticket", 50, its.clone(), Go),
        ("ticket", 5, its.clone(), NotYet),
        ("page", 50, its, Stop),
        (
            "ticket",
            50,
            called("some_devices_fallback", "SM8650"),
            Stop,
        ),
        ("ticket", 50, called("unexplained_slow", "SM8635"), Stop),
    ] {
        let rows = [row("2", "some_devices_fallback", severity, compared)];
        let found = answers(&query(), &rows, &[], NEEDED, std::slice::from_ref(&called)).remove(0);
        assert_eq!(found.answer, expected, "{severity} {compared} {called:?}");
        let says = found.why.contains("which Ada called false (lab phones)");
        assert_eq!(says, expected == Go, "{}", found.why);
    }
}

#[test]
fn unreadable_placements_need_more_devices() {
    let mut unreadable = row("2", "healthy", "none", 29);
    unreadable.npu_share = None;
    let found = one(std::slice::from_ref(&unreadable), &[]);
    assert_eq!((found.answer, found.needed), (RolloutAnswer::NotYet, 30));
    unreadable.eligible = 30;
    assert_eq!(one(&[unreadable], &[]).answer, RolloutAnswer::Go);
}

#[test]
fn an_open_incident_stops_though_the_last_window_is_healthy() {
    let rows = [row("2", "healthy", "none", 50)];
    for (incident, expected) in [
        (incident("page", "firing", &["SM8635"]), RolloutAnswer::Stop),
        (incident("ticket", "firing", &[]), RolloutAnswer::Stop),
        (
            incident("page", "mitigated", &["SM8635"]),
            RolloutAnswer::Stop,
        ),
        (incident("page", "firing", &["SM8650"]), RolloutAnswer::Go),
        (incident("page", "pending", &["SM8635"]), RolloutAnswer::Go),
    ] {
        assert_eq!(
            one(&rows, std::slice::from_ref(&incident)).answer,
            expected,
            "{incident:?}"
        );
    }
}

#[test]
fn a_chipset_without_the_version_is_waited_for_and_a_rare_one_is_not() {
    let before = row("1", "healthy", "none", 60);
    let found = one(std::slice::from_ref(&before), &[]);
    assert_eq!((found.answer, found.devices), (RolloutAnswer::NotYet, 0));
    let mut rare = before;
    rare.devices_on_chipset = 3;
    let found = one(&[rare], &[]);
    assert_eq!(found.answer, RolloutAnswer::Rare);
    assert_eq!(whole(std::slice::from_ref(&found)), RolloutAnswer::NotYet);
    let go = ChipsetAnswer {
        answer: RolloutAnswer::Go,
        ..found.clone()
    };
    assert_eq!(whole(&[go, found]), RolloutAnswer::Go);
}

#[test]
fn the_time_that_is_left_follows_the_devices_since_the_first_window() {
    // Four devices came in four hours, and four more are needed.
    let found = one(&[row("2", "not_enough_data", "none", 4)], &[]);
    assert_eq!(found.seconds_left, Some(4.0 * 3600.0));
    assert_eq!(
        one(&[row("2", "healthy", "none", 0)], &[]).seconds_left,
        None
    );
}

#[test]
fn a_detector_that_stopped_lets_nothing_go_on() {
    let until = Timestamp::from_second(1_800_000_000).unwrap();
    for (step, seconds, expected) in [
        (Some(3600), 11_700, false),
        (Some(3600), 11_701, true),
        (Some(3), 900, false),
        (Some(3), 910, true),
        (None, 86_400, true),
        // A local clock that is behind must not make a window late.
        (Some(3600), -3600, false),
    ] {
        let now = Timestamp::from_second(until.as_second() + seconds).unwrap();
        assert_eq!(is_late(until, step, now), expected, "{step:?} {seconds}");
    }
}

/// Windows of an older version go on. So the version's own latest window is not the last one once no device runs the
/// version.
#[test]
fn only_the_last_window_counts() {
    let mut old = row("2", "healthy", "none", 50);
    old.window_end = old.first;
    let found = one(&[row("1", "healthy", "none", 50), old], &[]);
    assert_eq!((found.answer, found.compared), (RolloutAnswer::NotYet, 0));
    assert!(
        found.why.contains("no device ran it in the last window"),
        "{}",
        found.why
    );
}
