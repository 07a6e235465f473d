//! Tests names that try to break out of HTML, links or SQL, on every page.

use clickhouse::Client;
use epwatch_model::{CohortKey, ModelKey, write_document};

use super::served::{HOSTILE, Served, check_page, json_of, links, percent};
use crate::{
    browser::Browser,
    fleet::APP,
    support::{Store, incident_of},
};

/// Writes a judged window and an incident of hostile names.
async fn put_hostile(store: &Client, name: &str, at: usize) {
    let window = "INSERT INTO cohort_windows (window_end, window_seconds, app_id, environment, model_id, model_version, \
        chipset, devices, devices_hit, p50_us, npu_share, deadline_us, late_share, verdict, severity, reasons, signal_id, signal_value, \
        signal_p, signal_hits, signal_devices, judged_at) SELECT now64(3) - 10, 3600, ?, 'production', ?, ?, ?, 10, 10, \
        60000, 0.5, 33300, 0.4, 'partial_fallback', 'page', [?], ['placement_change', ?], [1, nan], [0, 1], [10, 0], [10, 0], now64(3)";
    let insert = store.query(window).bind(APP);
    let insert = insert
        .bind(name)
        .bind(name)
        .bind(name)
        .bind(name)
        .bind(name);
    insert.execute().await.unwrap();
    let mut document = incident_of(CohortKey {
        model: ModelKey::of((APP, "production"), name),
        model_version: name.to_owned(),
        chipset: name.to_owned(),
        firmware: Some(name.to_owned()),
    });
    let verdict = &mut document.cohorts[0].verdict;
    verdict.next_step = format!("`{name}` {name} keep version {name} on");
    verdict.follows = Some(name.to_owned());
    verdict.cpu_ops = vec![name.to_owned()];
    (document.delivered, document.news) = ([(name.to_owned(), 1)].into(), 1);
    let incident = "INSERT INTO incidents (incident_id, changed_at, state, severity, verdict, app_id, environment, \
        model_id, model_version, chipsets, started_at, devices_hit, devices_seen, cpu_ops, document) \
        SELECT ?, now64(3), 'firing', 'page', ?, ?, 'production', ?, ?, [?], now64(3), 10, 10, [?], ?";
    let insert = store.query(incident).bind(format!("{at}{name}")).bind(name);
    let insert = insert.bind(APP).bind(name).bind(name).bind(name).bind(name);
    insert
        .bind(write_document(&document))
        .execute()
        .await
        .unwrap();
    let ledger = "INSERT INTO loss_ledger_readings (app_id, environment, day, kind, reports, read_at) \
        SELECT ?, ?, today(), arrayJoin(['recorded', 'stored']), 10, now64(3)";
    let insert = store.query(ledger).bind(name).bind(name);
    insert.execute().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_names_go_round_through_link_page_and_json() {
    let store = Store::start().await;
    let long = "\u{e9}".repeat(2_048);
    let mut names = HOSTILE.to_vec();
    names.push(&long);
    for (at, name) in names.iter().enumerate() {
        put_hostile(&store.client(), name, at).await;
    }
    let page = Served::start(store.client()).await;
    let fleet = page.get("/fleet").await;
    check_page("/fleet", &fleet);
    let mut seen = Vec::new();
    for link in links(&fleet.text, "/cohort?") {
        let cohort = page.get(&link).await;
        check_page(&link, &cohort);
        let document = page.get(&json_of(&link)).await.json();
        let name = document["query"]["model"].as_str();
        let name = name.unwrap_or_else(|| panic!("{document}")).to_owned();
        assert_eq!(document["cohort"]["chipset"], *name, "{link}");
        assert_eq!(document["cohort"]["late_share"], 0.4, "{link}");
        assert!(cohort.text.contains("Runs later than 33.3"), "{link}");
        seen.push(name);
    }
    seen.sort();
    let mut expected = names.clone();
    expected.sort_unstable();
    assert_eq!(seen, expected);

    let incidents = page.get("/incidents").await;
    check_page("/incidents", &incidents);
    let open = links(&incidents.text, "/incident?");
    assert_eq!(open.len(), names.len());
    let mut browser = Browser::start();
    let base = format!("http://{}", page.server.address());
    let cohort = &links(&fleet.text, "/cohort?")[0];
    for (name, path) in [
        ("hostile-fleet", "/fleet"),
        ("hostile-cohort", &**cohort),
        ("hostile-incidents", "/incidents"),
        ("hostile-incident", &*open[0]),
        ("hostile-ledger", "/ledger"),
        ("hostile-health", "/health"),
    ] {
        browser.check(&base, name, path);
    }
    for link in open {
        check_page(&link, &page.get(&link).await);
        let document = page.get(&json_of(&link)).await.json();
        let incident = document["incident"].as_str().unwrap();
        assert!(
            incident.ends_with(document["model"].as_str().unwrap()),
            "{incident}"
        );
    }
    // A name as a filter finds only itself, or nothing.
    for name in names {
        let name = percent(name);
        check_page(
            "/ledger",
            &page.get(&format!("/ledger?app={name}&days={name}")).await,
        );
        check_page(
            "/incidents",
            &page.get(&format!("/incidents?app={name}")).await,
        );
        let other = format!("/fleet?app={name}&environment={name}&q={name}&show={name}");
        check_page(&other, &page.get(&other).await);
        let unknown = page.get(&format!("/incident?id={name}x")).await;
        assert_eq!(unknown.status, 404, "{}", unknown.text);
        assert!(!unknown.text.contains("<script"), "{}", unknown.text);
    }
    let count = store.count("SELECT count() FROM incidents").await;
    assert_eq!(count, 10);
    page.stop().await;
    store.engine.stop().await;
}
