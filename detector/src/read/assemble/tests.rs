use std::borrow::Cow;
use std::time::Duration;

use epwatch_model::Installation;
use epwatch_stats::Moments;

use super::*;
use crate::judge::placement::NodeCounts;
use crate::judge::window::{CohortWindow, MissingBaseline, SelfBaselineKind};
use crate::read::arrivals::NewInstallations;
use crate::read::interner::TextId;
use crate::read::model_windows::FoundModel;
use crate::read::span::Span;
use crate::testing::{at, model};

const NONE: Option<SelfQuantiles> = None;
const SOME: Option<SelfQuantiles> = learnt_from(50);

const fn learnt_from(n: u64) -> Option<SelfQuantiles> {
    Some(SelfQuantiles {
        n,
        p10_us: 9.0,
        p50_us: 10.0,
        p95_us: 12.0,
        cv: 0.1,
    })
}

/// Windows of one model.
struct Building(WindowBuilders<'static>);

impl Building {
    fn begin() -> Self {
        let found = FoundModel {
            model: model(),
            cohorts: 1,
            sessions: 1,
        };
        let span = Span {
            end: at(0),
            window: Duration::from_secs(60),
            lookback: Duration::from_secs(60),
            stands_alone: false,
        };
        let asked = WindowsAsked {
            models: &[found],
            span: &span,
            arrivals: &NewInstallations::default(),
            max_votes: 100,
        };
        Self(WindowBuilders::of(asked, Cow::Owned(Texts::default())))
    }

    fn id(&mut self, text: &str) -> TextId {
        self.0.texts.to_mut().id(text)
    }

    fn ran(&mut self, firmware: &str) -> CohortPlacement {
        CohortPlacement {
            version: self.id("2"),
            chipset: self.id("SM8635"),
            firmware: self.id(firmware),
            graph_kind: self.id("jit"),
            source: self.id("assignment_api"),
            fingerprint_algorithm: 1,
            fingerprint: 7,
        }
    }

    /// A series of 30 runs of a device that names an earlier version, and an earlier runtime.
    fn row(
        &mut self,
        (version, previous): (&str, Option<SelfQuantiles>),
        runtime: Option<SelfQuantiles>,
    ) -> SeriesRow {
        let version = self.id(version);
        SeriesRow {
            installation: [1; 16],
            ran: self.ran("f"),
            reports_heat: true,
            shape_key: self.id("static"),
            head: self.head((0, 0, 0, 0)),
            earlier: DeviceBaseline {
                previous: previous.map(|numbers| (version, numbers)),
                runtime,
                absence: self.id("too_few_runs"),
            },
        }
    }

    fn head(&mut self, order: SeriesOrder) -> SeriesHead {
        SeriesHead {
            moments: Moments::from_parts(30, 30_000.0, 0.0).unwrap(),
            order,
            device_model: self.id("phone"),
        }
    }

    fn add(&mut self, row: &SeriesRow) {
        let model = self.0.texts.to_mut().model(&model());
        self.0
            .add(model, |builder, _| builder.add_series(row, [(500, 30)]));
    }

    fn placed(&mut self, runtime: &str, exact: u64, reason: &str) -> SessionRow {
        SessionRow {
            installation: [1; 16],
            ran: self.ran("f"),
            placed: PlacedSession {
                runtime: self.id(runtime),
                fingerprint_exact: exact,
                counts: NodeCounts {
                    n_nodes: 43,
                    npu_nodes: 42,
                    cpu_nodes: 1,
                    ..NodeCounts::default()
                },
                reasons: vec![self.id(reason)],
            },
            created_s: 0,
            is_late: false,
            is_unproven: false,
            is_directed: false,
        }
    }

    fn add_session(&mut self, row: SessionRow) {
        let model = self.0.texts.to_mut().model(&model());
        self.0
            .add(model, |builder, texts| builder.add_session(row, texts));
    }

    fn built(mut self) -> Vec<CohortWindow> {
        self.0.end_votes();
        self.0.finish().remove(&model()).unwrap().unwrap()
    }
}

#[track_caller]
fn check(
    previous: (&str, Option<SelfQuantiles>),
    runtime: Option<SelfQuantiles>,
    expected: Result<SelfBaselineKind, MissingBaseline>,
) {
    let mut building = Building::begin();
    let row = building.row(previous, runtime);
    building.add(&row);
    let latency = building.built()[0].votes[0].latency.clone().unwrap();
    assert_eq!(
        latency.device_baseline.map(|earlier| earlier.kind),
        expected
    );
}

#[test]
fn the_version_before_is_the_device_baseline_and_else_the_runtime_before() {
    let version = SelfBaselineKind::PreviousVersion("1".into());
    check(("1", SOME), SOME, Ok(version));
    check(("2", SOME), SOME, Ok(SelfBaselineKind::EarlierRuntime));
    check(("", NONE), SOME, Ok(SelfBaselineKind::EarlierRuntime));
    let told = MissingBaseline::Told("too_few_runs".into());
    check(("", NONE), NONE, Err(told));
    let few = learnt_from(3);
    check(("1", few), NONE, Err(MissingBaseline::TooFewRuns));
}

#[test]
fn a_device_with_two_shapes_is_one_device_and_its_runs_add_up() {
    let mut building = Building::begin();
    let one = building.row(("1", SOME), NONE);
    let mut other = building.row(("1", SOME), NONE);
    other.shape_key = building.id("x:1x3x448x448");
    building.add(&one);
    building.add(&other);
    let windows = building.built();
    assert_eq!((windows.len(), windows[0].votes.len()), (1, 2));
    assert_eq!((windows[0].n_devices(), windows[0].n_runs()), (1, 60));
    assert_eq!(windows[0].main_shape().unwrap().unwrap().histogram.n(), 30);
}

/// A runtime that renames nodes leaves the normalised fingerprint as it is.
#[test]
fn sessions_of_one_placement_are_one_vote_in_whichever_order_they_come() {
    let rows = [
        ("1.31/2.8", 3, "a"),
        ("1.31/2.7", 5, "c"),
        ("1.31/2.7", 4, "b"),
    ];
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let mut building = Building::begin();
        for (runtime, exact, reason) in order.map(|one: usize| rows[one]) {
            let mut row = building.placed(runtime, exact, reason);
            // The number of nodes shows which session decided.
            row.placed.counts.n_nodes = u32::try_from(exact).unwrap();
            building.add_session(row);
        }
        let windows = building.built();
        assert_eq!(windows[0].votes.len(), 1);
        let placement = &windows[0].votes[0].placement;
        assert_eq!((&*placement.runtime, placement.n_nodes), ("1.31/2.7", 4));
        assert_eq!(placement.reasons, ["a", "b", "c"]);
    }
}

/// Latency that arrived between the two queries has no placement.
#[test]
fn a_vote_without_its_placement_says_nothing_of_where_it_ran() {
    let mut building = Building::begin();
    let row = building.row(("1", SOME), NONE);
    building.add(&row);
    assert_eq!(building.built()[0].votes[0].placement.npu_share(), None);
}

/// On the day that a directive comes, most devices have a session with it and one without.
#[test]
fn those_that_a_directive_took_off_have_no_other_vote() {
    let sessions = [
        (1, false, "f1"),
        (1, true, "f1"),
        (2, true, "f1"),
        (3, true, "f2"),
        (3, true, "f1"),
    ];
    let mut building = Building::begin();
    for (device, is_directed, firmware) in sessions {
        let installation: Installation = [device; 16];
        let row = SessionRow {
            installation,
            ran: building.ran(firmware),
            is_directed,
            ..building.placed("1.31/2.7", 4, "a")
        };
        building.add_session(row);
    }
    let window = &building.built()[0];
    assert_eq!(window.voteless.directed, 3);
    let only: Vec<(&str, usize)> = window
        .voteless
        .only_directed
        .iter()
        .map(|(firmware, devices)| (&**firmware, devices.len()))
        .collect();
    assert_eq!(only, [("f1", 1), ("f2", 1)]);
    assert_eq!(window.of_firmware("f2").n_only_directed(), 1);
}

/// Reports of one session that were uploaded together.
#[test]
fn the_later_of_two_reports_received_at_once_says_what_the_device_was_used_to() {
    for order in [[1, 2], [2, 1]] {
        let mut building = Building::begin();
        for sequence in order {
            let version = if sequence == 1 { "0" } else { "1" };
            let row = SeriesRow {
                head: building.head((5, 6, sequence, 8)),
                ..building.row((version, SOME), NONE)
            };
            building.add(&row);
        }
        let latency = building.built()[0].votes[0].latency.clone().unwrap();
        let later = SelfBaselineKind::PreviousVersion("1".into());
        assert_eq!(latency.device_baseline.unwrap().kind, later);
    }
}
