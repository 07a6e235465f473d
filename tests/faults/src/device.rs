//! One device: it makes reports, sends each until it is acknowledged, and remembers them all.
//!
//! Now and then it restarts with another stream, or repeats an acknowledged call as if the ack had been lost. It may
//! also request the deletion of all its data and begin again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use epwatch_proto::samples;
use epwatch_proto::v1::{self, Outcome, collector_service_client::CollectorServiceClient};
use tokio::time::sleep;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::load::{Order, Shared};
use crate::report::{Ended, Made, Template};
use crate::servers::Where;

/// A killed collector does not answer, and a running one answers after a sync.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two tries.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Number of reports in one call.
const MAX_BATCH: u64 = 8;

type Client = CollectorServiceClient<Channel>;

pub(crate) struct Device {
    secret: [u8; 32],
    template: Template,
    stream: u64,
    /// Sequence of the last report made.
    sequence: u64,
    ended: Option<Ended>,
    collectors: Vec<Where>,
    /// An open connection to each collector, with the address that it was opened to.
    open: Vec<Option<(SocketAddr, Client)>>,
    shared: Arc<Shared>,
}

/// Everything was deleted.
struct Deleted;

impl Device {
    pub(crate) fn new(collectors: Vec<Where>, shared: Arc<Shared>) -> Self {
        let secret = std::array::from_fn(|_| fastrand::u8(..));
        Self {
            secret,
            template: Template::new(&secret),
            stream: fastrand::u64(..),
            sequence: 0,
            ended: None,
            open: collectors.iter().map(|_| None).collect(),
            collectors,
            shared,
        }
    }

    /// Sends reports until the order to end. Then sends its open reports until each is settled.
    pub(crate) async fn live(mut self, pause: Duration) {
        loop {
            let order = *self.shared.order.borrow();
            match order {
                Order::Send => {}
                Order::Rest => {
                    self.shared.rest().await;
                    continue;
                }
                Order::End => return,
            }
            let made = self.make();
            self.shared.account().sent += made.len() as u64;
            self.send(&made).await;
            if fastrand::u32(..100) < 2 {
                self.send_again(&made).await;
            }
            match fastrand::u32(..1_000) {
                0..10 => self.restart(),
                10..12 => {
                    if let Some(Deleted) = self.delete().await {
                        self = Self::new(self.collectors, self.shared);
                    }
                }
                _ => {}
            }
            sleep(pause.mul_f64(2.0 * fastrand::f64())).await;
        }
    }

    fn make(&mut self) -> Vec<Made> {
        let n = fastrand::u64(1..=MAX_BATCH);
        let made = (1..=n).map(|nth| {
            self.template
                .report(self.stream, self.sequence + nth, self.ended)
        });
        let made = made.collect();
        self.sequence += n;
        made
    }

    /// Simulates a new process of the same installation.
    fn restart(&mut self) {
        self.ended = Some(Ended {
            stream: self.stream,
            last_sequence: self.sequence,
        });
        self.stream = fastrand::u64(..);
        self.sequence = 0;
    }

    /// Sends reports until each is acknowledged, or refused for good, or time is up.
    async fn send(&mut self, made: &[Made]) {
        let mut left = made.to_vec();
        let mut tries = 0_u64;
        while !left.is_empty() && !self.shared.is_time_up() {
            if tries > 0 {
                self.shared.account().retried += left.len() as u64;
                sleep(RETRY_PAUSE).await;
            }
            tries += 1;
            let results = match self.upload(&left).await {
                Ok(results) => results,
                Err(status) => {
                    self.shared.failed(&status);
                    continue;
                }
            };
            let mut kept = Vec::new();
            for (index, made) in left.into_iter().enumerate() {
                let index = u32::try_from(index).expect("a handful");
                let result = results.iter().find(|result| result.index == index);
                match result.map(v1::ReportResult::outcome) {
                    None => self.shared.acked(made.key, false),
                    Some(Outcome::Duplicate) => self.shared.acked(made.key, true),
                    Some(_) if result.is_some_and(|result| result.retryable) => kept.push(made),
                    Some(_) => self.shared.refused(result),
                }
            }
            left = kept;
        }
        if !left.is_empty() {
            self.shared.account().given_up += left.len() as u64;
        } else if self.ended.is_some() {
            self.ended = None;
        }
    }

    /// Repeats a call as if its ack had been lost. Its reports are duplicates, or copies that do not count.
    async fn send_again(&mut self, made: &[Made]) {
        let Ok(results) = self.upload(made).await else {
            return;
        };
        self.shared.account().retried += made.len() as u64;
        for result in results {
            if result.outcome() != Outcome::Duplicate && !result.retryable {
                self.shared.refused(Some(&result));
            }
        }
    }

    async fn delete(&mut self) -> Option<Deleted> {
        while !self.shared.is_time_up() {
            if let Some(mut client) = self.client().await {
                let request = v1::DeleteInstallationRequest {
                    secret: self.secret.to_vec().into(),
                };
                if client.delete_installation(request).await.is_ok() {
                    self.shared.deleted(self.template.installation());
                    return Some(Deleted);
                }
            }
            sleep(RETRY_PAUSE).await;
        }
        // The collector may have accepted the deletion although no answer arrived.
        let installation = self.template.installation();
        self.shared.account().maybe_deleted.insert(installation);
        None
    }

    async fn upload(&mut self, made: &[Made]) -> Result<Vec<v1::ReportResult>, Status> {
        let Some(mut client) = self.client().await else {
            return Err(Status::unavailable("no collector listens"));
        };
        let request_id = fastrand::u64(..);
        let request = v1::UploadRequest {
            reports: made.iter().map(|made| made.bytes.clone()).collect(),
            sdk: Some((&samples::sdk()).into()),
            request_id,
            ..Default::default()
        };
        let response = client.upload(request).await?.into_inner();
        assert_eq!(
            (response.request_id, response.n_reports as usize),
            (request_id, made.len()),
            "the answer is to another request"
        );
        Ok(response.results)
    }

    /// Returns a connection to any listening collector.
    async fn client(&mut self) -> Option<Client> {
        let index = fastrand::usize(..self.collectors.len());
        let address = self.collectors[index].now()?;
        let open = &mut self.open[index];
        if open.as_ref().is_none_or(|(at, _)| *at != address) {
            let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
            let endpoint = endpoint.timeout(CALL_TIMEOUT).connect_timeout(CALL_TIMEOUT);
            let client = Client::new(endpoint.connect().await.ok()?);
            *open = Some((address, client));
        }
        open.as_ref().map(|(_, client)| client.clone())
    }
}
