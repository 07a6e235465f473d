//! ClickHouse's HTTP protocol over the engine, in the form that the `clickhouse` crate uses.
//!
//! The query is in the URL, the body, or a form. Rows of an INSERT are in the body, plain or in LZ4 frames. An answer
//! is never compressed, because it does not leave the machine. An error before the first bytes is sent as a status with
//! `X-ClickHouse-Exception-Code`. A later error is sent as ClickHouse's tagged trailer, and the connection breaks. So
//! no client takes the rows so far for the whole result.
//!
//! The Unix socket accepts every request, because its file mode controls the access. The service for readers checks
//! each request first.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::format;
use super::frame::FrameDecoder;
use super::reader::{self, ReaderAccess};
use super::request::{MAX_QUERY_BYTES, Parameters, RequestError, form_boundary};
use super::statement::{self, Kind};
use crate::embedded::binding::Stats;
use crate::embedded::engine::{Head, Input, Job, JobChannels, KillOnDrop, RunningEngine};
use crate::native::reframe::Reframer;

/// How long a request waits for its turn when all slots run statements.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// Waiting requests for each slot, beyond which requests are refused at once.
const QUEUE_PER_SLOT: usize = 8;

/// Number of chunks in flight between engine and client; each has at most one block of rows.
const CHANNEL_CHUNKS: usize = 4;

/// A query that is too long is still read to its end up to this length. A client that is still writing when the
/// connection closes may never read the answer.
const MAX_DISCARDED_BYTES: usize = 16 * MAX_QUERY_BYTES;

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Answers requests, with a bounded number of concurrent statements.
pub(crate) struct Service {
    engine: Arc<RunningEngine>,
    slots: Arc<Semaphore>,
    queue: Arc<Semaphore>,
    /// The most memory that the engine's process may use; readers get a part of it.
    memory_bytes: u64,
    /// Access of readers with a password; `None` for the socket, whose file mode controls the access.
    pub(crate) readers: Option<ReaderAccess>,
}

/// An error, in the form that the client gets.
struct Failure(String);

impl<E: ToString> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure(error.to_string())
    }
}

impl Service {
    pub(crate) fn new(
        engine: Arc<RunningEngine>,
        n_slots: usize,
        memory_bytes: u64,
        readers: Option<ReaderAccess>,
    ) -> Service {
        Service {
            engine,
            memory_bytes,
            slots: Arc::new(Semaphore::new(n_slots)),
            queue: Arc::new(Semaphore::new(n_slots * (1 + QUEUE_PER_SLOT))),
            readers,
        }
    }

    /// Answers one request.
    pub(crate) async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let (parts, body) = request.into_parts();
        if self.readers.is_some()
            && let Err(refusal) = ReaderAccess::check_host(&parts.headers)
        {
            return Ok(self.refusal(&refusal.into()));
        }
        match parts.uri.path() {
            "/" => {}
            "/ping" => return Ok(plain(StatusCode::OK, "Ok.\n")),
            _ => return Ok(plain(StatusCode::NOT_FOUND, "There is no such handler.\n")),
        }
        let url = parts.uri.query().unwrap_or_default();
        let answer = self.query(&parts.method, &parts.headers, url, body).await;
        Ok(answer.unwrap_or_else(|failure| self.refusal(&failure)))
    }

    async fn query(
        &self,
        method: &Method,
        headers: &HeaderMap,
        url: &str,
        mut body: Incoming,
    ) -> Result<Response<Body>, Failure> {
        let mut parameters = Parameters::from_url(url)?;
        match &self.readers {
            // The body is read after this check, so that a sender without the password takes no memory.
            Some(readers) => readers.check_password(headers, &parameters)?,
            None => parameters.check_no_session()?,
        }
        if parameters.query.len() > MAX_QUERY_BYTES {
            return Err(RequestError::TooLarge.into());
        }
        let mut decoder = Decoder::new(headers, parameters.decompress)?;
        let content_type = header_text(headers, &header::CONTENT_TYPE);
        let mut inline_rows = None;
        let mut kind = None;
        if !parameters.query.is_empty() {
            kind = Some(read_statement(&parameters.query)?);
        }
        if !matches!(kind, Some(Kind::InsertRows { .. })) {
            let text = decoder.read_text(&mut body).await?;
            if let Some(boundary) = form_boundary(content_type) {
                parameters.put_form(&text, boundary)?;
            } else {
                parameters.query.push_str(&text);
            }
            let read = read_statement(&parameters.query)?;
            if let Kind::InsertRows { data_at, .. } = read {
                inline_rows = Some(parameters.query.split_off(data_at));
            }
            kind = Some(read);
        }
        let kind = kind.expect("read from the URL or the body");
        if self.readers.is_some() {
            reader::check_statement(&parameters.query, &kind)?;
            reader::restrict(&mut parameters.settings, self.memory_bytes)?;
        } else if method == Method::GET {
            parameters.settings.push(("readonly".into(), "2".into()));
        }
        let format = match statement::output_format(&parameters.query) {
            Some(format) if !matches!(kind, Kind::InsertRows { .. }) => format.to_owned(),
            _ => parameters
                .default_format
                .take()
                .unwrap_or_else(|| "TabSeparated".into()),
        };
        let takes_rows = matches!(kind, Kind::InsertRows { .. });
        let job = Job {
            sql: parameters.query,
            kind,
            format: format.clone(),
            params: parameters.query_params,
            settings: parameters.settings,
            database: parameters.database,
        };

        let native = (format == "Native")
            .then(|| Reframer::new(parameters.protocol_version))
            .flatten();
        let permit = self.slot().await?;
        let (input_tx, input) = mpsc::channel(CHANNEL_CHUNKS);
        let rows = match (takes_rows, inline_rows) {
            (false, _) => None,
            (true, Some(rows)) => Some(Rows::Inline(rows)),
            (true, None) => Some(Rows::Body(body, decoder)),
        };
        if let Some(rows) = rows {
            tokio::spawn(rows.feed(input_tx));
        }
        let shape = Shape {
            format,
            query_id: parameters.query_id.unwrap_or_default(),
            native,
        };
        self.answer(job, input, permit, shape).await
    }

    /// Waits for a slot. If the queue is full, refuses at once.
    async fn slot(&self) -> Result<(OwnedSemaphorePermit, OwnedSemaphorePermit), Failure> {
        let busy = "Code: 202. DB::Exception: too many simultaneous queries; retry later. \
                    (TOO_MANY_SIMULTANEOUS_QUERIES)";
        let queued = self.queue.clone().try_acquire_owned().map_err(|_| busy)?;
        let slot = self.slots.clone().acquire_owned();
        match tokio::time::timeout(QUEUE_TIMEOUT, slot).await {
            Ok(Ok(slot)) => Ok((slot, queued)),
            _ => Err(busy.into()),
        }
    }

    async fn answer(
        &self,
        job: Job,
        input: mpsc::Receiver<Input>,
        permit: (OwnedSemaphorePermit, OwnedSemaphorePermit),
        shape: Shape,
    ) -> Result<Response<Body>, Failure> {
        let (head_tx, head) = oneshot::channel();
        let (rest_tx, rest) = mpsc::channel(CHANNEL_CHUNKS);
        let ticket = self.engine.ticket();
        // The guard is dropped with this future or with the body when the client leaves.
        let mut guard = KillOnDrop::new(self.engine.clone(), ticket.clone());
        let engine = self.engine.clone();
        tokio::task::spawn_blocking(move || {
            let channels = JobChannels {
                head: head_tx,
                rest: rest_tx,
                input,
            };
            engine.run(&job, &ticket, channels);
            drop(permit);
        });
        let head = head.await.map_err(|_| {
            "Code: 1002. DB::Exception: the statement's thread ended early. (UNKNOWN_EXCEPTION)"
        });
        let head: Head = match head {
            Ok(Ok(head)) => head,
            Ok(Err(text)) => {
                guard.disarm();
                return Err(text.into());
            }
            Err(text) => return Err(text.into()),
        };
        let tag = exception_tag();
        let Shape {
            format,
            query_id,
            mut native,
        } = shape;
        let mut first = head.first;
        if let Some(native) = &mut native {
            first = native.push(&first)?.into();
            if head.complete {
                native.finish()?;
            }
        }
        let response = Response::builder()
            .header(header::CONTENT_TYPE, format::content_type(&format))
            .header("X-ClickHouse-Query-Id", query_id)
            .header("X-ClickHouse-Format", &format)
            .header("X-ClickHouse-Timezone", "UTC")
            .header("X-ClickHouse-Exception-Tag", &tag)
            .header("X-ClickHouse-Summary", summary(&head.stats));
        let body = if head.complete {
            guard.disarm();
            full(first)
        } else {
            streamed(first, rest, native, guard, tag)
        };
        // The format's name comes from the request. A name that cannot be a header value is refused here.
        response.body(body).map_err(|_| {
            "Code: 73. DB::Exception: the format's name is not plain text. (UNKNOWN_FORMAT)".into()
        })
    }

    fn refusal(&self, failure: &Failure) -> Response<Body> {
        let code = code_of(&failure.0);
        let text = failure.0.trim_end();
        let version = match text.contains("(version ") {
            true => String::new(),
            false => format!(" (version {})", self.engine.version()),
        };
        let mut response = plain(status_of(code), format!("{text}{version}\n"));
        let headers = response.headers_mut();
        headers.insert("X-ClickHouse-Exception-Code", code.into());
        if code == 194 {
            let basic = header::HeaderValue::from_static("Basic realm=\"epwatch\"");
            headers.insert(header::WWW_AUTHENTICATE, basic);
        }
        response
    }
}

/// The form of an answer.
struct Shape {
    format: String,
    query_id: String,
    /// Rewrites Native blocks for the client's revision.
    native: Option<Reframer>,
}

/// The rows of an INSERT, in the query's text or in the body.
enum Rows {
    Inline(String),
    Body(Incoming, Decoder),
}

impl Rows {
    async fn feed(self, input: mpsc::Sender<Input>) {
        // A send fails if the engine refused the INSERT. The rest of the body is read anyway, so that the client
        // reads the reason.
        match self {
            Rows::Inline(rows) => {
                let _ = input.send(Input::Rows(rows.into())).await;
                let _ = input.send(Input::End).await;
            }
            Rows::Body(mut body, mut decoder) => loop {
                match decoder.next_piece(&mut body).await {
                    Ok(Some(rows)) => drop(input.send(Input::Rows(rows)).await),
                    Ok(None) => {
                        let _ = input.send(Input::End).await;
                        return;
                    }
                    Err(failure) => {
                        let _ = input.send(Input::Failed(failure.0)).await;
                        return;
                    }
                }
            },
        }
    }
}

/// Reads a request's body, unpacked.
struct Decoder {
    frames: Option<FrameDecoder>,
}

impl Decoder {
    fn new(headers: &HeaderMap, decompress: bool) -> Result<Decoder, Failure> {
        let encoding = header_text(headers, &header::CONTENT_ENCODING);
        if !["", "identity"].contains(&encoding) {
            return Err(format!(
                "Code: 89. DB::Exception: body has Content-Encoding {encoding:?}, expected none \
                 or decompress=1 with LZ4 frames. (UNKNOWN_COMPRESSION_METHOD)"
            )
            .into());
        }
        Ok(Decoder {
            frames: decompress.then(FrameDecoder::default),
        })
    }

    async fn next_piece(&mut self, body: &mut Incoming) -> Result<Option<Bytes>, Failure> {
        loop {
            if let Some(frames) = &mut self.frames
                && let Some(raw) = frames.next_frame()?
            {
                return Ok(Some(raw));
            }
            let Some(frame) = body.frame().await else {
                if let Some(frames) = &self.frames {
                    frames.finish()?;
                }
                return Ok(None);
            };
            let frame = frame.map_err(|error| {
                format!(
                    "Code: 210. DB::Exception: failed to read the body: {error}. (NETWORK_ERROR)"
                )
            })?;
            match (frame.into_data(), &mut self.frames) {
                (Ok(data), Some(frames)) => frames.push(&data),
                (Ok(data), None) => return Ok(Some(data)),
                (Err(_trailers), _) => {}
            }
        }
    }

    async fn read_text(&mut self, body: &mut Incoming) -> Result<String, Failure> {
        let mut text = Vec::new();
        let mut n_bytes = 0;
        while n_bytes <= MAX_DISCARDED_BYTES
            && let Some(piece) = self.next_piece(body).await?
        {
            n_bytes += piece.len();
            if n_bytes <= MAX_QUERY_BYTES {
                text.extend_from_slice(&piece);
            }
        }
        if n_bytes > MAX_QUERY_BYTES {
            return Err(RequestError::TooLarge.into());
        }
        String::from_utf8(text).map_err(|_| RequestError::NotUtf8.into())
    }
}

fn read_statement(sql: &str) -> Result<Kind, Failure> {
    statement::read(sql)
        .map_err(|refusal| format!("Code: 62. DB::Exception: {refusal}. (SYNTAX_ERROR)").into())
}

/// The chunks of an answer after the first, in the client's form.
struct Chunks {
    rest: mpsc::Receiver<Result<Bytes, String>>,
    native: Option<Reframer>,
}

impl Chunks {
    async fn recv(&mut self) -> Option<Result<Bytes, String>> {
        let next = self.rest.recv().await;
        let Some(native) = &mut self.native else {
            return next;
        };
        match next {
            Some(Ok(chunk)) => Some(native.push(&chunk).map(Bytes::from)),
            Some(Err(text)) => Some(Err(text)),
            None => native.finish().err().map(Err),
        }
    }
}

/// The body of an unfinished answer.
fn streamed(
    first: Bytes,
    rest: mpsc::Receiver<Result<Bytes, String>>,
    native: Option<Reframer>,
    guard: KillOnDrop,
    tag: String,
) -> Body {
    let rest = Chunks { rest, native };
    // The error with which a broken stream ends, after its trailer.
    let broken: Option<String> = None;
    let rest = stream::unfold(Some((rest, guard, broken)), move |state| {
        let tag = tag.clone();
        async move {
            let (mut rest, mut guard, broken) = state?;
            if let Some(text) = broken {
                // hyper flushes while the body is pending, so breaking the connection at once could lose the trailer.
                tokio::time::sleep(Duration::from_millis(20)).await;
                return Some((Err(io::Error::other(text)), None));
            }
            match rest.recv().await {
                Some(Ok(chunk)) => Some((Ok(Frame::data(chunk)), Some((rest, guard, None)))),
                Some(Err(text)) => {
                    guard.disarm();
                    let trailer = Frame::data(exception_trailer(&tag, &text));
                    Some((Ok(trailer), Some((rest, guard, Some(text)))))
                }
                None if guard.is_finished() => {
                    guard.disarm();
                    None
                }
                // The job's thread died. The rows so far must not look like the whole result.
                None => {
                    let broken = io::Error::other("the statement's thread ended early");
                    Some((Err(broken), None))
                }
            }
        }
    });
    let first = stream::once(async { Ok(Frame::data(first)) });
    StreamBody::new(first.chain(rest)).boxed_unsync()
}

/// ClickHouse's framing of an error that comes after rows (25.11 and later).
fn exception_trailer(tag: &str, text: &str) -> Bytes {
    let text = format!("{}\n", text.trim_end());
    let length = text.len();
    format!("\r\n__exception__\r\n{tag}\r\n{text}{length} {tag}\r\n__exception__\r\n").into()
}

/// Returns sixteen characters that no row can guess, because std seeds its hasher at random.
fn exception_tag() -> String {
    use std::hash::{BuildHasher, Hasher};
    let random = std::hash::RandomState::new().build_hasher().finish();
    format!("{random:016x}")
}

fn summary(stats: &Stats) -> String {
    let values = serde_json::json!({
        "read_rows": stats.read_rows.to_string(),
        "read_bytes": stats.read_bytes.to_string(),
        "written_rows": stats.written_rows.to_string(),
        "written_bytes": stats.written_bytes.to_string(),
        "result_rows": stats.result_rows.to_string(),
        "result_bytes": stats.result_bytes.to_string(),
        "elapsed_ns": stats.elapsed_ns.to_string(),
    });
    values.to_string()
}

fn code_of(text: &str) -> u32 {
    let code = text
        .strip_prefix("Code: ")
        .and_then(|rest| rest.split('.').next());
    code.and_then(|code| code.parse().ok()).unwrap_or(1002)
}

/// Maps the codes that occur here to HTTP statuses, as ClickHouse does.
fn status_of(code: u32) -> StatusCode {
    match code {
        6 | 26 | 27 | 33 | 36 | 38 | 40 | 41 | 53 | 62 | 69 | 72 | 89 | 115 | 117 | 271 | 456 => {
            StatusCode::BAD_REQUEST
        }
        16 | 46 | 47 | 60 | 63 | 73 | 81 => StatusCode::NOT_FOUND,
        48 => StatusCode::NOT_IMPLEMENTED,
        159 => StatusCode::REQUEST_TIMEOUT,
        164 | 516 => StatusCode::FORBIDDEN,
        194 => StatusCode::UNAUTHORIZED,
        202 | 209 | 241 => StatusCode::SERVICE_UNAVAILABLE,
        229 => StatusCode::PAYLOAD_TOO_LARGE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn header_text<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> &'a str {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().trim()
}

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    let text_type = header::HeaderValue::from_static("text/plain; charset=UTF-8");
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, text_type);
    response
}
