//! New installations beyond an app's quota are stored without a vote, and known ones keep theirs. Neither a restart nor a
//! second collector changes that.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use epwatch_collector::Collector;
use epwatch_collector::config::{CollectorConfig, KeyKind, NewKey};
use epwatch_proto::recorded::RecordedReader;
use epwatch_proto::v1;
use epwatch_server::Period;
use epwatch_server::{Clock, SystemClock};
use epwatch_test_support::until;
use prost::Message;
use tokio_util::sync::CancellationToken;

use crate::http::post;
use crate::support::{
    Device, ROWS, Store, TIMEOUT, check_metrics, connect, hears_its_store, key_for, report,
    request, with_key,
};

/// The first report of a stream of installation `n`.
pub(crate) fn of(n: u32, stream_id: u64) -> v1::Report {
    let mut report = report(1, stream_id, 1);
    let mut id = [7; 16];
    id[..4].copy_from_slice(&n.to_be_bytes());
    let key = report.key.as_mut().unwrap();
    key.installation_id = Bytes::copy_from_slice(&id);
    report
}

/// A key that ships in an app.
pub(crate) const SHIPPED: &str = "epw_shipped_in_an_app";

/// The usual config, with that key.
fn config(wal: &std::path::Path) -> CollectorConfig {
    CollectorConfig {
        keys: vec![key_for(&NewKey::of(SHIPPED.to_owned()), "*")],
        ..crate::support::config(wal)
    }
}

async fn send_all(device: &mut Device, installations: std::ops::Range<u32>, stream_id: u64) {
    let reports: Vec<v1::Report> = installations.map(|n| of(n, stream_id)).collect();
    for reports in reports.chunks(500) {
        let call = with_key(request(reports), SHIPPED);
        let answer = device.upload(call).await.unwrap().into_inner();
        assert!(answer.results.is_empty(), "{answer:?}");
    }
}

/// A clock that is some hours slow.
#[derive(Debug)]
struct Slow(u64);

impl Clock for Slow {
    fn now_us(&self) -> u64 {
        SystemClock.now_us() - self.0
    }
}

/// Offset of this process's clocks. With it they are between 6 and 18 o'clock (UTC) when the first test begins, so that
/// no day ends during the tests.
fn slow_us() -> u64 {
    const SIX_HOURS_US: u64 = 6 * 3_600_000_000;
    static SLOW_US: OnceLock<u64> = OnceLock::new();
    *SLOW_US.get_or_init(|| {
        let is_morning = SystemClock.now_us() / SIX_HOURS_US % 4 < 2;
        SIX_HOURS_US * if is_morning { 3 } else { 1 }
    })
}

async fn start_at_noon(store: &Store, config: CollectorConfig) -> Collector {
    start_days_ago(store, config, 0).await
}

/// Starts a collector whose clock is at noon of a day in the past.
pub(crate) async fn start_days_ago(store: &Store, config: CollectorConfig, days: u64) -> Collector {
    const DAY_US: u64 = 86_400_000_000;
    let (client, stop) = (store.client.clone(), CancellationToken::new());
    let clock = Arc::new(Slow(slow_us() + days * DAY_US));
    let collector = Collector::start_with_clock(config, client, stop, clock);
    let collector = collector.await.unwrap();
    hears_its_store(&collector).await;
    collector
}

const UNPROVEN: &str = "SELECT uniqExact(installation) AS n FROM reports WHERE is_unproven";

/// Installations with a vote, in the view that the detector reads.
const VOTERS: &str = "SELECT uniqExact(installation) AS n FROM device_buckets_v1 WHERE votes";

#[tokio::test(flavor = "multi_thread")]
async fn the_last_of_a_flood_do_not_vote_and_a_restart_changes_nothing() {
    let store = Store::start().await;
    let config = config(&store.dir.path().join("wal"));
    let collector = start_at_noon(&store, config.clone()).await;
    let mut device = connect(&collector).await;
    send_all(&mut device, 0..1_100, 1).await;
    store.eventually(ROWS, 1_100).await;
    assert_eq!(store.number(UNPROVEN).await, 100);
    let last = "SELECT count() AS n FROM reports WHERE is_unproven \
                AND reinterpretAsUInt32(reverse(substring(installation, 1, 4))) >= 1000";
    assert_eq!(store.number(last).await, 100);
    assert_eq!(store.number(VOTERS).await, 1_000);
    // Summaries outlive raw reports by a year, so reports that may be made up are not in them.
    let of = |sum: &str, view: &str| format!("SELECT toUInt64(sum({sum})) AS n FROM {view}");
    for (sum, all, summary) in [
        ("n", "device_buckets_v1", "cohort_buckets_v1"),
        ("sessions", "device_placements_v1", "cohort_sessions_v1"),
    ] {
        let proven = store.number(&of(sum, &format!("{all} WHERE votes"))).await;
        assert_eq!(store.number(&of(sum, summary)).await, proven);
        assert!(store.number(&of(sum, all)).await > proven && proven > 0);
    }
    let unproven = "SELECT toUInt64(sum(unproven)) AS n FROM installations_daily_v1";
    assert_eq!(store.number(unproven).await, 100);
    // For reports from loopback no network is known.
    let weighed = "SELECT count() AS n FROM counted_reports_v1 WHERE is_own OR has_network";
    assert_eq!(store.number(weighed).await, 0);

    // Known installations keep their vote; the others do not gain one by reporting again.
    send_all(&mut device, 990..1_010, 2).await;
    store.eventually(ROWS, 1_120).await;
    collector.stop().await;
    let collector = start_at_noon(&store, config).await;
    let mut device = connect(&collector).await;
    send_all(&mut device, 990..1_200, 3).await;
    store.eventually(ROWS, 1_330).await;
    assert_eq!(store.number(UNPROVEN).await, 200);
    assert_eq!(store.number(VOTERS).await, 1_000);
    let known = "SELECT count() AS n FROM reports WHERE is_unproven \
                 AND reinterpretAsUInt32(reverse(substring(installation, 1, 4))) < 1000";
    assert_eq!(store.number(known).await, 0);
    let ledger = "SELECT toUInt64(sum(stored + unproven)) AS n FROM loss_ledger_v1";
    assert_eq!(
        store.number(ledger).await,
        1_330,
        "they are stored all the same"
    );
    let mut dump = Vec::new();
    epwatch_collector::dump_wal(&store.dir.path().join("wal"), &mut dump).unwrap();
    let mut told = [0; 2];
    for record in RecordedReader::new(&dump[..]) {
        let record = record.unwrap();
        let key = record.parse_report().unwrap().key;
        let n = u32::from_be_bytes(key.installation.as_bytes()[..4].try_into().unwrap());
        let is_unproven = record.is_unproven.unwrap();
        assert_eq!(is_unproven, n >= 1_000);
        told[usize::from(is_unproven)] += 1;
    }
    assert!(told.iter().all(|&n| n > 0), "{told:?}");
    store.end(collector).await;
}

/// Reports in the WAL have their decision already, and installations admitted there are known after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn the_decision_is_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::start_in(dir).await;
    let mut config = config(&store.dir.path().join("wal"));
    config.new_installations.at_least = 10;
    config.batch.drain_timeout = Period(Duration::ZERO);
    // The period is so long that no report reaches the store before the stop.
    config.batch.period = Period(Duration::from_secs(60));
    let collector = start_at_noon(&store, config.clone()).await;
    let mut device = connect(&collector).await;
    send_all(&mut device, 0..15, 1).await;
    collector.stop().await;

    config.batch.period = Period(Duration::from_millis(20));
    let collector = start_at_noon(&store, config).await;
    let mut device = connect(&collector).await;
    send_all(&mut device, 5..20, 2).await;
    store.eventually(ROWS, 30).await;
    // Installations 10 to 14 of the first stream and 10 to 19 of the second are unproven.
    assert_eq!(store.number(UNPROVEN).await, 10);
    let rows = "SELECT count() AS n FROM reports WHERE is_unproven";
    assert_eq!(store.number(rows).await, 15);
    store.end(collector).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_collector_hears_who_was_let_in() {
    let store = Store::start().await;
    let config = |wal: &str| -> CollectorConfig {
        let mut config = config(&store.dir.path().join(wal));
        // More than the installations that reach the second collector before it loads the installations of the first.
        config.new_installations.at_least = 500;
        config.new_installations.refresh = Period(Duration::from_millis(50));
        config
    };
    let one = start_at_noon(&store, config("one")).await;
    let two = start_at_noon(&store, config("two")).await;
    send_all(&mut connect(&one).await, 0..500, 1).await;
    store.eventually(ROWS, 500).await;
    // Once the second collector has loaded them, its quota is used up too, and new installations are unproven.
    let deadline = std::time::Instant::now() + TIMEOUT;
    let mut device = connect(&two).await;
    let mut n = 1_000;
    loop {
        send_all(&mut device, n..n + 1, 1).await;
        n += 1;
        let text = two.metrics().encode();
        if text.contains("epwatch_collector_unproven_reports_total{reason=\"app\"} 1\n") {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    send_all(&mut device, 0..500, 2).await;
    store.eventually(ROWS, u64::from(n)).await;
    assert_eq!(store.number(UNPROVEN).await, 1);
    one.stop().await;
    store.end(two).await;
}

/// The reports come over both protocols, and the network from a trusted proxy's header.
#[tokio::test(flavor = "multi_thread")]
async fn one_network_has_its_part_of_the_room() {
    let store = Store::start().await;
    let mut config = config(&store.dir.path().join("wal"));
    config.new_installations.per_network = 3;
    config.new_installations.trusted_proxies = Some(vec!["127.0.0.0/8".parse().unwrap()]);
    let collector = start_at_noon(&store, config).await;
    let mut device = connect(&collector).await;
    for n in 0..4 {
        let body = request(&[of(n, 1)]).encode_to_vec();
        let key = format!("Bearer {SHIPPED}");
        let from = [
            ("X-Forwarded-For", "10.9.9.9, 198.51.100.1"),
            ("Authorization", key.as_str()),
        ];
        let answer = post(collector.listen(), "Upload", &from, &body);
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let mut by_grpc = async |n: u32, from: &'static str| {
        let mut call = with_key(request(&[of(n, 1)]), SHIPPED);
        let from = tonic::metadata::MetadataValue::from_static(from);
        call.metadata_mut().insert("x-forwarded-for", from);
        device.upload(call).await.unwrap();
    };
    by_grpc(4, "198.51.100.77").await;
    by_grpc(5, "198.51.101.1").await;
    // A known device may use another address.
    by_grpc(0, "198.51.100.1").await;
    store.eventually(ROWS, 6).await;
    assert_eq!(store.number(UNPROVEN).await, 2);
    let line = "epwatch_collector_unproven_reports_total{reason=\"network\"} 2";
    check_metrics(&collector, &[line]);
    // Both widths are stored as hashes: of two networks in one wide network, and of no address.
    let networks = "SELECT toUInt64(uniqExact(network) * 100 + uniqExact(network_wide) * 10 \
                    + countIf(network < 256 OR network = network_wide)) AS n FROM reports";
    assert_eq!(store.number(networks).await, 210);
    let views = "SELECT count() AS n FROM system.columns WHERE database = currentDatabase() \
                 AND name IN ('network', 'network_wide') AND table != 'reports'";
    assert_eq!(store.number(views).await, 0);
    // The key was made once, and the dump has the same decisions as the store.
    assert_eq!(
        store.number("SELECT count() AS n FROM network_key").await,
        1
    );
    let mut dump = Vec::new();
    epwatch_collector::dump_wal(&store.dir.path().join("wal"), &mut dump).unwrap();
    for record in RecordedReader::new(&dump[..]) {
        let record = record.unwrap();
        assert_eq!(record.is_own, Some(false));
        assert!(record.network.is_some());
    }
    store.end(collector).await;
}

/// The operator's own devices are trusted: they do not count as new, and the limits by network do not apply to them.
#[tokio::test(flavor = "multi_thread")]
async fn devices_of_an_own_key_take_no_room() {
    let store = Store::start().await;
    let mut config = config(&store.dir.path().join("wal"));
    config.keys[0].kind = KeyKind::Own;
    config.new_installations.at_least = 10;
    let collector = start_at_noon(&store, config).await;
    send_all(&mut connect(&collector).await, 0..50, 1).await;
    store.eventually(ROWS, 50).await;
    assert_eq!(store.number(UNPROVEN).await, 0);
    let own = "SELECT count() AS n FROM counted_reports_v1 WHERE is_own";
    assert_eq!(store.number(own).await, 50);
    store.end(collector).await;
}

/// Made-up environments share the quota of their app, even 10,000 of them.
#[tokio::test(flavor = "multi_thread")]
async fn environments_share_the_room_of_their_app() {
    let store = Store::start().await;
    let mut config = config(&store.dir.path().join("wal"));
    config.new_installations.at_least = 10;
    let collector = start_at_noon(&store, config).await;
    let mut device = connect(&collector).await;
    let reports: Vec<v1::Report> = (0..50)
        .map(|n| {
            let mut report = of(n, 1);
            report.app.as_mut().unwrap().environment = format!("made up {n}");
            report
        })
        .collect();
    let call = with_key(request(&reports), SHIPPED);
    let answer = device.upload(call).await.unwrap().into_inner();
    assert!(answer.results.is_empty(), "{answer:?}");
    store.eventually(ROWS, 50).await;
    assert_eq!(store.number(UNPROVEN).await, 40);
    store.end(collector).await;
}

/// Behind a proxy that the config does not name, the limits by network do not work. The uploads reveal it, and the next
/// start is refused until the config names the proxy.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_behind_a_proxy_that_is_not_named_does_not_start_again() {
    let dir = tempfile::tempdir().unwrap();
    let key = NewKey::random().unwrap();
    let mut config = config(&dir.path().join("wal"));
    config.batch.drain_timeout = Period(Duration::from_millis(1));
    config.listen = ([0, 0, 0, 0], 0).into();
    config.keys = vec![key_for(&key, "com.example.camera")];
    let store = epwatch_store::client(&Store::target_in(&dir));
    let start = async |config: &CollectorConfig| {
        let starting = Collector::start(config.clone(), store.clone(), CancellationToken::new());
        starting.await
    };
    let upload = async |collector: &Collector, sequence: u64| {
        let address = format!("http://127.0.0.1:{}", collector.listen().port());
        let mut device = Device::connect(address).await.unwrap();
        let reports: Vec<_> = (0..50).map(|n| report(1, 10, sequence + n)).collect();
        let call = with_key(request(&reports), &key.secret);
        device.upload(call).await.unwrap();
    };
    let collector = start(&config).await.unwrap();
    upload(&collector, 1).await;
    collector.stop().await;
    let collector = start(&config).await.expect("that was a trial");
    upload(&collector, 51).await;
    upload(&collector, 101).await;
    let file = dir.path().join("wal/unnamed-proxy");
    until("it is written down", async || file.exists()).await;
    upload(&collector, 151).await;
    collector.stop().await;

    let refused = start(&config).await.unwrap_err().to_string();
    assert!(
        refused.contains("new_installations.trusted_proxies") && refused.contains("127.0.0.1"),
        "{refused}"
    );
    let mut on_loopback = config.clone();
    on_loopback.listen = ([127, 0, 0, 1], 0).into();
    start(&on_loopback).await.unwrap().stop().await;
    let mut answered = config.clone();
    answered.new_installations.trusted_proxies = Some(Vec::new());
    start(&answered).await.unwrap().stop().await;
    start(&config).await.unwrap().stop().await;
}
