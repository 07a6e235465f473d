//! Made-up installations that stay for eight days take no vote and no name from honest phones.

use std::collections::BTreeMap;

use epwatch_collector::config::{CollectorConfig, NewKey};
use epwatch_proto::v1;
use epwatch_runtimes::is_nightly;

use crate::support::{Device, ROWS, Store, connect, key_for, request, with_key};
use crate::unproven::{SHIPPED, of, start_days_ago};

const DAYS: u64 = 8;

/// Ranges of installation numbers: phones with a history, three new phones each day, and made-up ones.
const HONEST: u32 = 100;
const FIRST_NEW: u32 = 1_000;
const FIRST_FORGED: u32 = 10_000;
const FORGED: u32 = 300;

/// Rows of honest phones.
const OF_HONEST: &str = "reinterpretAsUInt32(reverse(substring(installation, 1, 4))) < 10000";

/// A report of this installation on a day, with names of its model, version and chipset.
fn named(n: u32, (day, sequence): (u64, u64), names: [&str; 3]) -> v1::Report {
    let mut report = of(n, day + 1);
    report.key.as_mut().unwrap().sequence = sequence;
    let model = report.sessions[0].model.as_mut().unwrap();
    names[0].clone_into(&mut model.id);
    names[1].clone_into(&mut model.version);
    let device = report.device.as_mut().unwrap();
    names[2].clone_into(&mut device.chipset_raw);
    device.board.clear();
    report
}

/// The reports of honest phones on a day, by address: a hundred phones on 80 networks, and three new ones.
fn honest((day, sequence): (u64, u64), version: &str) -> BTreeMap<String, Vec<v1::Report>> {
    let mut by_address: BTreeMap<String, Vec<v1::Report>> = BTreeMap::new();
    let names = ["detector", version, "SM8650"];
    for n in 0..HONEST {
        let network = n % 80;
        let sent = by_address
            .entry(format!("11.{}.{network}.9", network / 3))
            .or_default();
        sent.push(named(n, (day, sequence), names));
    }
    for n in (0..3).filter(|_| day > 0) {
        let n = 3 * u32::try_from(day).unwrap() + n;
        let report = named(FIRST_NEW + n, (day, sequence), names);
        by_address.insert(format!("13.{n}.{n}.9"), vec![report]);
    }
    by_address
}

/// The reports of made-up phones on a day, by address. Each has names of its own.
fn forged(day: u64, networks: u32, environments_each: u32) -> BTreeMap<String, Vec<v1::Report>> {
    let mut by_address: BTreeMap<String, Vec<v1::Report>> = BTreeMap::new();
    for n in FIRST_FORGED..FIRST_FORGED + FORGED {
        let sent = by_address
            .entry(format!("12.{}.1.9", n % networks))
            .or_default();
        for environment in 0..environments_each.max(1) {
            let made_up = format!("made up {n} {day} {environment}");
            let mut report = named(n, (day, u64::from(environment) + 1), [&made_up; 3]);
            if environments_each > 0 {
                report.app.as_mut().unwrap().environment = format!("made up {n} {environment}");
            }
            sent.push(report);
        }
    }
    by_address
}

/// Sends each address's reports as a trusted proxy would; returns how many.
async fn send(device: &mut Device, by_address: BTreeMap<String, Vec<v1::Report>>) -> u64 {
    let mut n = 0;
    for (address, reports) in by_address {
        for reports in reports.chunks(500) {
            let mut call = with_key(request(reports), SHIPPED);
            let headers = call.metadata_mut();
            headers.insert("x-forwarded-for", address.parse().unwrap());
            let answer = device.upload(call).await.unwrap().into_inner();
            assert!(answer.results.is_empty(), "{answer:?}");
            n += reports.len() as u64;
        }
    }
    n
}

async fn check(networks: u32, environments_each: u32) {
    let store = Store::start().await;
    let mut config = CollectorConfig {
        keys: vec![key_for(&NewKey::of(SHIPPED.to_owned()), "*")],
        ..crate::support::config(&store.dir.path().join("wal"))
    };
    config.new_installations.trusted_proxies = Some(vec!["127.0.0.0/8".parse().unwrap()]);
    config.rollup.enabled = false;
    let mut sent = 0;
    for day in 0..=DAYS {
        let collector = start_days_ago(&store, config.clone(), DAYS - day).await;
        let mut device = connect(&collector).await;
        if day > 0 {
            let forged = forged(day, networks, environments_each);
            sent += send(&mut device, forged).await;
        }
        sent += send(&mut device, honest((day, 1), "1.0.0")).await;
        store.eventually(ROWS, sent).await;
        if day == DAYS {
            // The limit for names that single networks add may be used up. Then a version counts once three networks
            // report it.
            sent += send(&mut device, honest((day, 2), "2.0.0")).await;
            store.eventually(ROWS, sent).await;
            sent += send(&mut device, honest((day, 3), "2.0.0")).await;
            store.eventually(ROWS, sent).await;
        }
        collector.stop().await;
    }
    let without_vote =
        format!("SELECT count() AS n FROM reports WHERE is_unproven AND {OF_HONEST}");
    assert_eq!(store.number(&without_vote).await, 0);
    let lost_names = format!(
        "SELECT count() AS n FROM reports WHERE {OF_HONEST} AND sequence != 2 AND (chipset = '__other__' \
         OR has(session_model_id, '__other__') OR has(session_model_version, '__other__') \
         OR has(series_shape_key, '__other__'))"
    );
    assert_eq!(store.number(&lost_names).await, 0);
    // The attack was real: made-up reports were stored, and made-up names were replaced.
    let made_up = format!(
        "SELECT uniqExact(installation) * 1000000 + countIf(chipset = '__other__') AS n FROM reports \
         WHERE NOT ({OF_HONEST})"
    );
    let made_up = store.number(&made_up).await;
    assert!(made_up / 1_000_000 == u64::from(FORGED) && made_up % 1_000_000 > 1_000);
    store.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn patient_forged_installations_take_no_vote_and_no_name() {
    check(3, 1).await;
    if is_nightly(
        "patient forged installations of 1 and 20 networks, with 10,200 made-up environments",
    ) {
        for networks in [1, 3, 20] {
            check(networks, 0).await;
            check(networks, 34).await;
        }
    }
}
