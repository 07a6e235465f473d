//! Upload calls to a collector, for live fleets and loads.

use std::time::Duration;

use epwatch_proto::v1::collector_service_client::CollectorServiceClient;
use epwatch_proto::{UploadFailureKind, UploadRequest, UploadResponse, v1};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The endpoint is no URL, or its TLS settings cannot be used.
    #[error("failed to use the endpoint {endpoint}: expected a URL like http://127.0.0.1:4717")]
    Endpoint {
        endpoint: String,
        /// The transport's reason.
        #[source]
        source: tonic::transport::Error,
    },
    /// The app key cannot travel in a header.
    #[error("failed to use the app key: expected visible ASCII only")]
    AppKey,
}

/// Returns a collector's endpoint. `https://` is checked against public certificates and `ca_pem`. A call that takes
/// longer than `deadline` has failed.
pub fn endpoint(
    url: &str,
    ca_pem: Option<&[u8]>,
    deadline: Duration,
) -> Result<Endpoint, ClientError> {
    let named = |source| ClientError::Endpoint {
        endpoint: url.to_owned(),
        source,
    };
    let mut endpoint = Endpoint::from_shared(url.to_owned()).map_err(named)?;
    if url.starts_with("https://") {
        let mut tls = ClientTlsConfig::new().with_webpki_roots();
        if let Some(pem) = ca_pem {
            tls = tls.ca_certificate(Certificate::from_pem(pem));
        }
        endpoint = endpoint.tls_config(tls).map_err(named)?;
    }
    Ok(endpoint.timeout(deadline).tcp_nodelay(true))
}

/// Returns the way out if a call without TLS failed as one does at a port that expects TLS: the connection breaks
/// before an answer. A server's own answer has no cause.
pub fn tls_hint(url: &str, status: &Status) -> Option<&'static str> {
    let is_broken = matches!(status.code(), Code::Unknown | Code::Internal)
        && std::error::Error::source(status).is_some();
    (url.starts_with("http://") && is_broken)
        .then_some("if the collector has TLS, its address begins with https://")
}

/// A connection and the key that goes with each call.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    service: CollectorServiceClient<Channel>,
    authorization: MetadataValue<Ascii>,
}

impl Client {
    pub(crate) fn new(channel: Channel, app_key: &str) -> Result<Self, ClientError> {
        let authorization = format!("Bearer {app_key}");
        Ok(Self {
            service: CollectorServiceClient::new(channel),
            authorization: authorization.parse().map_err(|_| ClientError::AppKey)?,
        })
    }

    pub(crate) async fn upload(&self, request: &UploadRequest) -> Result<UploadResponse, Status> {
        let mut call = Request::new(v1::UploadRequest::from(request));
        let authorization = self.authorization.clone();
        call.metadata_mut().insert("authorization", authorization);
        let response = self.service.clone().upload(call).await?.into_inner();
        UploadResponse::try_from(response)
            .map_err(|error| Status::internal(format!("the answer does not parse: {error}")))
    }
}

/// Returns the SDK's kind of a failed call.
pub(crate) fn kind_of(status: &Status) -> UploadFailureKind {
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => UploadFailureKind::Unauthenticated,
        Code::ResourceExhausted => UploadFailureKind::PushedBack,
        Code::DeadlineExceeded | Code::Cancelled => UploadFailureKind::Timeout,
        // A transport's own failure has a cause, a server's answer has none.
        Code::Unavailable if std::error::Error::source(status).is_some() => {
            UploadFailureKind::Unreachable
        }
        _ => UploadFailureKind::Server,
    }
}
