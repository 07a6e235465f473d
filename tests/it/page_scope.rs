//! Tokens of the page that are limited to apps: no page, form or drawing shows data of another app.

use clickhouse::Client;
use epwatch_model::{CohortKey, Incident, ModelKey, write_document};
use epwatch_page::PageConfig;
use hyper::Method;
use serde_json::Value;

use crate::{
    page::{Answer, Served},
    support::{Store, incident_of},
};

const ALL: &str = "token-for-all-the-apps";
const SOME: &str = "token-for-the-camera";

/// Words that only the other app's rows have: its name, model, version, chipset, firmware, op, incident and order.
const SECRETS: [&str; 9] = [
    "app.secret",
    "model.secret",
    "version.secret",
    "chipset.secret",
    "firmware.secret",
    "OpSecret",
    "incident.secret",
    "who.secret",
    "why.secret",
];

/// Returns an incident whose names end in `end`.
fn incident(end: &str) -> Incident {
    let name = |what: &str| format!("{what}.{end}");
    let key = CohortKey {
        model: ModelKey::of((&name("app"), "production"), &name("model")),
        model_version: name("version"),
        chipset: name("chipset"),
        firmware: Some(name("firmware")),
    };
    let next_step = format!("Keep {}", key.model_version);
    let mut incident = incident_of(key);
    incident.cohorts[0].verdict.next_step = next_step;
    incident
}

/// Inserts an app with a window, its evidence, an open incident, a day of the ledger, and an answer. Names end in `end`.
async fn put_app(store: &Client, end: &str, runs: u64) {
    let [app, model, version, chipset] =
        ["app", "model", "version", "chipset"].map(|name| format!("{name}.{end}"));
    let document = write_document(&incident(end));
    let statements = [
        format!(
            "INSERT INTO cohort_windows (window_end, window_seconds, app_id, environment, model_id, model_version, chipset,
                devices, devices_hit, runs, verdict, severity, reasons, judged_at)
            SELECT toDateTime64(toStartOfHour(now()), 3), 3600, '{app}', 'production', '{model}', '{version}', '{chipset}',
                {runs}, {runs}, {runs}, 'partial_fallback', 'page', ['of {chipset}'], now64(3)"
        ),
        format!(
            "INSERT INTO cohort_evidence (place, window_end, window_seconds, app_id, environment, model_id, model_version,
                chipset, runs, p10_us, p50_us, p90_us, hist_first, hist_runs, judged_at)
            SELECT toDateTime64(toStartOfHour(now()), 3) AS place, place, 3600, '{app}', 'production', '{model}', '{version}',
                '{chipset}', {runs}, 1, 2, 3, 0, [{runs}], now64(3)"
        ),
        format!(
            "INSERT INTO incidents (incident_id, changed_at, state, severity, verdict, app_id, environment, model_id,
                model_version, chipsets, started_at, devices_hit, devices_seen, cpu_ops, document)
            SELECT 'incident.{end}', now64(3), 'firing', 'page', 'partial_fallback', '{app}', 'production', '{model}',
                '{version}', ['{chipset}'], now64(3), {runs}, {runs}, ['Op{}'], '{document}'",
            if end == "secret" { "Secret" } else { "Open" }
        ),
        format!(
            "INSERT INTO loss_ledger_readings (app_id, environment, day, kind, reports, read_at)
            SELECT '{app}', 'production', today(), arrayJoin(['recorded', 'stored']), {runs}, now64(3)"
        ),
        format!(
            "INSERT INTO daily_counts (app_id, environment, day, name, total, read_at)
            SELECT '{app}', 'production', today(), 'installations', {runs}, now64(3)"
        ),
        format!(
            "INSERT INTO report_outcomes SELECT now(), 1, '{app}', 'production', 'refused_quota', {runs}"
        ),
        format!(
            "INSERT INTO incident_orders (order_id, incident_id, order_number, order_kind, who, why, source, app_id, environment,
                model_id, model_version)
            SELECT 'o.{end}', 'incident.{end}', 1, 'ack', 'who.{end}', 'why.{end}', 'page', '{app}', 'production', '{model}',
                '{version}'"
        ),
        format!("INSERT INTO deletion_log SELECT unhex(repeat('02', 16)), 'requested', {runs}, now64(3), 0, 0"),
    ];
    for sql in statements {
        let run = store.query_raw(&sql).execute().await;
        run.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }
}

async fn ask(page: &Served, token: &str, path: &str) -> Answer {
    let bearer = format!("Bearer {token}");
    page.ask(Method::GET, path, &[("authorization", &bearer)], "")
        .await
}

/// Every address of an app's pages, in each form.
fn addresses(end: &str) -> Vec<String> {
    let cohort = format!(
        "app=app.{end}&environment=production&model=model.{end}&version=version.{end}&chipset=chipset.{end}"
    );
    let app = format!("app=app.{end}");
    let mut all = Vec::new();
    for (path, query, drawings) in [
        ("/fleet", String::new(), &["latency-1"][..]),
        ("/fleet", app.clone(), &["latency-1"]),
        (
            "/cohort",
            cohort,
            &["latency", "devices", "placement", "windows"],
        ),
        ("/incidents", String::new(), &[]),
        ("/incidents", app.clone(), &[]),
        (
            "/incident",
            format!("id=incident.{end}"),
            &["growth", "devices", "latency"],
        ),
        ("/orders", String::new(), &[]),
        ("/orders", app.clone(), &[]),
        ("/ledger", String::new(), &["reports"]),
        ("/ledger", app, &["reports"]),
        ("/health", String::new(), &[]),
    ] {
        all.extend(["", ".json"].map(|form| format!("{path}{form}?{query}")));
        let drawings = drawings.iter();
        all.extend(drawings.map(|name| format!("{path}/{name}.svg?{query}")));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_one_app_never_sees_a_byte_of_another() {
    let store = Store::start().await;
    // The other app is worse and larger, so it would come first everywhere.
    put_app(&store.client(), "secret", 70_007).await;
    put_app(&store.client(), "open", 11).await;
    let dir = tempfile::tempdir().unwrap();
    let token_file = dir.path().join("tokens");
    std::fs::write(&token_file, format!("{ALL}\n{SOME} app=app.open\n")).unwrap();
    let config = PageConfig {
        token_file: Some(token_file),
        ..PageConfig::default()
    };
    let page = Served::with(store.client(), config).await;

    // All tokens share the cache, so the token that sees everything reads first.
    let mut seen = String::new();
    for path in addresses("secret") {
        seen += &ask(&page, ALL, &path).await.text;
    }
    for secret in SECRETS.iter().chain(&["70007", "70,007"]) {
        assert!(seen.contains(secret), "the other app has no {secret}");
    }
    for path in addresses("secret").into_iter().chain(addresses("open")) {
        let answer = ask(&page, SOME, &path).await;
        let shown = &answer.text;
        for secret in SECRETS
            .iter()
            .chain(&["70007", "70,007", "70 007", "70018"])
        {
            // A page may repeat its own address, which the reader knows anyway.
            let known = path.contains(secret);
            assert!(
                known || !shown.contains(secret),
                "{path} has {secret}: {shown}"
            );
        }
        if path.contains("secret") {
            assert_eq!(answer.status, 404, "{path}: {shown}");
        }
    }
    let json = async |path: &str| -> Value { ask(&page, SOME, path).await.json() };
    assert_eq!(json("/fleet.json").await["app"], "app.open");
    let incidents = json("/incidents.json").await;
    assert_eq!(incidents["incidents"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        json("/incident.json?id=incident.open").await["devices_hit"],
        11
    );
    let ledger = json("/ledger.json").await;
    assert_eq!(
        (&ledger["entries"][0]["stored"], &ledger["deletions"]),
        (&11.into(), &Value::Null)
    );
    assert_eq!(ledger["installations"]["installations"], 11);
    assert_eq!(json("/health.json").await["outcomes"][0]["reports"], 11);
    page.stop().await;
    store.engine.stop().await;
}
