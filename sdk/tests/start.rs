//! While the SDK starts and sessions begin, run and end, the caller's thread touches no file and no network.
//!
//! The test binary replaces functions of libc by its own, which count by thread and then call the system. std and all
//! code above it call them.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test's helpers fail the test")]

#[expect(unsafe_code, reason = "stands in for functions of libc")]
mod counted;

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use epwatch_proto::{Placement, ReasonCode, SessionOptions, StartPhase};
use epwatch_sdk::{Conditions, ModelInfo, SdkConfig, Watch, simulated_device};

/// Calls of this thread while `work` runs.
fn calls_of(work: impl FnOnce()) -> u64 {
    let before = counted::OF_THREAD.get();
    work();
    counted::OF_THREAD.get() - before
}

#[test]
fn starting_and_recording_touch_no_file_and_no_network_on_the_callers_thread() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("made by the SDK");
    assert_eq!(calls_of(|| drop(std::fs::File::open("/proc/self/stat"))), 1);
    let of_connecting = calls_of(|| drop(std::net::TcpStream::connect("127.0.0.1:1")));
    assert!(of_connecting >= 2, "a socket and a connection are counted");

    let of_process = counted::OF_PROCESS.load(Relaxed);
    let mut watch = None;
    let calls = calls_of(|| {
        let config = SdkConfig::builder("app", "http://127.0.0.1:1", "key", &folder)
            .with_device(simulated_device("SM8650"))
            .build()
            .unwrap();
        let started = watch.insert(Watch::start(config).unwrap());
        started.set_conditions(&Conditions::unknown());
        let model = || ModelInfo::new("m", "1").unwrap();
        let placement = Placement::unavailable(vec![], ReasonCode::AssignmentApiUnavailable);
        let options = SessionOptions::default();
        let session = started.simulated_session(model(), placement, options);
        for _ in 0..100 {
            session.run(|| ());
        }
        drop(session);
        let phase = StartPhase::SessionCreation;
        started.start_failed(model(), &[], phase, ReasonCode::Unknown, "no");
        assert_eq!(started.explain().spool_reports, 0);
    });
    assert_eq!(calls, 0);

    // The SDK's own thread opens files, which shows that calls are counted.
    let watch = watch.unwrap();
    watch.flush(Duration::from_secs(30)).unwrap_err();
    assert!(counted::OF_PROCESS.load(Relaxed) > of_process);
    assert!(folder.is_dir());
    assert!(watch.stop(Duration::from_secs(30)));
}
