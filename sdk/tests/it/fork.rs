//! Children of a process that has started the SDK have a stream and a thread of their own, without a call by the app.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use epwatch_sdk::{Conditions, NetworkKind, Watch, simulation::SimulatedSession, types::Thermal};

use crate::support::{TIMEOUT, app, is_alone, run, session, session_of};

/// Runs this in a child, and waits for its end. A child that hangs is ended by its alarm.
#[track_caller]
fn in_child(child: impl FnOnce()) {
    // SAFETY: the child allocates, which glibc allows, takes no lock of this test, and leaves without destructors.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as before.
        unsafe { libc::alarm(u32::try_from(TIMEOUT.as_secs()).unwrap()) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        // SAFETY: as before.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = -1;
    // SAFETY: the status is a variable of this function.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "as waitpid returns it");
}

fn measured(session: &SimulatedSession, n: u64) {
    for _ in 0..n {
        session.run(|| thread::sleep(Duration::from_micros(1)));
    }
}

/// Records runs under the parent's conditions; they belong to a session of the child.
fn child(watch: &Watch, observed: &SimulatedSession) {
    measured(observed, 20);
    run(&session_of(watch, "of the child", "1"), 3);
    assert!(watch.explain().last_problem.is_none());
    watch.flush(TIMEOUT).unwrap();
    in_child(|| {
        measured(observed, 5);
        watch.flush(TIMEOUT).unwrap();
        watch.stop(TIMEOUT).unwrap();
    });
    watch.stop(TIMEOUT).unwrap();
}

#[test]
fn a_child_starts_again_whatever_other_threads_of_its_parent_do() {
    const CHILDREN: u64 = 6;
    if !is_alone(a_child_starts_again_whatever_other_threads_of_its_parent_do) {
        return;
    }
    let (_dir, collector, watch) = app();
    watch.set_conditions(&Conditions::unknown().with_thermal(Thermal::Severe));
    let observed = session(&watch);
    measured(&observed, 10);
    watch.flush(TIMEOUT).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // One of the SDK's locks is held at nearly every moment.
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let _ = watch.explain();
                    watch.set_network(NetworkKind::Unmetered);
                }
            });
        }
        for _ in 0..CHILDREN {
            in_child(|| child(&watch, &observed));
        }
        // A child that does not use the SDK does not start it, and its end changes nothing.
        in_child(|| watch.stop(TIMEOUT).unwrap());
        stop.store(true, Relaxed);
    });
    measured(&observed, 7);
    watch.flush(TIMEOUT).unwrap();
    let reports = collector.reports();
    let series = || reports.iter().flat_map(|report| &report.series);
    let n_runs: u64 = series().map(|series| series.n).sum();
    assert_eq!(n_runs, 17 + CHILDREN * (20 + 3 + 5));
    assert!(
        series().all(|series| series.stratum.thermal == Thermal::Severe.into() || series.n == 3)
    );
    let streams: BTreeSet<_> = reports.iter().map(|report| report.key.stream).collect();
    assert_eq!(streams.len() as u64, 1 + 2 * CHILDREN);
    let sessions: BTreeSet<_> = series().map(|series| series.session_uid).collect();
    assert_eq!(sessions.len() as u64, 1 + 3 * CHILDREN);
    let folders: BTreeSet<_> = reports.iter().map(|r| r.key.installation).collect();
    assert_eq!(folders.len(), 1);
}
