//! Uploads over gRPC: a channel, and a runtime for it that lives on the SDK's own thread.

use std::time::Duration;

use epwatch_proto::{
    UploadFailureKind,
    v1::{self, collector_service_client::CollectorServiceClient},
};
use tonic::{
    Code, Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, ClientTlsConfig, Endpoint},
};

use super::{UploadBatch, UploadError};
use crate::config::SdkConfig;

/// What gRPC servers call "not before" (gRFC A6), in milliseconds.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// A connection that is made when it is first needed, and made again when it breaks.
#[derive(Debug)]
pub(crate) struct GrpcTransport {
    runtime: tokio::runtime::Runtime,
    endpoint: Endpoint,
    client: Option<CollectorServiceClient<Channel>>,
    authorization: MetadataValue<Ascii>,
    deadline: Duration,
}

impl GrpcTransport {
    pub(crate) fn new(config: &SdkConfig) -> Result<Self, UploadError> {
        let server = |what: &str, error: &dyn std::error::Error| {
            let message = format!("{what}: {}", chain(error));
            UploadError::new(UploadFailureKind::Unreachable, message)
        };
        let mut endpoint = Endpoint::from_shared(config.endpoint.clone())
            .map_err(|e| server("the endpoint is no address", &e))?
            .connect_timeout(config.upload_deadline)
            .timeout(config.upload_deadline);
        if config.endpoint.starts_with("https://") {
            let tls = ClientTlsConfig::new().with_webpki_roots();
            endpoint = endpoint.tls_config(tls).map_err(|e| {
                UploadError::new(UploadFailureKind::Tls, format!("no TLS: {}", chain(&e)))
            })?;
        }
        let mut authorization: MetadataValue<Ascii> = format!("Bearer {}", config.app_key)
            .parse()
            .map_err(|e| server("the app key cannot travel in metadata", &e))?;
        authorization.set_sensitive(true);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(|e| server("no runtime", &e))?;
        Ok(Self {
            runtime,
            endpoint,
            client: None,
            authorization,
            deadline: config.upload_deadline,
        })
    }

    /// Sends one request and waits for its answer, at most the deadline.
    pub(crate) fn upload(
        &mut self,
        batch: &UploadBatch,
    ) -> Result<v1::UploadResponse, UploadError> {
        let mut request = Request::new(batch.request());
        let authorization = self.authorization.clone();
        request
            .metadata_mut()
            .insert("authorization", authorization);
        let endpoint = &self.endpoint;
        let client = &mut self.client;
        let call = async {
            // Made inside the runtime that will drive it.
            let client =
                client.get_or_insert_with(|| CollectorServiceClient::new(endpoint.connect_lazy()));
            client.upload(request).await
        };
        let deadline = self.deadline;
        let answer = self
            .runtime
            .block_on(async { tokio::time::timeout(deadline, call).await });
        match answer {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(error_of(&status)),
            Err(_elapsed) => {
                // A connection that does not answer is not kept.
                self.client = None;
                let message = format!("no answer within {deadline:?}");
                Err(UploadError::new(UploadFailureKind::Timeout, message))
            }
        }
    }
}

/// The one mapping from a status to how a failure is counted.
fn error_of(status: &Status) -> UploadError {
    // A status's own text repeats its causes in their debug form.
    let text = format!("{:?}: {}", status.code(), status.message());
    let kind = match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => UploadFailureKind::Unauthenticated,
        Code::ResourceExhausted => UploadFailureKind::PushedBack,
        Code::DeadlineExceeded | Code::Cancelled => UploadFailureKind::Timeout,
        Code::Unavailable if is_tls(status) => UploadFailureKind::Tls,
        // A transport's own failure has a cause, a server's answer has none.
        Code::Unavailable if std::error::Error::source(status).is_some() => {
            UploadFailureKind::Unreachable
        }
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

/// rustls hands its errors on as I/O errors of this kind: a certificate that is not trusted, a server
/// that speaks something else.
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

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
