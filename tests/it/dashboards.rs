//! The SQL of every panel and variable returns rows on the migrated engine with a real fleet's reports.

use std::{fs, path::Path};

use serde_json::Value;

use crate::{
    fleet::{APP, MODEL, WatchedFleet},
    support::until,
};

/// Replaces macros, then variables, as Grafana and its ClickHouse data source do.
fn expanded(sql: &str) -> String {
    let sql = replace_calls(sql, "$__timeFilter", |column| {
        format!("({column} >= now() - INTERVAL 1 HOUR AND {column} <= now() + INTERVAL 1 MINUTE)")
    });
    let sql = replace_calls(&sql, "$__timeInterval", |column| {
        format!("toStartOfInterval(toDateTime({column}), INTERVAL 1 MINUTE)")
    });
    let sql = sql
        .replace("${app:singlequote}", &format!("'{APP}'"))
        .replace("${environment:singlequote}", "'production'")
        .replace("${model:singlequote}", &format!("'{MODEL}'"))
        .replace("${version:singlequote}", "'1','2'")
        .replace("${chipset:singlequote}", "'SM8650','SM8635'");
    assert!(
        !sql.contains('$'),
        "a macro or variable this test does not know: {sql}"
    );
    sql
}

/// Replaces `name(argument)` by the result of `with` for the argument.
fn replace_calls(sql: &str, name: &str, with: impl Fn(&str) -> String) -> String {
    let call = format!("{name}(");
    let mut parts = sql.split(&call);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (argument, rest) = part.split_once(')').expect("the macro is closed");
        out.push_str(&with(argument));
        out.push_str(rest);
    }
    out
}

/// Returns title and SQL of every panel and variable of one dashboard.
fn queries(dashboard: &Value) -> Vec<(String, String)> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let of_panels = panels.flat_map(|panel| {
        let targets = panel["targets"].as_array().unwrap();
        targets
            .iter()
            .map(|target| (panel["title"].to_string(), target["rawSql"].clone()))
    });
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let of_variables = variables.map(|v| (v["name"].to_string(), v["query"].clone()));
    of_panels
        .chain(of_variables)
        .map(|(title, sql)| (title, sql.as_str().expect("a query is text").to_owned()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_panel_has_an_answer() {
    let fleet = WatchedFleet::start(Vec::new()).await;
    until("an incident fires", || async {
        fleet
            .store
            .count("SELECT count() FROM incidents_v1 WHERE state = 'firing'")
            .await
            > 0
    })
    .await;
    // An incident is stored before the windows of its judgement.
    until("a window is stored", || async {
        fleet
            .store
            .count("SELECT count() FROM cohort_windows")
            .await
            > 0
    })
    .await;
    until("a bucket is closed", || async {
        fleet
            .store
            .count("SELECT count() FROM cohort_buckets")
            .await
            > 0
    })
    .await;
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/dashboards"));
    let mut n_queries = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "json") {
            continue;
        }
        let dashboard: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for (title, sql) in queries(&dashboard) {
            let rows = fleet
                .store
                .count(&format!("SELECT count() FROM ({})", expanded(&sql)))
                .await;
            assert!(rows > 0, "{title} of {} has no rows: {sql}", path.display());
            n_queries += 1;
        }
    }
    assert!(n_queries >= 14, "only {n_queries} queries were found");
    fleet.stop().await;
}
