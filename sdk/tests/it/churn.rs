//! Runs that panic, and thousands of sessions. The SDK continues within little memory, and every run is in a report or
//! counted as lost.

use std::panic::{AssertUnwindSafe, catch_unwind};

use epwatch_proto::{DropReason, SdkHealth};
use epwatch_sdk::{FlushError, Watch};

use crate::support::{NOWHERE, TIMEOUT, config, is_alone, session, start};

/// The SDK's counters after all runs are sealed.
fn sealed(watch: &Watch) -> SdkHealth {
    // The upload fails, because no collector listens. All runs are sealed before it.
    let error = watch.flush(TIMEOUT).unwrap_err();
    assert!(matches!(error, FlushError::Upload(_)), "{error:?}");
    watch.health()
}

#[test]
fn a_run_that_panics_is_the_hosts_panic_and_no_run() {
    let dir = tempfile::tempdir().unwrap();
    let watch = start(config(dir.path(), NOWHERE));
    let session = session(&watch);
    for run in 0..10 {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            session.run(|| assert!(run % 2 == 0, "the host's own"));
        }));
        assert_eq!(outcome.is_ok(), run % 2 == 0);
    }
    let health = sealed(&watch);
    assert_eq!((health.runs_observed, health.runs_recorded), (5, 5));
    watch.stop(TIMEOUT).unwrap();
}

#[test]
fn ten_thousand_sessions_leave_no_run_uncounted_and_no_memory_behind() {
    if !is_alone(ten_thousand_sessions_leave_no_run_uncounted_and_no_memory_behind) {
        return;
    }
    const SESSIONS: u64 = 10_000;
    let dir = tempfile::tempdir().unwrap();
    let watch = start(config(dir.path(), NOWHERE));
    session(&watch).run(|| ());
    let before = resident_bytes();
    for _ in 0..SESSIONS {
        let session = session(&watch);
        for _ in 0..5 {
            session.run(|| ());
        }
    }
    // The sessions would take 20 kB each if they were kept until the seal.
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 100 << 20, "{grown} bytes");
    let health = sealed(&watch);
    assert_eq!(health.runs_observed, 5 * SESSIONS + 1);
    // If the disk was slower than the sessions, the oldest intervals were dropped.
    let given_up = health.dropped.get(&DropReason::SpoolFull);
    let given_up = given_up.copied().unwrap_or_default();
    assert_eq!(given_up.reports, 0);
    assert_eq!(health.runs_recorded + given_up.runs, health.runs_observed);
    watch.stop(TIMEOUT).unwrap();
}

#[cfg(target_os = "linux")]
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("VmRSS:"))
        .unwrap();
    let kilobytes = line.trim().trim_end_matches(" kB");
    1024 * kilobytes.parse::<u64>().unwrap()
}

#[cfg(not(target_os = "linux"))]
fn resident_bytes() -> u64 {
    0
}
