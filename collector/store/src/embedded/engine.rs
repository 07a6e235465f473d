//! The running engine: one keeper connection, and a fresh connection for each request.
//!
//! A connection costs about half a millisecond, and keeps one request's state from the next request. Calls block, so
//! they run on blocking threads. Results go to the HTTP side through channels of a few chunks, so a slow reader slows
//! the engine instead of filling memory.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::backup::is_own_backup;
use super::binding::{BindingError, EngineConnection, EngineLibrary, Stats};
use super::protocol::format::{self, Streaming};
use super::protocol::statement::{self, Kind, OutsideNames};
use crate::lexer::quoted_name;

/// Pause between repeated KILLs while a statement whose client left still runs.
const KILL_EVERY: Duration = Duration::from_millis(100);

/// A statement with everything that it needs, parsed and with limits applied.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) sql: String,
    pub(crate) kind: Kind,
    pub(crate) format: String,
    pub(crate) params: Vec<(String, String)>,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) database: Option<String>,
}

/// Rows of an INSERT. Only `End` finishes it. If the channel closes without it, the client left, and nothing
/// may be written.
#[derive(Debug)]
pub(crate) enum Input {
    Rows(Bytes),
    End,
    Failed(String),
}

/// The start of an answer.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) first: Bytes,
    /// True if nothing follows in the channel.
    pub(crate) complete: bool,
    pub(crate) stats: Stats,
}

/// The channel ends that a running job uses; errors are the engine's text.
pub(crate) struct JobChannels {
    pub(crate) head: oneshot::Sender<Result<Head, String>>,
    pub(crate) rest: mpsc::Sender<Result<Bytes, String>>,
    pub(crate) input: mpsc::Receiver<Input>,
}

/// Follows one job, so that it ends when its client leaves.
#[derive(Debug)]
pub(crate) struct Ticket {
    /// A tag that is unique in this process. It is in `log_comment`, because the library sets no query id.
    tag: String,
    abandoned: AtomicBool,
    finished: AtomicBool,
}

/// The engine of this process.
pub(crate) struct RunningEngine {
    engine: EngineLibrary,
    path_arg: String,
    default_settings: Vec<(String, String)>,
    outside: OutsideNames,
    version: String,
    next_ticket: AtomicU64,
    /// Keeps the engine running, because it stops with its last connection. It is never dropped: the process ends by
    /// `_exit`.
    _keeper: Mutex<EngineConnection>,
}

impl RunningEngine {
    /// Starts the engine on a folder, which it locks.
    pub(crate) fn start(
        engine: EngineLibrary,
        data: &Path,
        args: &[String],
        default_settings: Vec<(String, String)>,
    ) -> Result<RunningEngine, BindingError> {
        let path_arg = format!("--path={}", data.display());
        let mut all = vec![path_arg.clone()];
        all.extend_from_slice(args);
        let mut keeper = engine.connect(&all)?;
        let mut list = |sql: &str| -> Result<String, BindingError> {
            let result = keeper.query(sql, "TabSeparated", &[])?;
            Ok(String::from_utf8_lossy(result.data()).trim_end().to_owned())
        };
        let version = list("SELECT version()")?;
        let functions = list("SELECT name FROM system.table_functions")?;
        let engines = list(
            "SELECT name FROM system.table_engines UNION ALL \
             SELECT name FROM system.database_engines",
        )?;
        // The library overlays `default` with the file system: default.`/any/file.csv` reads that file. New connections
        // need a database of that name, so it is replaced by a database in memory. The library creates its own again at
        // each start.
        keeper.execute("DROP DATABASE IF EXISTS default")?;
        keeper.execute("CREATE DATABASE default ENGINE = Memory")?;
        Ok(RunningEngine {
            engine,
            path_arg,
            default_settings,
            outside: OutsideNames::new(functions.lines(), engines.lines()),
            version,
            next_ticket: AtomicU64::new(1),
            _keeper: Mutex::new(keeper),
        })
    }

    /// Returns ClickHouse's version, as `SELECT version()` returns it.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    pub(crate) fn ticket(&self) -> Arc<Ticket> {
        let number = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        Arc::new(Ticket {
            tag: format!("epwatch-{number}"),
            abandoned: AtomicBool::new(false),
            finished: AtomicBool::new(false),
        })
    }

    /// Runs a job on this (blocking) thread until the job ends or its client leaves.
    pub(crate) fn run(&self, job: &Job, ticket: &Ticket, channels: JobChannels) {
        let mut head = Some(channels.head);
        let result = self.prepare(job, ticket).and_then(|mut connection| {
            execute(
                &mut connection,
                job,
                &mut head,
                &channels.rest,
                channels.input,
            )
        });
        if let Err(text) = result {
            // If both ends are gone, the client left and needs no text.
            match head.take() {
                Some(head) => drop(head.send(Err(text))),
                None => drop(channels.rest.blocking_send(Err(text))),
            }
        }
        // This is set before the channel closes, so that a reader can distinguish an end from a thread that died.
        ticket.finished.store(true, Ordering::Release);
        drop(channels.rest);
    }

    fn prepare(&self, job: &Job, ticket: &Ticket) -> Result<EngineConnection, String> {
        let refuse = |refusal: statement::StatementRefusal| {
            format!("Code: 164. DB::Exception: {refusal}. (READONLY)")
        };
        // Only the owner may run a backup. Readers have the setting `readonly`, under which the engine refuses it too.
        let is_backup = is_own_backup(&job.sql) && job.settings.iter().all(|s| s.0 != "readonly");
        if !is_backup {
            self.outside.check(&job.sql).map_err(refuse)?;
        }
        let mut connection = self.connect().map_err(|e| e.to_string())?;
        if !matches!(job.kind, Kind::InsertRows { .. }) {
            match connection.classify(&job.sql) {
                Some(seen) if seen.n_statements > 1 => {
                    return Err(refuse(statement::StatementRefusal::SeveralStatements));
                }
                Some(seen) if seen.is_control && !is_backup => {
                    statement::check_control(&job.sql).map_err(refuse)?;
                }
                // A statement that the engine's parser cannot read is refused by the engine, with a better text than
                // ours.
                _ => {}
            }
        }
        let prepare = |connection: &mut EngineConnection| -> Result<(), BindingError> {
            if let Some(database) = &job.database {
                connection.execute(&format!("USE {}", quoted_name(database)))?;
            }
            let defaults = self.default_settings.iter();
            let defaults = defaults.filter(|(name, _)| job.settings.iter().all(|s| s.0 != *name));
            connection.execute(&set_statement(defaults.chain(&job.settings), &ticket.tag))
        };
        prepare(&mut connection).map_err(|e| e.to_string())?;
        if ticket.abandoned.load(Ordering::Acquire) {
            return Err("Code: 394. DB::Exception: client left. (QUERY_WAS_CANCELLED)".into());
        }
        Ok(connection)
    }

    fn connect(&self) -> Result<EngineConnection, BindingError> {
        self.engine.connect(std::slice::from_ref(&self.path_arg))
    }

    fn kill(&self, ticket: &Ticket) -> Result<(), BindingError> {
        self.connect()?.execute(&format!(
            "KILL QUERY WHERE Settings['log_comment'] = '{}' ASYNC",
            ticket.tag
        ))
    }
}

/// Ends the job of a client that left, unless disarmed first.
///
/// A KILL finds only a job that already runs, so it is repeated until the job has ended.
pub(crate) struct KillOnDrop {
    job: Option<(Arc<RunningEngine>, Arc<Ticket>)>,
}

impl KillOnDrop {
    pub(crate) fn new(engine: Arc<RunningEngine>, ticket: Arc<Ticket>) -> KillOnDrop {
        KillOnDrop {
            job: Some((engine, ticket)),
        }
    }

    /// Returns whether the job has ended; false in a disarmed guard.
    pub(crate) fn is_finished(&self) -> bool {
        let finished = |(_, ticket): &(_, Arc<Ticket>)| ticket.finished.load(Ordering::Acquire);
        self.job.as_ref().is_some_and(finished)
    }

    pub(crate) fn disarm(&mut self) {
        self.job = None;
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let Some((engine, ticket)) = self.job.take() else {
            return;
        };
        ticket.abandoned.store(true, Ordering::Release);
        tokio::spawn(async move {
            while !ticket.finished.load(Ordering::Acquire) {
                let (engine, ticket) = (engine.clone(), ticket.clone());
                let killed = tokio::task::spawn_blocking(move || engine.kill(&ticket)).await;
                if let Ok(Err(error)) = killed {
                    tracing::warn!(%error, "failed to kill the query of a client that left");
                }
                tokio::time::sleep(KILL_EVERY).await;
            }
        });
    }
}

fn execute(
    connection: &mut EngineConnection,
    job: &Job,
    head: &mut Option<oneshot::Sender<Result<Head, String>>>,
    rest: &mpsc::Sender<Result<Bytes, String>>,
    input: mpsc::Receiver<Input>,
) -> Result<(), String> {
    let started = Instant::now();
    let mut answer = |first: Bytes, complete: bool, mut stats: Stats| {
        stats.elapsed_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let head = head.take().expect("one answer a job");
        // A client that left needs no answer, so a failed send is ignored.
        drop(head.send(Ok(Head {
            first,
            complete,
            stats,
        })));
    };
    if let Kind::InsertRows { head, format, .. } = &job.kind {
        let stats = insert(connection, job, head, format, input)?;
        answer(Bytes::new(), true, stats);
        return Ok(());
    }
    let streaming = match job.kind {
        Kind::Select => Streaming::of(&job.format),
        _ => None,
    };
    let Some(streaming) = streaming else {
        let (rows, stats) = whole(connection, job)?;
        answer(rows, true, stats);
        return Ok(());
    };
    let mut stream = connection
        .stream(&job.sql, &job.format, &job.params)
        .map_err(|e| e.to_string())?;
    let mut header_bytes = 0;
    let mut first: Option<Bytes> = None;
    let mut answered = false;
    while let Some(chunk) = stream.next_chunk().map_err(|e| e.to_string())? {
        let stats = chunk.stats();
        let mut bytes = Bytes::from_owner(chunk);
        if first.is_none() && !answered {
            header_bytes = format::header_length(streaming, &bytes)?;
            // The first chunk is held back until the second one. So a small result is sent with a length and its stats.
            first = Some(bytes);
            continue;
        }
        // Each chunk repeats the header, but a result must have only one.
        if bytes.len() < header_bytes {
            return Err("Code: 1002. DB::Exception: chunk without its header. (UNKNOWN)".into());
        }
        bytes = bytes.split_off(header_bytes);
        if let Some(first) = first.take() {
            answer(first, false, stats);
            answered = true;
        }
        if rest.blocking_send(Ok(bytes)).is_err() {
            return Ok(()); // The client left; dropping the stream cancels it.
        }
    }
    if answered {
        return Ok(());
    }
    drop(stream);
    if let Some(first) = first {
        answer(first, true, Stats::default());
        return Ok(());
    }
    if !format::has_header(&job.format) {
        // In this format a result without rows has no bytes.
        answer(Bytes::new(), true, Stats::default());
        return Ok(());
    }
    // Without rows the stream returns no header, but a whole result has one. So the query runs once more for the whole
    // result.
    let (rows, stats) = whole(connection, job)?;
    answer(rows, true, stats);
    Ok(())
}

fn whole(connection: &mut EngineConnection, job: &Job) -> Result<(Bytes, Stats), String> {
    let result = connection.query(&job.sql, &job.format, &job.params);
    let result = result.map_err(|e| e.to_string())?;
    let stats = result.stats();
    Ok((Bytes::from_owner(result), stats))
}

fn insert(
    connection: &mut EngineConnection,
    job: &Job,
    sql: &str,
    format: &str,
    mut input: mpsc::Receiver<Input>,
) -> Result<Stats, String> {
    let stream = connection.insert(sql, format, &job.params);
    let mut stream = stream.map_err(|e| e.to_string())?;
    loop {
        match input.blocking_recv() {
            Some(Input::Rows(rows)) => stream.append(&rows).map_err(|e| e.to_string())?,
            Some(Input::End) => return stream.finish().map_err(|e| e.to_string()),
            Some(Input::Failed(text)) => return Err(text),
            None => {
                return Err("Code: 210. DB::Exception: client left. (NETWORK_ERROR)".into());
            }
        }
    }
}

fn set_statement<'a>(settings: impl Iterator<Item = &'a (String, String)>, tag: &str) -> String {
    use std::fmt::Write;
    let mut sql = format!("SET log_comment = '{tag}'");
    for (name, value) in settings {
        let value = value.replace('\\', "\\\\").replace('\'', "\\'");
        // Writing to a String cannot fail.
        let _ = write!(sql, ", {name} = '{value}'");
    }
    sql
}
