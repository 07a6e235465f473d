//! The SQL of every panel, annotation and variable of Grafana's dashboards answers over the port for readers, with a
//! real fleet's reports. Macros and variables are expanded as Grafana and its ClickHouse data source do. A hostile name
//! answers like an unknown one.

use std::{collections::BTreeMap, fs};

use clickhouse::Client;
use epwatch_faults::READER_PASSWORD;
use epwatch_model::VerdictClass;
use epwatch_store::embedded::EngineState;
use epwatch_test_support::until;
use http_body_util::Full;
use hyper::Request;
use serde_json::Value;
use tokio::sync::watch;

use crate::{
    fleet::{APP, MODEL, WatchedFleet},
    support::{Page, Store, send},
};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/dashboards/grafana");

/// Names that would end a literal in some way, if a query did not encode them.
const HOSTILE: [&str; 6] = [
    r"x' OR 1=1 -- ",
    r"x\' OR 1=1 -- ",
    r"x\\' OR 1=1 -- ",
    "},{'); SELECT 1 -- ",
    "$__all",
    "%27) OR 1=1 -- ${app}",
];

/// A name that exists, with everything that an encoding may miss.
const ODD: &str = r#"odd {a,b} '\"%27 $app / ü 🦀"#;

/// A firmware whose first sight is after the fleet's first bucket.
const NEW_FIRMWARE: &str = "0123456789abcdef";

/// Percent-encodes like Grafana's format `percentencode`.
fn encoded(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    let each = text.bytes().map(|b| match b {
        b if plain(b) => char::from(b).to_string(),
        b => format!("%{b:02X}"),
    });
    each.collect()
}

/// Chosen names of each variable; `None` stands for All.
pub(crate) type Names<'a> = BTreeMap<&'a str, Option<Vec<&'a str>>>;

pub(crate) fn names<'a>(version: &[&'a str], chipset: &[&'a str]) -> Names<'a> {
    let one = |name| Some(vec![name]);
    BTreeMap::from([
        ("app", one(APP)),
        ("environment", one("production")),
        ("model", one(MODEL)),
        ("baseline", one("1")),
        ("version", Some(version.to_vec())),
        ("chipset", Some(chipset.to_vec())),
    ])
}

/// Returns one of these names for each variable.
fn all_named<'a>(of_variables: &[&'a str; 6]) -> Names<'a> {
    let variables = names(&[], &[]).into_keys();
    let named = variables.zip(of_variables);
    named
        .map(|(variable, name)| (variable, Some(vec![*name])))
        .collect()
}

/// The time range of a query, in seconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    from: i64,
    to: i64,
    /// Value of `$__timeInterval`.
    interval: i64,
}

impl Range {
    /// Returns the last day, including the minute in which the fleet still reports.
    pub(crate) fn now() -> Self {
        Self::at(jiff::Timestamp::now())
    }

    /// Works like [`Self::now`], at another time.
    pub(crate) fn at(now: jiff::Timestamp) -> Self {
        let now = now.as_second();
        Self {
            from: now - 86_400,
            to: now + 60,
            interval: 3_600,
        }
    }

    /// Returns the range from the store's first report to its last window, in steps of a few seconds.
    pub(crate) async fn of_reports(store: &Client) -> Self {
        let sql = "SELECT toInt64(toUnixTimestamp(min(bucket))) FROM cohort_buckets_closed_v1";
        let from = store.query(sql).fetch_one::<i64>().await.unwrap();
        let to = jiff::Timestamp::now().as_second();
        let interval = ((to - from) / 60).max(1);
        Self { from, to, interval }
    }

    /// Replaces All, then variables, then macros.
    pub(crate) fn expanded(self, sql: &str, names: &Names<'_>) -> String {
        let Self { from, to, interval } = self;
        let mut sql = replace_calls(sql, "$__conditionalAll", |call| {
            let (condition, variable) =
                call.rsplit_once(", $").expect("a condition and a variable");
            let is_all = names[variable].is_none();
            if is_all {
                "1=1".into()
            } else {
                condition.to_owned()
            }
        });
        for (variable, names) in names {
            let codes = names.iter().flatten().map(|name| encoded(name));
            let value = match codes.collect::<Vec<_>>() {
                codes if codes.len() < 2 => codes.concat(),
                codes => format!("{{{}}}", codes.join(",")),
            };
            let reference = format!("${{{variable}:percentencode}}");
            sql = sql.replace(&reference, &encoded(&value));
        }
        let day = |second| {
            let at = jiff::Timestamp::from_second(second).unwrap();
            format!("toDate('{}')", at.strftime("%Y-%m-%d"))
        };
        let sql = replace_calls(&sql, "$__timeFilter", |column| {
            format!("{column} >= toDateTime({from}) AND {column} <= toDateTime({to})")
        });
        let sql = replace_calls(&sql, "$__dateFilter", |column| {
            format!("{column} >= {} AND {column} <= {}", day(from), day(to))
        });
        let sql = replace_calls(&sql, "$__timeInterval", |column| {
            format!("toStartOfInterval(toDateTime({column}), INTERVAL {interval} second)")
        });
        let sql = sql.replace("$__fromTime", &format!("toDateTime({from})"));
        let sql = sql.replace("$__toTime", &format!("toDateTime({to})"));
        assert!(!sql.contains('$'), "unknown macro or variable: {sql}");
        sql
    }
}

/// Replaces `name(argument)` by the result of `with` for the argument, which may have parentheses.
fn replace_calls(sql: &str, name: &str, with: impl Fn(&str) -> String) -> String {
    let call = format!("{name}(");
    let mut out = String::new();
    let mut rest = sql;
    while let Some((before, after)) = rest.split_once(&call) {
        let mut depth = 1;
        let end = after.find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0
        });
        let end = end.expect("the macro is closed");
        out.push_str(before);
        out.push_str(&with(&after[..end]));
        rest = &after[end + 1..];
    }
    out + rest
}

/// Returns the dashboards that read the store.
pub(crate) fn dashboards() -> Vec<Value> {
    let mut found = Vec::new();
    for entry in fs::read_dir(FOLDER).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "json") || path.ends_with("system.json") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        found.push(serde_json::from_str(&text).unwrap());
    }
    found
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().unwrap().clone()
}

/// Returns the panels of a dashboard, those in collapsed rows too.
fn panels_of(dashboard: &Value) -> Vec<Value> {
    let top = list(&dashboard["panels"]).into_iter();
    let all = top.flat_map(|panel| match panel["type"] == "row" {
        true => list(&panel["panels"]),
        false => vec![panel],
    });
    all.collect()
}

/// Returns the panels of all dashboards with their names.
fn panels() -> Vec<(String, Value)> {
    let dashboards = dashboards().into_iter();
    let named = dashboards.flat_map(|dashboard| {
        let name = |panel: &Value| format!("{} of {}", panel["title"], dashboard["title"]);
        let panels = panels_of(&dashboard).into_iter();
        panels
            .map(|panel| (name(&panel), panel))
            .collect::<Vec<_>>()
    });
    named.collect()
}

/// Returns name and SQL of every panel, annotation and variable of the dashboards that read the store.
pub(crate) fn queries() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut put = |name: String, sql: &Value| {
        found.push((name, sql.as_str().unwrap().to_owned()));
    };
    for (name, panel) in panels() {
        for target in list(&panel["targets"]) {
            put(name.clone(), &target["rawSql"]);
        }
    }
    for dashboard in dashboards() {
        let of = |title: &Value| format!("{title} of {}", dashboard["title"]);
        for annotation in list(&dashboard["annotations"]["list"]) {
            put(of(&annotation["name"]), &annotation["target"]["rawSql"]);
        }
        for variable in list(&dashboard["templating"]["list"]) {
            if variable["type"] == "query" {
                put(of(&variable["name"]), &variable["query"]);
            }
        }
    }
    found
}

/// The store's port for readers.
#[derive(Debug)]
pub(crate) struct Reader(watch::Receiver<EngineState>);

impl Reader {
    pub(crate) fn of(fleet: &WatchedFleet) -> Self {
        Self::on(&fleet.store)
    }

    pub(crate) fn on(store: &Store) -> Self {
        Self(store.engine.state())
    }

    async fn ask(&self, sql: &str) -> anyhow::Result<Page> {
        let EngineState::Ready {
            readers: Some(address),
            ..
        } = self.0.borrow().clone()
        else {
            anyhow::bail!("the engine starts");
        };
        let url = format!("http://{address}/?database=epwatch&default_format=JSONCompactEachRow");
        let request = Request::post(url).header("X-ClickHouse-Key", READER_PASSWORD);
        send(request.body(Full::from(sql.to_owned()))?).await
    }

    /// Returns the rows of an answer, as text. Nothing else ends this engine, so it must answer.
    pub(crate) async fn rows(&self, name: &str, sql: &str) -> Vec<String> {
        let answer = self.ask(sql).await;
        let answer = answer.unwrap_or_else(|error| {
            let state = self.0.borrow().clone();
            panic!("{name}: {error:#}; the engine is {state:?}\n{sql}")
        });
        assert_eq!(answer.status, 200, "{name}: {}\n{sql}", answer.text);
        answer.text.lines().map(str::to_owned).collect()
    }
}

/// Inserts rows that the fleet does not send: failures, self-tests, losses, a deletion and a directive, and a window of
/// names that are not SQL. The report is late, so it does not vote.
pub(crate) async fn put_the_rest(store: &Client) {
    let key = "unhex(repeat('01', 16)), 1, 2, now64(3), 1, 1, toStartOfSecond(now64(0))";
    let columns =
        "installation, stream_id, sequence, received_at, collector_id, wal_offset, bucket";
    let odd = ODD.replace('\\', r"\\").replace('\'', r"\'");
    // A session needs an element in each of the session arrays, or queries that read several arrays together fail.
    let others = "SELECT name, type FROM system.columns WHERE database = currentDatabase() AND table = 'reports' \
                  AND startsWith(name, 'session_') AND name NOT IN ('session_uid', 'session_model_id', \
                  'session_model_version', 'session_model_sha256', 'session_reasons') AND default_kind = ''";
    let others = store.query(others).fetch_all::<(String, String)>().await;
    let (names, values): (Vec<_>, Vec<_>) = others
        .unwrap()
        .into_iter()
        .map(|(name, of)| {
            let of = of.replace('\'', r"\'");
            (name, format!("arrayResize(CAST([], '{of}'), 1)"))
        })
        .unzip();
    let (names, values) = (names.join(", "), values.join(", "));
    let statements = [
        format!("INSERT INTO report_copies ({columns}) SELECT {key}"),
        format!(
            "INSERT INTO reports ({columns}, is_late, app_id, environment, chipset, health_dropped_reports,
                health_dropped_runs, session_uid, session_model_id, session_model_version, session_model_sha256,
                session_reasons,
                self_test_session, self_test_input_id, self_test_npu_hash, self_test_cpu_hash, self_test_max_abs,
                self_test_cosine, self_test_top1_equal, self_test_error_code, self_test_first_off_output, start_failure_model_id,
                start_failure_model_version, start_failure_requested_eps, start_failure_phase, start_failure_reason,
                start_failure_ort_status, start_failure_count, start_failure_text, run_error_session, run_error_ort_status, run_error_count,
                {names})
            SELECT {key}, true, '{APP}', 'production', 'SM8635', map('spool_full', 1), map('spool_full', 1), [7],
                ['{MODEL}'], ['2'], [''], [['unsupported_op']], [7], ['golden'], ['aa'], ['bb'], [1.0], [0.5], [false], [0], [''],
                ['{MODEL}'], ['2'], [['QNNExecutionProvider']], ['session_creation'], ['other'], [1], [1], ['failed'], [7], [1],
                [1], {values}"
        ),
        format!(
            "INSERT INTO report_outcomes SELECT now(), 1, '{APP}', 'production', 'refused_quota', 1"
        ),
        "INSERT INTO deletion_log SELECT unhex(repeat('02', 16)), 'requested', 1, now64(3), 0, 0".to_owned(),
        format!(
            "INSERT INTO directives (id, app_id, published_at, action, expires)
            SELECT 'd', '{APP}', now64(3), 'npu_off', now64(3) + INTERVAL 1 DAY"
        ),
        format!(
            "INSERT INTO cohort_windows (window_end, window_seconds, app_id, environment, model_id, model_version,
                chipset, devices, deadline_us, late_share, verdict, severity, judged_at)
            SELECT now64(3), 1, '{odd}', '{odd}', '{odd}', '{odd}', '{odd}', 1, 33300, 0.375, 'healthy', 'none', now64(3)"
        ),
        // A firmware that no device has before the second bucket. Nothing builds that bucket's summary again.
        format!(
            "INSERT INTO cohort_sessions (app_id, environment, bucket, slice, revision, model_id, model_version, chipset,
                firmware, sessions)
            SELECT app_id, environment, bucket, slice, revision, '{MODEL}', '2', 'SM8635', '{NEW_FIRMWARE}', 1
            FROM bucket_revisions
            WHERE app_id = '{APP}' AND bucket > (SELECT min(bucket) FROM cohort_sessions WHERE app_id = '{APP}')
            ORDER BY bucket, slice, revision DESC LIMIT 1"
        ),
        // A window of a length that no other window has.
        "INSERT INTO judged_windows (window_end, window_seconds, step_seconds, cohorts, judged_at)
            SELECT now64(3) - toIntervalSecond(arrayJoin([60, 20])), 7, 10, 0, now64(3)"
            .to_owned(),
    ];
    for sql in statements {
        let run = store.query_raw(&sql).execute().await;
        run.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }
}

/// Waits for four judged windows after the first page, because the panels of incidents show no window before it. Returns
/// the end of the fourth latest.
async fn fourth_window(store: &Client) -> String {
    let sql = "SELECT toString(window_end) AS at FROM judged_windows WHERE window_seconds != 7 \
               AND window_end > (SELECT min(window_end) FROM cohort_windows WHERE severity = 'page') \
               ORDER BY window_end DESC LIMIT 1 OFFSET 3";
    let fourth = async || store.query(sql).fetch_optional::<String>().await.unwrap();
    let is_there = async || fourth().await.is_some();
    until("four windows are judged", is_there).await;
    fourth().await.unwrap()
}

/// Removes a judged window from the store, as if its rows could not be written.
pub(crate) async fn lose_window(store: &Client) {
    let end = fourth_window(store).await;
    for table in ["judged_windows", "cohort_windows"] {
        let sql = format!(
            "ALTER TABLE {table} DELETE WHERE window_end = toDateTime64('{end}', 3, 'UTC') \
             SETTINGS mutations_sync = 2"
        );
        store.query_raw(&sql).execute().await.unwrap();
    }
}

/// Checks that a missing window is a row without values in each panel over windows, and is mentioned.
async fn check_missing_window(
    fleet: &WatchedFleet,
    reader: &Reader,
    queries: &[(String, String)],
    names: &Names<'_>,
) {
    lose_window(&fleet.store.client()).await;
    // On a busy machine, neighbouring windows may be missing too, and a window may have no cohort to draw.
    let sql = "SELECT toString(missing_from) AS at, toString(gap_until) AS until, windows FROM missing_windows_v1 \
               WHERE window_seconds != 7 AND gap_from IN (SELECT window_end FROM cohort_windows) \
               ORDER BY gap_until DESC LIMIT 1";
    let gap = fleet.store.client().query(sql);
    let (end, until, windows): (String, String, u64) = gap.fetch_one().await.unwrap();
    let of = |part: &'static str| queries.iter().filter(move |(name, _)| name.contains(part));
    for part in [
        "Verdicts over time",
        "Devices hit",
        "Spread of latency, within",
        "A slow and a fast group",
    ] {
        assert!(of(part).count() > 0, "{part}");
        for (name, sql) in of(part) {
            let rows = reader.rows(name, &Range::now().expanded(sql, names)).await;
            let is_empty = |row: &&String| row.contains(&end) && row.contains("null");
            assert!(rows.iter().any(|row| is_empty(&row)), "{name}: {rows:?}");
            let has_values = |row: &&String| row.contains(&end) && !row.contains("null");
            assert!(!rows.iter().any(|row| has_values(&row)), "{name}: {rows:?}");
        }
    }
    for (name, sql) in of("Missing windows") {
        let rows = reader.rows(name, &Range::now().expanded(sql, names)).await;
        let of_gap = rows.iter().find(|row| row.contains(&until));
        let text = format!("{windows} missing: not judged, or not stored");
        assert!(of_gap.is_some_and(|row| row.contains(&text)), "{rows:?}");
    }
}

/// Checks that each firmware that devices had from a later bucket on is mentioned, and none of the first bucket.
async fn check_new_firmwares(
    fleet: &WatchedFleet,
    reader: &Reader,
    queries: &[(String, String)],
    names: &Names<'_>,
) {
    let store = fleet.store.client();
    let old = "SELECT DISTINCT toString(firmware) FROM cohort_sessions_closed_v1
        WHERE bucket = (SELECT min(bucket) FROM cohort_sessions_closed_v1)";
    let old = store.query(old).fetch_all::<String>().await.unwrap();
    assert!(!old.is_empty() && old.iter().all(|firmware| firmware != NEW_FIRMWARE));
    let of = |name: &str| name.contains("New firmwares");
    assert_eq!(queries.iter().filter(|(name, _)| of(name)).count(), 7);
    for (name, sql) in queries.iter().filter(|(name, _)| of(name)) {
        let rows = reader.rows(name, &Range::now().expanded(sql, names)).await;
        let text = format!("Firmware {NEW_FIRMWARE} first seen on SM8635");
        assert!(rows.iter().any(|row| row.contains(&text)), "{rows:?}");
        let is_old = |row: &String| old.iter().any(|firmware| row.contains(firmware));
        assert!(!rows.iter().any(is_old), "{old:?}: {rows:?}");
    }
}

/// Checks, with Grafana's rules of matching, that each column of a table has a heading or is hidden.
async fn check_headings(reader: &Reader, names: &Names<'_>) {
    let mut tables = 0;
    for (name, panel) in panels() {
        if panel["type"] != "table" {
            continue;
        }
        let sql = panel["targets"][0]["rawSql"].as_str().unwrap();
        let sql = Range::now().expanded(sql, names) + "\nFORMAT JSONCompactEachRowWithNames";
        let rows = reader.rows(&name, &sql).await;
        let columns: Vec<String> = serde_json::from_str(&rows[0]).unwrap();
        let overrides = panel["fieldConfig"]["overrides"].as_array().unwrap();
        for column in columns {
            let is_of = format!("/^{column}\\b/");
            let of_column = overrides.iter().find(|o| o["matcher"]["options"] == is_of);
            let properties = of_column.map(|o| o["properties"].as_array().unwrap());
            let mut ids = properties.into_iter().flatten().map(|p| &p["id"]);
            let is_there = ids.any(|id| id == "displayName" || id == "custom.hidden");
            assert!(is_there, "{name}: {column} has no heading");
        }
        tables += 1;
    }
    assert!(tables > 15, "{tables} tables");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_panel_answers_over_the_readers_port() {
    let mut fleet = WatchedFleet::start(Vec::new()).await;
    let reader = Reader::of(&fleet);
    // The first incident may be a ticket, while panels query pages.
    let paged = "SELECT 1 FROM incidents_v1 WHERE state = 'firing' AND severity = 'page'";
    until("an incident pages", async || {
        !reader.rows("paged", paged).await.is_empty()
    })
    .await;
    fourth_window(&fleet.store.client()).await;
    put_the_rest(&fleet.store.client()).await;
    let queries = queries();
    assert!(queries.len() > 60, "only {} queries", queries.len());
    let one = names(&["2"], &["SM8635"]);
    let several = names(&["1", "2"], &["SM8635", "SM8650"]);
    let mut all = several.clone();
    all.extend([("version", None), ("chipset", None)]);
    for names in [one, several.clone(), all] {
        for (name, sql) in &queries {
            let has_rows = async || {
                let sql = Range::now().expanded(sql, &names);
                !reader.rows(name, &sql).await.is_empty()
            };
            until(&format!("{name} has rows with {names:?}"), has_rows).await;
        }
        // The detector's results are stored, so it is stopped to leave the machine to the rest of the test.
        fleet.stop_detector().await;
    }
    check_headings(&reader, &several).await;
    check_new_firmwares(&fleet, &reader, &queries, &several).await;
    check_missing_window(&fleet, &reader, &queries, &several).await;
    // Until the first value of a variable is known, Grafana sends an empty one.
    for (name, sql) in &queries {
        let none = names(&[], &[])
            .into_keys()
            .map(|name| (name, Some(Vec::new())));
        reader
            .rows(name, &Range::now().expanded(sql, &none.collect()))
            .await;
    }
    let range = Range::now();
    for (name, sql) in &queries {
        let [hostile, unknown] =
            [&HOSTILE, &["unknown"; 6]].map(|names| range.expanded(sql, &all_named(names)));
        let found = reader.rows(name, &hostile).await;
        assert_eq!(
            found,
            reader.rows(name, &unknown).await,
            "{name}: {hostile}"
        );
    }
    // Odd names are found, and are returned as the values that links carry.
    let odd = all_named(&[ODD; 6]);
    for (name, sql) in &queries {
        let is_variable = sql.starts_with("SELECT encodeURLComponent");
        if is_variable || name.contains("Latest verdict") {
            let found = reader.rows(name, &Range::now().expanded(sql, &odd)).await;
            let code = format!("\"{}\"", encoded(ODD));
            assert!(
                !is_variable || found.iter().any(|row| row.contains(&code)),
                "{name}: {found:?}"
            );
            let has_deadline = |row: &String| row.contains(" 33.3, 0.375,");
            assert!(
                is_variable || found.iter().any(has_deadline),
                "{name}: {found:?}"
            );
        }
    }
    fleet.stop().await;
}

#[test]
fn every_verdict_has_its_colour() {
    let fleet = fs::read_to_string(format!("{FOLDER}/fleet.json")).unwrap();
    for class in VerdictClass::ALL {
        assert!(
            fleet.contains(&format!("'{}'", class.as_str())),
            "{class:?}"
        );
    }
}
