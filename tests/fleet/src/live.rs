//! A fleet in real time against a collector, with one task for each device, over a few connections.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use epwatch_proto::UploadRequest;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::chance::Chance;
use crate::client::{Client, ClientError, ClientTls, endpoint, kind_of};
use crate::device::{Advance, Device};
use crate::fleet::Fleet;
use crate::outbox::Outbox;

/// A call that takes longer has failed: the collector answers in milliseconds.
const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// Number of connections that all devices share.
const N_CONNECTIONS: usize = 2;
/// Maximum number of calls open at a time. A device has at most one.
const MAX_IN_FLIGHT: usize = 32;

/// Counts at one instant. `sealed = acked + refused + dropped + pending`, always.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    pub devices: u64,
    pub runs: u64,
    /// Reports sealed by devices.
    pub sealed: u64,
    /// Reports that the collector stored, or had stored before.
    pub acked: u64,
    /// Reports that the collector refused for good.
    pub refused: u64,
    /// Reports that devices gave up, for example because a spool was full.
    pub dropped: u64,
    /// Reports on devices.
    pub pending: u64,
    /// Uploads that failed and will be made again.
    pub retried: u64,
}

/// A running fleet. Dropping it stops the devices where they are; `drain` uploads everything first.
#[derive(Debug)]
pub struct Live {
    shared: Arc<Shared>,
    devices: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    began: Instant,
    calls: Semaphore,
    progress: Mutex<Progress>,
    /// The devices' time from which they stop recording and only upload.
    drained_from: watch::Sender<Option<Duration>>,
}

impl Live {
    /// Starts the devices; their time zero is now. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The endpoint or the app key cannot be used.
    pub fn start(fleet: Fleet, collector: &str, app_key: &str) -> Result<Self, ClientError> {
        let endpoint = endpoint(collector, &ClientTls::default(), CALL_DEADLINE)?;
        // Connects when the first call is made, and again after every loss.
        let clients = (0..N_CONNECTIONS).map(|_| Client::new(endpoint.connect_lazy(), app_key));
        let clients: Vec<Client> = clients.collect::<Result<_, _>>()?;
        let progress = Progress {
            devices: fleet.devices.len() as u64,
            ..Progress::default()
        };
        let shared = Arc::new(Shared {
            began: Instant::now(),
            calls: Semaphore::new(MAX_IN_FLIGHT),
            progress: Mutex::new(progress),
            drained_from: watch::Sender::new(None),
        });
        let seed = fleet.world.scenario.seed;
        let mut devices = JoinSet::new();
        for ((device, index), client) in fleet
            .devices
            .into_iter()
            .zip(0..)
            .zip(clients.iter().cycle())
        {
            let live = LiveDevice {
                shared: Arc::clone(&shared),
                device,
                outbox: Outbox::new(Chance::split(seed, "back-off", index)),
                client: client.clone(),
                is_finished: false,
            };
            devices.spawn(live.run());
        }
        Ok(Self { shared, devices })
    }

    #[must_use]
    pub fn progress(&self) -> Progress {
        let counts = *self.shared.progress();
        let ended = counts.acked + counts.refused + counts.dropped;
        Progress {
            pending: counts.sealed - ended,
            ..counts
        }
    }

    /// Stops recording, seals all devices' reports and uploads them, for at most `within`. `pending` of the result
    /// counts the rest.
    pub async fn drain(mut self, within: Duration) -> Progress {
        let now = self.shared.began.elapsed();
        self.shared.drained_from.send_replace(Some(now));
        let all_end = async { while self.devices.join_next().await.is_some() {} };
        let _late = timeout(within, all_end).await;
        self.progress()
    }
}

impl Shared {
    /// A poisoned lock is ignored, because no holder panics halfway through a count.
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct LiveDevice {
    shared: Arc<Shared>,
    device: Device,
    outbox: Outbox,
    client: Client,
    /// Records no more.
    is_finished: bool,
}

impl LiveDevice {
    /// Runs the device until it is drained.
    async fn run(mut self) {
        let mut order = self.shared.drained_from.subscribe();
        loop {
            let now = self.shared.began.elapsed();
            match *order.borrow() {
                _ if self.is_finished => {}
                Some(drained_from) => self.finish(drained_from),
                None => {
                    let sealed = self.device.advance(now);
                    self.keep(sealed);
                }
            }
            let next_call = self.outbox.due();
            if next_call.is_some_and(|due| due <= now) {
                self.upload(&mut order).await;
                continue;
            }
            let next_report = (!self.is_finished).then(|| self.device.due());
            let Some(wake) = next_call.into_iter().chain(next_report).min() else {
                return;
            };
            tokio::select! {
                () = sleep_until(self.shared.began + wake) => {}
                _ = order.changed(), if !self.is_finished => {}
            }
        }
    }

    /// Makes one call. If a drain seals reports during the call, they wait for the next call.
    async fn upload(&mut self, order: &mut watch::Receiver<Option<Duration>>) {
        let shared = Arc::clone(&self.shared);
        let _one_of_few = shared.calls.acquire().await;
        let request = UploadRequest {
            reports: self.outbox.next_call(),
            clock: self.device.recording.send_clock(shared.began.elapsed()),
            sdk: self.device.recording.sdk(),
            held_directive_ids: Vec::new(),
            attestation: None,
            request_id: 0,
        };
        let client = self.client.clone();
        let mut call = std::pin::pin!(client.upload(&request));
        let answer = loop {
            tokio::select! {
                answer = &mut call => break answer,
                _ = order.changed(), if !self.is_finished => {
                    let drained_from = *order.borrow();
                    self.finish(drained_from.unwrap_or_default());
                }
            }
        };
        let answer = answer.map_err(|status| {
            tracing::debug!(code = ?status.code(), message = status.message(), "upload failed");
            kind_of(&status)
        });
        let ended = self.outbox.settle(answer, shared.began.elapsed());
        self.device.recording.settle(&ended);
        let mut progress = shared.progress();
        progress.acked += ended.acked.len() as u64;
        progress.refused += ended.refused_runs.len() as u64;
        progress.retried += u64::from(ended.sends_again);
    }

    fn finish(&mut self, at: Duration) {
        self.is_finished = true;
        let sealed = self.device.finish(at);
        self.keep(sealed);
    }

    fn keep(&mut self, sealed: Advance) {
        let shared = Arc::clone(&self.shared);
        let mut progress = shared.progress();
        progress.runs += sealed.n_runs;
        progress.sealed += sealed.reports.len() as u64;
        for (_, report) in sealed.reports {
            for lost in self.outbox.push(report) {
                self.device.recording.lost(&lost);
                progress.dropped += 1;
            }
        }
    }
}
