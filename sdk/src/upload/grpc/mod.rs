//! Uploads over gRPC: one channel, on a runtime that lives on the SDK's thread.
//!
//! All sent bytes are counted at the socket, below TLS, because handshakes, headers and repeated data cost the user as
//! much as reports do.

mod counted;

use std::{path::Path, time::Duration};

use epwatch_proto::{
    error_chain, is_connection_broken, tls_hint,
    v1::collector_service_client::CollectorServiceClient,
};
use tonic::{
    Code, Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri},
};

use self::counted::{CountingConnector, SentBytes};
use super::{CollectorAnswer, Payload, Transport, UploadBatch, UploadError, deletion_request};
use crate::{
    config::{SdkConfig, TrustedRoots},
    folder::files,
    policy,
    time::{Clock, Now},
    types::UploadFailureKind,
};

/// gRPC's header for "not before" (gRFC A6), in milliseconds.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Makes a transport that connects at the first request, so that no root certificate is read earlier. A request waits
/// at most the deadline for its answer.
pub(crate) fn transport(config: SdkConfig) -> Transport {
    let mut made = None;
    Box::new(move |batch, meanwhile| {
        let transport = match &mut made {
            Some(transport) => transport,
            None => match GrpcTransport::new(&config) {
                Ok(new) => made.insert(new),
                Err(error) => return (Err(error), 0),
            },
        };
        let before = transport.sent.get();
        let answer = transport.call(batch, transport.clock.now(), meanwhile);
        (answer, transport.sent.get() - before)
    })
}

/// Connects when needed, and again after the connection breaks.
#[derive(Debug)]
struct GrpcTransport {
    runtime: tokio::runtime::Runtime,
    config: SdkConfig,
    endpoint: Endpoint,
    /// The client certificate in use.
    identity: Option<ClientIdentity>,
    client: Option<CollectorServiceClient<Channel>>,
    clock: Clock,
    /// End of the latest call.
    used_at: Now,
    authorization: MetadataValue<Ascii>,
    deadline: Duration,
    sent: SentBytes,
}

impl GrpcTransport {
    fn new(config: &SdkConfig) -> Result<Self, UploadError> {
        let failed = |what: &str, error: &dyn std::error::Error| {
            let message = format!("{what}: {}", error_chain(error));
            UploadError::new(UploadFailureKind::Unreachable, message)
        };
        let identity = ClientIdentity::read(config)?;
        let endpoint = endpoint_of(config, identity.as_ref())?;
        let mut authorization: MetadataValue<Ascii> = format!("Bearer {}", config.app_key)
            .parse()
            .map_err(|e| failed("the app key cannot travel in metadata: expected ASCII", &e))?;
        authorization.set_sensitive(true);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(|e| failed("no runtime", &e))?;
        let clock = Clock::start();
        Ok(Self {
            runtime,
            config: config.clone(),
            endpoint,
            identity,
            client: None,
            clock,
            used_at: clock.now(),
            authorization,
            deadline: policy::UPLOAD_DEADLINE,
            sent: SentBytes::default(),
        })
    }

    /// Takes a renewed client certificate for the next connection. Files that cannot be used, for example in the middle
    /// of a renewal, change nothing.
    fn renew_identity(&mut self) {
        if self.config.client_certificate.is_none() {
            return;
        }
        let Ok(identity) = ClientIdentity::read(&self.config) else {
            return;
        };
        if identity == self.identity {
            return;
        }
        if let Ok(endpoint) = endpoint_of(&self.config, identity.as_ref()) {
            (self.endpoint, self.identity, self.client) = (endpoint, identity, None);
        }
    }

    /// Makes a call. While it waits, `meanwhile` runs again and again, each time after the wait that it returned; `None`
    /// ends the call.
    fn call(
        &mut self,
        batch: &UploadBatch,
        now: Now,
        meanwhile: &mut dyn FnMut() -> Option<Duration>,
    ) -> Result<CollectorAnswer, UploadError> {
        self.renew_identity();
        if time_between(self.used_at, now) > policy::MAX_IDLE_CONNECTION {
            self.client = None;
        }
        let (endpoint, client, sent) = (&self.endpoint, &mut self.client, &self.sent);
        let (authorization, deadline) = (&self.authorization, self.deadline);
        let call = async {
            // The client must be created inside the runtime that drives it.
            let client = client.get_or_insert_with(|| {
                let connector = CountingConnector::new(sent.clone(), deadline);
                CollectorServiceClient::new(endpoint.connect_with_connector_lazy(connector))
            });
            match batch.payload() {
                Payload::Reports { request, .. } => {
                    let request = authorized((**request).clone(), authorization);
                    let response = client.upload(request).await?;
                    Ok(CollectorAnswer::Upload(response.into_inner()))
                }
                Payload::Deletion(secret) => {
                    let request = authorized(deletion_request(secret), authorization);
                    let response = client.delete_installation(request).await?;
                    Ok(CollectorAnswer::Deletion(response.into_inner()))
                }
            }
        };
        let call = async { tokio::time::timeout(deadline, call).await };
        let answer: Option<Result<Result<CollectorAnswer, Status>, _>> =
            self.runtime.block_on(async {
                let mut call = std::pin::pin!(call);
                let mut wait = Duration::ZERO;
                loop {
                    if let Ok(answer) = tokio::time::timeout(wait, call.as_mut()).await {
                        return Some(answer);
                    }
                    wait = meanwhile()?;
                }
            });
        self.used_at = self.clock.now();
        match answer {
            Some(Ok(Ok(answer))) => Ok(answer),
            Some(Ok(Err(status))) => Err(error_of(&status, endpoint.uri())),
            // A connection that gives no answers is dropped.
            Some(Err(_elapsed)) => {
                self.client = None;
                let message = format!("no answer within {deadline:?}");
                Err(UploadError::new(UploadFailureKind::Timeout, message))
            }
            None => {
                self.client = None;
                let message = "the SDK was stopped before the answer came";
                Err(UploadError::new(UploadFailureKind::Timeout, message))
            }
        }
    }
}

/// A client certificate as read from its files.
#[derive(Clone, PartialEq, Eq)]
struct ClientIdentity {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// Hides the key.
impl std::fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientIdentity").finish_non_exhaustive()
    }
}

impl ClientIdentity {
    /// Longest file of a certificate with its chain, or of a key.
    const MAX_BYTES: u64 = 1 << 20;

    /// Reads the files; `None` without a client certificate.
    fn read(config: &SdkConfig) -> Result<Option<Self>, UploadError> {
        let read = |path: &Path| {
            files::read_at_most(path, Self::MAX_BYTES).map_err(|error| {
                let message = format!("no client certificate: {}: {error}", path.display());
                UploadError::new(UploadFailureKind::Tls, message)
            })
        };
        let Some(paths) = &config.client_certificate else {
            return Ok(None);
        };
        let (certificate, key) = (read(&paths.cert_file)?, read(&paths.key_file)?);
        Ok(Some(Self { certificate, key }))
    }
}

fn endpoint_of(
    config: &SdkConfig,
    identity: Option<&ClientIdentity>,
) -> Result<Endpoint, UploadError> {
    let endpoint = Endpoint::from_shared(config.endpoint.clone()).map_err(|error| {
        let what = "the endpoint is not an address; expected https://HOST:PORT";
        let message = format!("{what}: {}", error_chain(&error));
        UploadError::new(UploadFailureKind::Unreachable, message)
    })?;
    let endpoint = endpoint
        .connect_timeout(policy::UPLOAD_DEADLINE)
        .timeout(policy::UPLOAD_DEADLINE);
    if !config.endpoint.starts_with("https://") {
        return Ok(endpoint);
    }
    let mut tls = tls_of(config);
    if let Some(identity) = identity {
        tls = tls.identity(Identity::from_pem(&identity.certificate, &identity.key));
    }
    endpoint.tls_config(tls).map_err(|error| {
        let check = match identity {
            Some(_) => {
                "check the client's certificate and key, the root certificates and the trusted roots"
            }
            None => "check the root certificates and the trusted roots",
        };
        let message = format!("no TLS: {}; {check}", error_chain(&error));
        UploadError::new(UploadFailureKind::Tls, message)
    })
}

/// The time between two instants. It includes the device's sleep if the time since boot is known: meanwhile the
/// monotonic clock stops, but the collector's clock does not.
fn time_between(earlier: Now, later: Now) -> Duration {
    let awake = later.mono.saturating_sub(earlier.mono);
    let since_boot = earlier.uptime_ms.zip(later.uptime_ms);
    let ms = since_boot.map_or(0, |(earlier, later)| later.saturating_sub(earlier));
    awake.max(Duration::from_millis(ms))
}

fn authorized<T>(message: T, authorization: &MetadataValue<Ascii>) -> Request<T> {
    let mut request = Request::new(message);
    let metadata = request.metadata_mut();
    metadata.insert("authorization", authorization.clone());
    request
}

fn tls_of(config: &SdkConfig) -> ClientTlsConfig {
    let tls = ClientTlsConfig::new();
    let tls = match config.roots {
        TrustedRoots::Bundled => tls.with_webpki_roots(),
        TrustedRoots::System => tls.with_native_roots(),
        TrustedRoots::Only => tls,
    };
    tls.ca_certificates(config.root_certificates.iter().map(Certificate::from_pem))
}

/// Maps a status to the kind of failure; there is no other such mapping.
fn error_of(status: &Status, endpoint: &Uri) -> UploadError {
    // A failure of the transport has a cause, a server's answer has none.
    let cause = std::error::Error::source(status);
    // The status' own text repeats its causes in debug form.
    let words = cause.map_or(status.message().to_owned(), error_chain);
    let mut text = format!("{:?}: {words}", status.code());
    if let Some(hint) = tls_hint(&endpoint.to_string(), status) {
        text.push_str("; ");
        text.push_str(hint);
    }
    // The type of rustls' error is not available here. The text below is only for people.
    if words.contains("InvalidContentType") {
        text.push_str(
            "; this address speaks no TLS: its address begins with http://, or the port is another",
        );
    }
    let kind = match status.code() {
        _ if is_connection_broken(status) => UploadFailureKind::Unreachable,
        Code::Unauthenticated | Code::PermissionDenied => UploadFailureKind::Unauthenticated,
        Code::ResourceExhausted => UploadFailureKind::PushedBack,
        Code::DeadlineExceeded | Code::Cancelled => UploadFailureKind::Timeout,
        Code::Unavailable if is_tls(status) => UploadFailureKind::Tls,
        Code::Unavailable if cause.is_some() => UploadFailureKind::Unreachable,
        _ => UploadFailureKind::Server,
    };
    let error = UploadError::new(kind, epwatch_proto::clipped(&text, 256));
    let asked = status.metadata().get(PUSHBACK);
    let ms = asked.and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    match ms {
        Some(ms) => error.with_retry_after(Duration::from_millis(ms)),
        None => error,
    }
}

/// rustls reports its errors as I/O errors of this kind: an untrusted certificate, a server with another protocol.
fn is_tls(status: &Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let io = error.downcast_ref::<std::io::Error>();
        if io.is_some_and(|io| io.kind() == std::io::ErrorKind::InvalidData) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use epwatch_proto::{
        SendClock,
        v1::{
            self,
            collector_service_server::{CollectorService, CollectorServiceServer},
        },
    };
    use tokio::runtime::Runtime;
    use tonic::{Response, transport::server::TcpIncoming};

    use super::*;

    struct Storing;

    #[tonic::async_trait]
    impl CollectorService for Storing {
        async fn upload(
            &self,
            _: Request<v1::UploadRequest>,
        ) -> Result<Response<v1::UploadResponse>, Status> {
            Ok(Response::new(v1::UploadResponse::default()))
        }

        async fn delete_installation(
            &self,
            _: Request<v1::DeleteInstallationRequest>,
        ) -> Result<Response<v1::DeleteInstallationResponse>, Status> {
            Err(Status::unimplemented("deletion"))
        }

        async fn put_model_manifest(
            &self,
            _: Request<v1::PutModelManifestRequest>,
        ) -> Result<Response<v1::PutModelManifestResponse>, Status> {
            Err(Status::unimplemented("manifest"))
        }

        async fn put_certified_placement(
            &self,
            _: Request<v1::PutCertifiedPlacementRequest>,
        ) -> Result<Response<v1::PutCertifiedPlacementResponse>, Status> {
            Err(Status::unimplemented("placement"))
        }
    }

    /// Runs a collector at this listener, with its connections, until it is dropped.
    fn serve(listener: &TcpListener) -> Runtime {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = listener.try_clone().unwrap();
        listener.set_nonblocking(true).unwrap();
        let _inside = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let server = tonic::transport::Server::builder()
            .add_service(CollectorServiceServer::new(Storing))
            .serve_with_incoming(TcpIncoming::from(listener));
        runtime.spawn(server);
        runtime
    }

    /// The client does not answer the collector's pings between calls, so the collector closes the connection.
    #[test]
    fn a_connection_that_was_idle_for_long_is_not_trusted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let dir = tempfile::tempdir().unwrap();
        let config = SdkConfig::builder("app", &endpoint, "key", dir.path())
            .build()
            .unwrap();
        let mut transport = GrpcTransport::new(&config).unwrap();
        let sdk = config.core.sdk.clone();
        let batch = UploadBatch::new(Vec::new(), SendClock::default(), sdk, Vec::new());

        let collector = serve(&listener);
        transport
            .call(&batch, transport.clock.now(), &mut || {
                Some(policy::UPLOAD_DEADLINE)
            })
            .unwrap();
        drop(collector);
        let collector = serve(&listener);
        let mut later = transport.used_at;
        later.mono += policy::MAX_IDLE_CONNECTION * 2;
        transport
            .call(&batch, later, &mut || Some(policy::UPLOAD_DEADLINE))
            .unwrap();

        // The device slept, so only its time since boot advanced.
        drop(collector);
        let _collector = serve(&listener);
        transport.used_at.uptime_ms = Some(1_000);
        let mut later = transport.used_at;
        later.uptime_ms = Some(61_000);
        transport
            .call(&batch, later, &mut || Some(policy::UPLOAD_DEADLINE))
            .unwrap();
    }
}
