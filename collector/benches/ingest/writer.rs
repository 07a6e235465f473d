//! The writer's rate and CPU time, from the WAL to the embedded engine, compared with the engine alone. First a
//! collector in its own process stores a WAL full of reports. Then the rows that it made are read back unchanged. The
//! same client sends them to fresh tables, in batches of the same size. It sends them as rows, which is its own way to
//! insert, and as blocks, which is the writer's way. The first batches of each side are not counted, because the
//! one-time cost of a process's memory is not part of its steady rate. Nothing is merged meanwhile. Merging is the
//! engine's work, costs all sides the same, and would go on while the next side is measured.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clickhouse::Client;
use epwatch_collector::schema::{self, Retention};
use epwatch_engines::Engine;
use epwatch_store::embedded::{ChildProgram, EmbeddedConfig, EmbeddedStore, EngineState};
use epwatch_store::migrate;

use crate::client;
use crate::payload::Template;
use crate::server::{self, Process, Server};
use crate::{BATCH, SHAPE};

/// The argument that makes this program the engine's child.
pub(crate) const ENGINE_CHILD: &str = "engine-child";

/// The first batches, which are not counted if at least as many more follow.
const WARM_UP: usize = 3;

/// Results of one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Round {
    pub(crate) writer: Stored,
    /// The engine on its own, given rows.
    pub(crate) engine: Stored,
    /// The engine on its own, given blocks.
    pub(crate) engine_of_blocks: Stored,
}

/// One side of one round.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stored {
    pub(crate) rows: f64,
    pub(crate) seconds: f64,
    pub(crate) engine_cpu_seconds: f64,
    pub(crate) writer_cpu_seconds: f64,
}

impl Stored {
    /// Returns the difference to an earlier state.
    fn since(self, before: Self) -> Self {
        Self {
            rows: self.rows - before.rows,
            seconds: self.seconds - before.seconds,
            engine_cpu_seconds: self.engine_cpu_seconds - before.engine_cpu_seconds,
            writer_cpu_seconds: self.writer_cpu_seconds - before.writer_cpu_seconds,
        }
    }
}

/// The number of batches that are not counted, of all that `rows` rows make.
fn warm_up(rows: u64, batch: usize) -> usize {
    if rows >= (3 * WARM_UP * batch) as u64 {
        WARM_UP
    } else {
        0
    }
}

/// The writer, then the engine on its own.
pub(crate) fn round(dir: &Path, fill: Duration, batch: usize) -> Round {
    std::fs::create_dir_all(dir).expect("the bench's directory can be written");
    let rows = {
        let filling = Server::start("collector", dir);
        client::full(filling.address, SHAPE, Template::new(BATCH), fill).reports
    };
    let warm_up = warm_up(rows, batch);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let engine = start_engine(dir).await;
        let (writers, engines, blocks) = ("writers", "engines", "blocks");
        for database in [writers, engines, blocks] {
            let values = schema::single_server(Retention::default());
            let target = engine.target(database);
            migrate(&target, schema::MIGRATIONS, &values)
                .await
                .expect("a fresh database");
        }
        // Otherwise a side also pays for merging the parts of the sides before it.
        let stop = engine.client(writers).query("SYSTEM STOP MERGES");
        stop.execute().await.expect("the engine stops merging");
        let round = Round {
            writer: run_writer(dir, &engine, writers, warm_up * batch).await,
            engine: run_engine(&engine, writers, engines, "RowBinary", (batch, warm_up)).await,
            engine_of_blocks: run_engine(&engine, writers, blocks, "Native", (batch, warm_up))
                .await,
        };
        for database in [writers, engines, blocks] {
            let stored = count(&engine.client(database), "reports").await;
            assert_eq!(stored, rows, "all rows are in {database}");
        }
        engine.stop().await;
        round
    })
}

pub(crate) async fn start_engine(dir: &Path) -> EmbeddedStore {
    let library = epwatch_engines::for_tests(Engine::Chdb).chdb_library();
    let program = std::env::current_exe().expect("a path of its own");
    let program = ChildProgram::new(program, [ENGINE_CHILD]);
    let mut config = EmbeddedConfig::new(dir.join("store"), library, program);
    config.socket = Some(dir.join("store.sock"));
    let engine = EmbeddedStore::start(config)
        .await
        .expect("the engine starts");
    engine.ready().await.expect("the engine starts");
    engine
}

fn cpu_seconds(engine: &EmbeddedStore) -> f64 {
    match *engine.state().borrow() {
        EngineState::Ready { pid, .. } => server::cpu_seconds(pid),
        _ => 0.0,
    }
}

async fn count(client: &Client, table: &str) -> u64 {
    let sql = format!("SELECT count() FROM {table}");
    let count = client.query(&sql).fetch_one::<u64>().await;
    count.expect("the engine answers")
}

/// Returns the counts of a database at this moment.
#[expect(clippy::cast_precision_loss, reason = "counts of a bench")]
async fn stored(engine: &EmbeddedStore, database: &str, started: Instant) -> Stored {
    Stored {
        rows: count(&engine.client(database), "reports").await as f64,
        seconds: started.elapsed().as_secs_f64(),
        engine_cpu_seconds: cpu_seconds(engine),
        writer_cpu_seconds: 0.0,
    }
}

/// Counts from the moment at which `warm_up` rows are stored.
#[expect(clippy::cast_precision_loss, reason = "counts of a bench")]
async fn run_writer(dir: &Path, engine: &EmbeddedStore, database: &str, warm_up: usize) -> Stored {
    let (dir, name) = (dir.to_owned(), database.to_owned());
    let store = format!("unix:{}", engine.socket().display());
    let starts = tokio::task::spawn_blocking(move || Process::writer(&dir, &store, &name, false));
    let mut writer = starts.await.expect("the writer starts");
    let started = Instant::now();
    let mut before = stored(engine, database, started).await;
    while before.rows < warm_up as f64 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        before = stored(engine, database, started).await;
    }
    before.writer_cpu_seconds = writer.cpu_seconds();
    let drains = tokio::task::spawn_blocking(move || {
        writer.drain();
        writer
    });
    let writer = drains.await.expect("the writer drains");
    let mut after = stored(engine, database, started).await;
    after.writer_cpu_seconds = writer.cpu_seconds();
    after.since(before)
}

/// Rows of both tables as the engine gives them back, one body a batch.
async fn bodies(from: &Client, format: &str, batch: usize) -> Vec<(&'static str, Bytes)> {
    let offsets = "SELECT wal_offset FROM reports ORDER BY wal_offset";
    let offsets = from.query(offsets).fetch_all::<u64>().await;
    let mut bodies = Vec::new();
    // Selects by the offsets at the batch's ends, because sorting whole rows takes more memory than the engine has.
    for offsets in offsets.expect("the engine answers").chunks(batch) {
        let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
        for table in ["report_copies", "reports"] {
            let sql = format!("SELECT * FROM {table} WHERE wal_offset BETWEEN {first} AND {last}");
            let mut rows = from.query(&sql).fetch_bytes(format).expect("a query");
            let body = rows.collect().await.expect("the engine answers");
            bodies.push((table, body));
        }
    }
    bodies
}

async fn run_engine(
    engine: &EmbeddedStore,
    from: &str,
    to: &str,
    format: &str,
    (batch, warm_up): (usize, usize),
) -> Stored {
    let bodies = bodies(&engine.client(from), format, batch).await;
    let client = engine.client(to);
    let started = Instant::now();
    let mut before = stored(engine, to, started).await;
    for (number, (table, body)) in bodies.into_iter().enumerate() {
        // Two tables a batch.
        if number == 2 * warm_up {
            before = stored(engine, to, started).await;
        }
        let mut insert = client
            .insert_formatted_with(format!("INSERT INTO {table} FORMAT {format}"))
            .with_setting("insert_deduplication_token", format!("bench-{number}"));
        for chunk in body.chunks(1 << 20) {
            insert
                .send(body.slice_ref(chunk))
                .await
                .expect("the engine takes rows");
        }
        insert.end().await.expect("the engine takes rows");
    }
    stored(engine, to, started).await.since(before)
}
