//! A collector in this process that accepts nothing it should not: every report must parse, a key
//! that comes again must come with the same bytes, and the app key must be there.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use epwatch_proto::v1;
use epwatch_proto::v1::collector_service_server::{CollectorService, CollectorServiceServer};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// The app key that the server wants.
pub(crate) const APP_KEY: &str = "fleet-test-key";

/// How the server answers from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    /// Stores and acks.
    Accepts,
    /// Answers UNAVAILABLE and stores nothing.
    Unavailable,
    /// Stores, then answers UNAVAILABLE: the ack is lost, not the report.
    LosesAcks,
    /// Refuses every report, retryable, and stores nothing.
    Overloaded,
}

/// Key of a report: installation, stream, sequence.
pub(crate) type Key = (Vec<u8>, u64, u64);

/// What the server saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Reports stored, by key.
    pub(crate) stored: BTreeMap<Key, Bytes>,
    /// Reports that came again after they were stored.
    pub(crate) n_duplicates: u64,
    /// What was wrong with requests; stays empty with a right client.
    pub(crate) complaints: Vec<String>,
}

/// The server; stops when dropped.
#[derive(Debug)]
pub(crate) struct StrictServer {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    mood: Arc<Mutex<Mood>>,
    stop: CancellationToken,
}

impl StrictServer {
    /// Listens on a free loopback port.
    pub(crate) async fn start(mood: Mood) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mood = Arc::new(Mutex::new(mood));
        let stop = CancellationToken::new();
        let service = CollectorServiceServer::new(Service {
            seen: Arc::clone(&seen),
            mood: Arc::clone(&mood),
        });
        let stopped = stop.clone().cancelled_owned();
        tokio::spawn(async move {
            tonic::transport::Server::builder()
                .serve_with_incoming_shutdown(service, TcpListenerStream::new(listener), stopped)
                .await
                .unwrap();
        });
        Self {
            address,
            seen,
            mood,
            stop,
        }
    }

    /// The address as an endpoint.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Changes how it answers.
    pub(crate) fn set_mood(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    /// Looks at what it saw.
    pub(crate) fn seen<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.seen.lock().unwrap())
    }
}

impl Drop for StrictServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

struct Service {
    seen: Arc<Mutex<Seen>>,
    mood: Arc<Mutex<Mood>>,
}

#[tonic::async_trait]
impl CollectorService for Service {
    async fn upload(
        &self,
        request: Request<v1::UploadRequest>,
    ) -> Result<Response<v1::UploadResponse>, Status> {
        let mood = *self.mood.lock().unwrap();
        let mut seen = self.seen.lock().unwrap();
        let key = request.metadata().get("authorization").cloned();
        if key.is_none_or(|key| key != format!("Bearer {APP_KEY}")) {
            seen.complaints.push("no app key".to_owned());
            return Err(Status::unauthenticated("no app key"));
        }
        let request = request.into_inner();
        if request.reports.is_empty() || request.clock.is_none() || request.sdk.is_none() {
            seen.complaints
                .push("an upload without reports, clock or SDK".to_owned());
        }
        if mood == Mood::Unavailable {
            return Err(Status::unavailable("down for the test"));
        }
        let mut results = Vec::new();
        for (index, bytes) in request.reports.into_iter().enumerate() {
            let index = u32::try_from(index).unwrap();
            if mood == Mood::Overloaded {
                results.push(v1::ReportResult {
                    index,
                    outcome: v1::Outcome::RefusedOverloaded.into(),
                    retryable: true,
                    ..Default::default()
                });
            } else if let Some(duplicate) = seen.take_in(index, bytes) {
                results.push(duplicate);
            }
        }
        if mood == Mood::LosesAcks {
            return Err(Status::unavailable("the ack got lost for the test"));
        }
        Ok(Response::new(v1::UploadResponse {
            results,
            server_time_unix_ms: 1_700_000_000_000,
            ..Default::default()
        }))
    }

    async fn delete_installation(
        &self,
        _: Request<v1::DeleteInstallationRequest>,
    ) -> Result<Response<v1::DeleteInstallationResponse>, Status> {
        self.unexpected("DeleteInstallation")
    }

    async fn put_model_manifest(
        &self,
        _: Request<v1::PutModelManifestRequest>,
    ) -> Result<Response<v1::PutModelManifestResponse>, Status> {
        self.unexpected("PutModelManifest")
    }

    async fn put_certified_placement(
        &self,
        _: Request<v1::PutCertifiedPlacementRequest>,
    ) -> Result<Response<v1::PutCertifiedPlacementResponse>, Status> {
        self.unexpected("PutCertifiedPlacement")
    }
}

impl Service {
    fn unexpected<T>(&self, call: &str) -> Result<T, Status> {
        self.seen
            .lock()
            .unwrap()
            .complaints
            .push(format!("unexpected {call}"));
        Err(Status::unimplemented("not in this test"))
    }
}

impl Seen {
    /// Stores one report; gives the result of one that was seen before.
    fn take_in(&mut self, index: u32, bytes: Bytes) -> Option<v1::ReportResult> {
        if let Err(error) = epwatch_proto::Report::parse(&bytes) {
            self.complaints
                .push(format!("a report that does not parse: {error}"));
        }
        let key = v1::Report::decode(bytes.clone()).unwrap().key.unwrap();
        let named = (key.installation_id.to_vec(), key.stream_id, key.sequence);
        match self.stored.get(&named) {
            None => {
                self.stored.insert(named, bytes);
                None
            }
            Some(stored) => {
                if *stored != bytes {
                    self.complaints
                        .push(format!("other bytes under key {key:?}"));
                }
                self.n_duplicates += 1;
                Some(v1::ReportResult {
                    index,
                    key: Some(key),
                    outcome: v1::Outcome::Duplicate.into(),
                    retryable: false,
                    detail: String::new(),
                })
            }
        }
    }
}
