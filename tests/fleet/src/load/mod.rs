//! Load on a collector: reports of a simulated fleet at a rate, and what became of each.
//!
//! A thread simulates the devices and runs ahead of the clock by a bounded number of requests.
//! Requests fall due at the asked rate whether or not earlier ones are answered, and latency counts
//! from the moment that a request was due: a collector that stalls cannot hide it by slowing the
//! load down. Every report goes on until it is acknowledged, refused for good, or time is up.

mod requests;
mod tally;

use std::sync::Arc;
use std::time::Duration;

use epwatch_proto::v1::collector_service_client::CollectorServiceClient;
use epwatch_proto::{UploadResponse, v1};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};

use crate::chance::Chance;
use crate::scenario::ScenarioError;
use requests::{Pending, Requests};
use tally::Tally;
pub use tally::{AckLatency, LoadResult};

/// Requests that are simulated ahead.
const AHEAD: usize = 256;
/// A call that takes longer has failed.
const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// First wait after a failed call, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// What to send, where, and how hard.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// The collector, for example `http://127.0.0.1:4717`.
    pub endpoint: String,
    /// The app key.
    pub app_key: String,
    /// Certificates (PEM) that the collector's is checked against, besides the public ones.
    pub ca_pem: Option<Vec<u8>>,
    /// App and environment that the key proves.
    pub app_id: String,
    /// See [`LoadOptions::app_id`].
    pub environment: String,
    /// Marks the reports of this load: their app version.
    pub mark: String,
    /// Equal seeds give equal devices, and so conflicts with an earlier load of the same seed.
    pub seed: u64,
    /// Devices.
    pub devices: usize,
    /// Reports a second, over all devices; `None`: as fast as they are taken.
    pub rate: Option<f64>,
    /// Reports of one request.
    pub batch: usize,
    /// How long requests fall due.
    pub length: Duration,
    /// How long after that unacknowledged reports are sent again.
    pub drain: Duration,
    /// Connections.
    pub connections: usize,
    /// Calls open at a time on each.
    pub in_flight: usize,
}

/// A load that cannot be started, or that the collector does not let go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The endpoint is no URL, or its TLS settings cannot be used.
    #[error("failed to use the endpoint {endpoint}: expected a URL like http://127.0.0.1:4717")]
    Endpoint {
        /// As given.
        endpoint: String,
        /// Why.
        #[source]
        source: tonic::transport::Error,
    },
    /// The app key cannot travel in a header.
    #[error("failed to use the app key: expected visible ASCII only")]
    AppKey,
    /// The devices cannot be simulated.
    #[error(transparent)]
    Fleet(#[from] ScenarioError),
    /// Nobody answers there.
    #[error("failed to reach the collector at {endpoint}; is it running?")]
    Unreachable {
        /// As given.
        endpoint: String,
        /// What the transport says.
        #[source]
        source: tonic::transport::Error,
    },
    /// The collector refuses the calls as such.
    #[error("the collector refuses the calls: {0}")]
    Refused(Status),
}

/// What is going on, for a progress line.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadProgress {
    /// Reports sent at least once.
    pub sent: u64,
    /// Reports acknowledged.
    pub acked: u64,
}

/// Runs a load to its end. `progress` is called about twice a second; cancelling `stop` ends the
/// load early, and what is open is still drained.
///
/// # Errors
/// The load cannot start, or the collector refuses its calls for good.
pub async fn run(
    options: &LoadOptions,
    mut progress: impl FnMut(LoadProgress),
    stop: CancellationToken,
) -> Result<LoadResult, LoadError> {
    let clients = connect(options).await?;
    let (pending, inbox) = mpsc::channel(AHEAD);
    let mut requests = Requests::new(options)?;
    let began = Instant::now();
    let stop_simulating = stop.clone();
    let simulation = std::thread::spawn(move || {
        while let Some(request) = requests.next() {
            if stop_simulating.is_cancelled() || pending.blocking_send(request).is_err() {
                return;
            }
        }
    });
    let sender = Arc::new(Sender {
        inbox: Mutex::new(inbox),
        began,
        is_paced: options.rate.is_some(),
        until: began + options.length,
        give_up: began + options.length + options.drain,
        tally: Tally::default(),
        stop,
    });
    let mut lanes = JoinSet::new();
    for (index, client) in clients.iter().enumerate() {
        for lane in 0..options.in_flight {
            let jitter = Chance::split(options.seed, "lane", (index << 16 | lane) as u64);
            lanes.spawn(Arc::clone(&sender).lane(client.clone(), jitter));
        }
    }
    let mut tick = tokio::time::interval(Duration::from_millis(500));
    loop {
        tokio::select! {
            ended = lanes.join_next() => match ended {
                Some(lane) => lane.expect("a lane does not panic and is not aborted")?,
                None => break,
            },
            _ = tick.tick() => progress(sender.tally.progress()),
        }
    }
    let seconds = began.elapsed();
    // Whoever waits for room in the channel is told that nobody takes any more.
    sender.inbox.lock().await.close();
    let joined = tokio::task::spawn_blocking(move || simulation.join()).await;
    joined
        .expect("waiting is not aborted")
        .expect("the simulation does not panic");
    Ok(sender.tally.result(seconds))
}

type Client = (CollectorServiceClient<Channel>, MetadataValue<Ascii>);

async fn connect(options: &LoadOptions) -> Result<Vec<Client>, LoadError> {
    let named = |source| LoadError::Endpoint {
        endpoint: options.endpoint.clone(),
        source,
    };
    let mut endpoint = Endpoint::from_shared(options.endpoint.clone()).map_err(named)?;
    if options.endpoint.starts_with("https://") {
        let mut tls = ClientTlsConfig::new().with_webpki_roots();
        if let Some(pem) = &options.ca_pem {
            tls = tls.ca_certificate(Certificate::from_pem(pem));
        }
        endpoint = endpoint.tls_config(tls).map_err(named)?;
    }
    let endpoint = endpoint.timeout(CALL_DEADLINE).tcp_nodelay(true);
    let authorization: MetadataValue<Ascii> = format!("Bearer {}", options.app_key)
        .parse()
        .map_err(|_| LoadError::AppKey)?;
    let mut clients = Vec::new();
    for _ in 0..options.connections {
        let channel = endpoint.connect().await;
        let channel = channel.map_err(|source| LoadError::Unreachable {
            endpoint: options.endpoint.clone(),
            source,
        })?;
        let client = CollectorServiceClient::new(channel);
        clients.push((client, authorization.clone()));
    }
    Ok(clients)
}

/// What all lanes share.
struct Sender {
    inbox: Mutex<mpsc::Receiver<Pending>>,
    began: Instant,
    is_paced: bool,
    /// No request falls due after this.
    until: Instant,
    give_up: Instant,
    tally: Tally,
    stop: CancellationToken,
}

impl Sender {
    /// One call after the other until nothing is left.
    async fn lane(self: Arc<Self>, client: Client, mut jitter: Chance) -> Result<(), LoadError> {
        while let Some((mut pending, due)) = self.next().await {
            self.tally.sent(pending.len());
            let mut n_failures = 0;
            while !pending.is_empty() {
                let answer = call(&client, &pending).await;
                let wait = match answer {
                    Ok(response) => {
                        let at_least = response.retry_after_ms.map(Duration::from_millis);
                        let before = pending.len();
                        self.tally.settle(&mut pending, &response, due.elapsed());
                        if pending.len() < before {
                            n_failures = 0;
                        }
                        at_least
                    }
                    Err(status) if is_final(status.code()) => {
                        return Err(LoadError::Refused(status));
                    }
                    Err(status) => hint(&status),
                };
                if pending.is_empty() {
                    break;
                }
                n_failures += 1;
                self.tally.retried(pending.len());
                let wait = backoff(n_failures, wait.unwrap_or_default(), &mut jitter);
                if Instant::now() + wait > self.give_up {
                    self.tally.gave_up(pending.len());
                    break;
                }
                tokio::time::sleep(wait).await;
            }
        }
        Ok(())
    }

    /// The next request at the moment that it falls due; `None` once there are no more.
    async fn next(&self) -> Option<(Pending, Instant)> {
        let pending = tokio::select! {
            pending = async { self.inbox.lock().await.recv().await } => pending?,
            () = self.stop.cancelled() => return None,
        };
        let now = Instant::now();
        if !self.is_paced {
            return (now < self.until).then_some((pending, now));
        }
        let due = self.began + pending.due;
        tokio::select! {
            () = tokio::time::sleep_until(due) => Some((pending, due)),
            () = self.stop.cancelled() => None,
        }
    }
}

async fn call(
    (client, authorization): &Client,
    pending: &Pending,
) -> Result<UploadResponse, Status> {
    let mut request = Request::new(v1::UploadRequest::from(&pending.request));
    let metadata = request.metadata_mut();
    metadata.insert("authorization", authorization.clone());
    let response = client.clone().upload(request).await?.into_inner();
    UploadResponse::try_from(response)
        .map_err(|error| Status::internal(format!("the answer does not parse: {error}")))
}

/// Codes that no waiting changes.
fn is_final(code: Code) -> bool {
    matches!(
        code,
        Code::Unauthenticated
            | Code::PermissionDenied
            | Code::InvalidArgument
            | Code::Unimplemented
            | Code::NotFound
    )
}

/// The server's wish for the next try, in the header that HTTP has for it.
fn hint(status: &Status) -> Option<Duration> {
    let seconds = status.metadata().get("retry-after")?.to_str().ok()?;
    Some(Duration::from_secs(seconds.parse().ok()?))
}

fn backoff(n_failures: u32, at_least: Duration, jitter: &mut Chance) -> Duration {
    let wait = FIRST_WAIT * 2_u32.saturating_pow((n_failures - 1).min(16));
    let wait = wait.min(LONGEST_WAIT).mul_f64(jitter.between((0.5, 1.0)));
    wait.max(at_least)
}
