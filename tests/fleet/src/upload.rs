//! The few connections that all devices share, and one call over them.

use std::future::Future;

use epwatch_proto::v1::collector_service_client::CollectorServiceClient;
use epwatch_proto::{UploadFailureKind, UploadRequest, UploadResponse, v1};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::live::LiveOptions;
use crate::outbox::Answer;

/// A call that takes longer has failed: the collector answers in milliseconds.
const CALL_DEADLINE: std::time::Duration = std::time::Duration::from_secs(10);

/// A fleet that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The endpoint is no URL.
    #[error("failed to use the endpoint {endpoint}: expected a URL like http://127.0.0.1:4717")]
    Endpoint {
        /// As given.
        endpoint: String,
        /// Why.
        #[source]
        source: tonic::transport::Error,
    },
    /// The app key cannot travel in a header.
    #[error("failed to use the app key: expected visible ASCII only")]
    AppKey,
}

/// Shared connections; a call takes the next one in turn.
#[derive(Debug)]
pub(crate) struct Connections {
    clients: Vec<CollectorServiceClient<Channel>>,
    next: usize,
    authorization: MetadataValue<Ascii>,
}

impl Connections {
    /// Connects when the first call is made, and again after every loss.
    pub(crate) fn lazy(options: &LiveOptions) -> Result<Self, LiveError> {
        let endpoint = Endpoint::from_shared(options.endpoint.clone()).map_err(|source| {
            LiveError::Endpoint {
                endpoint: options.endpoint.clone(),
                source,
            }
        })?;
        let endpoint = endpoint.timeout(CALL_DEADLINE).tcp_nodelay(true);
        let authorization = format!("Bearer {}", options.app_key);
        Ok(Self {
            clients: (0..options.connections.max(1))
                .map(|_| CollectorServiceClient::new(endpoint.connect_lazy()))
                .collect(),
            next: 0,
            authorization: authorization.parse().map_err(|_| LiveError::AppKey)?,
        })
    }

    /// One call of Upload.
    pub(crate) fn upload(
        &mut self,
        request: UploadRequest,
    ) -> impl Future<Output = Answer> + Send + use<> {
        self.next = (self.next + 1) % self.clients.len();
        let mut client = self.clients[self.next].clone();
        let mut call = Request::new(v1::UploadRequest::from(&request));
        call.metadata_mut()
            .insert("authorization", self.authorization.clone());
        async move {
            match client.upload(call).await {
                Ok(response) => match UploadResponse::try_from(response.into_inner()) {
                    Ok(response) => Answer::Response(response),
                    Err(error) => {
                        tracing::warn!(%error, "the collector's answer does not parse");
                        Answer::Failed(UploadFailureKind::Server)
                    }
                },
                Err(status) => {
                    tracing::debug!(code = ?status.code(), "upload failed");
                    Answer::Failed(kind_of(&status))
                }
            }
        }
    }
}

/// How the SDK counts a failed call.
fn kind_of(status: &Status) -> UploadFailureKind {
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
