//! `just look`: times of every page and of every query of Grafana, over a store that `epwatch load` filled, in two states.
//!
//! Next to the time it prints the processor time of the engine, which a busy machine does not stretch. Most reports are in
//! open buckets first: `serve` closes 400,000 of them in buckets of ten seconds, and takes the others
//! with buckets of an hour. Then it runs with short buckets again, and all are closed. It is no test: it prints a table,
//! takes ten minutes, and says what misses its goal.

use std::{
    collections::BTreeSet,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    dashboards::{Names, Range, queries},
    support::{Running, epwatch, get, json, server},
};

/// App and environment of `epwatch load`.
const APP: &str = "epwatch.load";
const ENVIRONMENT: &str = "load";

/// Reports in closed and in open buckets, of the first state.
const CLOSED: u64 = 400_000;
const OPEN: u64 = 600_000;

/// Goals in milliseconds: a page's first view, a page from the cache, a panel, a variable.
const GOALS: [u128; 4] = [200, 10, 500, 100];

/// Rounds; the best of a query's times counts, since a machine that does other things adds to the rest.
const ROUNDS: usize = 3;

/// Who reload pages at once while an evaluation is measured.
const RELOADERS: usize = 8;

struct Served {
    server: Running,
    addresses: Value,
}

impl Served {
    /// A step is no shorter than a bucket.
    fn start(dir: &Path, bucket: &str, step: &str) -> Self {
        let mut command = server("serve", dir);
        let command = command
            .env("EPWATCH_COLLECTOR__ROLLUP__BUCKET", bucket)
            .env("EPWATCH_DETECTOR__WINDOW", "2h")
            .env("EPWATCH_DETECTOR__STEP", step)
            .env("EPWATCH_LOG", "warn");
        let (server, addresses) = Running::start(command);
        Self { server, addresses }
    }

    fn address(&self, name: &str) -> &str {
        self.addresses[name].as_str().unwrap()
    }

    /// Returns the processor time of the engine so far, in milliseconds.
    fn engine_cpu_ms(&self) -> u64 {
        let tasks = format!("/proc/{}/task", self.server.0.id());
        let tasks = std::fs::read_dir(tasks)
            .unwrap()
            .map(|task| task.unwrap().path());
        let children = tasks.filter_map(|task| std::fs::read_to_string(task.join("children")).ok());
        let all = children.collect::<Vec<_>>().join(" ");
        let engine = all.split_whitespace().next().expect("an engine");
        let stat = std::fs::read_to_string(format!("/proc/{engine}/stat")).unwrap();
        // The name in brackets may hold blanks. User and system time are in hundredths of a second.
        let fields = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace();
        let ticks = fields
            .skip(11)
            .take(2)
            .map(|field| field.parse::<u64>().unwrap());
        10 * ticks.sum::<u64>()
    }

    /// Ends it after it wrote the rest of its WAL.
    fn stop(mut self) {
        let pid = self.server.0.id().to_string();
        assert!(Command::new("kill").arg(pid).status().unwrap().success());
        self.server.0.wait().unwrap();
    }

    /// Sends about so many reports and returns how many were acknowledged.
    fn load(&self, reports: u64) -> u64 {
        let seconds = 60;
        let mut command =
            epwatch("load --app epwatch.load --devices 20000 --batch 100 --drain 600s");
        let command = command
            .args(["--endpoint", self.address("endpoint")])
            .arg(format!("--rate={}", reports / seconds))
            .arg(format!("--duration={seconds}s"));
        let document = json(command);
        println!("acknowledged {} of {}", document["acked"], document["sent"]);
        document["acked"].as_u64().unwrap()
    }

    /// Returns the first value of a query, over the store's socket.
    async fn number(&self, sql: &str) -> u64 {
        let target = epwatch_store::StoreTarget::parse(self.address("store"), "epwatch").unwrap();
        let client = epwatch_store::client(&target);
        client.query(sql).fetch_one::<u64>().await.unwrap()
    }

    /// Returns the addresses of pages: each list, and each cohort and incident that they link to.
    async fn pages(&self) -> Vec<String> {
        let lists = ["/fleet", "/incidents", "/orders", "/ledger", "/health"];
        let mut paths = lists.map(str::to_owned).to_vec();
        for (list, begin) in [("/fleet", "/cohort?"), ("/incidents", "/incident?")] {
            let url = format!("http://{}{list}", self.address("page"));
            let text = get(&url).await.unwrap().text;
            let links = text.split("href=\"").filter(|part| part.starts_with(begin));
            let links = links.filter_map(|part| part.split('"').next());
            paths.extend(links.map(|link| link.replace("&amp;", "&")));
        }
        paths
    }

    /// Returns the mean time of the next three evaluations, in milliseconds, while `meanwhile` goes on.
    async fn evaluation_ms(&self, meanwhile: impl Future<Output = ()>) -> f64 {
        let read = async || {
            let url = format!("http://{}/metrics", self.address("http"));
            let page = get(&url).await.unwrap().text;
            let of = |name: &str| {
                let name = format!("epwatch_detector_evaluation_seconds_{name} ");
                let line = page.lines().find_map(|line| line.strip_prefix(&name));
                line.unwrap().parse::<f64>().unwrap()
            };
            [of("sum"), of("count")]
        };
        let evaluations = async {
            let before = read().await;
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let [seconds, n] = read().await;
                if n >= before[1] + 3.0 {
                    return 1e3 * (seconds - before[0]) / (n - before[1]);
                }
            }
        };
        tokio::select! {
            ms = evaluations => ms,
            () = async { meanwhile.await; std::future::pending().await } => unreachable!(),
        }
    }

    /// Waits until so many reports are in closed buckets.
    async fn closed(&self, reports: u64) {
        let sql = "SELECT count() FROM reports WHERE bucket < (SELECT max(closed_until) FROM rollup_watermark)";
        let started = Instant::now();
        while self.number(sql).await < reports {
            assert!(
                started.elapsed() < Duration::from_secs(1_800),
                "buckets do not close"
            );
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }
}

/// Prints the times of one state.
async fn measure(served: &Served, state: &str) {
    println!("\n## {state}\n\n| what | ms | engine's CPU ms | goal |\n|---|---|---|---|");
    let say = |what: &str, (ms, cpu_ms): (u128, u64), goal: u128| {
        let missed = if ms > goal { " missed" } else { "" };
        println!("| {what} | {ms} | {cpu_ms} | {goal}{missed} |");
    };
    let base = format!("http://{}", served.address("page"));
    let (mut paths, mut kinds) = (served.pages().await, BTreeSet::new());
    paths.retain(|path| kinds.insert(path.split('?').next().unwrap().to_owned()));
    let ask = async |path: &str| {
        let (started, cpu) = (Instant::now(), served.engine_cpu_ms());
        let page = get(&format!("{base}{path}")).await.unwrap();
        assert_eq!(page.status, 200, "{path}: {}", page.text);
        if page.text.contains("ot read in time") {
            println!("{path} lacks a part");
        }
        (started.elapsed().as_millis(), served.engine_cpu_ms() - cpu)
    };
    let mut best = vec![[(u128::MAX, u64::MAX); 2]; paths.len()];
    for _ in 0..ROUNDS {
        // The cache forgets at the next judgement, or after half a minute.
        tokio::time::sleep(Duration::from_secs(31)).await;
        for (path, best) in paths.iter().zip(&mut best) {
            for best in best {
                *best = (*best).min(ask(path).await);
            }
        }
    }
    for (path, [first, cached]) in paths.iter().zip(best) {
        let name = path.split('?').next().unwrap();
        say(&format!("page {name}, first view"), first, GOALS[0]);
        say(&format!("page {name}, cached"), cached, GOALS[1]);
    }
    let names = names_of(served).await;
    for (name, sql) in queries() {
        let is_variable = sql.starts_with("SELECT encodeURLComponent");
        let sql = Range::now().expanded(&sql, &names);
        let mut best = (u128::MAX, u64::MAX);
        for _ in 0..ROUNDS {
            let socket = served.address("store").to_owned();
            let (started, cpu) = (Instant::now(), served.engine_cpu_ms());
            let target = epwatch_store::StoreTarget::parse(&socket, "epwatch").unwrap();
            let client = epwatch_store::client(&target);
            client
                .query_raw(&sql)
                .execute()
                .await
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            best = best.min((started.elapsed().as_millis(), served.engine_cpu_ms() - cpu));
        }
        say(&name, best, if is_variable { GOALS[3] } else { GOALS[2] });
    }
}

/// Reloads all pages without end, by several at once. What each searches the fleet for is in no cache.
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
    let target = epwatch_store::StoreTarget::parse(served.address("store"), "epwatch").unwrap();
    let client = epwatch_store::client(&target);
    let sql = "SELECT toString(any(session_model_id[1])), toString(any(session_model_version[1])), toString(any(chipset)) \
               FROM reports";
    let (model, version, chipset): (String, String, String) =
        client.query(sql).fetch_one().await.unwrap();
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

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a bench: `just look`"]
async fn table() {
    let dir = tempfile::tempdir().unwrap();
    let short = Served::start(dir.path(), "10s", "30s");
    let closed = short.load(CLOSED);
    short.closed(closed).await;
    short.stop();
    let long = Served::start(dir.path(), "1h", "1h");
    let open = long.load(OPEN);
    // The ledger is read, and a window judged.
    tokio::time::sleep(Duration::from_secs(150)).await;
    measure(&long, "600,000 reports in open buckets").await;
    long.stop();
    let short = Served::start(dir.path(), "10s", "30s");
    short.closed(closed + open).await;
    tokio::time::sleep(Duration::from_secs(150)).await;
    measure(&short, "all buckets closed").await;
    let idle = short.evaluation_ms(async {}).await;
    let storm = short.evaluation_ms(reload(&short)).await;
    let missed = if storm > 1.2 * idle { " missed" } else { "" };
    println!(
        "\nevaluation: {idle:.0} ms, under {RELOADERS} who reload pages {storm:.0} ms (goal 1.2 times){missed}"
    );
    let rows = short.number("SELECT count() FROM cohort_evidence").await;
    let sql = "SELECT sum(data_compressed_bytes) FROM system.parts WHERE active AND table = 'cohort_evidence'";
    let bytes = short.number(sql).await;
    println!("\nevidence: {rows} rows, {bytes} bytes compressed");
    short.stop();
}
