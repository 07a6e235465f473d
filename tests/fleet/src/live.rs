//! A fleet in real time against a collector.
//!
//! One task drives all devices, with an agenda of due times, a queue of devices that have to upload, and a few
//! connections. At most `max_in_flight` calls are open at a time, and a device has at most one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use epwatch_proto::{Placement, UploadRequest};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::chance::Chance;
use crate::chipsets::Chipset;
use crate::client::{Client, ClientError, endpoint, kind_of};
use crate::device::Advance;
use crate::fleet::Fleet;
use crate::outbox::{Answer, Outbox, Wants};
use crate::progress::{Counters, Progress};

/// A call that takes longer has failed: the collector answers in milliseconds.
const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// The collector of a live fleet, and the bounds of its calls.
#[derive(Debug, Clone)]
pub struct LiveOptions {
    /// Address of the collector, for example `http://127.0.0.1:4717`.
    pub endpoint: String,
    pub app_key: String,
    /// Connections that all devices share.
    pub connections: usize,
    /// Most calls open at a time.
    pub max_in_flight: usize,
}

impl LiveOptions {
    /// Two connections, 32 calls.
    #[must_use]
    pub fn new(endpoint: &str, app_key: &str) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            app_key: app_key.to_owned(),
            connections: 2,
            max_in_flight: 32,
        }
    }
}

/// A running fleet. Dropping it stops the devices where they are; `drain` uploads everything first.
#[derive(Debug)]
pub struct Live {
    counters: Arc<Counters>,
    orders: mpsc::UnboundedSender<Order>,
    driver: JoinHandle<()>,
    cancel: CancellationToken,
}

/// A message to the driver.
#[derive(Debug)]
enum Order {
    Placement(String, Chipset, Box<Placement>),
    Drain,
}

impl Live {
    /// Starts the devices; their time zero is now. Must be called within a tokio runtime.
    /// Cancelling `cancel` stops them where they are.
    ///
    /// # Errors
    /// If the endpoint or the app key cannot be used.
    pub fn start(
        fleet: Fleet,
        options: &LiveOptions,
        cancel: CancellationToken,
    ) -> Result<Self, ClientError> {
        let counters = Arc::new(Counters::default());
        Counters::add(&counters.devices, fleet.len() as u64);
        let endpoint = endpoint(&options.endpoint, None, CALL_DEADLINE)?;
        // Connects when the first call is made, and again after every loss.
        let clients = (0..options.connections.max(1))
            .map(|_| Client::new(endpoint.connect_lazy(), &options.app_key))
            .collect::<Result<_, _>>()?;
        let (orders, inbox) = mpsc::unbounded_channel();
        let driver = Driver::new(fleet, options, clients, Arc::clone(&counters));
        // A child token, since stopping this fleet must not stop its host.
        let cancel = cancel.child_token();
        let stop = cancel.clone();
        let driver = tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = driver.run(inbox) => {}
            }
        });
        Ok(Self {
            counters,
            orders,
            driver,
            cancel,
        })
    }

    #[must_use]
    pub fn progress(&self) -> Progress {
        self.counters.read()
    }

    /// Sets the placement of later sessions of this version on this chipset.
    pub fn set_placement(&self, version: &str, chipset: Chipset, placement: Placement) {
        let order = Order::Placement(version.to_owned(), chipset, Box::new(placement));
        // A driver that has ended makes no more sessions.
        let _ended = self.orders.send(order);
    }

    /// Stops recording, seals all devices' reports and uploads them, for at most `within`. `pending` of the result
    /// counts the rest.
    pub async fn drain(mut self, within: Duration) -> Progress {
        // A driver that has ended has nothing to drain.
        let _ended = self.orders.send(Order::Drain);
        let _late = tokio::time::timeout(within, &mut self.driver).await;
        self.counters.read()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// The state of a device's upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    No,
    Queued,
    InFlight,
}

struct Driver {
    fleet: Fleet,
    began: Instant,
    counters: Arc<Counters>,
    clients: Vec<Client>,
    max_in_flight: usize,
    outboxes: Vec<Outbox>,
    sending: Vec<Sending>,
    /// The next moment of each device.
    agenda: BinaryHeap<Reverse<(Duration, usize)>>,
    /// Devices that have to upload, in the order of their requests.
    queue: VecDeque<usize>,
    calls: JoinSet<(usize, Answer)>,
    draining: bool,
}

impl Driver {
    fn new(
        fleet: Fleet,
        options: &LiveOptions,
        clients: Vec<Client>,
        counters: Arc<Counters>,
    ) -> Self {
        let n = fleet.len();
        let seed = fleet.scenario().seed;
        let agenda = (0..n)
            .map(|index| Reverse((fleet.due(index), index)))
            .collect();
        Self {
            outboxes: (0..n as u64)
                .map(|index| Outbox::new(Chance::split(seed, "back-off", index)))
                .collect(),
            sending: vec![Sending::No; n],
            fleet,
            began: Instant::now(),
            counters,
            clients,
            max_in_flight: options.max_in_flight.max(1),
            agenda,
            queue: VecDeque::new(),
            calls: JoinSet::new(),
            draining: false,
        }
    }

    /// Ends when it is drained.
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Order>) {
        loop {
            self.start_calls();
            if self.draining && self.is_empty() {
                return;
            }
            let wake = self
                .agenda
                .peek()
                .map(|Reverse((due, _))| self.began + *due);
            tokio::select! {
                Some(order) = inbox.recv() => self.obey(order),
                Some(done) = self.calls.join_next() => {
                    let (index, answer) = done.expect("a call does not panic and is not aborted");
                    self.take_answer(index, answer);
                }
                () = until(wake) => self.see_to_due_devices(),
            }
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.outboxes.iter().all(Outbox::is_empty)
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Placement(version, chipset, placement) => {
                self.fleet.set_placement(&version, chipset, *placement);
            }
            Order::Drain => {
                self.draining = true;
                for index in 0..self.fleet.len() {
                    let sealed = self.fleet.finish(index, self.now());
                    self.keep(index, sealed);
                    self.wants_to_upload(index);
                }
            }
        }
    }

    fn see_to_due_devices(&mut self) {
        let now = self.now();
        while let Some(Reverse((due, index))) = self.agenda.peek().copied() {
            if due > now {
                return;
            }
            self.agenda.pop();
            if !self.draining && self.fleet.due(index) <= now {
                let sealed = self.fleet.advance(index, now);
                self.keep(index, sealed);
                self.agenda.push(Reverse((self.fleet.due(index), index)));
            }
            self.wants_to_upload(index);
        }
    }

    fn keep(&mut self, index: usize, sealed: Advance) {
        Counters::add(&self.counters.runs, sealed.n_runs);
        Counters::add(&self.counters.sealed, sealed.reports.len() as u64);
        for (_, report) in sealed.reports {
            for lost in self.outboxes[index].push(report) {
                self.fleet.device(index).lost(&lost);
                Counters::add(&self.counters.dropped, 1);
            }
        }
    }

    /// Queues the device, unless it is queued or has nothing to send. One that must wait goes onto the agenda.
    fn wants_to_upload(&mut self, index: usize) {
        if self.sending[index] != Sending::No {
            return;
        }
        match self.outboxes[index].wants(self.now()) {
            Wants::Nothing => {}
            Wants::Upload => {
                self.sending[index] = Sending::Queued;
                self.queue.push_back(index);
            }
            Wants::Wait(until) => self.agenda.push(Reverse((until, index))),
        }
    }

    fn start_calls(&mut self) {
        while self.calls.len() < self.max_in_flight
            && let Some(index) = self.queue.pop_front()
        {
            self.sending[index] = Sending::InFlight;
            let (clock, sdk) = self.fleet.sender(index, self.now());
            let request = self.outboxes[index].request(clock, sdk);
            // The next one in turn.
            self.clients.rotate_left(1);
            let client = self.clients[0].clone();
            self.calls
                .spawn(async move { (index, upload(client, request).await) });
            Counters::add(&self.counters.uploads, 1);
        }
    }

    fn take_answer(&mut self, index: usize, answer: Answer) {
        let now = self.now();
        let ended = self.outboxes[index].settle(answer, now);
        self.fleet.device(index).settle(&ended);
        Counters::add(&self.counters.acked, ended.acked.len() as u64);
        Counters::add(&self.counters.refused, ended.refused_runs.len() as u64);
        Counters::add(&self.counters.retried, u64::from(ended.sends_again));
        self.sending[index] = Sending::No;
        self.wants_to_upload(index);
    }
}

async fn upload(client: Client, request: UploadRequest) -> Answer {
    match client.upload(&request).await {
        Ok(response) => Answer::Response(response),
        Err(status) => {
            tracing::debug!(code = ?status.code(), message = status.message(), "upload failed");
            Answer::Failed(kind_of(&status))
        }
    }
}

/// Waits for that moment; without one, forever.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
