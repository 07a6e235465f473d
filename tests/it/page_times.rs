//! `just look`: times of every page and of every query of Grafana, over 1,000,000 reports of `epwatch load`, in two states.
//!
//! 400,000 reports come first, and their buckets of ten seconds close. Then a second collector that makes no progress
//! keeps the buckets of the other 600,000 open, until the times are taken. At the end it has passed them, and all
//! buckets are closed. It is not a test: it prints a Markdown table for docs/size.md at its end, and its progress on
//! standard error. A page or a query that is slow, fails or is not ready in time is a cell of the table. It takes half
//! an hour where nothing is slow.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use epwatch_model::{CohortKey, ModelKey, write_document};
use serde_json::Value;
use tokio::time::timeout;

use crate::{
    dashboards::{Names, Range, queries},
    support::{Running, epwatch, get, incident_of, json, server},
};

/// App and environment of `epwatch load`.
const APP: &str = "epwatch.load";
const ENVIRONMENT: &str = "load";

/// Reports in closed and in open buckets, of the first state.
const CLOSED: u64 = 400_000;
const OPEN: u64 = 600_000;

/// The states, which are columns of the table.
const STATES: [&str; 2] = ["600,000 in open buckets", "all buckets closed"];

/// Goals in milliseconds: a page's first view, a page from the cache, a panel, a variable.
const GOALS: [u128; 4] = [200, 10, 500, 100];

/// Maximum time of an evaluation under a reload storm, as a multiple of the time on an idle machine.
const STORM_GOAL: f64 = 1.2;

/// Number of rounds. The best of a query's times counts, because other work on the machine lengthens the others.
const ROUNDS: usize = 3;

/// Number of clients that reload pages at once while an evaluation is measured.
const RELOADERS: usize = 8;

/// Longest wait for one page or query, for the store to come to a state, and for three evaluations.
const ANSWER: Duration = Duration::from_secs(30);
const STATE: Duration = Duration::from_secs(900);
const EVALUATIONS: Duration = Duration::from_secs(600);

struct Served {
    server: Running,
    addresses: Value,
    began: Instant,
}

/// The best of a few attempts: its time and the engine's processor time, or an error text.
type Best = Result<(u128, u64), String>;

/// The rows of the table, each with a cell for each state.
#[derive(Default)]
struct Rows(Vec<(String, String, [String; 2])>);

impl Rows {
    fn put(&mut self, name: &str, goal: &str, state: usize, cell: String) {
        eprintln!("{name}: {cell}");
        let row = match self.0.iter_mut().find(|(known, ..)| known == name) {
            Some(row) => row,
            None => {
                let cells = [String::new(), String::new()];
                self.0.push((name.to_owned(), goal.to_owned(), cells));
                self.0.last_mut().expect("it was pushed")
            }
        };
        row.2[state] = cell;
    }

    fn put_best(&mut self, name: &str, goal: u128, state: usize, best: &Best) {
        let cell = match best {
            Ok((ms, cpu_ms)) => {
                let missed = if *ms > goal { ", missed" } else { "" };
                format!("{ms} ms ({cpu_ms} ms){missed}")
            }
            Err(why) => why.clone(),
        };
        self.put(name, &format!("{goal} ms"), state, cell);
    }

    /// Returns the table as Markdown.
    fn table(&self) -> String {
        let [open, closed] = STATES;
        let mut text = format!("| what | goal | {open} | {closed} |\n|---|---|---|---|\n");
        for (name, goal, [open, closed]) in &self.0 {
            writeln!(text, "| {name} | {goal} | {open} | {closed} |").unwrap();
        }
        text
    }
}

impl Served {
    fn start(dir: &Path) -> Self {
        let mut command = server("serve", dir);
        let command = command
            .env("EPWATCH_COLLECTOR__ROLLUP__BUCKET", "10s")
            .env("EPWATCH_DETECTOR__WINDOW", "2h")
            .env("EPWATCH_DETECTOR__STEP", "1m")
            .env("EPWATCH_LOG", "warn");
        let (server, addresses) = Running::start(command);
        let began = Instant::now();
        Self {
            server,
            addresses,
            began,
        }
    }

    fn address(&self, name: &str) -> &str {
        self.addresses[name].as_str().unwrap()
    }

    /// Prints the next step to standard error.
    fn say(&self, what: &str) {
        eprintln!("[{} s] {what}", self.began.elapsed().as_secs());
    }

    /// Returns the processor time of the engine so far, in milliseconds; 0 if it is not known.
    fn engine_cpu_ms(&self) -> u64 {
        let read = || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.server.0.id())).ok()?;
            let children = tasks.filter_map(|task| {
                std::fs::read_to_string(task.ok()?.path().join("children")).ok()
            });
            let all = children.collect::<Vec<_>>().join(" ");
            let engine = all.split_whitespace().next()?;
            let stat = std::fs::read_to_string(format!("/proc/{engine}/stat")).ok()?;
            // The name in brackets may hold blanks. User and system time are in hundredths of a second.
            let fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
            let ticks = fields
                .skip(11)
                .take(2)
                .map(|field| field.parse::<u64>().ok());
            Some(10 * ticks.sum::<Option<u64>>()?)
        };
        read().unwrap_or(0)
    }

    /// Sends about this many reports, and returns how many were acknowledged.
    fn load(&self, reports: u64) -> u64 {
        const SECONDS: u64 = 60;
        self.say(&format!("sending {reports} reports"));
        let mut command =
            epwatch("load --app epwatch.load --devices 20000 --batch 100 --drain 600s");
        let command = command
            .args(["--endpoint", self.address("endpoint")])
            .arg(format!("--rate={}", reports / SECONDS))
            .arg(format!("--duration={SECONDS}s"));
        let document = json(command);
        let (acked, sent) = (&document["acked"], &document["sent"]);
        self.say(&format!("{acked} of {sent} are acknowledged"));
        acked.as_u64().unwrap()
    }

    fn client(&self) -> clickhouse::Client {
        let target = epwatch_store::StoreTarget::parse(self.address("store"), "epwatch").unwrap();
        epwatch_store::client(&target)
    }

    /// Returns the first value of a query, over the store's socket.
    async fn number(&self, sql: &str) -> u64 {
        self.client().query(sql).fetch_one::<u64>().await.unwrap()
    }

    async fn run(&self, sql: &str) {
        self.client().query(sql).execute().await.unwrap();
    }

    /// Keeps buckets open from now on, like a collector whose writer is stuck, or closes them.
    async fn hold_buckets(&self, must_hold: bool) {
        let [passed, hours] = match must_hold {
            true => ["now64(3)", "6"],
            false => ["toDateTime64('2200-01-01', 3, 'UTC')", "7"],
        };
        self.run(&format!(
            "INSERT INTO collector_checkpoints (collector_id, passed_until, updated_at) \
             SELECT 1, {passed}, now64(3) + INTERVAL {hours} HOUR"
        ))
        .await;
    }

    /// Writes an incident of the load's first model, for its page.
    async fn put_incident(&self) {
        let client = self.client();
        let last = "SELECT toString(w.model_id), toString(w.model_version), toString(w.chipset), \
                toInt64(toUnixTimestamp64Milli(w.window_end)) \
             FROM cohort_windows_v1 AS w WHERE w.firmware = '' ORDER BY w.window_end DESC, w.devices DESC LIMIT 1";
        let (model, version, chipset, end_ms): (String, String, String, i64) =
            client.query(last).fetch_one().await.unwrap();
        let mut document = incident_of(CohortKey {
            model: ModelKey::of((APP, ENVIRONMENT), &model),
            model_version: version.clone(),
            chipset: chipset.clone(),
            firmware: None,
        });
        document.cohorts[0].verdict.window_end = jiff::Timestamp::from_millisecond(end_ms).unwrap();
        (document.delivered, document.news) = ([("slack".to_owned(), 1)].into(), 1);
        let insert = "INSERT INTO incidents (incident_id, changed_at, state, severity, verdict, app_id, environment, model_id, \
                model_version, chipsets, started_at, devices_hit, devices_seen, notification, document) \
             SELECT 'look', now64(3), 'firing', 'ticket', 'partial_fallback', ?, ?, ?, ?, [?], now64(3), 10, 100, 'TICKET', ?";
        let insert = client.query(insert).bind(APP).bind(ENVIRONMENT);
        let insert = insert.bind(model).bind(version).bind(chipset);
        let insert = insert.bind(write_document(&document));
        insert.execute().await.unwrap();
    }

    /// Waits until a number of the store is at least `least`. If this takes too long, adds a row that says so.
    async fn reaches(&self, rows: &mut Rows, state: usize, (what, sql): (&str, &str), least: u64) {
        self.say(&format!("waiting: {what}"));
        let started = Instant::now();
        let mut n = 0;
        while started.elapsed() < STATE {
            n = self.number(sql).await;
            if n >= least {
                return;
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let waited = format!("{n} of {least} after {} s", STATE.as_secs());
        rows.put(what, "", state, waited);
    }

    async fn is_closed(&self, rows: &mut Rows, state: usize, reports: u64) {
        let sql = "SELECT count() FROM reports WHERE bucket < (SELECT max(closed_until) FROM rollup_watermark)";
        self.reaches(rows, state, ("reports in closed buckets", sql), reports)
            .await;
    }

    /// Waits for a window that ends after the present time, and until the ledger has all reports.
    async fn is_settled(&self, rows: &mut Rows, state: usize, reports: u64) {
        let now = jiff::Timestamp::now();
        let second = u64::try_from(now.as_second()).unwrap();
        let judged = "SELECT toUInt64(max(toUnixTimestamp(window_end))) FROM cohort_windows";
        let what = ("end of the last judged window", judged);
        self.reaches(rows, state, what, second).await;
        let read = "SELECT toUInt64(sum(stored)) FROM loss_ledger_read_daily_v1";
        self.reaches(rows, state, ("reports in the ledger", read), reports)
            .await;
    }

    /// Returns a page of each kind: the lists, and the first cohort and incident that they link to.
    async fn pages(&self) -> Vec<String> {
        let lists = ["/fleet", "/incidents", "/orders", "/ledger", "/health"];
        let mut paths = lists.map(str::to_owned).to_vec();
        for (list, begin) in [("/fleet", "/cohort?"), ("/incidents", "/incident?")] {
            let url = format!("http://{}{list}", self.address("page"));
            let Ok(Ok(page)) = timeout(ANSWER, get(&url)).await else {
                continue;
            };
            let mut links = page.text.split("href=\"");
            let link = links.find(|part| part.starts_with(begin));
            let link = link.and_then(|part| part.split('"').next());
            paths.extend(link.map(|link| link.replace("&amp;", "&").replace("&#38;", "&")));
        }
        let mut kinds = BTreeSet::new();
        paths.retain(|path| kinds.insert(kind(path).to_owned()));
        paths
    }

    /// Returns the time of an answer and the engine's processor time, or an error text.
    async fn timed<T>(
        &self,
        ask: impl Future<Output = Result<T, String>>,
    ) -> Result<(u128, u64), String> {
        let (started, cpu) = (Instant::now(), self.engine_cpu_ms());
        match timeout(ANSWER, ask).await {
            Ok(Ok(_)) => {
                let cpu_ms = self.engine_cpu_ms().saturating_sub(cpu);
                Ok((started.elapsed().as_millis(), cpu_ms))
            }
            Ok(Err(why)) => Err(why),
            Err(_) => Err(format!("no answer in {} s", ANSWER.as_secs())),
        }
    }

    async fn page(&self, path: &str) -> Result<(u128, u64), String> {
        let url = format!("http://{}{path}", self.address("page"));
        let ask = async {
            let page = get(&url).await.map_err(|error| format!("{error:#}"))?;
            match page.status {
                200 if page.text.contains("could not be read") => Err("lacks a part".to_owned()),
                200 => Ok(()),
                status => Err(format!("status {status}")),
            }
        };
        self.timed(ask).await
    }

    async fn query(&self, sql: &str) -> Result<(u128, u64), String> {
        let client = self.client();
        let ask = async {
            let run = client.query_raw(sql).execute().await;
            run.map_err(|error| {
                // A pipe would end the cell.
                let text = error.to_string().replace(['|', '\n'], " ");
                text.chars().take(80).collect()
            })
        };
        self.timed(ask).await
    }

    /// Returns the mean time of the next three evaluations, in milliseconds, while `meanwhile` goes on.
    async fn evaluation_ms(&self, meanwhile: impl Future<Output = ()>) -> Option<f64> {
        let read = async || {
            let url = format!("http://{}/metrics", self.address("http"));
            let page = timeout(ANSWER, get(&url)).await.ok()?.ok()?.text;
            let of = |name: &str| {
                let name = format!("epwatch_detector_evaluation_seconds_{name} ");
                let line = page.lines().find_map(|line| line.strip_prefix(&name));
                line?.parse::<f64>().ok()
            };
            Some([of("sum")?, of("count")?])
        };
        let evaluations = async {
            let before = read().await?;
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let Some([seconds, n]) = read().await else {
                    continue;
                };
                if n >= before[1] + 3.0 {
                    return Some(1e3 * (seconds - before[0]) / (n - before[1]));
                }
            }
        };
        tokio::select! {
            ms = timeout(EVALUATIONS, evaluations) => ms.ok().flatten(),
            () = async { meanwhile.await; std::future::pending().await } => unreachable!(),
        }
    }
}

fn kind(path: &str) -> &str {
    path.split('?').next().unwrap_or_default()
}

/// Keeps the better of two attempts; a time is better than none.
fn keep(best: &mut Best, attempt: Best) {
    let is_better = match (&*best, &attempt) {
        (Ok((before, _)), Ok((now, _))) => now < before,
        (Ok(_), Err(_)) => false,
        (Err(_), _) => true,
    };
    if is_better {
        *best = attempt;
    }
}

/// Takes the times of one state.
async fn measure(served: &Served, rows: &mut Rows, state: usize) {
    served.say(STATES[state]);
    let paths = served.pages().await;
    let none = || Err("was not asked".to_owned());
    let mut best: Vec<[Best; 2]> = paths.iter().map(|_| [none(), none()]).collect();
    for _ in 0..ROUNDS {
        // The cache forgets at the next judgement, or after half a minute.
        tokio::time::sleep(Duration::from_secs(31)).await;
        for (path, best) in paths.iter().zip(&mut best) {
            for best in best {
                keep(best, served.page(path).await);
            }
        }
    }
    for (path, [first, cached]) in paths.iter().zip(&best) {
        let name = kind(path);
        rows.put_best(&format!("`{name}`, first view"), GOALS[0], state, first);
        rows.put_best(&format!("`{name}`, cached"), GOALS[1], state, cached);
    }
    let names = names_of(served).await;
    // For each dashboard only the slowest query is shown.
    let mut slowest: Vec<(String, u128, String, Best)> = Vec::new();
    for (name, sql) in queries() {
        let is_variable = sql.starts_with("SELECT encodeURLComponent");
        let sql = Range::now().expanded(&sql, &names);
        let mut best = none();
        for _ in 0..ROUNDS {
            let attempt = served.query(&sql).await;
            let has_failed = attempt.is_err();
            keep(&mut best, attempt);
            if has_failed {
                break;
            }
        }
        let name = name.replace('"', "");
        served.say(&format!("{name}: {best:?}"));
        let (title, dashboard) = name.rsplit_once(" of ").unwrap_or((&name, ""));
        let (group, goal) = match is_variable {
            true => ("slowest variable".to_owned(), GOALS[3]),
            false => (format!("slowest panel of {dashboard}"), GOALS[2]),
        };
        let rank = |best: &Best| best.as_ref().map_or(u128::MAX, |(ms, _)| *ms);
        match slowest.iter_mut().find(|(known, ..)| *known == group) {
            Some(row) if rank(&row.3) >= rank(&best) => {}
            Some(row) => (row.2, row.3) = (title.to_owned(), best),
            None => slowest.push((group, goal, title.to_owned(), best)),
        }
    }
    slowest.sort_by(|a, b| a.0.cmp(&b.0));
    for (group, goal, title, best) in slowest {
        rows.put_best(&group, goal, state, &best);
        if let Some((_, _, cells)) = rows.0.iter_mut().find(|(known, ..)| *known == group) {
            write!(cells[state], ": {title}").unwrap();
        }
    }
}

/// Reloads all pages without end, with several clients at once. Each searches the fleet for a different text, which is
/// never cached.
async fn reload(served: &Served) {
    let paths = served.pages().await;
    let mut reloaders = tokio::task::JoinSet::new();
    for reloader in 0..RELOADERS {
        let urls: Vec<String> = paths
            .iter()
            .map(|path| format!("http://{}{path}", served.address("page")))
            .collect();
        reloaders.spawn(async move {
            for n in 0_usize.. {
                drop(get(&format!("{}?q={reloader}-{n}", urls[0])).await);
                drop(get(&urls[(n + reloader) % urls.len()]).await);
            }
        });
    }
    reloaders.join_all().await;
}

/// Returns names that the load sent.
async fn names_of(served: &Served) -> Names<'static> {
    let sql = "SELECT toString(any(session_model_id[1])), toString(any(session_model_version[1])), toString(any(chipset)) \
               FROM reports";
    let (model, version, chipset): (String, String, String) =
        served.client().query(sql).fetch_one().await.unwrap();
    let [model, version, chipset]: [&'static str; 3] =
        [model, version, chipset].map(|name| &*name.leak());
    Names::from([
        ("app", Some(vec![APP])),
        ("environment", Some(vec![ENVIRONMENT])),
        ("model", Some(vec![model])),
        ("baseline", Some(vec![version])),
        ("version", None),
        ("chipset", Some(vec![chipset])),
    ])
}

/// Adds the time of an evaluation, alone and while pages are reloaded, and the size of verdicts' evidence.
async fn measure_the_rest(served: &Served, rows: &mut Rows) {
    const CLOSED_STATE: usize = 1;
    const ALONE: &str = "an evaluation";
    served.say("three evaluations alone");
    let alone = served.evaluation_ms(async {}).await;
    served.say("three evaluations in a reload storm");
    let storm = served.evaluation_ms(reload(served)).await;
    let text = |ms: Option<f64>| {
        let none = format!("less than three in {} s", EVALUATIONS.as_secs());
        ms.map_or(none, |ms| format!("{ms:.0} ms"))
    };
    rows.put(ALONE, "", CLOSED_STATE, text(alone));
    let times = alone.zip(storm).map(|(alone, storm)| storm / alone);
    let times = times.map_or_else(String::new, |times| {
        let missed = if times > STORM_GOAL { ", missed" } else { "" };
        format!(", {times:.2} times{missed}")
    });
    let name = format!("{ALONE} while {RELOADERS} reload all pages");
    let cell = text(storm) + &times;
    rows.put(&name, &format!("{STORM_GOAL} times"), CLOSED_STATE, cell);
    let of = |column: &str| {
        format!(
            "SELECT toUInt64(sum({column})) FROM system.parts WHERE active AND table = 'cohort_evidence'"
        )
    };
    let n = served.number(&of("rows")).await.max(1);
    let [plain, on_disk] = ["data_uncompressed_bytes", "data_compressed_bytes"].map(of);
    let plain = served.number(&plain).await / n;
    let on_disk = served.number(&on_disk).await / n;
    let row = format!("{plain} bytes, {on_disk} on disk");
    rows.put("evidence of a cohort's window", "1 KB", CLOSED_STATE, row);
    // The size for a day assumes steps of an hour.
    let mb = |bytes: u64| (bytes * 10_000 * 24).div_ceil(1_000_000);
    let day = format!("{} MB, {} MB on disk", mb(plain), mb(on_disk));
    rows.put("evidence of 10,000 cohorts a day", "", CLOSED_STATE, day);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a bench: `just look`"]
async fn table() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path());
    let mut rows = Rows::default();
    let closed = served.load(CLOSED);
    served.is_closed(&mut rows, 0, closed).await;
    served.hold_buckets(true).await;
    let open = served.load(OPEN);
    let sql = "SELECT count() FROM reports";
    let what = ("reports in the store", sql);
    served.reaches(&mut rows, 0, what, closed + open).await;
    served.is_settled(&mut rows, 0, closed + open).await;
    served.put_incident().await;
    measure(&served, &mut rows, 0).await;
    eprintln!("\n{}", rows.table());
    served.hold_buckets(false).await;
    served.is_closed(&mut rows, 1, closed + open).await;
    served.is_settled(&mut rows, 1, closed + open).await;
    measure(&served, &mut rows, 1).await;
    measure_the_rest(&served, &mut rows).await;
    println!("\n{}", rows.table());
}
