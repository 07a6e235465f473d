//! Cohorts of accelerators: an app may give its EP any name, and two accelerators of one chipset never mix.

use epwatch_model::{Severity, VerdictClass};
use epwatch_proto::DeviceType;
use jiff::Timestamp;

use crate::support::{Reports, TestStore, base};
use crate::windows::{after, evaluate, of};

/// Stores version 1, then version 2 with its head on the CPU, of an app that requests this EP.
async fn fall(store: &TestStore, base: Timestamp, chipset: &'static str, ep: &'static str) {
    let of_ep = |reports: Reports| Reports {
        chipset,
        ep,
        devices: 100..130,
        ..reports
    };
    let first = of_ep(Reports::default());
    first.store(store, after(base, 10)).await;
    of_ep(Reports::fallen()).store(store, after(base, 70)).await;
}

#[tokio::test]
async fn a_plugin_under_any_name_is_the_npu() {
    let store = TestStore::start().await;
    let base = base();
    let names = [("SM8635", "QNN"), ("SM8650", "qnn"), ("SM8550", "npu0")];
    for (chipset, ep) in names {
        fall(&store, base, chipset, ep).await;
    }
    let verdicts = evaluate(&store, after(base, 120)).await;
    for (chipset, ep) in names {
        let sick = of(&verdicts, "2.0.0", chipset);
        let answer = (sick.class, sick.severity);
        let page = (VerdictClass::PartialFallback, Severity::Page);
        assert_eq!(answer, page, "{ep}: {sick:#?}");
        let share = sick.numbers.npu_share.unwrap();
        assert!((share - 0.74).abs() < 1e-6, "{ep}: {share}");
    }
    store.stop().await;
}

#[tokio::test]
async fn an_unknown_ep_is_data_quality_with_its_name_and_no_page() {
    let store = TestStore::start().await;
    let base = base();
    fall(&store, base, "SM8635", "MyEp").await;
    let verdicts = evaluate(&store, after(base, 120)).await;
    assert!(!verdicts.is_empty());
    for verdict in &verdicts {
        assert_eq!(verdict.class, VerdictClass::DataQuality, "{verdict:#?}");
        assert_eq!(verdict.severity, Severity::Info);
        let why: Vec<String> = verdict.reason_texts().collect();
        assert!(why[0].contains("the EP MyEp"), "{why:?}");
        assert!(verdict.next_step.contains("docs/accelerators.md"));
    }
    of(&verdicts, "2.0.0", "SM8635 [MyEp?]");
    store.stop().await;
}

/// Before it was reported, such sessions counted as sessions for the CPU, which do not vote.
#[tokio::test]
async fn a_policy_whose_choice_is_not_known_is_data_quality_with_its_name() {
    let store = TestStore::start().await;
    let base = base();
    fall(&store, base, "SM8635", "policy:prefer_npu").await;
    let verdicts = evaluate(&store, after(base, 120)).await;
    let found = of(&verdicts, "2.0.0", "SM8635 [policy:prefer_npu?]");
    assert_eq!(found.class, VerdictClass::DataQuality, "{found:#?}");
    let why: Vec<String> = found.reason_texts().collect();
    assert!(why[0].contains("by the policy prefer_npu"), "{why:?}");
    assert!(
        found.next_step.contains("plugin is registered"),
        "{}",
        found.next_step
    );
    let policies = "SELECT DISTINCT selection_policy FROM cohort_sessions_v1";
    let policies = store.client().query(policies).fetch_all::<String>().await;
    assert_eq!(policies.unwrap(), ["prefer_npu"]);
    store.stop().await;
}

/// Both accelerators are on one chipset. Earlier, their devices were one cohort, of which half was healthy.
#[tokio::test]
async fn two_accelerators_of_a_chipset_are_judged_apart() {
    let store = TestStore::start().await;
    let base = base();
    fall(&store, base, "SM8635", "CUDAExecutionProvider").await;
    let sound = [(10, Reports::default()), (70, Reports::v2())];
    for (second, reports) in sound {
        reports.store(&store, after(base, second)).await;
    }
    let verdicts = evaluate(&store, after(base, 120)).await;
    let sick = of(&verdicts, "2.0.0", "SM8635 [CUDA]");
    let answer = (sick.class, sick.severity);
    assert_eq!(
        answer,
        (VerdictClass::PartialFallback, Severity::Page),
        "{sick:#?}"
    );
    assert_eq!(sick.numbers.devices_seen, 30);
    let mut told: Vec<String> = sick.reason_texts().collect();
    told.push(sick.next_step.clone());
    assert!(told[0].contains("74 % of the MACs on the GPU"), "{told:?}");
    assert!(told.iter().all(|text| !text.contains("NPU")), "{told:?}");
    // A directive would reach the sessions on the NPU of SM8635.
    assert!(!sick.next_step.contains("directive make"), "{told:?}");
    assert!(
        sick.next_step.contains("No directive is that narrow"),
        "{told:?}"
    );
    let healthy = of(&verdicts, "2.0.0", "SM8635");
    assert_eq!(healthy.class, VerdictClass::Healthy, "{healthy:#?}");
    assert_eq!(healthy.numbers.devices_seen, 30);
    store.stop().await;
}

/// OpenVINO is one EP for all devices of a laptop. Earlier, its sessions on the GPU and on the NPU were one cohort, and the
/// baseline of one was the other's.
#[tokio::test]
async fn one_ep_on_two_devices_is_two_cohorts_without_a_common_baseline() {
    let store = TestStore::start().await;
    let base = base();
    let openvino = |reports: Reports| Reports {
        ep: "OpenVINOExecutionProvider",
        ..reports
    };
    // The GPU's first version is three times as fast as the NPU, which only runs the second. ONNX Runtime describes the NPU.
    let on_gpu = |reports: Reports| Reports {
        devices: 100..130,
        asked_device: Some(DeviceType::Gpu),
        ..openvino(reports)
    };
    let on_npu = Reports {
        p50_us: 24_600.0,
        previous: None,
        asked_device: Some(DeviceType::Npu),
        device: Some(DeviceType::Npu),
        ..openvino(Reports::v2())
    };
    on_gpu(Reports::default())
        .store(&store, after(base, 10))
        .await;
    on_gpu(Reports::fallen())
        .store(&store, after(base, 70))
        .await;
    on_npu.store(&store, after(base, 70)).await;
    let verdicts = evaluate(&store, after(base, 120)).await;
    let sick = of(&verdicts, "2.0.0", "SM8635 [OpenVINO GPU]");
    let answer = (sick.class, sick.severity);
    let page = (VerdictClass::PartialFallback, Severity::Page);
    assert_eq!(answer, page, "{sick:#?}");
    assert_eq!(sick.numbers.devices_seen, 30);
    let told: Vec<String> = sick.reason_texts().collect();
    assert!(told[0].contains("OpenVINO"), "{told:?}");
    let sound = of(&verdicts, "2.0.0", "SM8635 [OpenVINO NPU]");
    assert_eq!(sound.severity, Severity::Info, "{sound:#?}");
    assert_eq!(sound.numbers.devices_seen, 30);
    assert!(
        !verdicts
            .iter()
            .any(|one| one.key.chipset.ends_with("[OpenVINO]")),
        "{verdicts:#?}"
    );
    let devices = "SELECT DISTINCT arrayJoin(ep_devices) FROM cohort_sessions_v1";
    let devices = store.client().query(devices).fetch_all::<String>().await;
    assert_eq!(
        devices.unwrap(),
        ["OpenVINOExecutionProvider on NPU (Intel)"]
    );
    store.stop().await;
}

/// A session that fails has no device of its own. It counts where the app's sessions do.
#[tokio::test]
async fn sessions_that_fail_count_on_the_device_that_the_app_names() {
    let store = TestStore::start().await;
    let base = base();
    let failed = Reports {
        ep: "OpenVINOExecutionProvider",
        asked_device: Some(DeviceType::Npu),
        failed_starts: 3,
        ..Reports::v2()
    };
    failed.store(&store, after(base, 70)).await;
    let chipsets = "SELECT DISTINCT toString(chipset) FROM start_failures_v1";
    let chipsets = store.client().query(chipsets).fetch_all::<String>().await;
    assert_eq!(chipsets.unwrap(), ["SM8635 [OpenVINO NPU]"]);
    store.stop().await;
}
