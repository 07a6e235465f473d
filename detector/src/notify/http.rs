//! One request to a channel's address, and the meaning of its answer.
//!
//! `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` are read as curl reads them. Redirects are not followed, so
//! that a payload reaches no other address. Every notification opens its own connection, because the next one may be
//! hours later.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, PROXY_AUTHORIZATION, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::handshake;
use hyper::rt::{Read, Write};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use percent_encoding::percent_decode_str;
use rustls::ClientConfig;
use rustls::crypto::ring;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use tower_service::Service;
use url::{Position, Url};

use super::config::parse_url;
use super::error::NotifyError;
use super::expected::{Expected, ExpectedBody};

/// Time limit of one attempt.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of characters of a refusal that are kept.
const MAX_DETAIL_CHARS: usize = 300;

/// Bytes read of an answer: a character takes four at most.
const MAX_ANSWER_BYTES: usize = 4 * MAX_DETAIL_CHARS;

/// Largest document that is read: tens of thousands of alerts.
const MAX_DOCUMENT_BYTES: usize = 16 << 20;

type BoxError = Box<dyn Error + Send + Sync>;

/// Connects by TCP, and over TLS to an `https` address.
type Connector = HttpsConnector<HttpConnector>;

/// An address that takes notifications by POST.
pub(super) struct HttpChannel {
    name: String,
    route: Route,
    /// The request's target: a path, or the whole address if a proxy forwards the request.
    target: Uri,
    headers: HeaderMap,
    pub(super) timeout: Duration,
}

enum Route {
    /// Connects to this address: the channel's own, or the address of a proxy which forwards requests.
    Direct(Connector, Uri),
    /// Sends CONNECT to the proxy at this address, because only the two ends may read `https`.
    Tunnel(Box<HttpsConnector<Tunnel<Connector>>>, Uri),
}

/// Leaves the address out, because it may hold a secret.
impl fmt::Debug for HttpChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("HttpChannel");
        debug.field("name", &self.name).finish_non_exhaustive()
    }
}

impl HttpChannel {
    /// Prepares requests to `url`; nothing is sent. The error does not hold the address.
    pub(super) fn new(name: &str, url: &str) -> Result<Self, NotifyError> {
        let bad_address = || NotifyError::Address {
            channel: name.to_owned(),
        };
        let url = parse_url(url).ok_or_else(bad_address)?;
        let address = format!(
            "{}://{}",
            url.scheme(),
            &url[Position::BeforeHost..Position::AfterQuery]
        );
        let address: Uri = address.parse().map_err(|_| bad_address())?;
        let path = &url[Position::BeforePath..Position::AfterQuery];
        let mut target: Uri = path.parse().map_err(|_| bad_address())?;

        let host = &url[Position::BeforeHost..Position::AfterPort];
        let host = HeaderValue::try_from(host).map_err(|_| bad_address())?;
        let json = HeaderValue::from_static("application/json");
        let mut headers = HeaderMap::from_iter([(HOST, host), (CONTENT_TYPE, json)]);
        headers.extend(basic_auth(&url).map(|value| (AUTHORIZATION, value)));

        let tls = tls().map_err(|source| NotifyError::Unreachable {
            channel: name.to_owned(),
            source,
        })?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let connector = HttpsConnector::from((tcp, tls.clone()));
        let route = match Matcher::from_env().intercept(&address) {
            None => Route::Direct(connector, address),
            Some(proxy) if url.scheme() == "https" => {
                let mut tunnel = Tunnel::new(proxy.uri().clone(), connector);
                if let Some(auth) = proxy.basic_auth() {
                    tunnel = tunnel.with_auth(auth.clone());
                }
                Route::Tunnel(Box::new(HttpsConnector::from((tunnel, tls))), address)
            }
            Some(proxy) => {
                target = address;
                let auth = proxy.basic_auth().cloned();
                headers.extend(auth.map(|value| (PROXY_AUTHORIZATION, value)));
                Route::Direct(connector, proxy.uri().clone())
            }
        };
        Ok(Self {
            name: name.to_owned(),
            route,
            target,
            headers,
            timeout: TIMEOUT,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Posts JSON; only the expected answer means that it was delivered.
    pub(super) async fn post(
        &self,
        headers: HeaderMap,
        json: Vec<u8>,
        expected: &Expected,
    ) -> Result<(), NotifyError> {
        let mut request = self.request(Method::POST, json);
        request.headers_mut().extend(headers);
        let deadline = Instant::now() + self.timeout;
        let answer = self.answer(request, deadline, expected.is_taken).await?;
        let (response, _connection) = answer;
        if matches!(expected.body, ExpectedBody::Any) {
            return Ok(());
        }
        let status = response.status().as_u16();
        let kind = response.headers().get(CONTENT_TYPE).cloned();
        let text = timeout_at(deadline, beginning(response.into_body())).await;
        let text = text.unwrap_or_else(|elapsed| Err(elapsed.into()));
        let text = text.map_err(|source| self.unreachable(source))?;
        match expected.body.lack(kind.as_ref(), &text) {
            None => Ok(()),
            Some(lack) => Err(NotifyError::Unexpected {
                channel: self.name.clone(),
                status,
                lack,
                detail: text.chars().take(MAX_DETAIL_CHARS).collect(),
            }),
        }
    }

    /// Reads a document of at most some megabytes.
    pub(super) async fn get(&self) -> Result<Bytes, NotifyError> {
        let request = self.request(Method::GET, Vec::new());
        let deadline = Instant::now() + self.timeout;
        let is_taken = |status: StatusCode| status == StatusCode::OK;
        let (response, _connection) = self.answer(request, deadline, is_taken).await?;
        let body = Limited::new(response.into_body(), MAX_DOCUMENT_BYTES);
        let read = timeout_at(deadline, body.collect()).await;
        let read = read.unwrap_or_else(|elapsed| Err(elapsed.into()));
        let read = read.map_err(|source| self.unreachable(source))?;
        Ok(read.to_bytes())
    }

    /// Deletes what is at the address; it may be gone already.
    pub(super) async fn delete(&self) -> Result<(), NotifyError> {
        let request = self.request(Method::DELETE, Vec::new());
        let deadline = Instant::now() + self.timeout;
        let is_gone = |status| matches!(status, StatusCode::OK | StatusCode::NOT_FOUND);
        self.answer(request, deadline, is_gone).await.map(drop)
    }

    fn request(&self, method: Method, body: Vec<u8>) -> Request<Full<Bytes>> {
        let request = Request::builder().method(method).uri(self.target.clone());
        let request = request.body(Full::from(body));
        let mut request = request.expect("method and target are valid");
        request.headers_mut().extend(self.headers.clone());
        request
    }

    fn unreachable(&self, source: BoxError) -> NotifyError {
        let channel = self.name.clone();
        NotifyError::Unreachable { channel, source }
    }

    async fn answer(
        &self,
        request: Request<Full<Bytes>>,
        deadline: Instant,
        is_taken: fn(StatusCode) -> bool,
    ) -> Result<OpenResponse, NotifyError> {
        let sent = timeout_at(deadline, self.route.send(request)).await;
        let sent = sent.unwrap_or_else(|elapsed| Err(elapsed.into()));
        let (response, connection) = sent.map_err(|source| self.unreachable(source))?;
        let status = response.status();
        if is_taken(status) {
            return Ok((response, connection));
        }
        let channel = self.name.clone();
        let again = status.is_server_error()
            || matches!(
                status,
                StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS
            );
        if again {
            let after = response.headers().get(RETRY_AFTER);
            let after = after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
            return Err(NotifyError::Busy {
                channel,
                status: status.as_u16(),
                after: after.map(Duration::from_secs),
            });
        }
        let answer = timeout_at(deadline, beginning(response.into_body())).await;
        let answer = answer.map(Result::unwrap_or_default).unwrap_or_default();
        Err(NotifyError::Refused {
            channel,
            status: status.as_u16(),
            detail: answer.chars().take(MAX_DETAIL_CHARS).collect(),
        })
    }
}

/// Returns user and password of an address as a header.
fn basic_auth(url: &Url) -> Option<HeaderValue> {
    let password = url.password().unwrap_or_default();
    if url.username().is_empty() && password.is_empty() {
        return None;
    }
    let decoded = |text| percent_decode_str(text).decode_utf8_lossy();
    let pair = format!("{}:{}", decoded(url.username()), decoded(password));
    let value = format!("Basic {}", BASE64_STANDARD.encode(pair));
    let mut value = HeaderValue::try_from(value).expect("base64 is a header's text");
    value.set_sensitive(true);
    Some(value)
}

/// Trusts the system's certificate authorities, because an Alertmanager often has a certificate from its company.
fn tls() -> Result<ClientConfig, BoxError> {
    let builder = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()?;
    Ok(builder.with_native_roots()?.with_no_client_auth())
}

/// An answer, and the connection from which its body is still read.
type OpenResponse = (Response<Incoming>, AbortOnDropHandle<hyper::Result<()>>);

impl Route {
    async fn send(&self, request: Request<Full<Bytes>>) -> Result<OpenResponse, BoxError> {
        match self {
            Self::Direct(connector, to) => exchange(connect(connector, to).await?, request).await,
            Self::Tunnel(connector, to) => {
                exchange(connect(&**connector, to).await?, request).await
            }
        }
    }
}

async fn connect<C: Service<Uri> + Clone>(
    connector: &C,
    to: &Uri,
) -> Result<C::Response, C::Error> {
    let mut connector = connector.clone();
    poll_fn(|context| connector.poll_ready(context)).await?;
    connector.call(to.clone()).await
}

async fn exchange(
    stream: impl Read + Write + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<OpenResponse, BoxError> {
    let (mut sender, connection) = handshake(stream).await?;
    let connection = AbortOnDropHandle::new(tokio::spawn(connection));
    Ok((sender.send_request(request).await?, connection))
}

/// Returns the beginning of an answer's text.
async fn beginning(mut body: Incoming) -> Result<String, BoxError> {
    let mut answer = Vec::new();
    while answer.len() < MAX_ANSWER_BYTES
        && let Some(frame) = body.frame().await
    {
        answer.extend(frame?.into_data().unwrap_or_default());
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
