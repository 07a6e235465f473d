//! Start and stop of one collector: bind, open the WAL, start writer and roll-up, serve, drain, close. The command, the
//! demo and tests call it. It decides nothing about a report.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clickhouse::Client;
use epwatch_proto::Outcome;
use epwatch_server::{
    AdminPages, AdminServer, BindError, Clock, ENDING, Problems, SystemClock, TaskSet, bind,
    warn_of_readers,
};
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::admission::{Admission, Loader, keep_loading};
use crate::config::CollectorConfig;
use crate::context::Context;
use crate::deletions::{Deletions, Worker};
use crate::directives::{self, DirectiveBook};
use crate::encode::{CardinalityLimiter, Encoder};
use crate::ingest::Ingest;
use crate::ingest::auth::AppKeys;
use crate::ingest::dedup::SeenKeys;
use crate::ingest::limits::ReportLimits;
use crate::ingest::shares::AppShares;
use crate::loss_ledger_gauges;
use crate::metrics::{KeyMetrics, Metrics};
use crate::proxy_watch::{self, ProxyWatch};
use crate::rebuilds::RebuildWorker;
use crate::refusal_counts::RefusalCounts;
use crate::rollup::{FailedBuilds, RollUp};
use crate::rpc::Calls;
use crate::server::DeviceServer;
use crate::server::open_files;
use crate::server::reload;
use crate::server::tls::Tls;
use crate::store::{Sink, note_failure};
use crate::wal::{Checkpoint, MAX_PAYLOAD_BYTES, Opened, Wal, WalError, WalOffset, WalOptions};
use crate::writer::Writer;

/// Bytes that may wait for the WAL's disk before reports are refused: two of the largest requests.
const MAX_IN_FLIGHT_BYTES: usize = 2 * MAX_PAYLOAD_BYTES;
/// The loss ledger is refreshed once in this many refreshes of deletions and directives, because it costs more.
const REFRESHES_A_LEDGER: u32 = 6;
/// The time that a stop gives to calls under way; each of them waits for one sync.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// A start waits this long for the store. If the store is still away, the start goes on and the writer waits for it.
const START_TIMEOUT: Duration = Duration::from_secs(2);

/// The reason why a collector did not start.
#[derive(Debug, thiserror::Error)]
pub enum CollectorStartError {
    /// Names every problem of the config.
    #[error("failed to start collector: {0}")]
    Config(Problems),
    /// An address cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The WAL cannot be opened.
    #[error("failed to open wal")]
    Wal(#[from] WalError),
    /// The file of deletions cannot be opened.
    #[error("failed to open the file of deletions in the WAL's directory")]
    Deletions(#[source] std::io::Error),
    /// The file of names cannot be opened.
    #[error("failed to open the file of names in the WAL's directory")]
    Names(#[source] std::io::Error),
    /// A thread cannot be started.
    #[error("failed to start thread of the writer")]
    Thread(#[source] std::io::Error),
}

/// A running collector. Dropping it stops it without waiting; [`Collector::stop`] waits.
#[derive(Debug)]
pub struct Collector {
    listen: SocketAddr,
    http_listen: SocketAddr,
    wal: Wal,
    metrics: Arc<Metrics>,
    tls: Option<Arc<Tls>>,
    stop: CancellationToken,
    finished: CancellationToken,
}

impl Collector {
    /// Checks what an earlier run found and the config does not answer yet. It changes nothing, and each start does the
    /// same.
    ///
    /// # Errors
    /// The problem of the key that must answer it.
    pub fn check_findings(config: &CollectorConfig) -> Result<(), Problems> {
        proxy_watch::check(config)
    }

    /// Starts a collector on the machine's clock, over a migrated store. If the store is away, reports wait in the WAL.
    /// Stops when `stop` is cancelled.
    ///
    /// # Errors
    /// [`CollectorStartError`]; nothing runs then.
    pub fn start(
        config: CollectorConfig,
        store: Client,
        stop: CancellationToken,
    ) -> BoxFuture<'static, Result<Self, CollectorStartError>> {
        Self::start_with_clock(config, store, stop, Arc::new(SystemClock))
    }

    /// Does the same as [`Collector::start`], with another clock.
    ///
    /// # Errors
    /// [`CollectorStartError`]; nothing runs then.
    pub fn start_with_clock(
        config: CollectorConfig,
        store: Client,
        stop: CancellationToken,
        clock: Arc<dyn Clock>,
    ) -> BoxFuture<'static, Result<Self, CollectorStartError>> {
        Self::start_in(TaskSet::default(), config, store, stop, clock)
    }

    /// Does the same as [`Collector::start_with_clock`], with the collector's tasks in the set of the process. The
    /// collector stops when the set fails.
    ///
    /// # Errors
    /// [`CollectorStartError`]; nothing runs then.
    pub fn start_in(
        tasks: TaskSet,
        mut config: CollectorConfig,
        store: Client,
        stop: CancellationToken,
        clock: Arc<dyn Clock>,
    ) -> BoxFuture<'static, Result<Self, CollectorStartError>> {
        Box::pin(async move {
            config.validate().map_err(CollectorStartError::Config)?;
            Self::check_findings(&config).map_err(CollectorStartError::Config)?;
            config.connections.max = open_files::room_for_connections(config.connections.max);
            let mut metrics = Metrics::new();
            let access = AccessControl::new(&config, metrics.keys.clone())?;
            // A drop of this collector must not stop others.
            let stop = stop.child_token();
            let (listener, listen) = bind(config.listen, "collector.listen").await?;
            let (http_listener, http_listen) =
                bind(config.http_listen, "collector.http_listen").await?;
            proxy_watch::begin(&config);
            let sink = Sink::new(store);
            let Opened {
                wal,
                checkpoint,
                recovery,
            } = open_current_wal(&config, &clock, &sink, &metrics, &tasks).await?;
            metrics.watch_wal(&wal, clock.clone());
            let n_torn = u64::from(recovery.is_tail_torn);
            metrics.wal_torn_tails.inc_by(n_torn);
            metrics.show_limits(&config);
            metrics.show_also(tasks.registry());
            let metrics = Arc::new(metrics);
            let context = Arc::new(Context {
                refusals: RefusalCounts::new(config.rollup.bucket.0),
                shares: AppShares::default(),
                rechecked_ms: AtomicI64::new(0),
                rebuild_bell: Notify::new(),
                config,
                clock,
                metrics: metrics.clone(),
                sink,
                wal: wal.clone(),
                tasks: tasks.clone(),
            });

            let stop_writer = CancellationToken::new();
            let mut services =
                BackgroundServices::start(&context, checkpoint.offset, &stop_writer).await?;
            let start_deadline = Instant::now() + START_TIMEOUT;
            // The collector is registered before its port opens, so that other collectors' roll-ups wait for it.
            let deletions = services.deletions.clone();
            let writer = start_writer(&context, deletions, checkpoint, stop_writer.clone()).await?;
            let _ = timeout_at(start_deadline, &mut services.is_loaded).await;
            let server = device_server(
                &context,
                &access,
                &services,
                (listener, listen),
                stop.clone(),
            );
            let tls = access.tls.clone();
            reload::watch(&context, access.keys, access.tls, stop.clone(), &tasks);
            let pages = admin_pages(&metrics, &wal);
            let admin = AdminServer::start(http_listener, pages, stop_writer.clone(), &tasks);

            let finished = CancellationToken::new();
            let finish = finished.clone();
            let closing = wal.clone();
            let deletions = services.deletions.clone();
            // If the runtime ends before the collector, the writer's thread ends too.
            let ending = stop_writer.clone().drop_guard();
            let stop_server = stop.clone();
            tokio::spawn(async move {
                let server = tasks.essential("device-port", &stop_server, server);
                let mut server = tokio::spawn(server);
                let stopped = async {
                    tokio::select! {
                        () = stop_server.cancelled() => {}
                        _ = tasks.failed() => {
                            tasks.held_back(ENDING).await;
                            stop_server.cancel();
                        }
                    }
                };
                tokio::select! {
                    _ = &mut server => {}
                    () = stopped => {
                        if timeout(CLOSE_TIMEOUT, &mut server).await.is_err() {
                            server.abort();
                        }
                    }
                }
                // Calls of a cut connection may go on. Their reports are refused from here on, because the writer is
                // about to publish that this collector has drained.
                let finishing = closing.finish_appends();
                if timeout(CLOSE_TIMEOUT, finishing).await.is_err() {
                    tracing::warn!("the WAL's disk does not finish the appends under way");
                }
                drop(ending);
                let _ = services.worker.await;
                let _ = tokio::task::spawn_blocking(move || {
                    let _ = writer.join();
                    // Nothing is written after this: `close` releases the folder.
                    deletions.close();
                    closing.close();
                })
                .await;
                admin.stopped().await;
                finish.cancel();
            });
            warn_of_plain_keys(&context.config, listen);
            tracing::info!(%listen, %http_listen, collector = %wal.collector_id(), "collector started");
            Ok(Self {
                listen,
                http_listen,
                wal,
                metrics,
                tls,
                stop,
                finished,
            })
        })
    }

    /// Address of the device port.
    #[must_use]
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// Whether the certificate of the device port is for this name; `None` without a certificate.
    #[must_use]
    pub fn certificate_is_for(&self, name: &str) -> Option<bool> {
        Some(self.tls.as_ref()?.is_for(name))
    }

    /// Address of the admin endpoint.
    #[must_use]
    pub fn http_listen(&self) -> SocketAddr {
        self.http_listen
    }

    /// The metrics, for other components of the process.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// The collector's id in the store.
    #[must_use]
    pub fn collector_id(&self) -> u64 {
        self.wal.collector_id().short()
    }

    /// True if every acknowledged report is in the store.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let checkpoint = self
            .metrics
            .progress
            .checkpoint
            .load(std::sync::atomic::Ordering::Relaxed);
        checkpoint >= self.wal.stats().end
    }

    /// Reports with this outcome since the start.
    #[must_use]
    pub fn n_reports(&self, outcome: Outcome) -> u64 {
        self.metrics.n_reports(outcome)
    }

    /// Refuses new reports, finishes the calls under way, drains the WAL for at most `batch.drain_timeout`, and closes.
    /// Another collector may open the WAL's folder at once.
    pub fn stop(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.stop.cancel();
            self.finished.cancelled().await;
        })
    }

    /// Resolves once the collector has stopped.
    pub fn stopped(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.finished.cancelled())
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// True if app keys and reports cross a network without TLS.
fn is_in_the_clear(config: &CollectorConfig, listen: SocketAddr) -> bool {
    let has_keys = !config.keys.is_empty() || config.keys_file.is_some();
    has_keys && config.tls.is_none() && !listen.ip().is_loopback()
}

fn warn_of_plain_keys(config: &CollectorConfig, listen: SocketAddr) {
    if is_in_the_clear(config, listen) {
        tracing::warn!(
            %listen,
            "app keys and reports cross the network in the clear: set [collector.tls], or listen on loopback behind a \
             proxy that ends TLS"
        );
    }
}

async fn open_wal(
    config: &CollectorConfig,
    clock: Arc<dyn Clock>,
    tasks: &TaskSet,
) -> Result<Opened, CollectorStartError> {
    let wal = &config.wal;
    let options = WalOptions {
        dir: wal.dir.clone(),
        segment_bytes: wal.segment_bytes(),
        max_bytes: wal.max_bytes.0,
        max_in_flight_bytes: MAX_IN_FLIGHT_BYTES,
        gather: wal.gather.0,
        min_free_bytes: wal.min_free_bytes.0,
        clock,
        tasks: tasks.clone(),
    };
    let opened = tokio::task::spawn_blocking(move || Wal::open(&options))
        .await
        .unwrap_or(Err(WalError::Closed))?;
    let recovery = opened.recovery;
    tracing::info!(
        segments = recovery.segments,
        bytes = recovery.bytes,
        is_tail_torn = recovery.is_tail_torn,
        damaged_headers = recovery.damaged_headers,
        checkpoint = %opened.checkpoint.offset,
        "wal opened"
    );
    Ok(opened)
}

/// Opens the WAL. If the store has later records of this WAL, its folder is an old copy. All its records are in the
/// store, because batches are stored in order. Its next offsets already belong to the later records. Such a WAL is set
/// aside, and a new one is made.
async fn open_current_wal(
    config: &CollectorConfig,
    clock: &Arc<dyn Clock>,
    sink: &Sink,
    metrics: &Metrics,
    tasks: &TaskSet,
) -> Result<Opened, CollectorStartError> {
    let opened = open_wal(config, clock.clone(), tasks).await?;
    let recovery = &opened.recovery;
    metrics.count_wal_findings("stray_file", recovery.stray_files);
    if recovery.is_checkpoint_lost {
        metrics.count_wal_findings("checkpoint_lost", 1);
        tracing::error!(
            "the WAL's checkpoint is damaged or missing: the store is asked for each report that the WAL holds, and \
             takes those that it lacks"
        );
    }
    let newest_us = recovery.newest_us.max(opened.checkpoint.time_us);
    let end = opened.wal.stats().end;
    if newest_us == 0 {
        return Ok(opened);
    }
    let id = opened.wal.collector_id().short();
    let asking = sink.newest_offset(id, newest_us, end);
    match timeout(START_TIMEOUT, asking).await {
        Ok(Ok(Some(stored))) => {
            metrics.count_wal_findings("older_than_store", 1);
            let aside = tokio::task::spawn_blocking(move || opened.wal.set_aside()).await;
            let aside = aside.unwrap_or(Err(WalError::Closed))?;
            tracing::error!(
                stored,
                end,
                aside = %aside.display(),
                "the WAL's folder is older than the store, which has all of it and later reports: it was set aside, and \
                 a new WAL begins; remove the folder once you have found who put the old copy there"
            );
            open_wal(config, clock.clone(), tasks).await
        }
        Ok(Ok(None)) => Ok(opened),
        Ok(Err(error)) => {
            note_failure(metrics, "batch", &error);
            Ok(opened)
        }
        Err(_elapsed) => Ok(opened),
    }
}

/// Starts the writer, the roll-up and the worker of rebuilds on a thread of their own. Encoding takes tens of
/// milliseconds at a time, and acks must not wait for it.
async fn start_writer(
    context: &Arc<Context>,
    deletions: Arc<Deletions>,
    checkpoint: Checkpoint,
    stop: CancellationToken,
) -> Result<JoinHandle<()>, CollectorStartError> {
    let config = &context.config;
    let mut names = CardinalityLimiter::open(&config.wal.dir, config.names.limits())
        .map_err(CollectorStartError::Names)?;
    let decided_until = checkpoint.batch_end.unwrap_or(checkpoint.offset);
    names.begin_wal(decided_until.0, context.wal.stats().end);
    let encoder = Encoder::new(context.collector_id(), context.bucket(), names);
    let mut writer = Writer::new(context.clone(), deletions, encoder, checkpoint);
    let rollup = roll_up(context);
    let period = config.rollup.enabled.then_some(config.rollup.period());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CollectorStartError::Thread)?;
    let (began_sender, has_begun) = oneshot::channel();
    let closing = close_buckets(rollup, period, stop.clone());
    let closing = context.tasks.essential("roll-up", &stop, closing);
    // Its cancellation ends the worker of rebuilds, after the last request of the drain.
    let drained = CancellationToken::new();
    let rebuilding = {
        let (rollup, stop, drained) = (roll_up(context), stop.clone(), drained.clone());
        move || {
            let worker = RebuildWorker::new(rollup.clone());
            worker.run(stop.clone(), drained.clone())
        }
    };
    let tasks = context.tasks.clone();
    let rebuilding = tasks.restarted("rebuilds".to_owned(), stop.clone(), rebuilding);
    let stopped = stop.clone();
    let writing = context.tasks.essential("writer", &stop, async move {
        let drained = drained.drop_guard();
        writer.begin().await;
        let _ = began_sender.send(());
        let closing = tokio::spawn(closing);
        let rebuilding = tokio::spawn(rebuilding);
        writer.run(stopped).await;
        drop(drained);
        let _ = closing.await;
        let _ = rebuilding.await;
    });
    let thread = thread::Builder::new()
        .name("collector-writer".to_owned())
        .spawn(move || runtime.block_on(writing));
    let thread = thread.map_err(CollectorStartError::Thread)?;
    let _ = timeout(START_TIMEOUT, has_begun).await;
    Ok(thread)
}

async fn close_buckets(rollup: RollUp, period: Option<Duration>, stop: CancellationToken) {
    let Some(period) = period else {
        return stop.cancelled().await;
    };
    let mut failed = FailedBuilds::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep(period) => {}
            () = stop.cancelled() => return,
        }
        let closing = async {
            while rollup.close_buckets(&mut failed).await? {}
            Ok(())
        };
        tokio::select! {
            closed = closing => if let Err(error) = closed {
                note_failure(&rollup.context.metrics, "rollup", &error);
            },
            () = stop.cancelled() => return,
        }
    }
}

fn device_server(
    context: &Arc<Context>,
    access: &AccessControl,
    services: &BackgroundServices,
    (listener, listen): (TcpListener, SocketAddr),
    stop: CancellationToken,
) -> impl Future<Output = ()> + Send + 'static {
    let config = &context.config;
    let ingest = Ingest {
        context: context.clone(),
        deletions: services.deletions.clone(),
        directives: services.directives.clone(),
        calls: Calls::new(context.clone(), services.deletions.clone()),
        seen: Arc::new(SeenKeys::new(config.seen_keys)),
        warnings: Arc::default(),
        limits: Arc::new(ReportLimits::new(&config.limits)),
        admission: services.admission.clone(),
        may_warn_unweighed: AtomicBool::new(true),
        proxy_watch: ProxyWatch::new(config, listen),
    };
    let (keys, tls) = (access.keys.clone(), access.tls.clone());
    let front = DeviceServer::new(config, ingest, keys, tls, context.metrics.clone());
    front.serve(listener, stop)
}

/// Tasks off the report path: deletions, directives, known installations, gauges of the loss ledger.
struct BackgroundServices {
    deletions: Arc<Deletions>,
    directives: Arc<DirectiveBook>,
    admission: Arc<Admission>,
    /// Resolves once the first load of known installations succeeded or failed.
    is_loaded: oneshot::Receiver<()>,
    /// The worker of deletions. It ends after the port is closed, so that a promised deletion does not wait for the
    /// next start.
    worker: tokio::task::JoinHandle<()>,
}

impl BackgroundServices {
    async fn start(
        context: &Arc<Context>,
        checkpoint: WalOffset,
        stop: &CancellationToken,
    ) -> Result<Self, CollectorStartError> {
        let config = &context.config;
        let (dir, of_log) = (config.wal.dir.clone(), context.clock.clone());
        let wal_end = WalOffset(context.wal.stats().end);
        let opening = move || Deletions::open(&dir, of_log, wal_end);
        let opening = tokio::task::spawn_blocking(opening).await;
        let opened = opening.unwrap_or_else(|_| Err(std::io::ErrorKind::Interrupted.into()));
        let deletions = Arc::new(opened.map_err(CollectorStartError::Deletions)?);
        let worker = Worker {
            deletions: deletions.clone(),
            rollup: roll_up(context),
            context: context.clone(),
        };
        let working = worker.run(stop.clone());
        let worker = tokio::spawn(context.tasks.essential("deletions", stop, working));
        if config.rollup.enabled {
            let period = config.refresh.0 * REFRESHES_A_LEDGER;
            let (of, stopped) = (roll_up(context), stop.clone());
            restarted(context, "loss-ledger", stop, move || {
                loss_ledger_gauges::keep_fresh(of.clone(), period, stopped.clone())
            });
        }
        let directives = Arc::<DirectiveBook>::default();
        let (of, book, stopped) = (context.clone(), directives.clone(), stop.clone());
        let started_at_ms = context.now_ms();
        restarted(context, "directives", stop, move || {
            directives::keep_fresh(of.clone(), book.clone(), started_at_ms, stopped.clone())
        });
        let admission = Admission::new(&config.new_installations, context.metrics.clone());
        let admission = Arc::new(admission);
        let loader = Loader {
            admission: admission.clone(),
            context: context.clone(),
            checkpoint,
        };
        let (began_sender, is_loaded) = oneshot::channel();
        let (mut first_try, stopped) = (Some(began_sender), stop.clone());
        restarted(context, "known-installations", stop, move || {
            keep_loading(loader.clone(), first_try.take(), stopped.clone())
        });
        Ok(Self {
            deletions,
            directives,
            admission,
            is_loaded,
            worker,
        })
    }
}

/// Runs a task that is started again if it ends by itself: reports are taken and stored without it.
fn restarted<F>(
    context: &Context,
    name: &str,
    stop: &CancellationToken,
    make: impl FnMut() -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let tasks = context.tasks.clone();
    tokio::spawn(tasks.restarted(name.to_owned(), stop.clone(), make));
}

fn roll_up(context: &Arc<Context>) -> RollUp {
    let context = context.clone();
    RollUp { context }
}

/// App keys and certificate of the port. Their files are reloaded while the port is open.
struct AccessControl {
    keys: Arc<AppKeys>,
    tls: Option<Arc<Tls>>,
}

impl AccessControl {
    fn new(config: &CollectorConfig, metrics: KeyMetrics) -> Result<Self, CollectorStartError> {
        let keys = AppKeys::new(config, metrics).map_err(CollectorStartError::Config)?;
        let tls = config.tls.as_ref();
        if let Some(files) = tls {
            warn_of_readers(&files.key_file, "collector.tls.key_file");
        }
        let tls = tls.map(|tls| Tls::new(tls.files())).transpose();
        let tls = tls.map_err(|error| {
            CollectorStartError::Config(Problems::one(format!("tls.{}", error.key), error.text))
        })?;
        Ok(Self {
            keys: Arc::new(keys),
            tls: tls.map(Arc::new),
        })
    }
}

/// Ready means that the WAL takes appends and the store takes the writer's inserts. If the collector is not ready, a
/// load balancer may send devices elsewhere. The reports of devices that still come are kept in the WAL.
fn admin_pages(metrics: &Arc<Metrics>, wal: &Wal) -> AdminPages {
    let (of_metrics, of_ready) = (metrics.clone(), metrics.clone());
    // A slow reader of a page must not keep the WAL open.
    let wal = wal.downgrade();
    AdminPages {
        metrics: Box::new(move || of_metrics.encode()),
        not_ready: Box::new(move || {
            let mut reasons = Vec::new();
            reasons.extend(
                wal.stats()
                    .map_or(Some("wal is closed".to_owned()), |(_, refusal)| refusal),
            );
            if of_ready.store_up.get() != 1 {
                reasons.push("store does not answer".to_owned());
            }
            reasons
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TlsConfig;

    #[test]
    fn keys_without_tls_beyond_loopback_are_in_the_clear() {
        let mut config = CollectorConfig::default();
        let is_in_the_clear = |config: &CollectorConfig, ip: [u8; 4]| {
            super::is_in_the_clear(config, (ip, 4717).into())
        };
        assert!(!is_in_the_clear(&config, [0, 0, 0, 0]), "there is no key");
        config.keys_file = Some("keys.toml".into());
        assert!(is_in_the_clear(&config, [0, 0, 0, 0]));
        assert!(is_in_the_clear(&config, [192, 168, 1, 7]));
        assert!(!is_in_the_clear(&config, [127, 0, 0, 1]));
        config.tls = Some(TlsConfig {
            cert_file: "tls.pem".into(),
            key_file: "tls.key".into(),
            ..TlsConfig::default()
        });
        assert!(!is_in_the_clear(&config, [0, 0, 0, 0]));
    }
}
