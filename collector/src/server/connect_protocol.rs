//! Unary calls of the Connect protocol: HTTP POST of the encoded message, for clients without access to gRPC's trailers.
//! Errors are JSON with an HTTP status.
//!
//! Supported: `application/proto`, `Connect-Protocol-Version`, `Connect-Timeout-Ms`, `Content-Encoding`, error codes
//! with their HTTP statuses, details. The JSON codec and GET calls are refused as the protocol requires.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use prost::Message;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::body::{Arriving, CollectError, collect};
use super::decompress::Encoding;
use super::retry;

const PROTO: &str = "application/proto";
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const VERSION: HeaderName = HeaderName::from_static("connect-protocol-version");
const TIMEOUT: HeaderName = HeaderName::from_static("connect-timeout-ms");
const ACCEPT_POST: HeaderName = HeaderName::from_static("accept-post");

pub(crate) type ConnectAnswer = Response<Full<Bytes>>;

/// A decoded call with its timeout.
pub(crate) struct ConnectCall<M> {
    pub(crate) request: tonic::Request<M>,
    pub(crate) timeout: Option<Duration>,
}

/// Refuses a call by its method and headers, before its body is read.
pub(crate) fn check_head(method: &Method, headers: &HeaderMap) -> Result<(), Box<ConnectAnswer>> {
    if method != Method::POST {
        let mut answer = refuse(
            StatusCode::METHOD_NOT_ALLOWED,
            &Status::unimplemented("calls are POST"),
        );
        let allow = HeaderValue::from_static("POST");
        answer.headers_mut().insert(header::ALLOW, allow);
        return Err(Box::new(answer));
    }
    let content_type = headers.get(header::CONTENT_TYPE);
    let media_type = content_type
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .map(str::trim);
    if !media_type.is_some_and(|found| found.eq_ignore_ascii_case(PROTO)) {
        let text = "expected content-type application/proto or application/grpc";
        let mut answer = refuse(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            &Status::invalid_argument(text),
        );
        let accepted = HeaderValue::from_static(PROTO);
        answer.headers_mut().insert(ACCEPT_POST, accepted);
        return Err(Box::new(answer));
    }
    if let Some(version) = headers.get(VERSION)
        && version != "1"
    {
        let text = "connect-protocol-version: expected 1";
        return Err(Box::new(error(&Status::invalid_argument(text))));
    }
    Ok(())
}

/// Reads a call.
pub(crate) async fn read<M: Message + Default>(
    request: Request<()>,
    body: Arriving,
    max_bytes: usize,
) -> Result<ConnectCall<M>, Box<ConnectAnswer>> {
    let (parts, ()) = request.into_parts();
    let timeout = timeout_of(&parts.headers).map_err(|e| Box::new(error(&e)))?;
    let encoding = parts.headers.get(header::CONTENT_ENCODING);
    let encoding = encoding.map_or(Ok(""), |v| v.to_str()).unwrap_or("?");
    let Ok(encoding) = Encoding::parse(encoding) else {
        let text = format!("content-encoding: expected one of {}", Encoding::NAMES);
        let mut answer = error(&Status::unimplemented(text));
        let accepted = HeaderValue::from_static(Encoding::NAMES);
        answer
            .headers_mut()
            .insert(header::ACCEPT_ENCODING, accepted);
        return Err(Box::new(answer));
    };
    let charge = body.charge();
    let body = match collect(body, max_bytes).await {
        Ok(body) => body,
        Err(CollectError::Failed(status)) => return Err(Box::new(error(&status))),
        Err(CollectError::TooLarge) => {
            let text = format!("request exceeds {max_bytes} bytes");
            let mut answer = refuse(StatusCode::PAYLOAD_TOO_LARGE, &Status::out_of_range(text));
            // The rest of the body is not read, so the connection closes.
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(header::CONNECTION, close);
            return Err(Box::new(answer));
        }
    };
    let body = match encoding {
        None => body,
        Some(encoding) => charge
            .inflate(encoding, body, max_bytes)
            .await
            .map_err(|status| Box::new(error(&status)))?,
    };
    let message = M::decode(body).map_err(|e| {
        let text = format!("request is not a valid protobuf message: {e}");
        Box::new(error(&Status::invalid_argument(text)))
    })?;
    let metadata = MetadataMap::from_headers(parts.headers);
    let request = tonic::Request::from_parts(metadata, parts.extensions, message);
    Ok(ConnectCall { request, timeout })
}

/// Reads the timeout, which the protocol limits to ten digits.
fn timeout_of(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    let Some(value) = headers.get(TIMEOUT) else {
        return Ok(None);
    };
    let is_sound = |text: &&str| {
        (1..=10).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_digit())
    };
    let millis = value.to_str().ok().filter(is_sound);
    let millis = millis.and_then(|text| text.parse().ok());
    match millis {
        Some(millis) => Ok(Some(Duration::from_millis(millis))),
        None => Err(Status::invalid_argument(
            "connect-timeout-ms: expected up to ten digits",
        )),
    }
}

pub(crate) fn answer<M: Message>(outcome: Result<tonic::Response<M>, Status>) -> ConnectAnswer {
    match outcome {
        Ok(response) => {
            let body = response.into_inner().encode_to_vec();
            let mut answer = Response::new(Full::new(body.into()));
            let proto = HeaderValue::from_static(PROTO);
            answer.headers_mut().insert(header::CONTENT_TYPE, proto);
            answer
        }
        Err(status) => error(&status),
    }
}

/// An error with the HTTP status of its code.
pub(crate) fn error(status: &Status) -> ConnectAnswer {
    let (_, http) = connect_code(status.code());
    let http = StatusCode::from_u16(http).expect("three digits");
    refuse(http, status)
}

/// An error with another HTTP status.
pub(crate) fn refuse(http: StatusCode, status: &Status) -> ConnectAnswer {
    let mut document = serde_json::json!({
        "code": connect_code(status.code()).0,
        "message": status.message(),
    });
    let delay = retry::delay_of(status);
    if let Some(delay) = delay {
        document["details"] = serde_json::json!([{
            "type": "google.rpc.RetryInfo",
            "value": STANDARD_NO_PAD.encode(retry::retry_info(delay)),
        }]);
    }
    let mut answer = Response::new(Full::new(Bytes::from(document.to_string())));
    *answer.status_mut() = http;
    // Sets the status as an extension, as tonic does, because refusals are counted by it.
    answer.extensions_mut().insert(status.clone());
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, JSON);
    if let Some(delay) = delay {
        // Whole seconds, rounded up.
        let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

/// The protocol's name and HTTP status of a code, by the table of its specification.
fn connect_code(code: Code) -> (&'static str, u16) {
    match code {
        // An error with the code `Ok` is a mistake of ours.
        Code::Ok | Code::Unknown => ("unknown", 500),
        Code::Cancelled => ("canceled", 499),
        Code::InvalidArgument => ("invalid_argument", 400),
        Code::DeadlineExceeded => ("deadline_exceeded", 504),
        Code::NotFound => ("not_found", 404),
        Code::AlreadyExists => ("already_exists", 409),
        Code::PermissionDenied => ("permission_denied", 403),
        Code::ResourceExhausted => ("resource_exhausted", 429),
        Code::FailedPrecondition => ("failed_precondition", 400),
        Code::Aborted => ("aborted", 409),
        Code::OutOfRange => ("out_of_range", 400),
        Code::Unimplemented => ("unimplemented", 501),
        Code::Internal => ("internal", 500),
        Code::Unavailable => ("unavailable", 503),
        Code::DataLoss => ("data_loss", 500),
        Code::Unauthenticated => ("unauthenticated", 401),
    }
}
