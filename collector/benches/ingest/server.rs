//! The servers that are loaded, each in a process of its own, so that its CPU time is its own.
//!
//! - `collector`: the whole collector, whose store is a listener that never answers. Reports wait in
//!   the WAL, as they do while a store is away, and the writer costs nothing.
//! - `soaked`: the same over a store that takes everything, to see how the collector's memory grows in the long run.
//! - `bare`: a tonic service of the same contract that decodes every report with prost, answers,
//!   and forgets.
//! - `envelope`: the same, but the reports stay undecoded bytes, which shows the cost of tonic alone.

use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use epwatch_collector::config::CollectorConfig;
use epwatch_collector::{Client, Collector};
use epwatch_proto::v1::{
    self,
    collector_service_server::{CollectorService, CollectorServiceServer},
};
use epwatch_server::{ByteSize, Period};
use prost::Message;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::cpus;

const KIND: &str = "EPWATCH_BENCH_SERVER";
const DIR: &str = "EPWATCH_BENCH_SERVER_DIR";
const LISTENING: &str = "listening on ";
const STORE: &str = "EPWATCH_BENCH_STORE";
const DATABASE: &str = "EPWATCH_BENCH_DATABASE";
const STARTED: &str = "started";
const DRAINED: &str = "drained";
const PAGES: &str = "pages on ";
/// The kernel's unit of CPU time in /proc, on every Linux that there is.
const TICKS_PER_SECOND: f64 = 100.0;

/// A child process of this program in one of its roles; killed when dropped.
pub(crate) struct Process {
    child: Child,
    lines: Box<dyn Iterator<Item = String> + Send>,
}

impl Process {
    fn start(kind: &str, dir: &Path, variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a path of its own"))
            .env(KIND, kind)
            .env(DIR, dir)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the bench starts itself again");
        let stdout = child.stdout.take().expect("it is piped");
        let lines = Box::new(BufReader::new(stdout).lines().map_while(Result::ok));
        Self { child, lines }
    }

    /// A collector that is about to write a WAL full of reports into a store. With summaries, whose buckets last a
    /// second, the WAL counts as drained once they are built.
    pub(crate) fn writer(dir: &Path, store: &str, database: &str, sums_up: bool) -> Self {
        let kind = if sums_up { "stored" } else { "writer" };
        let mut writer = Self::start(kind, dir, &[(STORE, store), (DATABASE, database)]);
        writer.wait_for(STARTED);
        writer
    }

    /// Waits until everything is stored.
    pub(crate) fn drain(&mut self) {
        self.wait_for(DRAINED);
    }

    fn wait_for(&mut self, line: &str) {
        let found = self.lines.find(|found| found == line);
        found.unwrap_or_else(|| panic!("the process never says {line:?}"));
    }

    /// User and system time so far: the values of getrusage, read from outside.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.child.id())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server under load.
pub(crate) struct Server {
    process: Process,
    pub(crate) address: SocketAddr,
    pages: Option<SocketAddr>,
}

impl Server {
    pub(crate) fn start(kind: &str, dir: &Path) -> Self {
        let cpu = cpus::of_server();
        let cpu: Vec<_> = cpu.iter().map(|cpu| (cpus::CPU, cpu.as_str())).collect();
        let mut process = Process::start(kind, dir, &cpu);
        let mut pages = None;
        let address = process.lines.find_map(|line| {
            if let Some(page) = line.strip_prefix(PAGES) {
                pages = page.parse().ok();
            }
            line.strip_prefix(LISTENING)?.parse().ok()
        });
        Self {
            process,
            address: address.expect("the server says where it listens"),
            pages,
        }
    }

    /// One of the collector's own counters; 0 for a server without counters.
    pub(crate) fn counter(&self, name: &str) -> f64 {
        let Some(pages) = self.pages else { return 0.0 };
        let mut stream = TcpStream::connect(pages).expect("the collector's pages");
        write!(
            stream,
            "GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n"
        )
        .expect("an open connection");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("a page of text");
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|n| n.trim().parse().ok())
            .expect("a metric of that name")
    }

    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.process.cpu_seconds()
    }

    /// Resident memory, in MiB.
    pub(crate) fn rss_mib(&self) -> f64 {
        let path = format!("/proc/{}/status", self.process.child.id());
        let status = std::fs::read_to_string(path).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok());
        kib.unwrap_or(0.0) / 1024.0
    }
}

async fn drain(dir: &Path, sums_up: bool) {
    let store = std::env::var(STORE).expect("the bench names the store");
    let database = std::env::var(DATABASE).expect("the bench names the database");
    let target = epwatch_store::StoreTarget::parse(&store, &database).expect("a socket");
    let mut config = config(dir);
    config.rollup.enabled = sums_up;
    if sums_up {
        config.rollup.bucket = Period(Duration::from_secs(1));
    }
    let client = epwatch_store::client(&target);
    let collector = Collector::start(config, client.clone(), CancellationToken::new())
        .await
        .expect("the collector starts");
    println!("{STARTED}");
    while !collector.is_drained() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let open = "SELECT count() FROM (SELECT DISTINCT bucket FROM reports) \
                WHERE bucket NOT IN (SELECT bucket FROM bucket_revisions)";
    while sums_up
        && client
            .query(open)
            .fetch_one::<u64>()
            .await
            .expect("the engine answers")
            > 0
    {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("{DRAINED}");
    let wait = || std::io::stdin().read_to_end(&mut Vec::new());
    let _ = tokio::task::spawn_blocking(wait).await;
}

/// User and system time of a process, all its threads, in seconds.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    // The name in brackets may hold anything; fields 14 and 15 are counted from its end.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks.filter_map(|n| n.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SECOND
}

/// Becomes a server if this process was started as one.
pub(crate) fn run_if_child() {
    let (Ok(kind), Some(dir)) = (std::env::var(KIND), std::env::var_os(DIR)) else {
        return;
    };
    cpus::take_place();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let dir = PathBuf::from(dir);
    runtime.block_on(async {
        match kind.as_str() {
            "collector" => serve_collector(&dir).await,
            "soaked" => serve_soaked(&dir).await,
            "writer" => drain(&dir, false).await,
            "stored" => drain(&dir, true).await,
            "bare" => serve_bare(true).await,
            _ => serve_bare(false).await,
        }
    });
    std::process::exit(0);
}

/// Returns when the bench is gone.
async fn until_parent_ends(address: SocketAddr) {
    println!("{LISTENING}{address}");
    let wait = || std::io::stdin().read_to_end(&mut Vec::new());
    let _ = tokio::task::spawn_blocking(wait).await;
}

/// A store that takes everything and keeps nothing, so the writer works and segments are recycled.
async fn swallow(listener: TcpListener) {
    let swallowed = |body: axum::body::Body| async {
        let mut body = body.into_data_stream();
        while let Some(Ok(_)) = futures::StreamExt::next(&mut body).await {}
        // The answer to a query: no rows.
        ""
    };
    let _ = axum::serve(listener, axum::Router::new().fallback(swallowed)).await;
}

async fn serve_soaked(dir: &Path) {
    let store = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = store.local_addr().expect("bound");
    tokio::spawn(swallow(store));
    let client = Client::default()
        .with_url(format!("http://{address}"))
        .with_validation(false);
    let mut config = config(dir);
    config.rollup.enabled = false;
    serve(config, client).await;
}

async fn serve(config: CollectorConfig, client: Client) {
    let collector = Collector::start(config, client, CancellationToken::new())
        .await
        .expect("the collector starts");
    println!("{PAGES}{}", collector.http_listen());
    until_parent_ends(collector.listen()).await;
}

async fn serve_collector(dir: &Path) {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let store = silent.local_addr().expect("bound");
    // The connection is accepted and never answered.
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = silent.accept().await {
            held.push(stream);
        }
    });
    let client = Client::default().with_url(format!("http://{store}"));
    let mut config = config(dir);
    // The pause after a failed try is ten periods, so no second try comes while the bench measures.
    config.batch.period = Period(Duration::from_secs(60));
    serve(config, client).await;
}

pub(crate) fn config(dir: &Path) -> CollectorConfig {
    let mut config = CollectorConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        http_listen: ([127, 0, 0, 1], 0).into(),
        ..CollectorConfig::default()
    };
    config.wal.dir = dir.join("wal");
    config.wal.max_bytes = ByteSize(64 << 30);
    config
}

async fn serve_bare(decodes_reports: bool) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    let service = CollectorServiceServer::new(Bare { decodes_reports });
    let server = tonic::transport::Server::builder()
        .add_service(service)
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(server);
    until_parent_ends(address).await;
}

struct Bare {
    decodes_reports: bool,
}

#[tonic::async_trait]
impl CollectorService for Bare {
    async fn upload(
        &self,
        request: Request<v1::UploadRequest>,
    ) -> Result<Response<v1::UploadResponse>, Status> {
        let request = request.into_inner();
        if self.decodes_reports {
            for report in &request.reports {
                let report = v1::Report::decode(report.clone());
                black_box(report.map_err(|error| Status::invalid_argument(error.to_string()))?);
            }
        }
        let n_reports = u32::try_from(request.reports.len()).expect("at most 1,000");
        black_box(request);
        Ok(Response::new(v1::UploadResponse {
            n_reports,
            server_time_unix_ms: 1_760_000_000_000,
            max_request_bytes: Some(4 << 20),
            ..v1::UploadResponse::default()
        }))
    }

    async fn delete_installation(
        &self,
        _: Request<v1::DeleteInstallationRequest>,
    ) -> Result<Response<v1::DeleteInstallationResponse>, Status> {
        Err(Status::unimplemented("bare"))
    }

    async fn put_model_manifest(
        &self,
        _: Request<v1::PutModelManifestRequest>,
    ) -> Result<Response<v1::PutModelManifestResponse>, Status> {
        Err(Status::unimplemented("bare"))
    }

    async fn put_certified_placement(
        &self,
        _: Request<v1::PutCertifiedPlacementRequest>,
    ) -> Result<Response<v1::PutCertifiedPlacementResponse>, Status> {
        Err(Status::unimplemented("bare"))
    }
}
