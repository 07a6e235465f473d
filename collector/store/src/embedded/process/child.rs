//! The engine's process: loads libchdb, serves it on a Unix socket, ends with its parent.
//!
//! It is a separate process for three reasons. The library takes threads, memory and file limits without bound, and
//! it crashes on a normal exit. A crash in 560 MB of C++ must not stop ingest.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};

use super::control::{MAX_LINE_BYTES, Orders, Stage, StartReport};
use super::listen::{self, Acceptor, Connections};
use crate::embedded::binding::{self, EngineLibrary};
use crate::embedded::engine::RunningEngine;
use crate::embedded::protocol::http::Service;
use crate::embedded::protocol::reader;

/// Concurrent connections. Each may wait for a slot, so there are more of them than statements.
const MAX_CONNECTIONS: usize = 512;

/// The first call on a fresh thread costs the engine about 2 ms, so threads are kept.
const THREAD_KEEP_ALIVE: Duration = Duration::from_secs(600);

/// Concurrent connections of readers.
const MAX_READER_CONNECTIONS: usize = 64;

/// Runs the engine child: the body of the hidden subcommand that
/// [`ChildProgram`](crate::embedded::ChildProgram) starts.
///
/// Call it outside any async runtime: it makes its own. Log with a subscriber on standard error, which the supervisor
/// reads. Standard input must be the supervisor's control channel. Ends the process by `_exit` once it has read the
/// orders from the channel; returns only when started by hand.
pub fn run_engine_child() -> ExitCode {
    binding::end_with_parent();
    match take_orders() {
        Ok((control, orders)) => binding::exit_now(run(control, &orders)),
        Err(error) => {
            let _ = writeln!(
                io::stderr(),
                "engine-child is started by epwatch itself, not by hand: {error}"
            );
            ExitCode::from(2)
        }
    }
}

fn take_orders() -> io::Result<(UnixStream, Orders)> {
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut line = String::new();
    BufReader::new(&control)
        .take(MAX_LINE_BYTES)
        .read_line(&mut line)?;
    let orders: Orders = serde_json::from_str(&line)?;
    // The death signal covers only a parent that dies after the signal was set.
    if std::os::unix::process::parent_id() != orders.parent_pid {
        return Err(io::Error::other("the parent is gone"));
    }
    Ok((control, orders))
}

fn run(control: UnixStream, orders: &Orders) -> u8 {
    // Under memory pressure the kernel should kill the engine first: it restarts and loses nothing.
    let _ = std::fs::write("/proc/self/oom_score_adj", "500");
    let engine = match start_engine(orders) {
        Ok(engine) => engine,
        Err((stage, reason)) => {
            report(&control, &StartReport::Failed { stage, reason });
            return 1;
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(orders.max_concurrent_queries + 16)
        .thread_keep_alive(THREAD_KEEP_ALIVE)
        .enable_all()
        .build();
    let served = runtime.and_then(|runtime| {
        let served = runtime.block_on(serve(&control, engine, orders));
        // Threads may still be in calls of the engine when the process ends.
        std::mem::forget(runtime);
        served
    });
    match served {
        Ok(()) => 0,
        Err(error) => {
            let reason = error.to_string();
            let stage = Stage::Socket;
            report(&control, &StartReport::Failed { stage, reason });
            1
        }
    }
}

fn start_engine(orders: &Orders) -> Result<Arc<RunningEngine>, (Stage, String)> {
    let engine = EngineLibrary::load(&orders.library).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        (
            Stage::Library,
            format!("{error}{}", cause.unwrap_or_default()),
        )
    })?;
    tracing::debug!(library = engine.version(), "library loaded");
    // Without this argument the library silently reads ./config.xml.
    let mut args = vec![format!("--config-file={}", orders.config_file.display())];
    args.extend_from_slice(&orders.engine_args);
    RunningEngine::start(engine, &orders.data, &args, orders.default_settings.clone())
        .map(Arc::new)
        .map_err(|error| (Stage::Engine, error.to_string()))
}

/// Binds, reports ready, and answers until the order to end.
async fn serve(
    control: &UnixStream,
    engine: Arc<RunningEngine>,
    orders: &Orders,
) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let end = watch_control(control.try_clone()?);
    let version = engine.version().to_owned();
    let socket = listen::bind_socket(&orders.socket)?;
    let service = Service::new(
        engine.clone(),
        orders.max_concurrent_queries,
        orders.memory_bytes,
        None,
    );
    let connections = Connections::new(MAX_CONNECTIONS);
    let mut accepting = JoinSet::new();
    let owners = Acceptor::new(service, connections.clone());
    accepting.spawn(owners.accept(UnixListenerStream::new(socket)));
    let mut readers_at = None;
    if let Some(access) = &orders.readers {
        let port = listen::bind_port(access.address()).await?;
        readers_at = Some(port.local_addr()?);
        let service = Service::new(
            engine,
            reader::MAX_STATEMENTS,
            orders.memory_bytes,
            Some(access.clone()),
        );
        let readers = Acceptor::new(service, connections.limited_to(MAX_READER_CONNECTIONS));
        accepting.spawn(readers.accept(TcpListenerStream::new(port)));
    }
    let readers = readers_at;
    report(control, &StartReport::Ready { version, readers });
    tokio::select! {
        _ = terminate.recv() => {}
        () = end => {}
    }
    accepting.shutdown().await;
    let _ = std::fs::remove_file(&orders.socket);
    connections
        .drain(Duration::from_millis(orders.drain_ms))
        .await;
    Ok(())
}

/// Returns when the supervisor closes the channel or ends.
async fn watch_control(mut control: UnixStream) {
    let (ended_tx, ended) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        let mut byte = [0];
        // A signal to any thread may interrupt the read; the engine itself sends such signals.
        while match control.read(&mut byte) {
            Ok(n_read) => n_read == 1,
            Err(error) => error.kind() == io::ErrorKind::Interrupted,
        } {}
        drop(ended_tx);
    });
    let _ = ended.await;
}

fn report(mut control: &UnixStream, report: &StartReport) {
    let line = serde_json::to_string(report).expect("plain strings serialise");
    // An error is ignored, because a parent that has ended needs no report.
    let _ = control.write_all(format!("{line}\n").as_bytes());
}
