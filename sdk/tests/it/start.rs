//! While the SDK starts and sessions begin, run and end, the caller's thread touches no file and no network.

use std::time::Duration;

use epwatch_io_faults::{calls_of, calls_of_process};
use epwatch_proto::{Placement, ReasonCode, SessionOptions, StartPhase};
use epwatch_sdk::{Conditions, ModelInfo, SdkConfig, Watch, simulation::simulated_device};

#[test]
fn starting_and_recording_touch_no_file_and_no_network_on_the_callers_thread() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("made by the SDK");
    assert_eq!(calls_of(|| drop(std::fs::File::open("/proc/self/stat"))), 1);
    let of_connecting = calls_of(|| drop(std::net::TcpStream::connect("127.0.0.1:1")));
    assert!(of_connecting >= 2, "a socket and a connection are counted");

    let of_process = calls_of_process();
    let mut watch = None;
    let calls = calls_of(|| {
        let config = SdkConfig::builder("app", "http://127.0.0.1:1", "key", &folder)
            .with_consent(true)
            .with_device(simulated_device("SM8650").into())
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
        started.start_failed(model(), &[], phase.into(), ReasonCode::Unknown.into(), "no");
        assert_eq!(started.explain().spool_reports, 0);
    });
    assert_eq!(calls, 0);

    // The SDK's own thread opens files, which shows that calls are counted.
    let watch = watch.unwrap();
    watch.flush(Duration::from_secs(30)).unwrap_err();
    assert!(calls_of_process() > of_process);
    assert!(folder.is_dir());
    watch.stop(Duration::from_secs(30)).unwrap();
}
