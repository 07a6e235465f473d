//! The load generator, the same for every server. It writes pre-encoded bodies through `h2`, since a full gRPC client
//! costs as much as the server that it measures.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use epwatch_proto::v1;
use h2::client::SendRequest;
use prost::Message;
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use crate::payload::{Random, Template};

/// The shape of the load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) connections: usize,
    pub(crate) in_flight_each: usize,
}

/// Result of one span of load.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) reports: u64,
    pub(crate) seconds: f64,
    /// Latency of each request, from the time it was due to the end of its answer, sorted.
    pub(crate) latencies: Vec<Duration>,
}

impl Done {
    /// Latency at quantile `q`, in milliseconds.
    pub(crate) fn quantile_ms(&self, q: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index"
        )]
        let at = (last as f64 * q).round() as usize;
        self.latencies
            .get(at)
            .map_or(0.0, |l| l.as_secs_f64() * 1e3)
    }
}

struct Load {
    template: Template,
    random: RefCell<Random>,
    reports: Cell<u64>,
    latencies: RefCell<Vec<Duration>>,
    until: Instant,
}

/// Keeps as many requests in flight as the shape allows, for `duration`.
pub(crate) fn full(
    address: SocketAddr,
    shape: Shape,
    template: Template,
    duration: Duration,
) -> Done {
    run(address, shape, template, duration, None)
}

/// Sends `rate` requests a second, whether or not answers keep up.
pub(crate) fn paced(
    address: SocketAddr,
    shape: Shape,
    template: Template,
    duration: Duration,
    rate: f64,
) -> Done {
    run(address, shape, template, duration, Some(rate))
}

fn run(
    address: SocketAddr,
    shape: Shape,
    template: Template,
    duration: Duration,
    rate: Option<f64>,
) -> Done {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |since| {
            u64::from(since.subsec_nanos()) ^ since.as_secs() << 32
        });
    let local = LocalSet::new();
    local.block_on(&runtime, async move {
        let mut connections = Vec::new();
        for _ in 0..shape.connections {
            connections.push(connect(address).await);
        }
        let started = Instant::now();
        let load = Rc::new(Load {
            template,
            random: RefCell::new(Random(seed)),
            reports: Cell::new(0),
            latencies: RefCell::default(),
            until: started + duration,
        });
        match rate {
            None => keep_busy(&load, &connections, shape.in_flight_each).await,
            Some(rate) => keep_pace(&load, &connections, rate).await,
        }
        let mut latencies = load.latencies.take();
        latencies.sort_unstable();
        Done {
            reports: load.reports.get(),
            seconds: started.elapsed().as_secs_f64(),
            latencies,
        }
    })
}

async fn connect(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address)
        .await
        .expect("the server listens");
    stream.set_nodelay(true).expect("a TCP socket");
    let (sender, connection) = h2::client::Builder::new()
        .initial_window_size(1 << 20)
        .initial_connection_window_size(1 << 20)
        .handshake::<_, Bytes>(stream)
        .await
        .expect("the server speaks HTTP/2");
    tokio::task::spawn_local(async move {
        let _ = connection.await;
    });
    sender
}

async fn keep_busy(load: &Rc<Load>, connections: &[SendRequest<Bytes>], in_flight_each: usize) {
    let mut senders = Vec::new();
    for connection in connections {
        for _ in 0..in_flight_each {
            let (load, connection) = (load.clone(), connection.clone());
            senders.push(tokio::task::spawn_local(async move {
                while Instant::now() < load.until {
                    call(&load, &connection, Instant::now()).await;
                }
            }));
        }
    }
    for sender in senders {
        sender.await.expect("a sender does not panic");
    }
}

async fn keep_pace(load: &Rc<Load>, connections: &[SendRequest<Bytes>], rate: f64) {
    let started = Instant::now();
    let mut calls = Vec::new();
    let mut n_sent = 0_u32;
    while Instant::now() < load.until {
        let due = started + Duration::from_secs_f64(f64::from(n_sent) / rate);
        if due > Instant::now() {
            tokio::time::sleep_until(due.into()).await;
        }
        let connection = connections[n_sent as usize % connections.len()].clone();
        let load = load.clone();
        calls.push(tokio::task::spawn_local(async move {
            call(&load, &connection, due).await;
        }));
        n_sent += 1;
    }
    for call in calls {
        call.await.expect("a call does not panic");
    }
}

/// One request and its whole answer, which must be an ack of every report.
async fn call(load: &Load, connection: &SendRequest<Bytes>, due: Instant) {
    let body = load.template.fill(&mut load.random.borrow_mut());
    let request = http::Request::builder()
        .method("POST")
        .uri("http://collector/epwatch.v1.CollectorService/Upload")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("a fixed request");
    let mut ready = connection
        .clone()
        .ready()
        .await
        .expect("an open connection");
    let (answer, mut stream) = ready
        .send_request(request, false)
        .expect("room for a stream");
    stream.send_data(body, true).expect("an open stream");
    let (head, mut data) = answer.await.expect("an answer").into_parts();
    let mut message = Vec::new();
    while let Some(chunk) = data.data().await {
        let chunk = chunk.expect("a whole answer");
        let _ = data.flow_control().release_capacity(chunk.len());
        message.extend_from_slice(&chunk);
    }
    let trailers = data.trailers().await.expect("a whole answer");
    let status = trailers
        .as_ref()
        .unwrap_or(&head.headers)
        .get("grpc-status");
    assert!(
        status.is_some_and(|status| status == "0"),
        "refused: {head:?} {trailers:?}"
    );
    let answer = v1::UploadResponse::decode(&message[5..]).expect("an UploadResponse");
    assert_eq!(answer.n_reports as usize, load.template.n_reports);
    assert!(
        answer.results.is_empty(),
        "not stored: {:?}",
        answer.results
    );
    load.latencies.borrow_mut().push(due.elapsed());
    load.reports
        .set(load.reports.get() + load.template.n_reports as u64);
}
