//! A strict collector: takes what the contract allows, keeps the bytes, fails on anything else.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use epwatch_proto::{
    Report, UploadRequest,
    v1::{
        self,
        collector_service_server::{CollectorService, CollectorServiceServer},
    },
};
use tokio::{net::TcpListener, runtime::Runtime};
use tonic::{Request, Response, Status, transport::server::TcpIncoming};

/// What the collector does with one call.
#[derive(Debug, Clone)]
pub enum Answer {
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
    wrong: Vec<String>,
}

#[derive(Debug, Clone)]
struct Service {
    state: Arc<Mutex<State>>,
    key: String,
}

/// Runs until it is dropped, and then fails the test if it got anything out of contract.
#[derive(Debug)]
pub struct Collector {
    state: Arc<Mutex<State>>,
    address: SocketAddr,
    _runtime: Runtime,
}

impl Collector {
    pub fn start(key: &str) -> Self {
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
        let server =
            tonic::transport::Server::builder().add_service(CollectorServiceServer::new(service));
        runtime.spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        Self {
            state,
            address,
            _runtime: runtime,
        }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What the next calls get; when there is none left, everything is stored.
    pub fn answer(&self, answers: impl IntoIterator<Item = Answer>) {
        self.state.lock().unwrap().answers.extend(answers);
    }

    /// The reports of each call so far, as they came.
    pub fn calls(&self) -> Vec<Vec<Bytes>> {
        self.state.lock().unwrap().calls.clone()
    }

    /// Every report so far, parsed, repetitions included.
    pub fn reports(&self) -> Vec<Report> {
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
        let key = request.metadata().get("authorization").cloned();
        let message = request.into_inner();
        let bytes = message.reports.clone();
        let mut state = self.state.lock().unwrap();
        if key.is_none_or(|key| key != format!("Bearer {}", self.key)) {
            return Err(Status::unauthenticated("unknown key"));
        }
        if let Err(error) = UploadRequest::try_from(message) {
            state.wrong.push(error.to_string());
        }
        for report in &bytes {
            if let Err(error) = Report::parse(report) {
                state.wrong.push(error.to_string());
            }
        }
        state.calls.push(bytes);
        match state.answers.pop_front() {
            Some(Answer::Ok(response)) => Ok(Response::new(response)),
            Some(Answer::StoreAndFail(status) | Answer::Fail(status)) => Err(status),
            None => Ok(Response::new(v1::UploadResponse::default())),
        }
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
    fn unexpected<T>(&self, call: &str) -> Result<Response<T>, Status> {
        self.state.lock().unwrap().wrong.push(call.to_owned());
        Err(Status::unimplemented(call))
    }
}
