use super::*;
use crate::placement::NodeCounts;
use crate::testing::{at, model};
use crate::window::{BaselineAbsence, CohortWindow, SelfBaselineKind};

const RAN: Ran<'static> = Ran {
    model_version: "2",
    chipset: "SM8635",
    firmware: "f",
    installation: [1; 16],
    graph_kind: "jit",
    placement_source: "assignment_api",
    fingerprint_algorithm: 1,
    fingerprint_normalised: 7,
};

const NONE: (u64, f64, f64, f64, f64) = (0, 0.0, 0.0, 0.0, 0.0);
const SOME: (u64, f64, f64, f64, f64) = (50, 9.0, 10.0, 12.0, 0.1);

fn row(
    previous: (&'static str, (u64, f64, f64, f64, f64)),
    earlier: (u64, f64, f64, f64, f64),
) -> VoteRow<'static> {
    let (version, (n, p10, p50, p95, cv)) = previous;
    VoteRow {
        ran: RAN,
        device_model: "phone",
        shape_key: "static",
        hist_bucket: vec![500],
        hist_count: vec![30],
        n: 30,
        sum_us: 30_000.0,
        m2_us2: 0.0,
        previous: (version, n, p10, p50, p95, cv),
        earlier,
        absence: "too_few_runs",
        at: (0, 0, 0, 0),
    }
}

fn built(rows: Vec<VoteRow<'_>>) -> Vec<CohortWindow> {
    let mut builder = WindowBuilder::new(model(), at(0), Duration::from_secs(60), 100);
    for row in rows {
        let key = builder.key_of(&row.ran);
        builder.add_vote(key, row).unwrap();
    }
    builder.end_votes().unwrap();
    builder.finish().unwrap()
}

#[track_caller]
fn check(row: VoteRow<'_>, expected: Result<SelfBaselineKind, BaselineAbsence>) {
    let windows = built(vec![row]);
    let latency = windows[0].votes[0].latency.clone().unwrap();
    assert_eq!(latency.earlier_self.map(|earlier| earlier.kind), expected);
}

#[test]
fn the_version_before_is_the_earlier_self_and_else_the_runtime_before() {
    let version = SelfBaselineKind::PreviousVersion("1".into());
    check(row(("1", SOME), SOME), Ok(version));
    check(row(("2", SOME), SOME), Ok(SelfBaselineKind::EarlierRuntime));
    check(row(("", NONE), SOME), Ok(SelfBaselineKind::EarlierRuntime));
    let told = BaselineAbsence::Told("too_few_runs".into());
    check(row(("", NONE), NONE), Err(told));
    check(
        row(("1", (3, 9.0, 10.0, 12.0, 0.1)), NONE),
        Err(BaselineAbsence::TooFewRuns),
    );
}

#[test]
fn a_device_with_two_shapes_is_one_device_and_its_runs_add_up() {
    let mut other = row(("1", SOME), NONE);
    other.shape_key = "x:1x3x448x448";
    let windows = built(vec![row(("1", SOME), NONE), other]);
    assert_eq!((windows.len(), windows[0].votes.len()), (1, 2));
    assert_eq!((windows[0].n_devices(), windows[0].n_runs()), (1, 60));
    assert_eq!(windows[0].main_shape().unwrap().unwrap().histogram.n(), 30);
}

fn placed(runtime: &'static str, exact: u64, reason: &'static str) -> PlacementRow<'static> {
    PlacementRow {
        ran: RAN,
        votes: true,
        directed: false,
        fingerprint_exact: exact,
        runtime,
        counts: NodeCounts {
            n_nodes: 43,
            npu_nodes: 42,
            cpu_nodes: 1,
            ..NodeCounts::default()
        },
        reasons: vec![reason],
    }
}

/// A runtime that renames nodes leaves the normalised fingerprint as it is.
#[test]
fn sessions_of_one_placement_are_one_vote_in_whichever_order_they_come() {
    let rows = [
        placed("1.31/2.8", 3, "a"),
        placed("1.31/2.7", 5, "c"),
        placed("1.31/2.7", 4, "b"),
    ];
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let mut builder = WindowBuilder::new(model(), at(0), Duration::from_secs(60), 100);
        for one in order {
            let mut row = placed("", 0, rows[one].reasons[0]);
            row.fingerprint_exact = rows[one].fingerprint_exact;
            (row.runtime, row.counts) = (rows[one].runtime, rows[one].counts);
            // The nodes tell which one spoke.
            row.counts.n_nodes = u32::try_from(row.fingerprint_exact).unwrap();
            let key = builder.key_of(&row.ran);
            builder.add_placement(key, row).unwrap();
        }
        let windows = builder.finish().unwrap();
        assert_eq!(windows[0].votes.len(), 1);
        let placement = &windows[0].votes[0].placement;
        assert_eq!((&*placement.runtime, placement.n_nodes), ("1.31/2.7", 4));
        assert_eq!(placement.reasons, ["a", "b", "c"]);
    }
}

/// Latency that came between the queries has no placement to blame.
#[test]
fn a_vote_without_its_placement_says_nothing_of_where_it_ran() {
    let windows = built(vec![row(("1", SOME), NONE)]);
    assert_eq!(windows[0].votes[0].placement.npu_share(), None);
}

/// On the day that a directive comes, most devices have a session with it and one without.
#[test]
fn those_that_a_directive_took_off_have_no_other_vote() {
    let session = |device: u8, directed: bool, firmware: &'static str| PlacementRow {
        ran: Ran {
            installation: [device; 16],
            firmware,
            ..RAN
        },
        directed,
        ..placed("1.31/2.7", 4, "a")
    };
    let mut builder = WindowBuilder::new(model(), at(0), Duration::from_secs(60), 100);
    let sessions = [
        session(1, false, "f1"),
        session(1, true, "f1"),
        session(2, true, "f1"),
        session(3, true, "f2"),
        session(3, true, "f1"),
    ];
    for row in sessions {
        let key = builder.key_of(&row.ran);
        builder.add_placement(key, row).unwrap();
    }
    let window = &builder.finish().unwrap()[0];
    assert_eq!(window.voteless.directed, 3);
    let only: Vec<(&str, u64)> = window
        .voteless
        .only_directed
        .iter()
        .map(|(firmware, devices)| (&**firmware, *devices))
        .collect();
    assert_eq!(only, [("f1", 1), ("f2", 1)]);
    assert_eq!(window.of_firmware("f2").n_only_directed(), 1);
}

/// Reports of one session that were uploaded together.
#[test]
fn the_later_of_two_reports_received_at_once_says_what_the_device_was_used_to() {
    let report = |sequence, version| VoteRow {
        at: (5, 6, sequence, 8),
        ..row((version, SOME), NONE)
    };
    for order in [[1, 2], [2, 1]] {
        let reports = order.map(|sequence| match sequence {
            1 => report(1, "0"),
            _ => report(2, "1"),
        });
        let windows = built(reports.into());
        let latency = windows[0].votes[0].latency.clone().unwrap();
        let later = SelfBaselineKind::PreviousVersion("1".into());
        assert_eq!(latency.earlier_self.unwrap().kind, later);
    }
}

/// Blocks of an answer come in any order, and 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1.
#[test]
fn moments_are_the_same_in_whichever_order_reports_come() {
    let sums = [0.1, 0.2, 0.3];
    let mut found = Vec::new();
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let rows = order.map(|one: u8| VoteRow {
            sum_us: sums[usize::from(one)],
            m2_us2: sums[usize::from(one)] / 3.0,
            at: (5, 6, one.into(), 8),
            ..row(("1", SOME), NONE)
        });
        let windows = built(rows.into());
        let moments = windows[0].votes[0].latency.clone().unwrap().moments;
        found.push((moments.n(), moments.sum().to_bits(), moments.m2().to_bits()));
    }
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0], found[2]);
}
