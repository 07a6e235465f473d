//! Routes a request by its protocol: `application/grpc` to tonic, anything else to the Connect protocol. Both call the
//! same four functions. No byte of a body is kept, inflated or decoded before the call's key is checked.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use epwatch_proto::v1::collector_service_server::{CollectorService, CollectorServiceServer};
use futures::FutureExt;
use futures::future::Either;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode, Version};
use tonic::codec::CompressionEncoding;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower_service::Service;

use super::body::{Arriving, BodyBudget, Charge, CollectError, RequestBody, collect};
use super::connect_protocol::{self, ConnectAnswer};
use super::decompress::Encoding;
use super::reject_reason::RejectReason;
use crate::admission::Network;
use crate::ingest::auth::{AppKeys, Caller};
use crate::metrics::Metrics;

const GRPC: &str = "application/grpc";
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// The bytes of the flag and the length before each gRPC message.
const FRAME_BYTES: usize = 5;

/// The body of any answer.
pub(crate) type AnswerBody = http_body_util::Either<tonic::body::Body, Full<Bytes>>;

/// The collector's calls behind both protocols.
#[derive(Debug)]
pub(crate) struct Dispatch<S> {
    calls: Arc<S>,
    grpc: CollectorServiceServer<S>,
    keys: Arc<AppKeys>,
    metrics: Arc<Metrics>,
    max_bytes: usize,
    body_timeout: Duration,
    budget: Arc<BodyBudget>,
}

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestOrigin {
    pub(crate) network: Option<Network>,
    /// The peer's address, if it is a private one.
    pub(crate) private_peer: Option<IpAddr>,
    /// Whether the client of the connection presented a certificate of `tls.client_ca`.
    pub(crate) has_certificate: bool,
}

impl<S: CollectorService> Dispatch<S> {
    pub(crate) fn new(
        calls: S,
        keys: Arc<AppKeys>,
        metrics: Arc<Metrics>,
        max_bytes: usize,
        body_timeout: Duration,
        budget: Arc<BodyBudget>,
    ) -> Self {
        let calls = Arc::new(calls);
        // Messages are inflated before tonic gets them. The two encodings are set only for tonic's answer header.
        let grpc = CollectorServiceServer::from_arc(calls.clone())
            .max_decoding_message_size(max_bytes)
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Zstd);
        Self {
            calls,
            grpc,
            keys,
            metrics,
            max_bytes,
            body_timeout,
            budget,
        }
    }

    /// Answers a request. The most frequent kind, an uncompressed gRPC call, goes to tonic directly. Hundreds of calls
    /// wait for their ack, and the state of all of them must fit the caches.
    pub(crate) fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        origin: RequestOrigin,
    ) -> impl Future<Output = Response<AnswerBody>> {
        self.metrics.requests.inc();
        let charge = Charge::new(self.budget.clone());
        let (mut head, body) = request.into_parts();
        let admitted = self.admit(&mut head, origin);
        // The charge lasts until the answer is made, which is as long as the decoded message lives.
        let body = Arriving::new(body, charge.clone(), self.body_timeout);
        let body = match head.version < Version::HTTP_2 {
            true => body.drained(self.max_bytes),
            false => body,
        };
        if is_grpc(&head.headers)
            && admitted.is_ok()
            && !head.headers.contains_key(&GRPC_ENCODING)
            && let Ok(timeout) = grpc_timeout(&head.headers)
        {
            let request = Request::from_parts(head, RequestBody::Left(body));
            let calling = within(timeout, self.grpc.clone().call(request));
            let under_way = UnderWay::new(self, charge);
            return Either::Left(calling.map(move |answer| {
                let mut answer = answer.map_or_else(Status::into_http, sent);
                under_way.end(&mut answer);
                answer.map(AnswerBody::Left)
            }));
        }
        let request = Request::from_parts(head, body);
        let under_way = UnderWay::new(self, charge);
        Either::Right(Box::pin(async move {
            let answering = under_way.dispatch.answer_other(request, admitted);
            let mut answer = answering.await;
            under_way.end(&mut answer);
            answer
        }))
    }

    /// Checks the call's key and adds its scope to the request.
    fn admit(&self, head: &mut Parts, origin: RequestOrigin) -> Result<(), Status> {
        let scope = self.keys.prove(&head.headers, origin.has_certificate)?;
        let call = head.uri.path().rsplit('/').next().unwrap_or("");
        scope.may_call(call)?;
        head.extensions.insert(Caller {
            scope,
            network: origin.network,
            private_peer: origin.private_peer,
        });
        Ok(())
    }

    async fn answer_other(
        &self,
        request: Request<Arriving>,
        admitted: Result<(), Status>,
    ) -> Response<AnswerBody> {
        if is_grpc(request.headers()) {
            let answer = match admitted {
                Ok(()) => self.answer_grpc(request).await,
                Err(status) => status.into_http(),
            };
            return answer.map(AnswerBody::Left);
        }
        let (head, body) = request.into_parts();
        let request = Request::from_parts(head, ());
        let answer = self.answer_connect(request, body, admitted).await;
        answer.map(AnswerBody::Right)
    }

    async fn answer_grpc(&self, request: Request<Arriving>) -> Response<tonic::body::Body> {
        let timeout = match grpc_timeout(request.headers()) {
            Ok(timeout) => timeout,
            Err(status) => return status.into_http(),
        };
        let calling = async {
            match self.inflated(request).await {
                Ok(request) => sent(self.grpc.clone().call(request).await),
                Err(status) => status.into_http(),
            }
        };
        within(timeout, calling)
            .await
            .unwrap_or_else(|status| status.into_http())
    }

    /// Replaces a compressed message by the inflated one. tonic limits the size, but not the ratio.
    async fn inflated(&self, request: Request<Arriving>) -> Result<Request<RequestBody>, Status> {
        let (mut head, body) = request.into_parts();
        let name = head.headers.get(GRPC_ENCODING);
        let name = name.map_or(Ok(""), |v| v.to_str()).unwrap_or("?");
        let Ok(Some(encoding)) = Encoding::parse(name) else {
            // tonic refuses an unknown encoding with the list that the protocol requires.
            return Ok(Request::from_parts(head, RequestBody::Left(body)));
        };
        let max_bytes = self.max_bytes;
        let too_large = || Status::out_of_range(format!("request exceeds {max_bytes} bytes"));
        let charge = body.charge();
        let body = collect(body, max_bytes + FRAME_BYTES).await;
        let body = body.map_err(|error| match error {
            CollectError::TooLarge => too_large(),
            CollectError::Failed(status) => status,
        })?;
        head.headers.remove(GRPC_ENCODING);
        let reframed = reframed(encoding, &body, charge, max_bytes).await?;
        let body = reframed.unwrap_or(body);
        let body = RequestBody::Right(Full::new(body));
        Ok(Request::from_parts(head, body))
    }

    async fn answer_connect(
        &self,
        request: Request<()>,
        body: Arriving,
        admitted: Result<(), Status>,
    ) -> ConnectAnswer {
        let path = request.uri().path();
        let method = path
            .strip_prefix('/')
            .and_then(|path| path.strip_prefix(CollectorServiceServer::<S>::NAME))
            .and_then(|path| path.strip_prefix('/'));
        macro_rules! call {
            ($method:ident) => {{
                if let Err(refusal) =
                    connect_protocol::check_head(request.method(), request.headers())
                {
                    return *refusal;
                }
                if let Err(status) = admitted {
                    return connect_protocol::error(&status);
                }
                match connect_protocol::read(request, body, self.max_bytes).await {
                    Ok(call) => {
                        let calling = self.calls.$method(call.request);
                        let outcome = within(call.timeout, calling).await;
                        connect_protocol::answer(outcome.unwrap_or_else(Err))
                    }
                    Err(refusal) => *refusal,
                }
            }};
        }
        match method {
            Some("Upload") => call!(upload),
            Some("DeleteInstallation") => call!(delete_installation),
            Some("PutModelManifest") => call!(put_model_manifest),
            Some("PutCertifiedPlacement") => call!(put_certified_placement),
            _ => {
                let status = Status::unimplemented("no such call");
                connect_protocol::refuse(StatusCode::NOT_FOUND, &status)
            }
        }
    }
}

/// A call that has no answer yet. If it is dropped in this state, the client disconnected.
struct UnderWay<S> {
    dispatch: Arc<Dispatch<S>>,
    charge: Arc<Charge>,
    has_answer: bool,
}

impl<S> UnderWay<S> {
    fn new(dispatch: Arc<Dispatch<S>>, charge: Arc<Charge>) -> Self {
        Self {
            dispatch,
            charge,
            has_answer: false,
        }
    }

    /// Counts the call if the answer is a refusal, whose status is an extension of the answer.
    fn end<B>(mut self, answer: &mut Response<B>) {
        self.has_answer = true;
        if self.charge.is_rest_left() {
            // Otherwise hyper reads the next head before this answer is written, which it does not support.
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(header::CONNECTION, close);
        }
        // A gRPC call that succeeds has its status in the trailers.
        if answer.status() == StatusCode::OK && !answer.headers().contains_key(Status::GRPC_STATUS)
        {
            return;
        }
        let reason = match answer.extensions().get::<Status>() {
            _ if self.charge.is_cut() => RejectReason::Cancelled,
            Some(status) => RejectReason::of(status),
            // tonic answers an unknown call with a header only, without this extension.
            None => RejectReason::Unsupported,
        };
        self.dispatch.metrics.count_refusal(reason);
    }
}

impl<S> Drop for UnderWay<S> {
    fn drop(&mut self) {
        if !self.has_answer {
            let metrics = &self.dispatch.metrics;
            metrics.count_refusal(RejectReason::Cancelled);
        }
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE);
    content_type.is_some_and(|t| t.as_bytes().starts_with(GRPC.as_bytes()))
}

/// tonic's service never fails.
fn sent<T>(answer: Result<T, Infallible>) -> T {
    match answer {
        Ok(answer) => answer,
        Err(never) => match never {},
    }
}

/// Runs a call within its client's timeout.
async fn within<T>(
    timeout: Option<Duration>,
    calling: impl Future<Output = T>,
) -> Result<T, Status> {
    match timeout {
        None => Ok(calling.await),
        Some(limit) => tokio::time::timeout(limit, calling)
            .await
            .map_err(|_| Status::new(Code::DeadlineExceeded, "the call's timeout has passed")),
    }
}

/// Inflates the message of a unary call; `None` if its flag is 0, uncompressed. tonic refuses an invalid frame.
async fn reframed(
    encoding: Encoding,
    body: &Bytes,
    charge: Arc<Charge>,
    max_bytes: usize,
) -> Result<Option<Bytes>, Status> {
    let Some((frame, message)) = body.split_first_chunk::<FRAME_BYTES>() else {
        return Ok(None);
    };
    let [flag, length @ ..] = *frame;
    if flag != 1 || u32::from_be_bytes(length) as usize != message.len() {
        return match flag {
            0 => Ok(None),
            _ => Err(Status::invalid_argument("expected one gRPC message frame")),
        };
    }
    let message = body.slice_ref(message);
    let message = charge.inflate(encoding, message, max_bytes).await?;
    let mut out = BytesMut::with_capacity(FRAME_BYTES + message.len());
    out.put_u8(0);
    out.put_u32(u32::try_from(message.len()).expect("bounded by max_bytes"));
    out.put(message);
    Ok(Some(out.freeze()))
}

/// Reads `grpc-timeout`: up to eight digits and a unit.
fn grpc_timeout(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    let Some(value) = headers.get(GRPC_TIMEOUT) else {
        return Ok(None);
    };
    let wrong = || Status::invalid_argument("grpc-timeout: expected digits and one of H M S m u n");
    let text = value.to_str().map_err(|_| wrong())?;
    let (digits, unit) = text
        .split_at_checked(text.len().saturating_sub(1))
        .ok_or_else(wrong)?;
    let is_sound = (1..=8).contains(&digits.len()) && digits.bytes().all(|c| c.is_ascii_digit());
    let n: u64 = digits.parse().ok().filter(|_| is_sound).ok_or_else(wrong)?;
    Ok(Some(match unit {
        "H" => Duration::from_secs(n * 3_600),
        "M" => Duration::from_secs(n * 60),
        "S" => Duration::from_secs(n),
        "m" => Duration::from_millis(n),
        "u" => Duration::from_micros(n),
        "n" => Duration::from_nanos(n),
        _ => return Err(wrong()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_timeouts_are_read_and_nonsense_is_refused() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(GRPC_TIMEOUT, text.parse().unwrap());
            grpc_timeout(&headers).ok().flatten()
        };
        assert_eq!(read("100m"), Some(Duration::from_millis(100)));
        assert_eq!(
            read("99999999H"),
            Some(Duration::from_secs(99_999_999 * 3_600))
        );
        for nonsense in ["", "m", "100", "100x", "123456789S", "-1S", "1 S"] {
            assert_eq!(read(nonsense), None, "{nonsense}");
        }
    }
}
