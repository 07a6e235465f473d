//! Bytes of reports on disk. The collector's own writer writes the reference payload with random ids into the embedded
//! engine. The rows are then merged into one part a day, with their summaries.

use std::path::Path;
use std::time::Duration;

use clickhouse::{Client, Row};
use epwatch_collector::schema::{self, Retention};
use epwatch_store::migrate;
use serde::Deserialize;

use crate::client;
use crate::payload::Template;
use crate::server::{Process, Server};
use crate::writer::start_engine;
use crate::{BATCH, Figures, SHAPE};

const DATABASE: &str = "stored";
const RAW: [&str; 3] = ["reports", "report_copies", "placements"];
const SUMMARIES: [&str; 2] = ["cohort_buckets", "cohort_sessions"];
/// The number of columns that are printed by name; the others are small.
const N_COLUMNS: usize = 12;

#[derive(Debug, Row, Deserialize)]
struct Bytes {
    name: String,
    bytes: u64,
}

/// Stores at least `reports` reports and puts the bytes of a report into `figures`.
pub(crate) fn measure(dir: &Path, reports: u64, figures: &mut Figures) {
    let mut sent = 0;
    {
        let filling = Server::start("collector", dir);
        let second = Duration::from_secs(1);
        while sent < reports {
            sent += client::full(filling.address, SHAPE, Template::new(BATCH), second).reports;
            eprintln!("{sent} of {reports} reports sent");
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let engine = start_engine(dir).await;
        let values = schema::single_server(Retention::default());
        migrate(&engine.target(DATABASE), schema::MIGRATIONS, &values)
            .await
            .expect("a fresh database");
        let (dir, store) = (
            dir.to_owned(),
            format!("unix:{}", engine.socket().display()),
        );
        let stored = tokio::task::spawn_blocking(move || {
            Process::writer(&dir, &store, DATABASE, true).drain()
        });
        stored.await.expect("the writer drains");
        let client = engine.client(DATABASE);
        for table in RAW.into_iter().chain(SUMMARIES) {
            let merge = client.query(&format!("OPTIMIZE TABLE {table} FINAL"));
            merge.execute().await.expect("the engine merges");
        }
        put(&client, figures).await;
        engine.stop().await;
    });
}

async fn bytes(client: &Client, sql: &str) -> Vec<Bytes> {
    let rows = client.query(sql).fetch_all::<Bytes>().await;
    rows.expect("the engine answers")
}

#[expect(clippy::cast_precision_loss, reason = "counts of a bench")]
async fn put(client: &Client, figures: &mut Figures) {
    let stored = client
        .query("SELECT count() FROM reports")
        .fetch_one::<u64>();
    let stored = stored.await.expect("the engine answers") as f64;
    let tables = bytes(
        client,
        "SELECT table AS name, sum(bytes_on_disk) AS bytes FROM system.parts \
         WHERE active AND database = currentDatabase() GROUP BY table ORDER BY bytes DESC",
    )
    .await;
    let of = |names: &[&str]| {
        let found = tables.iter().filter(|t| names.contains(&t.name.as_str()));
        found.map(|table| table.bytes as f64).sum::<f64>() / stored
    };
    figures.insert("stored_reports".into(), stored.into());
    figures.insert("raw_bytes_per_report".into(), of(&RAW).into());
    figures.insert("rollup_bytes_per_report".into(), of(&SUMMARIES).into());
    for table in &tables {
        let name = format!("table {}", table.name);
        figures.insert(name, (table.bytes as f64 / stored).into());
    }
    let columns = bytes(
        client,
        "SELECT concat(table, '.', column) AS name, sum(column_bytes_on_disk) AS bytes \
         FROM system.parts_columns WHERE active AND database = currentDatabase() \
         GROUP BY name ORDER BY bytes DESC",
    )
    .await;
    for column in columns.iter().take(N_COLUMNS) {
        let name = format!("column {}", column.name);
        figures.insert(name, (column.bytes as f64 / stored).into());
    }
}
