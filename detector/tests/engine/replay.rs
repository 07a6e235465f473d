//! A replay gives the same lines over a file and over a store with the same reports.

use std::sync::Arc;
use std::time::Duration;

use epwatch_detector::read::Source;
use epwatch_detector::read::recorded::{Intake, SenderDecision};
use epwatch_detector::replay::{Line, ReplayOptions, replay, to_json};
use epwatch_detector::{DetectorConfig, Sender};
use epwatch_server::Period;
use jiff::{SignedDuration, Timestamp};

use crate::support::{Reports, TestStore, V1, V2, V2_FALLEN, base, sent};

async fn lines_of(source: Source, window_s: u64) -> Vec<String> {
    lines_back_to(source, window_s, 3600).await
}

async fn lines_back_to(source: Source, window_s: u64, lookback_s: u64) -> Vec<String> {
    let options = ReplayOptions {
        config: DetectorConfig {
            window: Period(Duration::from_secs(window_s)),
            step: Period(Duration::from_secs(window_s)),
            bucket: Period(Duration::from_secs(1)),
            lookback: Period(Duration::from_secs(lookback_s)),
            ..DetectorConfig::default()
        },
        from: None,
        to: None,
        all: true,
        modes: true,
    };
    let mut lines = Vec::new();
    let mut keep = |line: Line| {
        lines.push(to_json(&line));
        Ok(())
    };
    replay(source, &options, &mut keep).await.unwrap();
    lines
}

fn record(intake: &mut Intake, reports: &Reports, received: Timestamp) {
    let received_ms = received.as_millisecond();
    let sent = sent(received);
    for report in reports.reports(received) {
        let app = ("camera", "production");
        let mark = SenderDecision {
            is_unproven: Some(reports.is_unproven),
            sender: Some(Sender {
                is_own: false,
                network: None,
            }),
        };
        intake.add_marked(received_ms, app, &report, &sent, mark);
    }
}

#[tokio::test]
async fn a_file_and_a_store_of_the_same_reports_give_the_same_lines() {
    let store = TestStore::start().await;
    let mut intake = Intake::new(Duration::from_secs(1));
    let base: Timestamp = base();
    let after = |seconds: i64| base + SignedDuration::from_secs(seconds);
    let previous = Some(("1.0.0", 8_200.0));
    let healthy = |chipset| Reports {
        chipset,
        ..Reports::default()
    };
    let mut told = Vec::new();
    for (window, chipset) in [(0, "SM8635"), (0, "SM8650"), (1, "SM8635"), (2, "SM8650")] {
        told.push((window * 60 + 10, healthy(chipset)));
    }
    let sound = Reports {
        version: "2.0.0",
        place: V2,
        previous,
        ..healthy("SM8650")
    };
    let fallen = Reports {
        version: "2.0.0",
        place: V2_FALLEN,
        p50_us: 24_000.0,
        previous,
        ..healthy("SM8635")
    };
    // Its past comes from reports received before.
    let forgetful = Reports {
        previous: None,
        firmware: "f2",
        ..fallen.clone()
    };
    // These devices have too few runs, so runs of the window before are added.
    let sparse = Reports {
        devices: 40..60,
        runs: 10,
        place: V1,
        ..healthy("SM8550")
    };
    told.push((70, sparse.clone()));
    told.push((130, sparse));
    told.push((190, sound));
    told.push((195, fallen.clone()));
    told.push((250, forgetful));
    // A first version that gets slower is compared with the same devices' earlier windows.
    let slow_later = |p50_us| Reports {
        devices: 70..100,
        p50_us,
        ..healthy("SM7550")
    };
    told.push((15, slow_later(8_200.0)));
    told.push((75, slow_later(8_200.0)));
    told.push((135, slow_later(24_000.0)));
    // Faults other than latency: outputs that are off, and a version that starts nowhere.
    let wrong = Reports {
        devices: 100..130,
        golden: Some((7, 0.4)),
        ..healthy("SM8750")
    };
    let dead = Reports {
        version: "3.0.0",
        failed_starts: 2,
        only_failed: true,
        ..healthy("SM8650")
    };
    told.push((260, wrong));
    told.push((270, dead));
    // These installations are new beyond their quota, so their reports have no vote.
    let doubtful = Reports {
        devices: 40..80,
        chipset: "SM8550",
        is_unproven: true,
        ..fallen.clone()
    };
    told.push((195, doubtful));
    // Other accelerators on the same chipset, under names that apps gave them.
    for (ep, devices) in [
        ("CUDAExecutionProvider", 140..170),
        ("npu0", 170..200),
        ("MyEp", 200..230),
    ] {
        let reports = Reports {
            ep,
            devices,
            failed_starts: 1,
            ..fallen.clone()
        };
        told.push((200, reports));
    }
    for (at, reports) in told {
        reports.store(&store, after(at)).await;
        record(&mut intake, &reports, after(at));
    }
    let from_store = lines_of(Source::new(store.client(), 100_000), 60).await;
    let (recording, _) = intake.finish().unwrap();
    let from_file = lines_of(Source::recorded(Arc::new(recording), 100_000), 60).await;
    assert!(from_file.len() > 10, "{from_file:#?}");
    assert!(
        from_file
            .iter()
            .any(|line| line.contains("partial_fallback"))
    );
    for verdict in [
        "wrong_outputs",
        "npu_start_failure",
        "slow_without_placement",
        "data_quality",
    ] {
        let verdict = format!("\"verdict\":\"{verdict}\"");
        assert!(from_file.iter().any(|line| line.contains(&verdict)));
    }
    let of_cuda = |line: &String| line.contains("SM8635 [CUDA]");
    assert!(from_file.iter().any(of_cuda));
    assert_eq!(from_file, from_store);
    store.stop().await;
}

/// Some devices are slower on a new version, too few for a finding. Such windows do not make slow devices usual, so the
/// version's last window is as surprising as its first, from both sources.
#[tokio::test]
async fn what_earlier_windows_teach_is_the_same_from_a_file_and_a_store() {
    const WINDOW_S: i64 = 20;
    let store = TestStore::start().await;
    let mut intake = Intake::new(Duration::from_secs(1));
    let base: Timestamp = base();
    let mut told = Vec::new();
    for window in 0..12 {
        let is_new = window >= 8;
        for (chipset, devices) in [("SM8635", 0..60), ("SM8650", 100..160)] {
            let sound = Reports {
                chipset,
                devices,
                version: if is_new { "2.0.0" } else { "1.0.0" },
                place: if is_new { V2 } else { V1 },
                previous: Some((if is_new { "1.0.0" } else { "0.9.0" }, 8_200.0)),
                ..Reports::default()
            };
            let slow = Reports {
                devices: 200..204,
                p50_us: 20_000.0,
                ..sound.clone()
            };
            told.push((window, sound));
            if is_new && chipset == "SM8635" {
                told.push((window, slow));
            }
        }
    }
    for (window, reports) in told {
        let received = base + SignedDuration::from_secs(window * WINDOW_S + 10);
        reports.store(&store, received).await;
        record(&mut intake, &reports, received);
    }
    let window_s = WINDOW_S.unsigned_abs();
    let from_store = lines_of(Source::new(store.client(), 100_000), window_s).await;
    let (recording, _) = intake.finish().unwrap();
    let from_file = lines_of(Source::recorded(Arc::new(recording), 100_000), window_s).await;
    assert_eq!(from_file, from_store);
    let of_version = from_file
        .iter()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|line| line["kind"] == "verdict" && line["firmware"] == "")
        .filter(|line| line["version"] == "2.0.0" && line["chipset"] == "SM8635");
    let slower: Vec<serde_json::Value> = of_version
        .flat_map(|line| line["signals"].as_array().cloned().unwrap())
        .filter(|signal| signal["id"] == "slow_device_share")
        .collect();
    assert_eq!(slower.len(), 4, "{from_file:#?}");
    assert!(slower[0]["p"].as_f64().unwrap() > 1e-4, "{slower:#?}");
    assert_eq!(
        (&slower[0]["hits"], &slower[0]["devices"]),
        (&4.into(), &64.into())
    );
    assert!(
        slower.iter().all(|signal| *signal == slower[0]),
        "{slower:#?}"
    );
    store.stop().await;
}

/// 60 devices a day, and then two.
#[tokio::test]
async fn a_fleet_that_goes_quiet_is_the_same_ticket_from_a_file_and_a_store() {
    const DAY_S: i64 = 86_400;
    let store = TestStore::start().await;
    // Rows that do not fit into memory go to a temporary file.
    let mut intake = Intake::new(Duration::from_secs(1)).holding(4_096);
    for day in 0..11 {
        let devices = if day < 10 { 0..60 } else { 0..2 };
        let reports = Reports {
            devices,
            ..Reports::default()
        };
        let received = base() + SignedDuration::from_secs((day - 11) * DAY_S);
        reports.store(&store, received).await;
        record(&mut intake, &reports, received);
    }
    let (window_s, lookback_s) = (DAY_S.unsigned_abs(), 14 * DAY_S.unsigned_abs());
    let of_store = Source::new(store.client(), 100_000);
    let from_store = lines_back_to(of_store, window_s, lookback_s).await;
    let (recording, _) = intake.finish().unwrap();
    let of_file = Source::recorded(Arc::new(recording), 100_000);
    let from_file = lines_back_to(of_file, window_s, lookback_s).await;
    assert_eq!(from_file, from_store);
    let incidents = from_file
        .iter()
        .filter(|line| line.contains("\"kind\":\"incident\""));
    let incidents: Vec<&String> = incidents.collect();
    assert_eq!(incidents.len(), 1, "{from_file:#?}");
    for part in [
        "\"verdict\":\"data_quality\"",
        "\"severity\":\"ticket\"",
        "\"state\":\"firing\"",
        "\"devices_hit\":58",
    ] {
        assert!(incidents[0].contains(part), "{part} in {}", incidents[0]);
    }
    store.stop().await;
}
