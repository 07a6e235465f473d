//! A strict collector: takes what the contract allows, keeps the bytes, fails on anything else.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use epwatch_proto::{
    InstallationId, Outcome, Report, ReportResult, UploadRequest,
    v1::{
        self,
        collector_service_server::{CollectorService, CollectorServiceServer},
    },
};
use tokio::{net::TcpListener, runtime::Runtime};
use tonic::{
    Request, Response, Status,
    metadata::MetadataMap,
    transport::{Identity, ServerTlsConfig, server::TcpIncoming},
};

/// What the collector does with one call.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// Stores all and says so.
    Ok(v1::UploadResponse),
    /// Stores all, and the answer gets lost.
    StoreAndFail(Status),
    /// Stores nothing.
    Fail(Status),
}

#[derive(Debug, Default)]
struct State {
    answers: VecDeque<Answer>,
    calls: Vec<Vec<Bytes>>,
    /// What deletions get; when there is none left, they are done.
    deletion_answers: VecDeque<Status>,
    deleted: Vec<InstallationId>,
    deletion_calls: usize,
    wrong: Vec<String>,
}

#[derive(Debug, Clone)]
struct Service {
    state: Arc<Mutex<State>>,
    key: String,
}

/// Runs until it is dropped, and then fails the test if it got anything out of contract.
#[derive(Debug)]
pub(crate) struct Collector {
    state: Arc<Mutex<State>>,
    address: SocketAddr,
    scheme: &'static str,
    _runtime: Runtime,
}

impl Collector {
    pub(crate) fn start(key: &str) -> Self {
        Self::start_with(key, None)
    }

    /// One that proves itself with a certificate and its key, both PEM.
    pub(crate) fn start_secured(key: &str, certificate: &str, private_key: &str) -> Self {
        let identity = Identity::from_pem(certificate, private_key);
        Self::start_with(key, Some(ServerTlsConfig::new().identity(identity)))
    }

    fn start_with(key: &str, tls: Option<ServerTlsConfig>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let service = Service {
            state: Arc::clone(&state),
            key: key.to_owned(),
        };
        let scheme = if tls.is_some() { "https" } else { "http" };
        let mut builder = tonic::transport::Server::builder();
        if let Some(tls) = tls {
            builder = builder.tls_config(tls).unwrap();
        }
        let server = builder.add_service(CollectorServiceServer::new(service));
        runtime.spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        Self {
            state,
            address,
            scheme,
            _runtime: runtime,
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// What the next deletions get; when there is none left, they are done.
    pub(crate) fn answer_deletions(&self, answers: impl IntoIterator<Item = Status>) {
        self.state.lock().unwrap().deletion_answers.extend(answers);
    }

    /// Deletes an installation that has not asked for it itself.
    pub(crate) fn delete(&self, installation: InstallationId) {
        self.state.lock().unwrap().deleted.push(installation);
    }

    /// Installations that are deleted.
    pub(crate) fn deleted(&self) -> Vec<InstallationId> {
        self.state.lock().unwrap().deleted.clone()
    }

    /// How often deletion was asked for.
    pub(crate) fn n_deletion_calls(&self) -> usize {
        self.state.lock().unwrap().deletion_calls
    }

    /// What the next calls get; when there is none left, everything is stored.
    pub(crate) fn answer(&self, answers: impl IntoIterator<Item = Answer>) {
        self.state.lock().unwrap().answers.extend(answers);
    }

    /// The reports of each call so far, as they came.
    pub(crate) fn calls(&self) -> Vec<Vec<Bytes>> {
        self.state.lock().unwrap().calls.clone()
    }

    /// Every report so far, parsed, repetitions included.
    pub(crate) fn reports(&self) -> Vec<Report> {
        let calls = self.calls().into_iter().flatten();
        calls.map(|bytes| Report::parse(&bytes).unwrap()).collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let wrong = std::mem::take(&mut self.state.lock().unwrap().wrong);
            assert!(wrong.is_empty(), "{wrong:?}");
        }
    }
}

#[tonic::async_trait]
impl CollectorService for Service {
    async fn upload(
        &self,
        request: Request<v1::UploadRequest>,
    ) -> Result<Response<v1::UploadResponse>, Status> {
        self.authorize(request.metadata())?;
        let message = request.into_inner();
        let bytes = message.reports.clone();
        let mut state = self.state.lock().unwrap();
        if let Err(error) = UploadRequest::try_from(message) {
            state.wrong.push(error.to_string());
        }
        let mut results = Vec::new();
        for (index, report) in (0..).zip(&bytes) {
            match Report::parse(report) {
                Err(error) => state.wrong.push(error.to_string()),
                // A tombstone refuses what arrives late.
                Ok(report) if state.deleted.contains(&report.key.installation) => {
                    let key = Some(report.key);
                    results.push(ReportResult::new(
                        index,
                        key,
                        Outcome::RefusedDeleted,
                        "deleted",
                    ));
                }
                Ok(_) => {}
            }
        }
        state.calls.push(bytes);
        match state.answers.pop_front() {
            Some(Answer::Ok(response)) => Ok(Response::new(response)),
            Some(Answer::StoreAndFail(status) | Answer::Fail(status)) => Err(status),
            None => Ok(Response::new(v1::UploadResponse {
                results: results.iter().map(Into::into).collect(),
                ..Default::default()
            })),
        }
    }

    async fn delete_installation(
        &self,
        request: Request<v1::DeleteInstallationRequest>,
    ) -> Result<Response<v1::DeleteInstallationResponse>, Status> {
        self.authorize(request.metadata())?;
        let secret = request.into_inner().secret;
        let mut state = self.state.lock().unwrap();
        state.deletion_calls += 1;
        if secret.len() != 32 {
            state
                .wrong
                .push(format!("a secret of {} bytes", secret.len()));
        }
        if let Some(status) = state.deletion_answers.pop_front() {
            return Err(status);
        }
        state.deleted.push(InstallationId::from_secret(&secret));
        Ok(Response::new(v1::DeleteInstallationResponse {
            tombstoned_at_unix_ms: 1_800_000_000_000,
        }))
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
    fn authorize(&self, metadata: &MetadataMap) -> Result<(), Status> {
        let expected = format!("Bearer {}", self.key);
        match metadata.get("authorization") {
            Some(key) if *key == expected => Ok(()),
            _ => Err(Status::unauthenticated("unknown key")),
        }
    }

    fn unexpected<T>(&self, call: &str) -> Result<Response<T>, Status> {
        self.state.lock().unwrap().wrong.push(call.to_owned());
        Err(Status::unimplemented(call))
    }
}
