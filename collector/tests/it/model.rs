//! Each report counts once, checked against a model in memory: retries, batches, two collectors, restarts, deletions and
//! late reports in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use clickhouse::Row;
use epwatch_collector::Collector;
use epwatch_collector::config::CollectorConfig;
use epwatch_proto::InstallationId;
use epwatch_proto::v1::{self, Outcome};
use epwatch_server::Period;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde::Deserialize;

use crate::support::{COUNTED, Device, Store, config, connect, report, request, send, start_with};

/// One copy of a report: its key, and which of the reports with this key it is.
#[derive(Debug, Clone, Copy)]
struct Copy {
    device: u8,
    sequence: u64,
    /// 0 and 1 were made today, 2 nine days ago.
    variant: u8,
}

#[derive(Debug, Clone)]
enum Step {
    Send { collector: usize, copies: Vec<Copy> },
    Delete { collector: usize, device: u8 },
    Restart { collector: usize },
}

fn step() -> impl Strategy<Value = Step> {
    // Most repetitions are the same report again.
    let variant = prop_oneof![4 => Just(0_u8), 1 => Just(1), 1 => Just(2)];
    let copy = (0..4_u8, 1..6_u64, variant).prop_map(|(device, sequence, variant)| Copy {
        device,
        sequence,
        variant,
    });
    let collector = || 0..2_usize;
    prop_oneof![
        12 => (collector(), prop::collection::vec(copy, 1..6))
            .prop_map(|(collector, copies)| Step::Send { collector, copies }),
        1 => (collector(), 2..4_u8).prop_map(|(collector, device)| Step::Delete { collector, device }),
        1 => collector().prop_map(|collector| Step::Restart { collector }),
    ]
}

/// State of one key in a case.
#[derive(Debug, Default)]
struct Known {
    /// Copies that were acknowledged as stored.
    n_stored: u64,
    variants: BTreeSet<u8>,
    /// True if collector 0 received it since its last start, and so remembers it.
    is_remembered: bool,
}

#[derive(Debug, Default)]
struct Model {
    keys: BTreeMap<(u8, u64), Known>,
    deleted: BTreeSet<u8>,
}

impl Model {
    /// Checks one answer against the model's state before it.
    fn answered(&mut self, collector: usize, copy: Copy, outcome: Option<Outcome>) {
        let known = self.keys.entry((copy.device, copy.sequence)).or_default();
        match outcome {
            None => {
                assert!(
                    collector != 0 || !known.is_remembered,
                    "stored twice: {copy:?}"
                );
                known.n_stored += 1;
                known.variants.insert(copy.variant);
                known.is_remembered |= collector == 0;
            }
            Some(Outcome::Duplicate) => assert!(known.variants.contains(&copy.variant), "{copy:?}"),
            Some(Outcome::RefusedConflict) => {
                let others = known
                    .variants
                    .iter()
                    .any(|variant| *variant != copy.variant);
                assert!(others, "{copy:?}");
            }
            Some(Outcome::RefusedDeleted) => assert!(self.deleted.contains(&copy.device)),
            Some(other) => panic!("{copy:?}: {other:?}"),
        }
    }

    /// Counts the copies of devices that are not deleted. Rows of deleted devices are erased when a collector starts.
    fn n_copies(&self) -> u64 {
        let keys = self.keys.iter();
        let kept = keys.filter(|((device, _), _)| !self.deleted.contains(device));
        kept.map(|(_, known)| known.n_stored).sum()
    }

    /// Keys that count, by device.
    fn counted(&self) -> BTreeMap<u8, BTreeSet<u64>> {
        let mut counted: BTreeMap<u8, BTreeSet<u64>> = BTreeMap::new();
        for ((device, sequence), known) in &self.keys {
            if known.n_stored > 0 && !self.deleted.contains(device) {
                counted.entry(*device).or_default().insert(*sequence);
            }
        }
        counted
    }
}

/// Two collectors with one store. The second keeps no keys, as if it had just started.
struct Pair<'a> {
    store: &'a Store,
    configs: [CollectorConfig; 2],
    running: [Option<(Collector, Device)>; 2],
}

impl<'a> Pair<'a> {
    async fn start(store: &'a Store) -> Pair<'a> {
        let of = |name: &str| {
            let mut config = config(&store.dir.path().join(name));
            config.refresh = Period(Duration::from_millis(50));
            config.erase_period = Period(Duration::from_secs(3600));
            config
        };
        let mut configs = [of("model-1"), of("model-2")];
        configs[1].seen_keys = 0;
        let mut pair = Pair {
            store,
            configs,
            running: [None, None],
        };
        pair.restart(0).await;
        pair.restart(1).await;
        pair
    }

    async fn restart(&mut self, index: usize) {
        if let Some((collector, _)) = self.running[index].take() {
            collector.stop().await;
        }
        let collector = start_with(self.store, self.configs[index].clone()).await;
        let device = connect(&collector).await;
        self.running[index] = Some((collector, device));
    }

    fn device(&mut self, index: usize) -> &mut Device {
        &mut self.running[index].as_mut().expect("it runs").1
    }
}

/// The devices and the app of one case.
#[derive(Debug, Clone)]
struct Case(u64);

impl Case {
    fn app(&self) -> String {
        format!("com.example.case{}", self.0)
    }

    fn secret(&self, device: u8) -> [u8; 32] {
        let mut secret = [device; 32];
        secret[..8].copy_from_slice(&self.0.to_le_bytes());
        secret
    }

    fn report(&self, copy: Copy) -> v1::Report {
        let mut report = report(copy.device, 1, copy.sequence);
        let id = InstallationId::from_secret(&self.secret(copy.device));
        report.key.as_mut().unwrap().installation_id = Bytes::copy_from_slice(id.as_bytes());
        report.app.as_mut().unwrap().id = self.app();
        match copy.variant {
            // Another report with the same key: it has one series fewer, and five runs instead of six.
            1 => drop(report.series.pop()),
            2 => {
                report.interval_end_unix_ms -= 9 * 86_400_000;
                report.uptime_at_end_ms = None;
            }
            _ => {}
        }
        report
    }
}

#[derive(Debug, Row, Deserialize)]
struct Expected {
    keys: u64,
    runs: u64,
}

async fn play(case: &Case, steps: &[Step], pair: &mut Pair<'_>) {
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Send { collector, copies } => {
                let reports: Vec<_> = copies.iter().map(|copy| case.report(*copy)).collect();
                let results = send(pair.device(*collector), &reports).await;
                let outcomes: BTreeMap<_, _> = results
                    .iter()
                    .map(|result| (result.index as usize, result.outcome()))
                    .collect();
                for (index, copy) in copies.iter().enumerate() {
                    model.answered(*collector, *copy, outcomes.get(&index).copied());
                }
            }
            Step::Delete { collector, device } => {
                let secret = Bytes::copy_from_slice(&case.secret(*device));
                let request = v1::DeleteInstallationRequest { secret };
                pair.device(*collector)
                    .delete_installation(request)
                    .await
                    .unwrap();
                model.deleted.insert(*device);
            }
            Step::Restart { collector } => {
                pair.restart(*collector).await;
                for known in model.keys.values_mut().filter(|_| *collector == 0) {
                    known.is_remembered = false;
                }
            }
        }
    }
    check(case, &model, pair.store).await;
}

/// Compares every view with the model, before and after the buckets are closed.
async fn check(case: &Case, model: &Model, store: &Store) {
    let app = case.app();
    let copies = format!(
        "SELECT count() AS n FROM reports WHERE app_id = '{app}' \
         AND installation NOT IN (SELECT installation FROM tombstones)"
    );
    store.eventually(&copies, model.n_copies()).await;
    let counted = model.counted();
    // A deletion holds at once on the collector that was called, and soon on the other.
    let devices = format!(
        "SELECT uniqExact(installation) AS n FROM counted_reports_v1 WHERE app_id = '{app}'"
    );
    store.eventually(&devices, counted.len() as u64).await;

    // Selects the copy that was received first, among all stored copies.
    let first = format!(
        "SELECT count() AS keys, toUInt64(sum(runs)) AS runs FROM (
            SELECT argMin(arraySum(series_n), (received_at, collector_id, wal_offset)) AS runs
            FROM reports WHERE app_id = '{app}' AND installation NOT IN (SELECT installation FROM tombstones)
            GROUP BY installation, stream_id, sequence)"
    );
    let expected: Expected = store.client.query_raw(&first).fetch_one().await.unwrap();
    let keys: usize = counted.values().map(BTreeSet::len).sum();
    assert_eq!(expected.keys, keys as u64);
    let recorded: u64 = counted.values().filter_map(BTreeSet::last).sum();
    let sums = [
        ("count()", "counted_reports_v1", expected.keys),
        ("sum(n)", "device_series_v1", expected.runs),
        ("sum(n)", "device_buckets_v1", expected.runs),
        ("sum(n)", "cohort_buckets_v1", expected.runs),
        ("sum(sessions)", "cohort_sessions_v1", expected.keys),
        ("sum(recorded)", "loss_ledger_v1", recorded),
        ("sum(stored)", "loss_ledger_v1", expected.keys),
        ("sum(missing)", "loss_ledger_v1", recorded - expected.keys),
    ];
    let all = || async {
        for (sum, view, expected) in sums {
            let sql = format!("SELECT toUInt64({sum}) AS n FROM {view} WHERE app_id = '{app}'");
            store.eventually(&sql, expected).await;
        }
    };
    all().await;
    let open = format!(
        "SELECT count() AS n FROM reports WHERE app_id = '{app}' \
         AND bucket >= (SELECT max(closed_until) FROM rollup_watermark)"
    );
    store.eventually(&open, 0).await;
    all().await;
}

/// `EPWATCH_MODEL_CASES` sets another number of cases.
#[test]
fn whatever_the_order_every_view_is_what_the_model_says() {
    let cases = std::env::var("EPWATCH_MODEL_CASES").map_or(3, |cases| cases.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let store = runtime.block_on(Store::start());
    let pair = runtime.block_on(Pair::start(&store));
    let state = std::cell::RefCell::new((0_u64, pair));
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 60,
        ..Config::default()
    };
    let steps = prop::collection::vec(step(), 5..40);
    TestRunner::new(config)
        .run(&steps, |steps| {
            let (n, pair) = &mut *state.borrow_mut();
            *n += 1;
            runtime.block_on(play(&Case(*n), &steps, pair));
            Ok(())
        })
        .unwrap();
    let (_, Pair { running, .. }) = state.into_inner();
    runtime.block_on(async {
        for (collector, _) in running.into_iter().flatten() {
            collector.stop().await;
        }
        store.engine.stop().await;
    });
}

/// A phone that was off the network for nine days sends all of them at once.
#[tokio::test(flavor = "multi_thread")]
async fn nine_days_of_reports_are_stored_charted_and_do_not_vote() {
    let store = Store::start().await;
    let collector = start_with(&store, config(&store.dir.path().join("wal"))).await;
    let mut device = connect(&collector).await;
    let now_ms = 1_760_000_060_000_i64;
    // One report a day. The clock started at 1970, and was set on the fifth day.
    let reports: Vec<_> = (0..9_u64)
        .map(|day| {
            let mut report = report(1, 1, day + 1);
            let age_ms = (9 - day as i64) * 86_400_000;
            report.interval_end_unix_ms = match day {
                0..5 => day as i64 * 86_400_000,
                _ => now_ms - age_ms,
            };
            report.interval_start_unix_ms = (report.interval_end_unix_ms - 30_000).max(0);
            // The reports are from another boot, so the uptime does not help.
            report.boot_id = "earlier".to_owned();
            report
        })
        .collect();
    let mut request = request(&reports);
    request.clock.as_mut().unwrap().wall_unix_ms = Some(now_ms);
    let answer = device.upload(request).await.unwrap().into_inner();
    assert_eq!(answer.results, []);
    store.eventually(COUNTED, 9).await;
    // Reports of yesterday and the day before are in time; reports that are older, or of unknown age, are late.
    let voting = "SELECT count() AS n FROM counted_reports_v1 WHERE NOT is_late";
    assert_eq!(store.number(voting).await, 2);
    let unknown = "SELECT count() AS n FROM counted_reports_v1 \
                   WHERE occurred_source = 'unknown' AND occurred_at = received_at AND is_late";
    assert_eq!(store.number(unknown).await, 5);
    let charted = "SELECT uniqExact(toDate(occurred_at)) AS n FROM counted_reports_v1 \
                   WHERE occurred_source = 'wall_clock'";
    assert_eq!(store.number(charted).await, 4);
    let runs = "SELECT toUInt64(sum(n)) AS n FROM cohort_buckets_v1";
    assert_eq!(store.number(runs).await, 54);
    store.end(collector).await;
}
