//! Upload calls to a collector, for live fleets and loads.

use std::fmt;
use std::time::Duration;

use epwatch_proto::v1::collector_service_client::CollectorServiceClient;
use epwatch_proto::{UploadFailureKind, UploadRequest, UploadResponse, is_connection_broken, v1};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The endpoint is not a URL.
    #[error("failed to use the endpoint {endpoint}: expected a URL like http://127.0.0.1:4717")]
    Endpoint {
        endpoint: String,
        /// The transport's reason.
        #[source]
        source: tonic::transport::Error,
    },
    /// The endpoint has no scheme, or a scheme other than HTTP.
    #[error(
        "failed to use the endpoint {endpoint}: expected http:// or https:// at its beginning, like http://127.0.0.1:4717"
    )]
    Scheme { endpoint: String },
    /// The PEM files of TLS cannot be used.
    #[error("failed to use the certificates and key (PEM) for {endpoint}")]
    Tls {
        endpoint: String,
        /// The transport's reason.
        #[source]
        source: tonic::transport::Error,
    },
    /// The app key has characters that a header cannot have.
    #[error("failed to use the app key: expected visible ASCII only")]
    AppKey,
}

/// PEM files of a client of `https://`.
#[derive(Clone, Default)]
pub struct ClientTls {
    /// Certificates to check the collector's certificate against, in addition to the public ones.
    pub ca: Option<Vec<u8>>,
    /// The client's certificate with its chain, and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").finish_non_exhaustive()
    }
}

/// Returns a collector's endpoint. For `https://` the collector's certificate is checked against public certificates
/// and the certificates of `tls`. A call that takes longer than `deadline` has failed.
pub fn endpoint(url: &str, tls: &ClientTls, deadline: Duration) -> Result<Endpoint, ClientError> {
    let named = || url.to_owned();
    let made = Endpoint::from_shared(url.to_owned());
    let mut endpoint = made.map_err(|source| ClientError::Endpoint {
        endpoint: named(),
        source,
    })?;
    if !matches!(endpoint.uri().scheme_str(), Some("http" | "https")) {
        return Err(ClientError::Scheme { endpoint: named() });
    }
    if url.starts_with("https://") {
        let mut config = ClientTlsConfig::new().with_webpki_roots();
        if let Some(pem) = &tls.ca {
            config = config.ca_certificate(Certificate::from_pem(pem));
        }
        if let Some((certificate, key)) = &tls.identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        let secured = endpoint.tls_config(config);
        endpoint = secured.map_err(|source| ClientError::Tls {
            endpoint: named(),
            source,
        })?;
    }
    Ok(endpoint.timeout(deadline).tcp_nodelay(true))
}

/// A connection, and the key that is sent with each call.
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

    /// Sends the request with a new id. An answer with another id is an error.
    pub(crate) async fn upload(&self, request: &UploadRequest) -> Result<UploadResponse, Status> {
        let (request_id, n_reports) = (fastrand::u64(..), request.reports.len());
        let mut call = Request::new(v1::UploadRequest {
            request_id,
            ..request.into()
        });
        let authorization = self.authorization.clone();
        call.metadata_mut().insert("authorization", authorization);
        let response = self.service.clone().upload(call).await?.into_inner();
        let parsed = UploadResponse::try_from(response);
        parsed
            .and_then(|response| {
                response.check_answers(request_id, n_reports)?;
                Ok(response)
            })
            .map_err(|error| Status::internal(format!("bad answer: {error}")))
    }
}

/// Returns the SDK's kind of a failed call.
pub(crate) fn kind_of(status: &Status) -> UploadFailureKind {
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => UploadFailureKind::Unauthenticated,
        Code::ResourceExhausted => UploadFailureKind::PushedBack,
        _ if is_connection_broken(status) => UploadFailureKind::Unreachable,
        Code::DeadlineExceeded | Code::Cancelled => UploadFailureKind::Timeout,
        // A failure of the transport has a source error; a server's answer has none.
        Code::Unavailable if std::error::Error::source(status).is_some() => {
            UploadFailureKind::Unreachable
        }
        _ => UploadFailureKind::Server,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener};

    use epwatch_proto::{SendClock, tls_hint};

    use super::*;

    /// TLS's answer to bytes that are not a handshake: alert, fatal, `unexpected_message`.
    const ALERT: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 10];

    /// A port that expects TLS. It may end the connection at once, or read some of the call before.
    fn tls_port(reads: usize, is_alerted: bool) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let _ = stream.read_exact(&mut vec![0; reads]);
                if is_alerted {
                    let _ = stream.write_all(&ALERT);
                }
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
        url
    }

    fn lazy(url: &str, deadline: Duration) -> Channel {
        endpoint(url, &ClientTls::default(), deadline)
            .unwrap()
            .connect_lazy()
    }

    async fn failure(channel: Channel) -> Status {
        let request = UploadRequest {
            reports: Vec::new(),
            clock: SendClock::default(),
            sdk: epwatch_proto::samples::sdk(),
            held_directive_ids: Vec::new(),
            attestation: None,
            request_id: 0,
        };
        let client = Client::new(channel, "key").unwrap();
        client.upload(&request).await.unwrap_err()
    }

    /// The connection may break before, while or after the call is sent. The transport reports each case differently.
    #[tokio::test]
    async fn a_port_that_expects_tls_is_told_whatever_the_moment() {
        let max_wait = Duration::from_secs(60);
        for (reads, is_alerted) in [(0, false), (0, true), (1, false), (24, true), (40, true)] {
            for pause in [0, 1, 50] {
                let url = tls_port(reads, is_alerted);
                let made = endpoint(&url, &ClientTls::default(), max_wait)
                    .unwrap()
                    .connect()
                    .await;
                for channel in made.into_iter().chain([lazy(&url, max_wait)]) {
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                    let status = failure(channel).await;
                    assert!(tls_hint(&url, &status).is_some(), "{status:?}");
                    assert_eq!(kind_of(&status), UploadFailureKind::Unreachable);
                }
            }
        }
    }

    #[tokio::test]
    async fn a_port_that_is_closed_or_silent_is_not_one_of_tls() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let silent = failure(lazy(&url, Duration::from_millis(50))).await;
        assert_eq!(tls_hint(&url, &silent), None, "{silent:?}");
        assert_eq!(kind_of(&silent), UploadFailureKind::Timeout);
        drop(listener);
        let closed = failure(lazy(&url, Duration::from_secs(60))).await;
        assert_eq!(tls_hint(&url, &closed), None, "{closed:?}");
        assert_eq!(kind_of(&closed), UploadFailureKind::Unreachable);
    }
}
