//! Intel's EP from a session to the incident on the page. Real sessions of `onnxruntime-openvino` report two versions
//! of a model to a collector. The first version runs wholly on OpenVINO, and of the second version 4 of 10 nodes do.
//!
//! Simulated devices then report these placements, as the collector received them. Their latency is made up, and the
//! test sets the detector's clock. So windows, verdicts and incidents are the same on every machine.

use std::{collections::BTreeMap, env, process::Command, sync::Arc};

use epwatch_collector::{
    Collector,
    config::{AppKeyConfig, KeyKind},
    dump_wal,
};
use epwatch_detector::Detector;
use epwatch_gate::{
    policy::Policy,
    read::{ReadOptions, read},
    verdict::CheckResult,
};
use epwatch_model::{Incident, Severity, State, VerdictClass};
use epwatch_page::{DevicesQuery, devices};
use epwatch_proto::{
    Accelerator, DeviceType, EpDevice, Placement, Report, Session as SessionOfReport, hex,
    placement::CPU_EP, recorded::RecordedReader, samples,
};
use epwatch_sdk::{ModelInfo, SdkConfig, Watch, placement::with_built_in_ep, runtime, types};
use epwatch_server::ManualClock;
use epwatch_test_support::{DEADLINE, until};
use jiff::{SignedDuration, Timestamp};
use ort::{inputs, session::Session, value::TensorRef};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::{
    one_fleet::{DEVICES, FIRST, SECOND, Version, detector_config},
    page::Served,
    support::{Store, check_succeeds},
};

const OPENVINO_EP: &str = "OpenVINOExecutionProvider";
const CUDA_EP: &str = "CUDAExecutionProvider";
const APP: &str = "com.example.laptop";
const MODEL: &str = "segmenter";
const KEY: &str = "laptop-key";
const PROCESSOR: &str = "Intel(R) Core(TM) Ultra 7 155H";
/// Variable with the collector's address, set in the child that makes the sessions.
const ENDPOINT: &str = "EPWATCH_TEST_OPENVINO_ENDPOINT";

/// Version, file and the shape of its input.
const SESSIONS: [(&str, &str, &[usize]); 2] = [
    (FIRST.name, "d_mlp.fp32.onnx", &[1, 64]),
    (SECOND.name, "c_cnn_hardmax.fp32.onnx", &[1, 3, 32, 32]),
];

/// Runs in the child: makes and runs both sessions, and reports them.
fn report_sessions(endpoint: &str) {
    let library = epwatch_runtimes::onnxruntime_openvino();
    let environment = runtime::load(library).unwrap().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = SdkConfig::builder(APP, endpoint, KEY, folder.path()).with_consent(true);
    let watch = Watch::start(config.build().unwrap()).unwrap();
    for (version, file, dims) in SESSIONS {
        let builder = Session::builder(&environment).unwrap();
        let on_cpu = [("device_type".to_owned(), "CPU".to_owned())];
        let builder = with_built_in_ep(builder, "OpenVINO", &on_cpu).unwrap();
        let models = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/");
        let mut session = watch
            .session(ModelInfo::new(MODEL, version).unwrap(), builder)
            .requesting([OPENVINO_EP])
            .with_device_type(types::DeviceType::Cpu)
            .commit_from_file(format!("{models}{file}"))
            .unwrap();
        let input = vec![0.5_f32; dims.iter().product()];
        for _ in 0..10 {
            let input = TensorRef::from_array_view((dims, &*input)).unwrap();
            session.run(inputs![input]).unwrap();
        }
    }
    watch.flush(DEADLINE).unwrap();
    watch.stop(DEADLINE).unwrap();
}

/// Reports real sessions to a collector on this store. Returns its WAL as recorded reports.
async fn recorded(store: &Store) -> Vec<u8> {
    let mut config = store.collector_config("wal");
    config.keys = vec![AppKeyConfig {
        sha256: hex(&Sha256::digest(KEY)),
        app: APP.to_owned(),
        environment: "production".to_owned(),
        kind: KeyKind::Own,
        ..AppKeyConfig::default()
    }];
    let wal = config.wal.dir.clone();
    let collector = Collector::start(config, store.client(), CancellationToken::new());
    let collector = collector.await.unwrap();
    let mut child = Command::new(env::current_exe().unwrap());
    child
        .args(["--exact", "openvino::a_partial_fallback_of_openvino_pages"])
        .args(["--nocapture", "--test-threads=1"])
        .env(ENDPOINT, format!("http://{}", collector.listen()));
    tokio::task::spawn_blocking(move || check_succeeds(&mut child))
        .await
        .unwrap();
    let sql = "SELECT toUInt32(uniqExact(model_version)) FROM device_sessions_v1 WHERE npu_partitions = 1 AND \
               ((model_version = '1.0.0' AND npu_nodes = 6 AND cpu_nodes = 0) OR \
               (model_version = '2.0.0' AND npu_nodes = 4 AND cpu_nodes = 6)) AND chipset LIKE '%[OpenVINO CPU]'";
    until("both sessions are in the store", async || {
        let found: u32 = store.client().query(sql).fetch_one().await.unwrap();
        found == 2
    })
    .await;
    collector.stop().await;
    let mut dump = Vec::new();
    dump_wal(&wal, &mut dump).unwrap();
    dump
}

fn sessions_of(dump: &[u8]) -> BTreeMap<String, SessionOfReport> {
    let reports = RecordedReader::new(dump).map(|record| record.unwrap().parse_report().unwrap());
    let sessions = reports.flat_map(|report| report.sessions);
    sessions
        .map(|session| (session.model.version.clone(), session))
        .collect()
}

/// Checks that the gate reads the collector's reports, says OpenVINO, and names the op. Without the model it cannot
/// compute the share of the work.
fn check_gate(dump: &[u8]) {
    let runs = read(dump, ReadOptions::default()).unwrap();
    let mut placed = runs.iter().filter_map(|run| run.placed.as_ref());
    let split = placed.find(|placed| {
        let checks = placed.judge(&Policy::default().placement_on(&placed.chipset), None);
        checks.iter().any(|check| {
            assert!(!check.why.contains("NPU"), "{check:#?}");
            let mut ops = check.nodes.iter().map(|node| node.op_type.as_str());
            check.result != CheckResult::Pass && ops.any(|op| op == "Hardmax")
        })
    });
    let split = split.unwrap_or_else(|| panic!("nothing on the CPU: {runs:#?}"));
    assert!(
        split.chipset.ends_with("[OpenVINO CPU]"),
        "{}",
        split.chipset
    );
}

/// Returns the report as from the same laptop, with the session's placement.
fn on_laptop(mut report: Report, requested: &str, placement: &Placement) -> Report {
    report.device = samples::device(PROCESSOR);
    let session = &mut report.sessions[0];
    session.requested_eps = vec![requested.to_owned()];
    session.placement = placement.clone();
    if requested == OPENVINO_EP {
        session.options.device_type = Some(DeviceType::Cpu);
        session.devices = vec![EpDevice {
            ep: OPENVINO_EP.to_owned(),
            device_type: DeviceType::Cpu,
            vendor: "Intel".to_owned(),
        }];
    }
    report
}

/// Returns the whole placement on another accelerator, which the app requested.
fn on_cuda(whole: &Placement) -> Placement {
    let mut placement = whole.clone();
    placement.requested_eps = vec![CUDA_EP.to_owned()];
    for share in placement.eps.iter_mut().filter(|share| share.ep != CPU_EP) {
        share.ep = CUDA_EP.to_owned();
    }
    placement
}

async fn judged(detector: &Detector, end: Timestamp) {
    let verdicts = detector.verdicts();
    until("the window is judged", async || {
        verdicts.borrow().iter().any(|of| of.window_end == end)
    })
    .await;
}

fn in_main(page: &str) -> &str {
    let (_, main) = page.split_once("<main").unwrap();
    main.split_once("</main>").unwrap().0
}

async fn check_page(page: &Served, incident: &Incident) {
    let path = format!("/incident?id={}", incident.id);
    until("the page has the incident", async || {
        page.get(&path).await.status == 200
    })
    .await;
    let text = page.get(&path).await.text;
    assert!(in_main(&text).contains("OpenVINO"), "{text}");
    // The list of terms at the foot does not name the NPU either.
    assert!(!text.contains("NPU"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partial_fallback_of_openvino_pages() {
    if let Ok(endpoint) = env::var(ENDPOINT) {
        return tokio::task::spawn_blocking(move || report_sessions(&endpoint))
            .await
            .unwrap();
    }
    let store = Store::start().await;
    let dump = recorded(&store).await;
    check_gate(&dump);
    let sessions = sessions_of(&dump);
    let [whole, split] = [FIRST, SECOND].map(|of| &sessions[of.name].placement);
    assert_eq!(split.accelerator(), Some(Accelerator::OpenVino));

    let second = Timestamp::now().as_second() - 3_000;
    let began = Timestamp::from_second(second - second % 60).unwrap();
    let after = |seconds| began + SignedDuration::from_secs(seconds);
    let clock = Arc::new(ManualClock::at(after(0)));
    let stop = CancellationToken::new();
    let detector = Detector::start(
        detector_config(),
        store.client(),
        Vec::new(),
        clock.clone(),
        stop.clone(),
    );
    let detector = detector.unwrap();
    let fleet = |version: Version, fleet| Version {
        app: "com.example.fleet",
        model: MODEL,
        fleet,
        ..version
    };
    // On CUDA the speed stays the same, because only the name of the accelerator is tested.
    let second_on_cuda = Version {
        run_us: FIRST.run_us,
        ..SECOND
    };
    let cuda = on_cuda(whole);
    for window in 0..7 {
        let (on_openvino, on_cuda, placement) = match window < 4 {
            true => (FIRST, FIRST, whole),
            false => (SECOND, second_on_cuda, split),
        };
        let at = after(60 * window + 10);
        let client = || store.client();
        fleet(on_openvino, 1)
            .store_with(client(), at, |report| {
                on_laptop(report, OPENVINO_EP, placement)
            })
            .await;
        fleet(on_cuda, 2)
            .store_with(client(), at, |report| on_laptop(report, CUDA_EP, &cuda))
            .await;
        clock.set(after(60 * (window + 1)));
        judged(&detector, after(60 * (window + 1))).await;
    }

    let incidents = detector.incidents();
    let open: Vec<Incident> = incidents.borrow().iter().cloned().collect();
    let [incident] = &open[..] else {
        panic!("{open:#?}");
    };
    assert_eq!(incident.state, State::Firing, "{incident:#?}");
    let chipsets = incident.chipsets();
    assert!(
        matches!(&chipsets[..], [one] if one.ends_with("[OpenVINO CPU]")),
        "{chipsets:?}"
    );
    let verdicts = detector.verdicts();
    let verdicts = verdicts.borrow().clone();
    let of = |label: &str| {
        let mut found = verdicts.iter().filter(|of| of.key.chipset.ends_with(label));
        let newest = found.find(|of| of.key.model_version == SECOND.name);
        newest.unwrap_or_else(|| panic!("no {label} in {verdicts:#?}"))
    };
    let fault = of("[OpenVINO CPU]");
    let answer = (fault.class, fault.severity, fault.numbers.devices_hit);
    let expected = (
        VerdictClass::PartialFallback,
        Severity::Page,
        u64::from(DEVICES),
    );
    assert_eq!(answer, expected, "{fault:#?}");
    let reasons: Vec<String> = fault.reason_texts().collect();
    assert!(reasons[0].contains("OpenVINO"), "{reasons:#?}");
    let quiet = of("[CUDA]");
    assert_eq!(quiet.severity, Severity::None, "{quiet:#?}");
    assert_eq!(quiet.numbers.devices_seen, u64::from(DEVICES));

    until("the incident is stored", async || {
        let sql = "SELECT toUInt32(count()) FROM incidents_v1 WHERE state = 'firing' AND severity = 'page'";
        let stored: u32 = store.client().query(sql).fetch_one().await.unwrap();
        stored == 1
    })
    .await;
    stop.cancel();
    detector.stopped().await;
    let id =
        "SELECT lower(hex(any(installation))) FROM device_sessions_v1 WHERE notEmpty(ep_devices)";
    let id: String = store.client().query(id).fetch_one().await.unwrap();
    let sent = devices(store.client(), &DevicesQuery::One { id }).await;
    let sent = sent.unwrap().text;
    let device = "OpenVINOExecutionProvider on CPU (Intel)";
    assert!(sent.contains(device), "{sent}");
    let page = Served::start(store.client()).await;
    check_page(&page, incident).await;
    page.stop().await;
    store.engine.stop().await;
}
