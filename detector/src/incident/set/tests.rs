use std::time::Duration;

use epwatch_model::OrderKind::{self, *};
use epwatch_model::Severity;

use super::*;
use crate::incident::pins_references;
use crate::judge::placement::tests::placed;
use crate::judge::window::CohortWindow;
use crate::notify::{Notification, Occasion};
use crate::testing::{Fleet, at, judged, reference, tested};

const WINDOW: i64 = 3600;
const DAY: i64 = 86_400;
const HOUR: i64 = 3_600;
const FORGET: Duration = Duration::from_secs(14 * 86_400);

fn verdict(fleet: &Fleet, second: i64) -> CohortVerdict {
    let window = CohortWindow {
        end: at(second),
        ..fleet.window()
    };
    judged(&window, None, &reference())
}

fn sick(second: i64) -> CohortVerdict {
    verdict(&Fleet::with_fallback(1.0), second)
}

fn sick_devices(devices: u32, second: i64) -> CohortVerdict {
    let fleet = Fleet {
        devices,
        ..Fleet::with_fallback(1.0)
    };
    verdict(&fleet, second)
}

fn slower(slow_factor: f64, second: i64) -> CohortVerdict {
    let fleet = Fleet {
        slow_factor,
        ..Fleet::with_fallback(1.0)
    };
    verdict(&fleet, second)
}

fn healthy(second: i64) -> CohortVerdict {
    verdict(&Fleet::default(), second)
}

fn on(chipset: &str, mut verdict: CohortVerdict) -> CohortVerdict {
    verdict.key.chipset = chipset.into();
    verdict
}

fn of_version(version: &str, mut verdict: CohortVerdict) -> CohortVerdict {
    verdict.key.model_version = version.into();
    verdict
}

/// Incidents with one channel, to which news is delivered at once.
struct Course {
    set: IncidentSet,
    n: u64,
}

impl Course {
    fn new(stored: Vec<Incident>) -> Self {
        let pager = ("pager".to_owned(), Audience::default());
        Self {
            set: IncidentSet::new(BTreeMap::from([pager]), stored),
            n: 0,
        }
    }

    /// An incident that fires.
    fn firing() -> Self {
        let mut course = Self::new(Vec::new());
        assert_eq!(course.window(&[sick(0)]), [Occasion::Firing]);
        course
    }

    /// Returns the occasions of the news of a window.
    fn window(&mut self, verdicts: &[CohortVerdict]) -> Vec<Occasion> {
        self.set.advance(verdicts, FORGET, verdicts[0].window_end);
        self.deliver()
    }

    fn deliver(&mut self) -> Vec<Occasion> {
        let news = self.set.snapshot().into_iter();
        let news: Vec<Incident> = news
            .filter(|incident| incident.news > 0 && incident.has_news_for("pager"))
            .collect();
        let occasions = news.into_iter().map(|incident| {
            self.set.delivered(Delivered {
                incident_id: incident.id.clone(),
                notifier: "pager".into(),
                news: incident.news,
                outcome: AttemptOutcome::Taken,
            });
            Notification::news(incident).occasion
        });
        occasions.collect()
    }

    fn only(&self) -> Incident {
        let all = self.set.snapshot();
        assert_eq!(all.len(), 1, "{all:?}");
        all.into_iter().next().unwrap()
    }

    fn order(&mut self, kind: OrderKind, now: i64) -> Vec<Occasion> {
        let id = self.set.in_mind().next().unwrap().id.clone();
        self.order_of(&id, kind, now)
    }

    fn order_of(&mut self, id: &str, kind: OrderKind, now: i64) -> Vec<Occasion> {
        self.n += 1;
        let order = Order {
            n: self.n,
            kind,
            who: "Ada".into(),
            at: at(now),
            until: (kind == Mute).then(|| at(now + DAY)),
            why: "on it".into(),
        };
        assert!(self.set.apply_orders(&[(id.to_owned(), order)], at(now)));
        self.deliver()
    }
}

/// A window that was left out can show a fault that had no notification. It changes nothing that newer windows decided.
#[test]
fn an_earlier_window_opens_what_is_new_and_changes_nothing_else() {
    let mut course = Course::new(Vec::new());
    assert_eq!(course.window(&[healthy(9 * WINDOW)]), []);
    let earlier = |course: &mut Course, verdict: CohortVerdict| {
        let now = at(9 * WINDOW + 60);
        course.set.look_back(&[verdict], FORGET, now);
        course.deliver()
    };
    assert_eq!(earlier(&mut course, healthy(3 * WINDOW)), []);
    let told = earlier(&mut course, sick(4 * WINDOW));
    assert_eq!(told, [Occasion::Firing]);
    let open = course.set.snapshot();
    assert_eq!(earlier(&mut course, healthy(5 * WINDOW)), []);
    assert_eq!(earlier(&mut course, sick(6 * WINDOW)), []);
    assert_eq!(course.set.snapshot(), open);
    // Newer windows end the incident, and a window from before its end does not open it again.
    let newer = (10..15).flat_map(|n| course.window(&[healthy(n * WINDOW)]));
    assert_eq!(newer.collect::<Vec<_>>(), [Occasion::Resolved]);
    assert_eq!(earlier(&mut course, sick(7 * WINDOW)), []);
}

#[test]
fn an_ack_is_news_once_and_says_who() {
    let mut course = Course::firing();
    assert_eq!(course.order(Ack, 10), [Occasion::Acknowledged]);
    assert_eq!(course.only().orders.ack.unwrap().who, "Ada");
    assert_eq!(course.only().state, State::Firing);
    assert_eq!(course.order(Ack, 20), [], "it changes nothing");
    assert_eq!(course.window(&[sick(WINDOW)]), []);
    let grown = [sick(2 * WINDOW), on("SM7550", sick(2 * WINDOW))];
    assert_eq!(course.window(&grown), [Occasion::Grown]);
    assert_eq!(course.order(Reopen, 30), [Occasion::Reopened]);
    assert!(course.only().orders.ack.is_none());
    assert_eq!(course.order(Reopen, 40), []);
}

#[test]
fn an_order_is_handed_in_once() {
    let mut course = Course::firing();
    let id = course.only().id;
    course.order(Ack, 10);
    let again = Order {
        n: 1,
        ..course.only().orders.ack.unwrap()
    };
    assert!(!course.set.apply_orders(&[(id, again.clone())], at(20)));
    assert!(
        !course
            .set
            .apply_orders(&[("unknown".into(), again)], at(20))
    );
}

#[test]
fn a_mute_ends_by_itself_and_is_news_then() {
    let mut course = Course::firing();
    assert_eq!(course.order(Mute, 10), [Occasion::Muted]);
    let muted = |course: &Course, second| course.only().orders.is_muted(at(second));
    assert!(muted(&course, 10 + DAY - 1) && !muted(&course, 10 + DAY));
    assert!(!course.set.apply_orders(&[], at(DAY)));
    assert!(course.set.apply_orders(&[], at(10 + DAY)));
    assert_eq!(course.deliver(), [Occasion::Reopened]);
    assert!(course.only().orders.mute.is_none() && course.only().orders.was_muted);
    // A mute that arrives late is over before it begins.
    let order = Order {
        n: 9,
        kind: Mute,
        who: "Ada".into(),
        at: at(0),
        until: Some(at(10)),
        why: "late".into(),
    };
    course
        .set
        .apply_orders(&[(course.only().id, order)], at(3 * DAY));
    assert_eq!(course.deliver(), []);
}

#[test]
fn a_fault_that_was_resolved_is_quiet_until_half_as_many_devices_more_are_hit() {
    let mut course = Course::firing();
    assert_eq!(course.order(Resolve, 10), [Occasion::Resolved]);
    let ended = course.only();
    assert_eq!(
        (ended.state, ended.resolved_at),
        (State::Resolved, Some(at(10)))
    );
    assert_eq!(course.window(&[sick(WINDOW)]), []);
    assert_eq!(course.window(&[sick_devices(89, 2 * WINDOW)]), []);
    // A new chipset with a few devices is not growth by half.
    let few = on("SM7550", sick_devices(20, 3 * WINDOW));
    assert_eq!(course.window(&[sick(3 * WINDOW), few]), []);
    assert_eq!(course.set.n_open(), 0);
    assert_eq!(
        course.window(&[sick_devices(90, 4 * WINDOW)]),
        [Occasion::Firing]
    );
    assert_ne!(course.only().id, ended.id);
}

#[test]
fn a_fault_that_was_resolved_speaks_when_its_effect_grows_by_half() {
    let mut course = Course::firing();
    course.order(Resolve, 10);
    assert_eq!(course.window(&[slower(4.0, WINDOW)]), []);
    assert_eq!(
        course.window(&[slower(4.6, 2 * WINDOW)]),
        [Occasion::Firing]
    );
}

/// A fault that was called false by mistake notifies again.
#[test]
fn what_was_called_false_ends_and_speaks_when_it_grows_or_comes_back() {
    let mut course = Course::firing();
    assert_eq!(course.order(False, 10), [Occasion::Resolved]);
    assert_eq!(course.window(&[sick(WINDOW)]), []);
    assert_eq!(
        course.window(&[sick_devices(120, 2 * WINDOW)]),
        [Occasion::Firing]
    );

    let mut course = Course::firing();
    course.order(False, 10);
    assert_eq!(course.window(&[healthy(WINDOW)]), []);
    assert_eq!(course.window(&[sick(2 * WINDOW)]), [Occasion::Firing]);

    let mut course = Course::firing();
    course.order(False, 10);
    assert_eq!(course.order(Reopen, 20), [Occasion::Reopened]);
}

#[test]
fn a_fault_that_was_resolved_speaks_after_a_clean_window() {
    let mut course = Course::firing();
    course.order(Resolve, 10);
    assert_eq!(course.window(&[healthy(WINDOW)]), []);
    assert!(course.set.snapshot().is_empty(), "nothing is held any more");
    assert_eq!(course.window(&[sick(2 * WINDOW)]), [Occasion::Firing]);
}

#[test]
fn of_two_chipsets_that_were_resolved_the_one_that_was_clean_speaks() {
    let mut course = Course::new(Vec::new());
    assert_eq!(
        course.window(&[sick(0), on("SM7550", sick(0))]),
        [Occasion::Firing]
    );
    course.order(Resolve, 10);
    let clean = on("SM7550", healthy(WINDOW));
    assert_eq!(course.window(&[sick(WINDOW), clean]), []);
    let back = on("SM7550", sick(2 * WINDOW));
    assert_eq!(course.window(&[sick(2 * WINDOW), back]), [Occasion::Firing]);
    assert_eq!(course.set.n_open(), 1);
}

/// The references from before the fault stay. Otherwise the fault would become the version's usual state.
#[test]
fn what_was_resolved_pins_references_and_what_was_accepted_does_not() {
    let mut course = Course::firing();
    assert!(pins_references(&course.only()));
    course.order(Resolve, 10);
    assert!(pins_references(&course.only()));
    let mut course = Course::firing();
    course.order(Accept, 10);
    assert!(!pins_references(&course.only()));
}

#[test]
fn a_new_cause_and_another_version_always_speak() {
    for kind in [Resolve, Accept] {
        let mut course = Course::firing();
        course.order(kind, 10);
        let next = of_version("3.0.0", sick(WINDOW));
        assert_eq!(course.window(&[sick(WINDOW), next]), [Occasion::Firing]);
        let wrong = tested(Fleet::default().window(), 0..25, "bb", "f1", 0.4);
        let window = CohortWindow {
            end: at(2 * WINDOW),
            ..wrong
        };
        let wrong = judged(&window, None, &reference());
        assert_eq!(course.window(&[wrong]), [Occasion::Firing], "{kind}");
    }
}

#[test]
fn what_was_accepted_is_quiet_until_it_gets_worse() {
    let mut course = Course::firing();
    assert_eq!(course.order(Accept, 10), [Occasion::Resolved]);
    // The version reaches more devices, and has a clean window. Neither ends the hold.
    assert_eq!(course.window(&[sick_devices(200, WINDOW)]), []);
    assert_eq!(course.window(&[healthy(2 * WINDOW)]), []);
    assert_eq!(course.window(&[slower(3.2, 3 * WINDOW)]), []);
    assert_eq!(
        course.window(&[slower(4.0, 4 * WINDOW)]),
        [Occasion::Firing]
    );

    let mut course = Course::firing();
    course.order(Accept, 10);
    let more_on_cpu = Fleet {
        hit_placement: placed(22, 10, 15, Some(0.4)),
        ..Fleet::with_fallback(1.0)
    };
    let moved = verdict(&more_on_cpu, WINDOW);
    assert_eq!(course.window(&[moved]), [Occasion::Firing]);

    let mut course = Course::firing();
    course.order(Accept, 10);
    let other = on("SM7550", sick(WINDOW));
    assert_eq!(course.window(&[other]), [Occasion::Firing], "a new chipset");
}

#[test]
fn wrong_outputs_are_never_accepted() {
    let wrong = tested(Fleet::default().window(), 0..25, "bb", "f1", 0.4);
    let wrong = judged(&wrong, None, &reference());
    let mut course = Course::new(Vec::new());
    assert_eq!(
        course.window(std::slice::from_ref(&wrong)),
        [Occasion::Firing]
    );
    assert_eq!(course.order(Accept, 10), []);
    assert_eq!(course.only().state, State::Firing);
    assert_eq!(course.order(Resolve, 20), [Occasion::Resolved]);
}

#[test]
fn reopen_takes_a_resolve_back_unless_the_fault_speaks_again() {
    let mut course = Course::firing();
    let id = course.only().id;
    course.order(Resolve, 10);
    assert_eq!(course.order(Reopen, 20), [Occasion::Reopened]);
    let incident = course.only();
    assert_eq!((&incident.id, incident.state), (&id, State::Firing));
    assert!(incident.resolved_at.is_none() && incident.orders.end.is_none());
    assert_eq!(course.window(&[sick(WINDOW)]), []);

    course.order(Resolve, 30);
    assert_eq!(
        course.window(&[sick_devices(120, 2 * WINDOW)]),
        [Occasion::Firing]
    );
    assert_eq!(course.set.n_open(), 1);
    let again = course.only().id;
    assert_ne!(again, id);
    // The first incident is over and not held, so an order about it finds nothing.
    assert!(!course.set.to_be_ordered().contains_key(&id));
}

#[test]
fn orders_of_what_is_over_or_pending_change_nothing() {
    let mut course = Course::new(Vec::new());
    let few = sick_devices(6, 0);
    assert_eq!(few.severity, Severity::Page);
    assert_eq!(course.window(&[few]), []);
    assert_eq!(course.only().state, State::Pending);
    for kind in OrderKind::ALL {
        assert_eq!(course.order(*kind, 10), [], "{kind}");
    }
    let mut course = Course::firing();
    course.order(Resolve, 10);
    for kind in [Ack, Mute, Resolve, Accept, False] {
        assert_eq!(course.order(kind, 20), [], "{kind}");
    }
    assert_eq!(course.order(Reopen, 30), [Occasion::Reopened]);
}

/// A restart reads the document, and the fault stays quiet.
#[test]
fn a_hold_outlives_the_detector() {
    let mut course = Course::firing();
    course.order(Resolve, 10);
    course.window(&[sick(WINDOW)]);
    let stored = serde_json::to_string(&course.only()).unwrap();
    let mut course = Course::new(vec![serde_json::from_str(&stored).unwrap()]);
    assert_eq!(course.window(&[sick(2 * WINDOW)]), []);
    assert_eq!(
        course.window(&[sick_devices(120, 3 * WINDOW)]),
        [Occasion::Firing]
    );
}

/// A version that no device runs any more is forgotten.
#[test]
fn a_hold_ends_when_its_version_is_gone() {
    let mut course = Course::firing();
    course.order(Accept, 10);
    course.window(&[of_version("3.0.0", healthy(13 * DAY))]);
    assert_eq!(course.set.to_be_ordered().len(), 1);
    course.window(&[of_version("3.0.0", healthy(14 * DAY))]);
    assert_eq!(course.set.to_be_ordered().len(), 0);
}

/// A time at which a check for recoveries is due, so many hours after the fault began.
fn looked_at(hours: i64) -> i64 {
    let off = at(0).as_second().rem_euclid(3 * HOUR);
    hours * HOUR - off
}

impl Course {
    /// Returns the occasions of the news of a shorter window: 18 hours of a day.
    fn shorter_window(&mut self, verdicts: &[CohortVerdict]) -> Vec<Occasion> {
        let (day, hour) = (Duration::from_secs(86_400), Duration::from_secs(3_600));
        let end = verdicts[0].window_end;
        let recovery = RecoveryWindow::looked_for(end, day, hour).unwrap();
        self.set.recover(verdicts, recovery, end);
        self.deliver()
    }
}

#[test]
fn a_fault_that_recovered_ends_and_its_old_runs_stay_quiet_for_three_windows() {
    let mut course = Course::firing();
    let end = looked_at(24);
    assert_eq!(course.shorter_window(&[healthy(end)]), [Occasion::Resolved]);
    // A detector that starts then behaves the same.
    let stored = course.set.snapshot().into_iter().map(|incident| {
        let document = serde_json::to_string(&incident).unwrap();
        serde_json::from_str(&document).unwrap()
    });
    let mut course = Course::new(stored.collect());
    for hours in [1, 2, 71] {
        // A clean window in between, because few devices ran, does not end the quiet period. A larger effect on the few
        // devices left does not end it either.
        let at = end + hours * HOUR;
        assert_eq!(course.window(&[healthy(at)]), []);
        assert_eq!(course.window(&[slower(8.0, at + 600)]), []);
    }
    let later = course.window(&[sick(end + 72 * HOUR)]);
    assert_eq!(later, [Occasion::Firing]);
}

/// The incident recovered while the clock was ahead.
#[test]
fn a_fault_speaks_again_when_the_clock_is_set_back_before_its_recovery() {
    let mut course = Course::firing();
    course.window(&[sick(100 * DAY)]);
    assert_eq!(
        course.shorter_window(&[healthy(looked_at(24 * 101))]),
        [Occasion::Resolved]
    );
    assert_eq!(course.window(&[sick(DAY)]), [Occasion::Firing]);
}

#[test]
fn another_chipset_or_version_speaks_while_a_fault_is_quiet() {
    for other in [
        on("SM8650", sick(looked_at(25))),
        of_version("2.0.1", sick(looked_at(25))),
    ] {
        let mut course = Course::firing();
        course.shorter_window(&[healthy(looked_at(24))]);
        assert_eq!(course.window(&[other]), [Occasion::Firing]);
    }
}

#[test]
fn a_relapse_in_a_shorter_window_speaks_with_the_next_window() {
    let mut course = Course::firing();
    course.shorter_window(&[healthy(looked_at(24))]);
    let id = course.only().id;
    assert_eq!(course.window(&[sick(looked_at(27))]), []);
    assert_eq!(course.shorter_window(&[sick(looked_at(27))]), []);
    assert_eq!(course.window(&[sick(looked_at(28))]), [Occasion::Firing]);
    assert_ne!(course.only().id, id);
}

#[test]
fn a_shorter_window_that_is_not_sure_ends_nothing() {
    let end = looked_at(24);
    let of = |devices| {
        let fleet = Fleet {
            devices,
            ..Fleet::default()
        };
        verdict(&fleet, end)
    };
    let one_firmware = {
        let mut verdict = of(60);
        verdict.key.firmware = Some("f1".into());
        verdict
    };
    for unsure in [
        sick(end),
        // Fewer than half of the 60 devices hit.
        of(29),
        on("SM8650", healthy(end)),
        of_version("2.0.1", healthy(end)),
        one_firmware,
    ] {
        let mut course = Course::firing();
        assert_eq!(course.shorter_window(&[unsure]), []);
        assert_eq!(course.set.n_open(), 1);
    }
    let mut course = Course::firing();
    assert_eq!(course.shorter_window(&[of(30)]), [Occasion::Resolved]);
}

/// A day after the repair, few devices hit are left in the usual window. They alone would leave a shorter window
/// unsure.
#[test]
fn a_repair_is_sure_by_the_window_with_the_most_hits() {
    let end = looked_at(48);
    let few_left = Fleet {
        hit_share: 0.1,
        ..Fleet::with_fallback(1.0)
    };
    let of = |devices| {
        let fleet = Fleet {
            devices,
            ..Fleet::default()
        };
        verdict(&fleet, end)
    };
    let mut course = Course::firing();
    course.window(&[verdict(&few_left, end - HOUR)]);
    // In the last window 6 of 60 devices are hit, before it all 60.
    assert_eq!(course.shorter_window(&[of(29)]), []);
    assert_eq!(course.shorter_window(&[of(30)]), [Occasion::Resolved]);
}

/// A firmware with few devices is hardly ever certainly clean by itself.
#[test]
fn a_firmware_recovers_with_its_chipset() {
    let end = looked_at(24);
    let part = |mut verdict: CohortVerdict| {
        verdict.key.firmware = Some("f1".into());
        verdict
    };
    let few = |hit_share, at| {
        let fleet = Fleet {
            devices: 10,
            hit_share,
            ..Fleet::with_fallback(1.0)
        };
        part(verdict(&fleet, at))
    };
    let course = || {
        let mut course = Course::new(Vec::new());
        course.window(&[sick(0), few(0.4, 0)]);
        course
    };
    assert_eq!(course().shorter_window(&[few(0.0, end)]), []);
    assert_eq!(course().shorter_window(&[healthy(end), few(0.4, end)]), []);
    assert_eq!(
        course().shorter_window(&[healthy(end), few(0.0, end)]),
        [Occasion::Resolved]
    );
}

/// An incident ends on all of its chipsets, or on none.
#[test]
fn a_fault_on_two_chipsets_ends_when_both_are_clean() {
    let mut course = Course::new(Vec::new());
    course.window(&[sick(0), on("SM8650", sick(0))]);
    let end = looked_at(24);
    let other = |verdict| on("SM8650", verdict);
    assert_eq!(course.shorter_window(&[healthy(end), other(sick(end))]), []);
    assert_eq!(
        course.shorter_window(&[healthy(end), other(healthy(end))]),
        [Occasion::Resolved]
    );
}

#[test]
fn recoveries_are_looked_for_every_three_hours_in_windows_that_are_long_enough() {
    let hour = Duration::from_secs(3_600);
    let looked_for =
        |second, window| RecoveryWindow::looked_for(at(second), window, hour).map(|it| it.window);
    let day = 24 * hour;
    assert_eq!(looked_for(looked_at(24), day), Some(18 * hour));
    assert_eq!(looked_for(looked_at(24), 8 * hour), Some(6 * hour));
    assert_eq!(looked_for(looked_at(24), 7 * hour), None);
    assert_eq!(looked_for(looked_at(25), day), None);
}
