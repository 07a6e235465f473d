//! `epwatch gate --runs` over recorded reports. They come from simulated phones on the SDK's own core, and from a
//! collector's WAL.

use std::{collections::BTreeSet, fs::File, io::BufWriter, path::Path, time::Duration};

use epwatch_collector::{Collector, config::AppKeyConfig, config::KeyKind};
use epwatch_fleet::{
    Chipset, ChipsetShare, Fleet, Live, Placements, RecordedModel, Rollout, Scenario, VirtualTime,
};
use epwatch_proto::recorded::write_recorded;
use epwatch_test_support::until;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::support::{Store, check_ends, check_fails, check_succeeds, epwatch};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");
/// SHA-256 of the key `gate-reports-key`.
const KEY_SHA256: &str = "c2b6e3273f7fcda3a2e47df54ec195a0dd5431102d14b5100c2353e1f80f3504";

/// Phones that move from version 1, on the NPU, to version 2, whose head SM8635 leaves on the CPU.
fn fleet(phones: usize, chipsets: &[Chipset], start_unix_ms: i64) -> Fleet {
    let mut scenario = Scenario::new("it.bench", "mixed", "1", phones);
    let share = |chipset: &Chipset| ChipsetShare {
        chipset: *chipset,
        share: 1.0,
    };
    scenario.chipsets = chipsets.iter().map(share).collect();
    scenario.report_interval = Duration::from_secs(2);
    scenario.always_fell_back = 0.0;
    scenario.rollouts.push(Rollout {
        version: "2".to_owned(),
        starts: Duration::from_secs(60),
        takes: Duration::ZERO,
        share: 1.0,
    });
    let models = [("1", RecordedModel::INT8), ("2", RecordedModel::FLOAT_HEAD)];
    Fleet::new(scenario, Placements::recorded(&models), start_unix_ms).unwrap()
}

fn record(path: &Path, phones: usize, chipsets: &[Chipset]) {
    let start = 1_790_000_000_000;
    let fleet = fleet(phones, chipsets, start);
    let mut file = BufWriter::new(File::create(path).unwrap());
    for report in VirtualTime::new(fleet, start, Duration::from_secs(120)) {
        write_recorded(&mut file, &report).unwrap();
    }
}

fn target<'a>(document: &'a Value, chipset: &str) -> &'a Value {
    let targets = document["targets"].as_array().unwrap();
    let target = targets.iter().find(|target| target["chipset"] == chipset);
    target.unwrap_or_else(|| panic!("no {chipset} in {document:#}"))
}

fn result<'a>(target: &'a Value, id: &str) -> &'a Value {
    let checks = target["checks"].as_array().unwrap();
    &checks.iter().find(|check| check["id"] == id).unwrap()["result"]
}

/// MODEL selects its sessions by hash; each chipset is a target.
#[test]
fn placements_that_phones_reported_are_judged_by_chipset() {
    let dir = tempfile::tempdir().unwrap();
    let reports = dir.path().join("bench.reports");
    record(&reports, 4, &[Chipset::Sm8650, Chipset::Sm8635]);
    let gate = |model: &str, more: &str| {
        let runs = reports.display();
        epwatch(&format!("gate {MODELS}/{model}.onnx --runs {runs} {more}"))
    };
    check_ends(&mut gate("mixed_v1.int8", ""), 0);
    let (document, _) = check_ends(&mut gate("mixed_v2.head32", "--json"), 1);
    let document: Value = serde_json::from_str(&document).unwrap();
    let (healthy, ill) = (target(&document, "SM8650"), target(&document, "SM8635"));
    assert_eq!(result(healthy, "npu_macs"), "pass");
    assert_eq!(result(ill, "npu_macs"), "fail");
    assert_eq!(ill["source"], "recorded_reports");
    let share = ill["placement"]["npu_macs"].as_f64().unwrap();
    assert!((0.70..0.80).contains(&share), "{share}");
    check_ends(&mut gate("mixed_v2.head32", "--soc SM8650"), 0);

    let both = format!("gate --runs {}", reports.display());
    check_fails(&mut epwatch(&both), 2, "mixed 1, mixed 2: give MODEL");
    check_fails(&mut gate("e_mixed.qu8", ""), 2, "give MODEL");
}

/// A launch is a session, and each phone is a target.
#[test]
fn run_times_are_judged_phone_by_phone() {
    let dir = tempfile::tempdir().unwrap();
    let reports = dir.path().join("bench.reports");
    let with = |phones: usize, policy: &str| {
        record(&reports, phones, &[Chipset::Sm8635]);
        let limits = dir.path().join("gate.toml");
        std::fs::write(&limits, policy).unwrap();
        let (runs, limits) = (reports.display(), limits.display());
        epwatch(&format!(
            "gate {MODELS}/mixed_v1.int8.onnx --runs {runs} --policy {limits}"
        ))
    };
    // Phones may have been hot, so their result is undecided.
    let judged = with(3, "[latency]\nmedian_ms = 1000.0")
        .arg("--json")
        .output();
    let document: Value = serde_json::from_slice(&judged.unwrap().stdout).unwrap();
    let targets = document["targets"].as_array().unwrap();
    let names: BTreeSet<&str> = targets
        .iter()
        .filter_map(|on| on["chipset"].as_str())
        .collect();
    assert_eq!(names.len(), 3, "{document:#}");
    assert!(
        names.iter().all(|name| name.starts_with("SM8635 ")),
        "{names:?}"
    );
    let (table, _) = check_ends(&mut with(1, "[latency]\nmedian_ms = 1000.0"), 0);
    assert!(table.contains("pass      median"), "{table}");
    check_fails(&mut with(1, "[latency]\nmedian_ms = 0.001"), 1, "median");
}

/// Tests the way of a test bench: from a collector's WAL to a verdict.
#[tokio::test]
async fn a_wal_is_dumped_and_judged() {
    let store = Store::start().await;
    let mut config = store.collector_config("wal");
    config.keys = vec![AppKeyConfig {
        sha256: KEY_SHA256.to_owned(),
        app: "it.bench".to_owned(),
        environment: "production".to_owned(),
        kind: KeyKind::Own,
        ..AppKeyConfig::default()
    }];
    let wal = config.wal.dir.clone();
    let collector = Collector::start(config, store.client(), CancellationToken::new());
    let collector = collector.await.unwrap();
    let now = jiff::Timestamp::now().as_millisecond();
    let endpoint = format!("http://{}", collector.listen());
    let fleet = fleet(1, &[Chipset::Sm8635], now);
    let live = Live::start(fleet, &endpoint, "gate-reports-key").unwrap();
    until("a report is stored", || async {
        live.progress().acked >= 1
    })
    .await;
    drop(live);
    collector.stop().await;
    let reports = store.dir.path().join("bench.reports");
    let (wal, out) = (wal.display(), reports.display());
    let said = check_succeeds(&mut epwatch(&format!(
        "collector dump --wal {wal} --out {out}"
    )));
    assert!(said.contains(" reports in "), "{said}");
    // The phone may have been hot, which leaves the result undecided.
    let judged = format!("gate {MODELS}/mixed_v1.int8.onnx --runs {out} --json");
    let judged = epwatch(&judged).output().unwrap();
    let judged: Value = serde_json::from_slice(&judged.stdout).unwrap();
    let judged = target(&judged, "SM8635");
    assert_eq!(judged["source"], "recorded_reports");
    assert_eq!(result(judged, "npu_macs"), "pass", "{judged:#}");
    let gone = format!("collector dump --wal {wal}/gone --out {out}");
    check_fails(&mut epwatch(&gone), 2, "expected a collector's WAL");
    store.engine.stop().await;
}
