//! A fleet over virtual time: its reports must agree with the simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use epwatch_fleet::{
    Chipset, Fleet, Placed, PlacementFault, Placements, RecordedModel, Rollout, Scenario,
    VirtualTime,
};
use epwatch_proto::{BaselineKind, RecordedReport, Report};

const START_UNIX_MS: i64 = 1_790_000_000_000;

/// 100 devices that all move from version 1 to version 2 between 60 and 70 s.
fn scenario() -> Scenario {
    let mut scenario = Scenario::new("app.test", "mixed", "1", 100);
    scenario.report_interval = Duration::from_secs(10);
    scenario.rollouts.push(Rollout {
        version: "2".to_owned(),
        starts: Duration::from_secs(60),
        takes: Duration::from_secs(10),
        share: 1.0,
    });
    scenario.always_fell_back = 0.0;
    scenario
}

fn run(scenario: Scenario) -> (Vec<RecordedReport>, u64) {
    let models = [("1", RecordedModel::INT8), ("2", RecordedModel::FLOAT_HEAD)];
    let fleet = Fleet::new(scenario, Placements::recorded(&models), START_UNIX_MS).unwrap();
    let mut virtual_time = VirtualTime::new(fleet, START_UNIX_MS, Duration::from_secs(120));
    let records: Vec<_> = virtual_time.by_ref().collect();
    (records, virtual_time.n_runs())
}

fn parsed(records: &[RecordedReport]) -> Vec<Report> {
    records
        .iter()
        .map(|record| record.parse_report().unwrap())
        .collect()
}

/// Returns the median over devices of each device's median warm latency of a version on a chipset.
fn median_us(reports: &[Report], chipset: Chipset, version: &str) -> f64 {
    let mut by_device = BTreeMap::<_, epwatch_proto::SparseHistogram>::new();
    for report in reports
        .iter()
        .filter(|report| report.device.chipset.as_str() == chipset.name())
    {
        for series in report
            .series
            .iter()
            .filter(|series| series.stratum.is_clean())
        {
            if report.session(series.session_uid).unwrap().model.version == version {
                let histogram = by_device.entry(report.key.installation).or_default();
                histogram.merge(&series.histogram);
            }
        }
    }
    let mut medians: Vec<f64> = by_device
        .values()
        .filter_map(|histogram| histogram.quantile_us(0.5))
        .collect();
    assert!(medians.len() >= 5, "{} devices", medians.len());
    medians.sort_by(f64::total_cmp);
    medians[medians.len() / 2]
}

#[test]
fn every_report_parses_and_arrives_in_order() {
    let (records, _) = run(scenario());
    assert!(
        records
            .windows(2)
            .all(|pair| { pair[0].received_at_unix_ms <= pair[1].received_at_unix_ms })
    );
    for report in parsed(&records) {
        assert_eq!(report.app.id, "app.test");
        assert!(report.interval_length_ms <= 10_000);
    }
}

#[test]
fn sequence_numbers_have_no_gap() {
    let (records, _) = run(scenario());
    let mut streams = BTreeMap::<_, Vec<u64>>::new();
    for report in parsed(&records) {
        let stream = (report.key.installation, report.key.stream);
        streams
            .entry(stream)
            .or_default()
            .push(report.key.sequence.get());
    }
    assert_eq!(streams.len(), 100);
    for sequences in streams.values() {
        let expected: Vec<u64> = (1..=sequences.len() as u64).collect();
        assert_eq!(*sequences, expected);
    }
}

#[test]
fn every_run_is_in_exactly_one_histogram() {
    let (records, n_runs) = run(scenario());
    let reports = parsed(&records);
    let in_histograms: u64 = reports
        .iter()
        .flat_map(|report| &report.series)
        .map(|series| series.n)
        .sum();
    assert!(n_runs > 20_000, "{n_runs}");
    assert_eq!(in_histograms, n_runs);
    let mut last = BTreeMap::new();
    for report in &reports {
        last.insert(report.key.installation, report.health.runs_recorded);
    }
    assert_eq!(last.values().sum::<u64>(), n_runs);
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let mut other = scenario();
    other.seed = 2;
    let (first, again, other) = (run(scenario()).0, run(scenario()).0, run(other).0);
    assert!(first == again);
    assert!(first != other);
}

/// The scenario does not set a slow-down: the latency follows from the recorded placement.
#[test]
fn the_float_head_is_slow_only_where_it_left_the_npu() {
    let (records, _) = run(scenario());
    let reports = parsed(&records);
    let ratio = |chipset| median_us(&reports, chipset, "2") / median_us(&reports, chipset, "1");
    for chipset in [Chipset::Sm8650, Chipset::Sm8550, Chipset::Sm8750] {
        let ratio = ratio(chipset);
        assert!((0.9..1.1).contains(&ratio), "{chipset:?}: {ratio}");
    }
    for chipset in [Chipset::Sm8635, Chipset::Sm7550] {
        let ratio = ratio(chipset);
        assert!((3.4..4.6).contains(&ratio), "{chipset:?}: {ratio}");
    }
    let ops: BTreeSet<&str> = reports
        .iter()
        .flat_map(|report| &report.sessions)
        .flat_map(|session| session.placement.cpu_ops())
        .collect();
    let expected = ["Gemm", "LayerNormalization", "Relu", "Softmax"];
    assert_eq!(ops, BTreeSet::from(expected));
}

/// Reports carry the SDK's own baseline of the version before.
#[test]
fn the_second_version_comes_with_the_first_ones_baseline() {
    let (records, _) = run(scenario());
    let (mut known, mut ratios) = (0, Vec::new());
    let reports = parsed(&records);
    let on_sm8635 = |report: &&Report| report.device.chipset.as_str() == "SM8635";
    for report in reports.iter().filter(on_sm8635) {
        for series in report
            .series
            .iter()
            .filter(|series| series.stratum.is_clean())
        {
            let session = report.session(series.session_uid).unwrap();
            let baseline = series.baselines.of_kind(BaselineKind::PreviousVersion);
            assert!(session.model.version == "2" || baseline.is_none());
            if let Some(baseline) = baseline {
                known += 1;
                assert_eq!(baseline.model_version, "1");
                ratios.push(series.histogram.quantile_us(0.1).unwrap() / baseline.p10_us);
            }
        }
    }
    assert!(known > 50, "{known}");
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    assert!((3.4..4.6).contains(&median), "{median}");
}

#[test]
fn a_total_fallback_is_an_order_of_magnitude() {
    let mut scenario = scenario();
    scenario.faults.push(PlacementFault {
        chipset: Chipset::Sm8650,
        version: "2".to_owned(),
        share: 1.0,
        placed: Placed::OnCpu,
    });
    let (records, _) = run(scenario);
    let reports = parsed(&records);
    let ratio =
        median_us(&reports, Chipset::Sm8650, "2") / median_us(&reports, Chipset::Sm8650, "1");
    assert!((11.0..14.0).contains(&ratio), "{ratio}");
}

#[test]
fn a_fallback_on_some_devices_leaves_the_others_alone() {
    let mut scenario = scenario();
    scenario.faults.push(PlacementFault {
        chipset: Chipset::Sm8650,
        version: "2".to_owned(),
        share: 0.4,
        placed: Placed::As(Chipset::Sm8635),
    });
    let (records, _) = run(scenario);
    let (mut hit, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for report in parsed(&records) {
        for session in &report.sessions {
            if report.device.chipset.as_str() == "SM8650" && session.model.version == "2" {
                seen.insert(report.key.installation);
                if !session.placement.cpu_ops().is_empty() {
                    hit.insert(report.key.installation);
                }
            }
        }
    }
    let share = hit.len() as f64 / seen.len() as f64;
    assert!(
        (0.2..0.6).contains(&share),
        "{} of {}",
        hit.len(),
        seen.len()
    );
}
