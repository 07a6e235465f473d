//! A collector in the test's process, for tests of its clients. It stores the reports that the contract allows, and
//! keeps their bytes. It fails the test on anything else: a report that does not parse, or other bytes under a known
//! key.
#![expect(missing_docs, reason = "only this workspace uses it")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use bytes::Bytes;
use epwatch_proto::{
    InstallationId, Outcome, Report, ReportKey, ReportResult, UploadRequest,
    v1::{
        self,
        collector_service_server::{CollectorService, CollectorServiceServer},
    },
};
use tokio::{net::TcpListener, sync::oneshot};
use tonic::{
    Request, Response, Status,
    metadata::MetadataMap,
    transport::{Certificate, Identity, ServerTlsConfig, server::TcpIncoming},
};

/// The answer to one call.
#[derive(Debug, Clone)]
pub enum Answer {
    /// Stores all reports, and returns this answer, with the request's id and number of reports.
    Ok(v1::UploadResponse),
    /// Stores nothing, and returns this answer unchanged, like a proxy, or the answer to another call.
    Stranger(v1::UploadResponse),
    /// Stores all reports, but the answer is lost.
    StoreAndFail(Status),
    /// Refuses the call and stores nothing.
    Fail(Status),
    /// Stores nothing, and refuses each report for now.
    Overloaded,
}

/// Returns this answer, addressed to this request.
pub fn answer_to(request: &v1::UploadRequest, answer: v1::UploadResponse) -> v1::UploadResponse {
    v1::UploadResponse {
        n_reports: request.reports.len().try_into().unwrap(),
        request_id: request.request_id,
        ..answer
    }
}

/// The answer to this deletion.
pub fn deletion_of(request: &v1::DeleteInstallationRequest) -> v1::DeleteInstallationResponse {
    let installation = InstallationId::from_secret(&request.secret);
    v1::DeleteInstallationResponse {
        tombstoned_at_unix_ms: 1_800_000_000_000,
        installation_id: installation.as_bytes().to_vec().into(),
    }
}

#[derive(Debug, Default)]
struct State {
    answers: VecDeque<Answer>,
    /// The answer once `answers` is empty; `None` stores everything.
    usual_answer: Option<Answer>,
    calls: Vec<Vec<Bytes>>,
    stored: BTreeMap<ReportKey, Bytes>,
    n_duplicates: usize,
    deletion_answers: VecDeque<Result<v1::DeleteInstallationResponse, Status>>,
    deleted: Vec<InstallationId>,
    n_deletion_calls: usize,
    wrong: Vec<String>,
}

#[derive(Debug, Clone)]
struct Service {
    state: Arc<Mutex<State>>,
    authorization: String,
}

/// A collector that runs on its own thread until it is dropped. Then it fails the test if it got anything that violates
/// the contract.
#[derive(Debug)]
pub struct Collector {
    state: Arc<Mutex<State>>,
    address: SocketAddr,
    scheme: &'static str,
    _stop: oneshot::Sender<()>,
}

impl Collector {
    pub fn start(key: &str) -> Self {
        Self::start_with(key, None)
    }

    /// Starts a collector with a certificate and its key, both in PEM.
    pub fn start_secured(key: &str, certificate: &str, private_key: &str) -> Self {
        let identity = Identity::from_pem(certificate, private_key);
        Self::start_with(key, Some(ServerTlsConfig::new().identity(identity)))
    }

    /// Works like [`Self::start_secured`], for clients with a certificate of this authority only.
    pub fn start_mutual(key: &str, certificate: &str, private_key: &str, authority: &str) -> Self {
        let identity = Identity::from_pem(certificate, private_key);
        let tls = ServerTlsConfig::new()
            .identity(identity)
            .client_ca_root(Certificate::from_pem(authority));
        Self::start_with(key, Some(tls))
    }

    fn start_with(key: &str, tls: Option<ServerTlsConfig>) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let service = Service {
            state: Arc::clone(&state),
            authorization: format!("Bearer {key}"),
        };
        let scheme = if tls.is_some() { "https" } else { "http" };
        let mut builder = tonic::transport::Server::builder();
        if let Some(tls) = tls {
            builder = builder.tls_config(tls).unwrap();
        }
        let server = builder.add_service(CollectorServiceServer::new(service));
        let (stop, stopped) = oneshot::channel::<()>();
        thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().unwrap().block_on(async {
                let incoming = TcpIncoming::from(TcpListener::from_std(listener).unwrap());
                // Open connections end with the runtime.
                tokio::select! {
                    ended = server.serve_with_incoming(incoming) => ended.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        Self {
            state,
            address,
            scheme,
            _stop: stop,
        }
    }

    pub fn endpoint(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Sets the answers to the next calls.
    pub fn answer(&self, answers: impl IntoIterator<Item = Answer>) {
        self.state().answers.extend(answers);
    }

    /// Sets the answer to calls from now on; without one, everything is stored.
    pub fn answer_from_now_on(&self, answer: Option<Answer>) {
        self.state().usual_answer = answer;
    }

    /// Sets the answers to the next deletions. After them, deletions succeed.
    pub fn answer_deletions(&self, answers: impl IntoIterator<Item = Status>) {
        let answers = answers.into_iter().map(Err);
        self.state().deletion_answers.extend(answers);
    }

    /// Returns this answer unchanged to the next deletion, and deletes nothing.
    pub fn answer_deletion_as_stranger(&self, answer: v1::DeleteInstallationResponse) {
        self.state().deletion_answers.push_back(Ok(answer));
    }

    /// Deletes an installation that has not requested it.
    pub fn delete(&self, installation: InstallationId) {
        self.state().deleted.push(installation);
    }

    /// The deleted installations.
    pub fn deleted(&self) -> Vec<InstallationId> {
        self.state().deleted.clone()
    }

    pub fn n_deletion_calls(&self) -> usize {
        self.state().n_deletion_calls
    }

    /// The reports of each call so far, stored or not.
    pub fn calls(&self) -> Vec<Vec<Bytes>> {
        self.state().calls.clone()
    }

    /// Returns every report of all calls so far, parsed, including repeats.
    pub fn reports(&self) -> Vec<Report> {
        let calls = self.calls().into_iter().flatten();
        calls.map(|bytes| Report::parse(&bytes).unwrap()).collect()
    }

    pub fn stored(&self) -> BTreeMap<ReportKey, Bytes> {
        self.state().stored.clone()
    }

    /// Returns the number of reports that came again after they were stored.
    pub fn n_duplicates(&self) -> usize {
        self.state().n_duplicates
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if !thread::panicking() {
            let wrong = std::mem::take(&mut self.state().wrong);
            assert!(wrong.is_empty(), "{wrong:?}");
        }
    }
}

impl State {
    /// Stores a report; returns its result unless it is stored for the first time.
    fn store(&mut self, index: u32, bytes: &Bytes) -> Option<ReportResult> {
        let key = match Report::parse(bytes) {
            Ok(report) => {
                // A real collector stores the rest of such a report, but this SDK never sends one.
                let n_dropped = report.n_dropped_series(bytes);
                if n_dropped > 0 {
                    let key = report.key;
                    self.wrong
                        .push(format!("{n_dropped} impossible series in {key:?}"));
                }
                report.key
            }
            Err(error) => {
                self.wrong.push(error.to_string());
                return None;
            }
        };
        // A tombstone refuses reports that arrive late.
        if self.deleted.contains(&key.installation) {
            let outcome = Outcome::RefusedDeleted;
            return Some(ReportResult::new(index, Some(key), outcome, "deleted"));
        }
        let Some(known) = self.stored.get(&key) else {
            self.stored.insert(key, bytes.clone());
            return None;
        };
        if known != bytes {
            self.wrong.push(format!("other bytes under key {key:?}"));
        }
        self.n_duplicates += 1;
        Some(ReportResult::new(index, Some(key), Outcome::Duplicate, ""))
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
        let reports = message.reports.clone();
        let stored = answer_to(&message, v1::UploadResponse::default());
        let mut state = self.state();
        let is_whole = !reports.is_empty() && message.clock.is_some() && message.sdk.is_some();
        if !is_whole || message.request_id == 0 {
            let wrong = "an upload without reports, clock, SDK or id";
            state.wrong.push(wrong.to_owned());
        }
        if let Err(error) = UploadRequest::try_from(message) {
            state.wrong.push(error.to_string());
        }
        state.calls.push(reports.clone());
        let answer = state.answers.pop_front().or(state.usual_answer.clone());
        match answer {
            Some(Answer::Fail(status)) => return Err(status),
            Some(Answer::Stranger(response)) => return Ok(Response::new(response)),
            _ => {}
        }
        let numbered = || (0..).zip(&reports);
        let results: Vec<v1::ReportResult> = match answer {
            Some(Answer::Overloaded) => numbered()
                .map(|(index, _)| ReportResult::new(index, None, Outcome::RefusedOverloaded, ""))
                .map(|result| (&result).into())
                .collect(),
            _ => numbered()
                .filter_map(|(index, bytes)| state.store(index, bytes))
                .map(|result| (&result).into())
                .collect(),
        };
        match answer {
            Some(Answer::Ok(response)) => Ok(Response::new(v1::UploadResponse {
                n_reports: stored.n_reports,
                request_id: stored.request_id,
                ..response
            })),
            Some(Answer::StoreAndFail(status)) => Err(status),
            _ => Ok(Response::new(v1::UploadResponse { results, ..stored })),
        }
    }

    async fn delete_installation(
        &self,
        request: Request<v1::DeleteInstallationRequest>,
    ) -> Result<Response<v1::DeleteInstallationResponse>, Status> {
        self.authorize(request.metadata())?;
        let request = request.into_inner();
        let secret = &request.secret;
        let mut state = self.state();
        state.n_deletion_calls += 1;
        if secret.len() != 32 {
            let wrong = format!("a secret of {} bytes", secret.len());
            state.wrong.push(wrong);
        }
        if let Some(answer) = state.deletion_answers.pop_front() {
            return answer.map(Response::new);
        }
        state.deleted.push(InstallationId::from_secret(secret));
        Ok(Response::new(deletion_of(&request)))
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
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn authorize(&self, metadata: &MetadataMap) -> Result<(), Status> {
        match metadata.get("authorization") {
            Some(key) if *key == self.authorization => Ok(()),
            _ => Err(Status::unauthenticated("unknown key")),
        }
    }

    fn unexpected<T>(&self, call: &str) -> Result<Response<T>, Status> {
        self.state().wrong.push(call.to_owned());
        Err(Status::unimplemented(call))
    }
}
