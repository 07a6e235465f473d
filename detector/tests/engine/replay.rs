//! Replay over a file and over a store that holds the same reports: the same lines.

use std::sync::Arc;
use std::time::Duration;

use epwatch_detector::DetectorConfig;
use epwatch_detector::period::Period;
use epwatch_detector::replay::{Line, ReplayOptions, replay, to_json};
use epwatch_detector::source::Source;
use epwatch_detector::source::recorded::Intake;
use jiff::{SignedDuration, Timestamp};

use crate::support::{Reports, TestStore, V1, V2, V2_FALLEN, base};

async fn lines_of(source: Source) -> Vec<String> {
    let options = ReplayOptions {
        config: DetectorConfig {
            window: Period(Duration::from_secs(60)),
            step: Period(Duration::from_secs(60)),
            bucket: Period(Duration::from_secs(1)),
            lookback: Period(Duration::from_secs(3600)),
            ..DetectorConfig::default()
        },
        from: None,
        to: None,
        all: true,
    };
    let mut lines = Vec::new();
    let mut keep = |line: Line| {
        lines.push(to_json(&line));
        Ok(())
    };
    replay(source, &options, &mut keep).await.unwrap();
    lines
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
    // Nobody knows its past: it comes from what was received before.
    let forgetful = Reports {
        previous: None,
        firmware: "f2",
        ..fallen.clone()
    };
    // Too few runs: those of the window before are added.
    let sparse = Reports {
        devices: 40..60,
        runs: 10,
        place: V1,
        ..healthy("SM8550")
    };
    told.push((70, sparse.clone()));
    told.push((130, sparse));
    told.push((190, sound));
    told.push((195, fallen));
    told.push((250, forgetful));
    // Beside latency: outputs that are off, and a version that starts nowhere.
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
    for (at, reports) in told {
        reports.store(&store, after(at)).await;
        for report in reports.reports(after(at)) {
            let sent = epwatch_proto::SendClock {
                wall_unix_ms: Some(after(at).as_millisecond()),
                ..epwatch_proto::SendClock::default()
            };
            let received = after(at).as_millisecond();
            intake.add_report(received, ("camera", "production"), &report, &sent);
        }
    }
    let from_store = lines_of(Source::new(store.client(), 100_000)).await;
    let (recording, _) = intake.finish();
    let from_file = lines_of(Source::recorded(Arc::new(recording), 100_000)).await;
    assert!(from_file.len() > 10, "{from_file:#?}");
    assert!(
        from_file
            .iter()
            .any(|line| line.contains("partial_fallback"))
    );
    for verdict in ["wrong_outputs", "npu_start_failure"] {
        let verdict = format!("\"verdict\":\"{verdict}\"");
        assert!(from_file.iter().any(|line| line.contains(&verdict)));
    }
    assert_eq!(from_file, from_store);
    store.stop().await;
}
