//! Load on a collector: sends reports of a simulated fleet at a rate, and records the outcome of each.
//!
//! A thread simulates the devices and runs ahead of the clock by a bounded number of requests. Requests fall due at the
//! requested rate, whether or not earlier ones are answered. Latency counts from the due time, so that a collector that
//! stalls cannot hide it by slowing the load down. Each report is sent again until it is acknowledged, refused for
//! good, or time is up.

mod options;
mod requests;
mod tally;

use std::sync::Arc;
use std::time::Duration;

use epwatch_proto::tls_hint;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::chance::Chance;
use crate::client::{Client, ClientError, endpoint};
use crate::scenario::ScenarioError;
pub use options::LoadOptions;
use requests::{Pending, Requests};
use tally::Tally;
pub use tally::{AckLatency, LoadResult};

/// Number of requests that are simulated ahead.
const AHEAD: usize = 256;
const CONNECTIONS: usize = 8;
/// Number of calls open at a time on each connection.
const IN_FLIGHT: usize = 32;
/// A call that takes longer has failed.
const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// First wait after a failed call, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// After this many broken connections in a row without any ack, the port is taken to speak another protocol. A
/// collector that restarts breaks fewer.
const MAX_BROKEN: u32 = 3;

/// A load that cannot start, or that the collector refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The endpoint or the app key cannot be used.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The devices cannot be simulated.
    #[error(transparent)]
    Fleet(#[from] ScenarioError),
    /// No connection can be made.
    #[error("failed to reach the collector at {endpoint}; is it running?")]
    Unreachable {
        endpoint: String,
        /// The transport's reason.
        #[source]
        source: tonic::transport::Error,
    },
    /// Each connection breaks before an answer.
    #[error("no call to {endpoint} was answered; {hint}")]
    NotAnswered {
        endpoint: String,
        /// The way out.
        hint: &'static str,
        /// The latest failure.
        #[source]
        source: Status,
    },
    /// The collector refuses the calls for good, not single reports.
    #[error("the collector refuses the calls: {0}")]
    Refused(Status),
}

/// Runs a load to its end. `progress` is called about twice a second. Cancelling `stop` ends the load early; open requests
/// are still drained.
///
/// # Errors
/// The load cannot start, or the collector refuses its calls for good.
pub async fn run(
    options: &LoadOptions,
    mut progress: impl FnMut(&LoadResult),
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
        endpoint: options.endpoint.clone(),
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
        for lane in 0..IN_FLIGHT {
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
            _ = tick.tick() => progress(&sender.tally.counts()),
        }
    }
    let seconds = began.elapsed();
    // Closing the channel ends a simulation that waits for space in it.
    sender.inbox.lock().await.close();
    let joined = tokio::task::spawn_blocking(move || simulation.join()).await;
    joined
        .expect("waiting is not aborted")
        .expect("the simulation does not panic");
    Ok(sender.tally.result(seconds))
}

async fn connect(options: &LoadOptions) -> Result<Vec<Client>, LoadError> {
    let endpoint = endpoint(&options.endpoint, &options.tls, CALL_DEADLINE)?;
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let channel = endpoint.connect().await;
        let channel = channel.map_err(|source| LoadError::Unreachable {
            endpoint: options.endpoint.clone(),
            source,
        })?;
        clients.push(Client::new(channel, &options.app_key)?);
    }
    Ok(clients)
}

/// The state that all lanes share.
struct Sender {
    endpoint: String,
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
    /// Makes one call after the other until no requests are left.
    async fn lane(self: Arc<Self>, client: Client, mut jitter: Chance) -> Result<(), LoadError> {
        while let Some((mut pending, due)) = self.next().await {
            self.tally.counts().sent += pending.len() as u64;
            let mut n_failures = 0;
            while !pending.is_empty() {
                let answer = client.upload(&pending.request).await;
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
                    Err(status) => {
                        if let Some(hint) = tls_hint(&self.endpoint, &status)
                            && n_failures + 1 >= MAX_BROKEN
                            && self.tally.counts().acked == 0
                        {
                            return Err(LoadError::NotAnswered {
                                endpoint: self.endpoint.clone(),
                                hint,
                                source: status,
                            });
                        }
                        hint(&status)
                    }
                };
                if pending.is_empty() {
                    break;
                }
                self.tally.counts().retried += pending.len() as u64;
                let backoff = jitter.backoff((FIRST_WAIT, LONGEST_WAIT), n_failures);
                let wait = backoff.max(wait.unwrap_or_default());
                n_failures += 1;
                if Instant::now() + wait > self.give_up {
                    self.tally.counts().given_up += pending.len() as u64;
                    break;
                }
                tokio::time::sleep(wait).await;
            }
        }
        Ok(())
    }

    /// Waits until the next request falls due, and returns it; `None` if there are no more.
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

/// Whether a code stays the same however often the call is repeated.
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

/// Returns the server's requested wait before the next try, from HTTP's own header.
fn hint(status: &Status) -> Option<Duration> {
    let seconds = status.metadata().get("retry-after")?.to_str().ok()?;
    Some(Duration::from_secs(seconds.parse().ok()?))
}
