//! How far a detector has judged, against its timetable: the reason why it is not ready, and metrics. A leader notes
//! the windows that it judges, and a standby the windows that the leader judged. So each shows that the fleet is
//! watched.

use std::sync::Arc;

use epwatch_server::{Clock, ReadValue, Scraped};
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use crate::run::timetable::Timetable;

/// The event that a detector waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    /// The lease: another detector leads, or the store does not answer.
    Lease,
    /// The stored incidents, which are being read.
    Incidents,
    /// The window's end, or its last reports.
    Reports,
    /// It judges.
    Evaluation,
    /// The next attempt after a failure.
    Retry,
}

impl WaitsFor {
    fn as_words(self) -> &'static str {
        match self {
            WaitsFor::Lease => "the lease, which another detector holds unless the store is away",
            WaitsFor::Incidents => "the stored incidents",
            WaitsFor::Reports => "the last reports of the window",
            WaitsFor::Evaluation => "the evaluation, which is under way",
            WaitsFor::Retry => {
                "another try, because the window could not be judged; the log says why"
            }
        }
    }
}

/// The progress of one detector.
#[derive(Debug)]
pub(crate) struct Judging {
    timetable: Timetable,
    clock: Arc<dyn Clock>,
    started: Timestamp,
    state: Mutex<Progress>,
}

#[derive(Debug, Clone, Copy)]
struct Progress {
    judged_until: Option<Timestamp>,
    waits_for: WaitsFor,
    since: Timestamp,
    n_behind: usize,
    n_behind_logged: usize,
    seconds: f64,
    was_late: bool,
}

/// The next window, the time when it is or was due, and the time from which it is late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Due {
    end: Timestamp,
    at: Timestamp,
    late_from: Timestamp,
}

impl Judging {
    /// Begins now.
    pub(crate) fn new(timetable: Timetable, clock: Arc<dyn Clock>) -> Self {
        let started = clock.now();
        let state = Progress {
            judged_until: None,
            waits_for: WaitsFor::Lease,
            since: started,
            n_behind: 0,
            n_behind_logged: 0,
            seconds: 0.0,
            was_late: false,
        };
        Self {
            timetable,
            clock,
            started,
            state: Mutex::new(state),
        }
    }

    pub(crate) fn timetable(&self) -> &Timetable {
        &self.timetable
    }

    /// Notes that the newest window was judged, by this detector or by the one that leads.
    pub(crate) fn judged(&self, end: Timestamp) {
        self.state.lock().judged_until = Some(end);
    }

    /// Notes how long the last evaluation took.
    pub(crate) fn took(&self, seconds: f64) {
        self.state.lock().seconds = seconds;
    }

    /// Notes the number of earlier windows that are still to be judged. Writes a log line when the first one is left
    /// out, each time the number has doubled, and when none is left.
    pub(crate) fn is_behind(&self, n: usize) {
        let mut state = self.state.lock();
        state.n_behind = n;
        let logged = state.n_behind_logged;
        if n > 0 && n >= 2 * logged {
            state.n_behind_logged = n;
            drop(state);
            let why = self.notes().join("; ");
            tracing::warn!(why, "windows are left out, and judged later");
        } else if n == 0 && logged > 0 {
            state.n_behind_logged = 0;
            tracing::info!("all windows that were left out are judged");
        }
    }

    /// Returns how far behind the detector is, if it left windows out.
    pub(crate) fn notes(&self) -> Vec<String> {
        let state = *self.state.lock();
        if state.n_behind == 0 {
            return Vec::new();
        }
        let step = self.timetable.step_seconds();
        vec![format!(
            "the detector is {} windows behind: the newest one is judged first, earlier ones when none is due; the last \
             evaluation took {:.1} s of a step of {step:.0} s",
            state.n_behind, state.seconds
        )]
    }

    pub(crate) fn waits_for(&self, what: WaitsFor) {
        let mut state = self.state.lock();
        if state.waits_for != what {
            (state.waits_for, state.since) = (what, self.clock.now());
        }
    }

    fn due(&self, state: &Progress, now: Timestamp) -> Due {
        // A window in the future was judged while the clock was ahead, and does not count.
        let judged = state.judged_until.filter(|end| *end <= now);
        let next = judged.map(|end| self.timetable.after(end));
        let newest = || self.timetable.newest_due(self.started);
        let end = next.or_else(newest).unwrap_or(self.started);
        // Windows that were missed before the start are due at the start.
        let at = self.timetable.due_at(end).max(self.started);
        let late_from = self.timetable.late_from(at);
        Due { end, at, late_from }
    }

    /// Whether a window that is late has not been judged.
    pub(crate) fn is_late(&self) -> bool {
        let (state, now) = (*self.state.lock(), self.clock.now());
        now > self.due(&state, now).late_from
    }

    /// Returns the missing window, the time since which it is due, and the time until which it is not late. Returns
    /// nothing if the last judgement is in time.
    pub(crate) fn not_ready(&self) -> Vec<String> {
        let (state, now) = (*self.state.lock(), self.clock.now());
        let Due { end, at, late_from } = self.due(&state, now);
        let what = state.waits_for.as_words();
        let waits = format!("since {:.0} it waits for {what}", state.since);
        if state.judged_until.is_none() {
            let text = format!(
                "the detector knows of no judged window yet: {waits}; that is late from {late_from:.0} on"
            );
            return vec![text];
        }
        if now <= late_from {
            return Vec::new();
        }
        vec![format!(
            "the window that ended at {end:.0} was due at {at:.0}, and is late since {late_from:.0}: {waits}"
        )]
    }

    /// Logs once when judgements get late, and once when they are in time again.
    pub(crate) fn log_lateness(&self) {
        let is_late = self.is_late();
        let was_late = std::mem::replace(&mut self.state.lock().was_late, is_late);
        match (was_late, is_late) {
            (false, true) => {
                let why = self.not_ready().join("; ");
                tracing::warn!(why, "windows are judged late");
            }
            (true, false) => tracing::info!("windows are judged in time again"),
            _ => {}
        }
    }

    /// Returns the metrics.
    pub(crate) fn registry(self: &Arc<Self>) -> Registry {
        let judging = self.clone();
        let mut registry = Registry::with_prefix("epwatch_detector");
        registry.register_collector(Box::new(Scraped(move || {
            let (state, now) = (*judging.state.lock(), judging.clock.now());
            let due = judging.due(&state, now);
            #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970")]
            let seconds = |at: Timestamp| ReadValue::GaugeF64(at.as_millisecond() as f64 / 1e3);
            [
                (
                    "next_window_end_timestamp_seconds",
                    "End of the next window to judge, since 1970",
                    seconds(due.end),
                ),
                (
                    "next_evaluation_timestamp_seconds",
                    "Time at which the next window is or was due, since 1970",
                    seconds(due.at),
                ),
                (
                    "evaluation_deadline_timestamp_seconds",
                    "Time from which that window is judged late, since 1970",
                    seconds(due.late_from),
                ),
                (
                    "last_evaluation_seconds",
                    "Time that the last evaluation took",
                    ReadValue::GaugeF64(state.seconds),
                ),
                (
                    "windows_behind",
                    "Earlier windows that were left out and are still to be judged",
                    ReadValue::Gauge(state.n_behind as u64),
                ),
            ]
        })));
        registry
    }
}

#[cfg(test)]
mod tests {
    use epwatch_server::ManualClock;

    use super::*;
    use crate::run::config::DetectorConfig;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Checks [O1]: the window until 12:00 was not judged at 12:35, and no check failed.
    #[test]
    fn a_window_that_is_not_judged_in_time_makes_the_detector_not_ready() {
        let noon = 1_800_000_000 / 3_600 * 3_600;
        let clock = Arc::new(ManualClock::at(at(noon - 400)));
        let timetable = Timetable::of(&DetectorConfig::default());
        let judging = Arc::new(Judging::new(timetable, clock.clone()));
        let reasons = judging.not_ready();
        assert!(reasons[0].contains("no judged window yet"), "{reasons:?}");
        judging.judged(at(noon - 3_600));
        judging.waits_for(WaitsFor::Reports);
        for (second, is_late) in [
            (0, false),
            (120, false),
            (1_020, false),
            (1_021, true),
            (2_100, true),
        ] {
            clock.set(at(noon + second));
            assert_eq!(judging.is_late(), is_late, "{second}");
            assert_eq!(judging.not_ready().is_empty(), !is_late, "{second}");
        }
        let text = judging.not_ready().remove(0);
        for part in [at(noon), at(noon + 120), at(noon + 1_020)] {
            assert!(text.contains(&format!("{part:.0}")), "{text}");
        }
        assert!(text.contains("the last reports of the window"), "{text}");
        judging.judged(at(noon));
        assert!(judging.not_ready().is_empty());
        // The clock was a day ahead.
        judging.judged(at(noon + 86_400));
        clock.set(at(noon + 5_000));
        assert!(judging.is_late());
    }

    /// Checks [O14]: 290 windows behind, with an empty log and nothing on `/readyz`.
    #[test]
    fn a_detector_that_left_windows_out_says_how_many() {
        let clock = Arc::new(ManualClock::at(at(100_000)));
        let timetable = Timetable::of(&DetectorConfig::for_demo());
        let judging = Judging::new(timetable, clock);
        assert_eq!(judging.notes(), Vec::<String>::new());
        judging.took(6.0);
        judging.is_behind(290);
        let notes = judging.notes().join("");
        assert!(notes.contains("290 windows behind"), "{notes}");
        assert!(notes.contains("took 6.0 s of a step of 3 s"), "{notes}");
        judging.is_behind(0);
        assert_eq!(judging.notes(), Vec::<String>::new());
    }

    /// After a downtime, a missed window is due from the start of the detector on.
    #[test]
    fn what_was_missed_before_the_start_is_due_at_the_start() {
        let clock = Arc::new(ManualClock::at(at(100_000)));
        let timetable = Timetable::of(&DetectorConfig::default());
        let judging = Arc::new(Judging::new(timetable, clock.clone()));
        judging.judged(at(36_000));
        assert!(!judging.is_late());
        clock.set(at(100_901));
        assert!(judging.is_late());
        let text = epwatch_server::open_metrics([&judging.registry()]);
        for line in [
            "epwatch_detector_next_window_end_timestamp_seconds 39600.0",
            "epwatch_detector_next_evaluation_timestamp_seconds 100000.0",
            "epwatch_detector_evaluation_deadline_timestamp_seconds 100900.0",
            "epwatch_detector_windows_behind 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
