//! Pictures of the dashboards that people open first, for `docs/`. Tests have no Grafana. A short script draws each panel
//! from its JSON and the answer to its query, and the picture says so.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    browser::Browser,
    dashboards::{Names, Range, Reader, dashboards, names},
    fleet::WatchedFleet,
};

/// The dashboards, and the names of their pictures in `target/screenshots`.
const DRAWN: [(&str, &str); 3] = [
    ("epwatch-fleet", "grafana-fleet"),
    ("epwatch-incidents", "grafana-incidents"),
    ("epwatch-model-per-chipset", "grafana-model"),
];

const CAPTION: &str = "Drawn by epwatch's tests from the dashboard's JSON and the answers to its queries over a simulated fleet. \
    Grafana itself did not draw it.";

const STYLE: &str = "
* { box-sizing: border-box } body { margin: 0; padding: 0 8px; background: #f4f5f5; color: #24292e; font: 12px/1.35 Inter, sans-serif }
h1 { font-size: 15px; font-weight: 500; margin: 10px 2px } main { position: relative } footer { color: #5a6068; margin: 4px 2px 8px }
section { position: absolute; background: #fff; border: 1px solid #e1e3e5; border-radius: 2px; overflow: hidden; padding: 6px 8px }
section.row { background: none; border: none; padding: 4px 0 } h2 { font-size: 13px; font-weight: 500; margin: 0 0 4px }
.body { position: absolute; inset: 30px 8px 6px } .stats { display: flex; flex-wrap: wrap; gap: 4px 32px; align-content: center; justify-content: space-around }
.stats span { display: block; color: #5a6068 } .stats b { font-size: 28px; font-weight: 500 }
table { border-collapse: collapse; table-layout: fixed } th { text-align: left; color: #3871dc; font-weight: 500 }
th, td { padding: 4px 6px; border-bottom: 1px solid #eceded; vertical-align: top } td { white-space: nowrap; overflow: hidden; text-overflow: ellipsis }
th.n, td.n { text-align: right } .link { text-decoration: underline }
text { font-size: 11px; fill: #5a6068 } .grid { stroke: #eceded } .series { fill: none; stroke-width: 1.4 }
.keys { display: flex; flex-wrap: wrap; gap: 0 14px; color: #5a6068; font-size: 11px } i { display: inline-block; width: 12px; height: 3px; margin-right: 5px; vertical-align: middle }
";

/// Reads the data that a dashboard's panels show, without folded panels.
async fn answered(mut dashboard: Value, reader: &Reader, range: Range, names: &Names<'_>) -> Value {
    for panel in dashboard["panels"].as_array_mut().unwrap() {
        let Some(sql) = panel["targets"][0]["rawSql"].as_str() else {
            continue;
        };
        let sql = range.expanded(sql, names) + "\nFORMAT JSONCompact";
        let rows = reader.rows(&panel["title"].to_string(), &sql).await;
        let answer: Value = serde_json::from_str(&rows.concat()).unwrap();
        panel["answer"] = json!({"meta": answer["meta"], "data": answer["data"]});
    }
    dashboard
}

/// Draws the dashboards over a fleet whose update has paged. Every panel of each dashboard must have data.
pub(crate) async fn draw(fleet: &WatchedFleet, browser: &mut Browser) {
    let reader = Reader::of(fleet);
    let range = Range::of_reports(&fleet.store.client()).await;
    let names = names(&["1", "2"], &["SM8635", "SM8650"]);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (uid, picture) in DRAWN {
        let mut found = dashboards().into_iter();
        let dashboard = found.find(|dashboard| dashboard["uid"] == uid).unwrap();
        let dashboard = answered(dashboard, &reader, range, &names).await;
        // The escape prevents a name from ending the script.
        let json = dashboard.to_string().replace('<', "\\u003c");
        let page = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{picture}</title><style>{STYLE}</style>\
             <body><script>{}\ndraw({json}, {CAPTION:?});</script></body></html>",
            include_str!("grafana_picture.js")
        );
        let file = folder.join(format!("{picture}.html"));
        fs::write(&file, page).unwrap();
        browser.whole_page(&format!("file://{}", file.display()), picture);
    }
}
