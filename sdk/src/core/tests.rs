use epwatch_proto::{
    BaselineKind, DeviceType, EpBackend, Phase, Placement, ReasonCode, Report, SelfTest,
    SessionUid, StartPhase, placement::QNN_EP,
};
use proptest::prelude::*;
use std::{collections::BTreeSet, thread};

use super::*;
use crate::{
    ModelInfo, random_session_uid, random_stream, recorder::SessionRecorder, simulated_device,
};

fn at(seconds: u64) -> Now {
    let wall = 1_800_000_000_000 + 1000 * i64::try_from(seconds).unwrap();
    Now::simulated(Duration::from_secs(seconds), wall)
}

/// A core without an installation.
fn core_at_start() -> Core {
    let config = CoreConfig::new("app", simulated_device("SM8650")).unwrap();
    Core::new(config, random_stream(), at(0))
}

fn core() -> Core {
    let mut core = core_at_start();
    core.set_installation(InstallationId::from_secret(b"secret"));
    core
}

fn placement() -> Placement {
    Placement::unavailable(
        vec![QNN_EP.to_owned()],
        ReasonCode::AssignmentApiUnavailable,
    )
}

fn open(core: &mut Core, version: &str, now: Now) -> Arc<SessionRecorder> {
    let model = ModelInfo::new("m", version).unwrap();
    core.open_session(SessionInfo::new(model, placement()), now)
}

fn run(recorder: &SessionRecorder, n: u64, ms: u64) {
    for _ in 0..n {
        let at = Duration::from_secs(5);
        recorder.record(at, Duration::from_millis(ms), "static");
    }
}

/// Parses sealed reports as a collector does, and fails if one is refused.
#[track_caller]
fn parse(sealed: &[SealedReport]) -> Vec<Report> {
    sealed
        .iter()
        .map(|s| {
            let report = Report::parse(&s.bytes).unwrap();
            assert_eq!(report.key, s.key);
            assert_eq!(report.n_dropped_series(&s.bytes), 0);
            assert_eq!(report.series.iter().map(|s| s.n).sum::<u64>(), s.runs);
            report
        })
        .collect()
}

#[test]
fn an_interval_becomes_one_report() {
    let mut core = core();
    let recorder = open(&mut core, "1", at(1));
    run(&recorder, 10, 8);
    recorder.record_error(11);
    let reports = parse(&core.seal(at(60)));
    let [report] = &reports[..] else {
        panic!("{reports:?}");
    };
    assert_eq!(report.key.sequence.get(), 1);
    assert_eq!(report.sessions.len(), 1);
    assert_eq!(report.series.len(), 2);
    assert_eq!(report.run_errors[0].ort_status_code, 11);
    assert_eq!(report.health.runs_recorded, 10);
    assert_eq!(report.interval_length_ms, 60_000);
    assert_eq!(report.device.chipset.as_str(), "SM8650");
}

#[test]
fn nothing_new_is_nothing_sealed() {
    let mut core = core();
    assert!(core.seal(at(60)).is_empty());
    let recorder = open(&mut core, "1", at(61));
    // The placement is reported even before the first run.
    assert_eq!(parse(&core.seal(at(120)))[0].sessions.len(), 1);
    assert!(core.seal(at(180)).is_empty());
    run(&recorder, 1, 8);
    recorder.close();
    let reports = parse(&core.seal(at(240)));
    assert_eq!(reports[0].key.sequence.get(), 2);
    assert_eq!(reports[0].interval_start_unix_ms, at(180).wall_unix_ms);
    assert_eq!(core.sessions().count(), 0);
}

#[test]
fn nothing_is_sealed_before_the_installation_is_known() {
    let mut core = core_at_start();
    run(&open(&mut core, "1", at(1)), 5, 8);
    assert!(core.seal(at(60)).is_empty());
    core.set_installation(InstallationId::from_secret(b"late"));
    assert_eq!(core.seal(at(61))[0].runs, 5);
}

#[test]
fn the_next_version_is_compared_with_the_last_one() {
    let mut core = core();
    let first = open(&mut core, "1", at(1));
    run(&first, 40, 8);
    first.close();
    core.seal(at(60));
    let second = open(&mut core, "2", at(61));
    run(&second, 40, 80);
    let report = &parse(&core.seal(at(120)))[0];
    let warm = report
        .series
        .iter()
        .find(|s| s.stratum.phase == Phase::Warm);
    let warm = warm.unwrap();
    let baseline = warm
        .baselines
        .of_kind(BaselineKind::PreviousVersion)
        .unwrap();
    assert_eq!((baseline.model_version.as_str(), baseline.n), ("1", 37));
    assert_eq!(warm.exceed.unwrap().beyond_3x, 37);
}

/// QNN has one EP for all its back ends, and a latency on the GPU cannot be compared with one on the HTP.
#[test]
fn back_ends_of_qnn_share_no_baseline() {
    let mut core = core();
    let on = |backend| Runtime {
        backend,
        ..Runtime::default()
    };
    core.set_runtime(on(EpBackend::Gpu));
    let on_gpu = open(&mut core, "1", at(1));
    run(&on_gpu, 40, 80);
    on_gpu.close();
    core.seal(at(60));
    core.set_runtime(on(EpBackend::Htp));
    let on_htp = open(&mut core, "2", at(61));
    run(&on_htp, 40, 8);
    let report = &parse(&core.seal(at(120)))[0];
    let warm = report
        .series
        .iter()
        .find(|s| s.stratum.phase == Phase::Warm);
    assert_eq!(warm.unwrap().baselines.known(), &[]);
    on_htp.close();
    // Each back end is compared with its own past.
    core.set_runtime(on(EpBackend::Gpu));
    run(&open(&mut core, "2", at(121)), 40, 80);
    let report = &parse(&core.seal(at(180)))[0];
    let series = report.series.iter();
    let mut known = series.flat_map(|s| s.baselines.known());
    assert!(known.any(|b| b.model_version == "1" && b.p50_us > 70_000.0));
}

/// OpenVINO has one EP for all devices of a laptop, whose latencies do not compare.
#[test]
fn devices_of_one_ep_share_no_baseline() {
    let mut core = core();
    let mut open = |version: &str, device_type, seconds| {
        let openvino = vec!["OpenVINOExecutionProvider".to_owned()];
        let placement = Placement::unavailable(openvino, ReasonCode::Unknown);
        let mut info = SessionInfo::new(ModelInfo::new("m", version).unwrap(), placement);
        info.options.device_type = Some(device_type);
        let session = core.open_session(info, at(seconds));
        run(&session, 40, 8);
        session.close();
        let report = parse(&core.seal(at(seconds + 60))).remove(0);
        let series = report.series.into_iter();
        let known = series.flat_map(|series| series.baselines.known().to_vec());
        known
            .map(|known| known.model_version)
            .collect::<BTreeSet<_>>()
    };
    assert!(open("1", DeviceType::Gpu, 1).is_empty());
    assert!(open("2", DeviceType::Npu, 100).is_empty());
    assert_eq!(open("2", DeviceType::Gpu, 200), ["1".to_owned()].into());
}

/// A report names one runtime, so a process with two runtimes sends a report for each.
#[test]
fn sessions_of_another_runtime_are_in_a_report_of_their_own() {
    let mut core = core();
    core.set_runtime(Runtime {
        ort_version: "1.31.1".to_owned(),
        ..Runtime::default()
    });
    let mut of = |model: &str, runtime: Option<&str>, seconds| {
        let model = ModelInfo::new(model, "1").unwrap();
        let mut info = SessionInfo::new(model, placement());
        info.runtime = runtime.map(|name| Runtime {
            ort_version: name.to_owned(),
            ..Runtime::default()
        });
        let recorder = core.open_session(info, at(seconds));
        run(&recorder, 40, 8);
        recorder
    };
    let long = "x".repeat(99);
    let _open = [
        of("a", Some("LiteRT 2.3.0"), 1),
        of("b", None, 2),
        of("c", Some("LiteRT 2.3.0"), 3),
        of("d", Some(&long), 4),
    ];
    let reports = parse(&core.seal(at(60)));
    let models = |report: &Report| -> Vec<String> {
        let sessions = report.sessions.iter();
        sessions.map(|s| s.model.id.clone()).collect()
    };
    let found: Vec<_> = reports
        .iter()
        .map(|report| (report.runtime.ort_version.as_str(), models(report)))
        .collect();
    let expected = [
        ("1.31.1", vec!["b".to_owned()]),
        ("LiteRT 2.3.0", vec!["a".to_owned(), "c".to_owned()]),
        (&long[..32], vec!["d".to_owned()]),
    ];
    assert_eq!(found, expected);
}

#[test]
fn sessions_that_a_directive_changed_teach_nothing() {
    let mut core = core();
    let model = ModelInfo::new("m", "1").unwrap();
    let mut info = SessionInfo::new(model, placement());
    info.directive_id = "npu-off-1".to_owned();
    run(&core.open_session(info, at(1)), 40, 8);
    core.seal(at(60));
    run(&open(&mut core, "2", at(61)), 40, 8);
    let report = &parse(&core.seal(at(120)))[0];
    assert!(report.series.iter().all(|s| s.baselines.known().is_empty()));
}

#[test]
fn ended_streams_are_named_until_a_report_that_names_them_is_acked() {
    let mut core = core();
    let ended = EndedStream {
        stream: StreamId(7),
        last_sequence: Some(3),
        unsealed_runs: None,
    };
    let recorder = open(&mut core, "1", at(1));
    run(&recorder, 1, 8);
    let before = core.seal(at(10));
    core.add_ended_streams([ended, ended]);
    let first = core.seal(at(20));
    assert_eq!(parse(&first)[0].ended_streams, [ended]);
    core.acked(&before[0].key);
    run(&recorder, 1, 8);
    assert_eq!(parse(&core.seal(at(30)))[0].ended_streams, [ended]);
    core.acked(&first[0].key);
    run(&recorder, 1, 8);
    assert!(parse(&core.seal(at(40)))[0].ended_streams.is_empty());
}

#[test]
fn losses_are_reported_even_without_runs() {
    let mut core = core();
    core.dropped(DropReason::SpoolFull, 2, 30);
    let report = &parse(&core.seal(at(60)))[0];
    assert_eq!(report.health.dropped[&DropReason::SpoolFull].reports, 2);
    assert!(core.seal(at(120)).is_empty());
}

#[test]
fn equal_start_failures_are_counted_together_and_bounded() {
    let mut core = core();
    for version in 0..40 {
        for _ in 0..2 {
            let failure = StartFailure {
                model: ModelInfo::new("m", version.to_string()).unwrap().into(),
                requested_eps: vec![QNN_EP.to_owned()],
                phase: StartPhase::SessionCreation,
                reason: ReasonCode::PrepareFailed,
                ort_status_code: 1,
                text: String::new(),
                count: 1,
                device_type: None,
            };
            core.start_failed(failure, at(1));
        }
    }
    let report = &parse(&core.seal(at(60)))[0];
    assert_eq!(report.start_failures.len(), policy::MAX_START_FAILURES);
    let total: u64 = report.start_failures.iter().map(|f| f.count).sum();
    assert_eq!(total, 80);
}

/// Regression test: the app's calls returned OK, but `explain` showed neither models nor errors.
#[test]
fn failures_and_losses_that_the_app_reports_are_explained() {
    let mut core = core();
    for _ in 0..2 {
        core.start_failed(
            StartFailure {
                model: ModelInfo::new("bad", "3").unwrap().into(),
                requested_eps: vec![QNN_EP.to_owned()],
                phase: StartPhase::SessionCreation,
                reason: ReasonCode::PrepareFailed,
                ort_status_code: 3,
                text: "File doesn't exist".to_owned(),
                count: 1,
                device_type: None,
            },
            at(1),
        );
    }
    core.dropped(DropReason::Contended, 0, 7);
    // Sealed failures stay.
    core.seal(at(60));
    let explanation = core.explanation(at(61));
    let text = explanation.to_string();
    let failure =
        "model bad version 3 could not be made, 2 times: prepare_failed: File doesn't exist\n";
    assert!(text.contains(failure), "{text}");
    assert!(
        text.contains("lost: 7 runs and 0 reports: contended\n"),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_str(&explanation.to_json()).unwrap();
    assert_eq!(json["start_failures"][0]["count"], 2);
    assert_eq!(json["dropped"]["contended"]["runs"], 7);
}

/// A phone's wall clock may be set to another day between two seals or within a session.
#[test]
fn a_wall_clock_that_jumps_changes_no_count_and_no_baseline() {
    let mut core = core();
    let day_ms = 24 * 3600 * 1000;
    let jumped = |seconds, days: i64| Now {
        wall_unix_ms: at(seconds).wall_unix_ms + days * day_ms,
        ..at(seconds)
    };
    let first = open(&mut core, "1", at(1));
    run(&first, 30, 8);
    let back = parse(&core.seal(jumped(60, -1)));
    run(&first, 30, 8);
    first.close();
    let forth = parse(&core.seal(jumped(120, 400)));
    for report in [&back[0], &forth[0]] {
        assert_eq!(report.interval_length_ms, 60_000);
        assert_eq!(report.series.iter().map(|s| s.n).sum::<u64>(), 30);
    }
    run(&open(&mut core, "2", jumped(121, -1)), 30, 8);
    let next = &parse(&core.seal(jumped(180, -1)))[0];
    let warm = next.series.iter().find(|s| s.stratum.phase == Phase::Warm);
    assert_eq!(warm.unwrap().baselines.known()[0].n, 57);
}

fn come_and_go(core: &mut Core, sessions: u64) {
    for _ in 0..sessions {
        let recorder = open(core, "1", at(1));
        run(&recorder, 5, 8);
        recorder.close();
    }
}

/// Each open session holds 20 kB. If closed sessions kept their memory, it would grow to 200 MB until the seal.
#[test]
fn thousands_of_sessions_come_and_go_within_little_memory() {
    let mut core = core();
    let (mut reported, mut sealed_runs) = (0, 0);
    for _ in 0..10_000 {
        come_and_go(&mut core, 1);
        assert!(core.sessions.len() <= 2);
        if core.wants_seal() {
            let sealed = core.seal(at(60));
            reported += parse(&sealed)
                .iter()
                .map(|r| r.sessions.len())
                .sum::<usize>();
            sealed_runs += sealed.iter().map(|s| s.runs).sum::<u64>();
        }
        assert!(core.closed.len() <= policy::CLOSED_SESSIONS_TO_SEAL);
    }
    let last = core.seal(at(60));
    reported += parse(&last).iter().map(|r| r.sessions.len()).sum::<usize>();
    sealed_runs += last.iter().map(|s| s.runs).sum::<u64>();
    assert_eq!((reported, sealed_runs), (10_000, 50_000));
    assert_eq!(core.health().runs_observed, 50_000);
    assert!(core.health().dropped.is_empty());
}

#[test]
fn sessions_that_cannot_be_sealed_are_given_up_and_counted() {
    let mut core = core_at_start();
    come_and_go(&mut core, 10_000);
    assert!(core.closed.len() <= policy::MAX_CLOSED_SESSIONS);
    assert!(core.baseline_updates.len() <= policy::MAX_BASELINE_UPDATES);
    // Now the disk has free space, so the folder opens.
    core.set_installation(InstallationId::from_secret(b"late"));
    let sealed = core.seal(at(60));
    parse(&sealed);
    let runs: u64 = sealed.iter().map(|s| s.runs).sum();
    let health = core.health();
    assert_eq!(health.runs_observed, 50_000);
    assert_eq!(runs + health.dropped[&DropReason::SpoolFull].runs, 50_000);
    assert!(health.dropped.values().all(|lost| lost.reports == 0));
}

/// The baselines are read when the folder opens, and sessions do not wait for that.
#[test]
fn what_ran_before_the_book_was_read_is_learnt_all_the_same() {
    let mut core = core_at_start();
    for _ in 0..2 {
        run(&open(&mut core, "1", at(1)), 40, 8);
        core.sessions[0].recorder.close();
    }
    let _folds_the_others = open(&mut core, "1", at(1));
    core.load_baselines(BaselineSet::new(20));
    core.set_installation(InstallationId::from_secret(b"late"));
    run(&open(&mut core, "2", at(61)), 40, 8);
    let report = &parse(&core.seal(at(120)))[0];
    let known = |s: &&epwatch_proto::LatencySeries| !s.baselines.known().is_empty();
    assert!(report.series.iter().any(|s| known(&s)));
    assert!(core.baseline_updates.len() >= 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Many sessions, each with many strata. Every run is in exactly one report, a collector takes every report, and
    /// numbers have no gap.
    #[test]
    fn whatever_is_recorded_is_in_reports_of_the_contract(
        sessions in 1_usize..150,
        strata in 1_u64..12,
    ) {
        let mut core = core();
        let mut runs = 0;
        for session in 0..sessions {
            let recorder = open(&mut core, &session.to_string(), at(1));
            for stratum in 0..strata {
                let shape = format!("x:{stratum}");
                let began = Duration::from_secs(stratum * 60);
                recorder.record(began, Duration::from_millis(stratum + 1), &shape);
                runs += 1;
            }
        }
        let sealed = core.seal(at(60));
        let reports = parse(&sealed);
        prop_assert_eq!(sealed.iter().map(|s| s.runs).sum::<u64>(), runs);
        for (at, report) in reports.iter().enumerate() {
            prop_assert_eq!(report.key.sequence.get(), at as u64 + 1);
        }
        prop_assert_eq!(reports.last().unwrap().health.runs_recorded, runs);
    }
}

/// Events on a device.
#[derive(Debug, Clone)]
enum Event {
    /// Each thread makes this many runs, one after the other. Then it makes one more run, during which a report is
    /// sealed.
    Runs {
        latency: Duration,
        each: u32,
    },
    /// The monotonic clock stands still.
    Suspend {
        ms: u64,
    },
    ClockStep {
        ms: i64,
    },
    Kill,
    NextVersion,
    Seal,
}

const THREADS: usize = 64;

fn event() -> impl Strategy<Value = Event> {
    let latency = (0_u32..38, any::<u64>()).prop_map(|(bits, rest)| {
        let at_least = 1_u64 << bits;
        Duration::from_nanos(at_least + rest % at_least)
    });
    prop_oneof![
        6 => (latency, 0_u32..150).prop_map(|(latency, each)| Event::Runs { latency, each }),
        1 => (0_u64..1 << 36).prop_map(|ms| Event::Suspend { ms }),
        1 => any::<i32>().prop_map(|s| Event::ClockStep { ms: 1_000 * i64::from(s) }),
        1 => Just(Event::Kill),
        1 => Just(Event::NextVersion),
        2 => Just(Event::Seal),
    ]
}

/// A device whose threads only run a model.
struct BusyDevice {
    core: Core,
    recorder: Arc<SessionRecorder>,
    version: u32,
    now: Now,
}

impl BusyDevice {
    fn start(now: Now) -> Self {
        let now = Now {
            mono: Duration::ZERO,
            ..now
        };
        let config = CoreConfig::new("app", simulated_device("SM8650")).unwrap();
        let mut core = Core::new(config, random_stream(), now);
        let recorder = open(&mut core, "0", now);
        Self {
            core,
            recorder,
            version: 0,
            now,
        }
    }

    fn step_wall(&mut self, ms: i64) {
        let wall = self.now.wall_unix_ms.saturating_add(ms);
        self.now.wall_unix_ms = wall.clamp(0, epwatch_proto::MAX_UNIX_MS);
    }

    fn pass(&mut self, by: Duration) {
        self.now.mono += by;
        self.suspend(u64::try_from(by.as_millis()).unwrap());
    }

    fn suspend(&mut self, ms: u64) {
        self.now.uptime_ms = self.now.uptime_ms.map(|uptime| uptime + ms);
        self.step_wall(i64::try_from(ms).unwrap());
    }

    /// Checks that a collector drops nothing of what is sealed. The installation is known from the second time on.
    fn seal(&mut self) {
        parse(&self.core.seal(self.now));
        self.core
            .set_installation(InstallationId::from_secret(b"secret"));
    }

    fn record(&self, began: Duration, latency: Duration, each: u32) {
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for at in 0..each {
                        let began = began + latency * at;
                        self.recorder.record(began, latency, "static");
                    }
                });
            }
        });
    }

    fn meet(&mut self, event: Event) {
        match event {
            Event::Runs { latency, each } => {
                self.record(self.now.mono, latency, each);
                self.pass(latency * each);
                let began = self.now.mono;
                self.pass(latency / 2);
                self.seal();
                self.pass(latency - latency / 2);
                self.record(began, latency, 1);
            }
            Event::Suspend { ms } => self.suspend(ms),
            Event::ClockStep { ms } => self.step_wall(ms),
            Event::Kill => *self = Self::start(self.now),
            Event::NextVersion => {
                self.recorder.close();
                self.version += 1;
                self.recorder = open(&mut self.core, &self.version.to_string(), self.now);
            }
            Event::Seal => self.seal(),
        }
    }
}

fn devices_lives() -> u32 {
    match epwatch_runtimes::is_nightly("976 of 1,000 lives of a device whose numbers are possible")
    {
        true => 1_000,
        false => 24,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(devices_lives()))]
    /// A collector drops series that no device can have measured. The SDK never makes such a series.
    #[test]
    fn no_life_of_a_device_makes_an_impossible_series(
        events in prop::collection::vec(event(), 1..16),
    ) {
        let mut device = BusyDevice::start(at(0));
        for event in events {
            device.meet(event);
        }
        device.seal();
        device.seal();
    }
}

#[test]
fn results_of_self_tests_are_in_reports_that_describe_their_session() {
    let mut core = core();
    let test = |uid: SessionUid, n: usize| SelfTest {
        session_uid: uid,
        input_id: format!("golden {n}"),
        tolerance: Some(0.1),
        npu_output_hash: Some([1; 16]),
        cpu_output_hash: Some([2; 16]),
        max_abs: Some(0.01),
        cosine: Some(0.999),
        top1_equal: Some(true),
        error_code: 0,
        first_off_output: String::new(),
    };
    let recorders: Vec<_> = (0..20).map(|_| open(&mut core, "1", at(1))).collect();
    for recorder in &recorders {
        for n in 0..policy::MAX_SELF_TESTS_PER_SESSION {
            assert!(core.self_tested(test(recorder.uid(), n)));
        }
        assert!(!core.self_tested(test(recorder.uid(), 99)));
    }
    assert!(!core.self_tested(test(random_session_uid(), 0)));
    let reports = parse(&core.seal(at(60)));
    let n: usize = reports.iter().map(|r| r.self_tests.len()).sum();
    assert_eq!(n, 20 * policy::MAX_SELF_TESTS_PER_SESSION);
    // Each self-test is reported once.
    assert!(core.seal(at(120)).is_empty());
    core.self_tested(test(recorders[0].uid(), 0));
    assert_eq!(parse(&core.seal(at(180)))[0].self_tests.len(), 1);
}

/// The explanation has the same id as the store, so that `epwatch devices` finds it.
#[test]
fn an_explanation_has_the_whole_id_once_there_is_one() {
    assert_eq!(core_at_start().explanation(at(1)).installation, None);
    let id = InstallationId::from_secret(b"secret").to_hex();
    assert_eq!(id.len(), 32);
    assert_eq!(core().explanation(at(1)).installation, Some(id));
}
