//! Connections that no honest device makes. Each ends by itself or is closed for another, memory stays bounded, and
//! other clients are served.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use epwatch_collector::Collector;
use epwatch_collector::config::CollectorConfig;
use epwatch_server::Period;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use prost::Message;

use crate::faults::CollectorProcess;
use crate::http::{SERVICE, open, post, read_answer};
use crate::support::{TIMEOUT, config, connect, report, request, send, start_alone, store_all};

pub(crate) async fn start(
    dir: &tempfile::TempDir,
    set: impl FnOnce(&mut CollectorConfig),
) -> Collector {
    let mut config = config(&dir.path().join("wal"));
    config.batch.drain_timeout = Period(Duration::from_millis(1));
    set(&mut config);
    start_alone(dir, config).await
}

/// Reads until the other side has closed, and returns all of it.
pub(crate) fn read_to_end(mut stream: &TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    // A reset also counts as the end.
    let _ = stream.read_to_end(&mut said);
    said
}

fn upload_head(length: usize) -> String {
    format!(
        "POST {SERVICE}/Upload HTTP/1.1\r\nHost: test\r\nContent-Type: application/proto\r\n\
         Content-Length: {length}\r\n\r\n"
    )
}

pub(crate) fn serves(address: SocketAddr, sequence: u64) -> bool {
    let body = request(&[report(1, 1, sequence)]).encode_to_vec();
    post(address, "Upload", &[], &body).status == 200
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_slow_or_silent_is_closed_and_others_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let short = Period(Duration::from_secs(2));
    let collector = start(&dir, |config| {
        config.connections.header_timeout = short;
        config.connections.body_timeout = short;
        config.connections.idle_timeout = short;
    })
    .await;
    let address = collector.listen();
    let silent = open(address);
    let half_head = open(address);
    (&half_head).write_all(b"POST /epwatch").unwrap();
    let half_body = open(address);
    (&half_body)
        .write_all(upload_head(1_000).as_bytes())
        .unwrap();
    (&half_body).write_all(&[0; 10]).unwrap();
    let half_preface = open(address);
    (&half_preface)
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM")
        .unwrap();
    let no_settings = open(address);
    (&no_settings)
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .unwrap();
    assert!(serves(address, 1));
    let body_end = String::from_utf8_lossy(&read_to_end(&half_body)).into_owned();
    assert!(body_end.contains("deadline_exceeded"), "{body_end}");
    for stream in [&silent, &half_head, &half_preface, &no_settings] {
        read_to_end(stream);
    }
    assert!(serves(address, 2));
    collector.stop().await;
}

/// A head is sent byte by byte for ever: each byte is progress, but the head never ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_loris_has_one_head_s_time() {
    let dir = tempfile::tempdir().unwrap();
    let collector = start(&dir, |config| {
        config.connections.header_timeout = Period(Duration::from_millis(300));
    })
    .await;
    let address = collector.listen();
    let writing = tokio::task::spawn_blocking(move || {
        let mut stream = open(address);
        stream
            .write_all(upload_head(1).trim_end().as_bytes())
            .unwrap();
        let deadline = Instant::now() + TIMEOUT;
        // Ends when the other side has closed.
        while stream.write_all(b"\r\nX-Slow: 1").is_ok() {
            assert!(Instant::now() < deadline, "it may go on for ever");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(serves(address, 1));
    writing.await.unwrap();
    collector.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn giant_headers_are_refused_and_others_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let collector = start(&dir, |_| {}).await;
    let address = collector.listen();
    let mut stream = open(address);
    let giant = "x".repeat(1 << 20);
    // The server need not take all bytes.
    let _ = stream.write_all(format!("POST / HTTP/1.1\r\nX-Giant: {giant}\r\n\r\n").as_bytes());
    let said = read_to_end(&stream);
    assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 431"));
    let mut stream = open(address);
    let many: String = (0..1_000).map(|n| format!("X-{n}: 1\r\n")).collect();
    let _ = stream.write_all(format!("POST / HTTP/1.1\r\n{many}\r\n").as_bytes());
    let said = read_to_end(&stream);
    assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 431"));

    let mut device = connect(&collector).await;
    let mut call = tonic::Request::new(request(&[report(1, 1, 1)]));
    call.metadata_mut()
        .insert("x-giant", "x".repeat(64 << 10).parse().unwrap());
    device.upload(call).await.unwrap_err();
    assert!(serves(address, 2));
    collector.stop().await;
}

/// Bodies that wait for their end take memory, but together no more than the limit.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_never_end_take_a_bounded_room() {
    let dir = tempfile::tempdir().unwrap();
    let collector = start(&dir, |config| {
        config.connections.max_body_bytes = config.max_request_bytes;
    })
    .await;
    let address = collector.listen();
    let waiting: Vec<TcpStream> = (0..8)
        .map(|_| {
            let mut stream = open(address);
            stream.write_all(upload_head(1 << 20).as_bytes()).unwrap();
            let _ = stream.write_all(&vec![0; (1 << 20) - 1]);
            stream
        })
        .collect();
    // Four bodies fit exactly into the limit; the others are refused at once.
    let mut n_refused = 0;
    let deadline = Instant::now() + TIMEOUT;
    for stream in &waiting {
        stream.set_nonblocking(true).unwrap();
    }
    while n_refused < 4 {
        assert!(Instant::now() < deadline, "only {n_refused} were refused");
        for mut stream in &waiting {
            let mut said = [0; 4096];
            match stream.read(&mut said) {
                Ok(n) if said[..n].starts_with(b"HTTP/1.1 429") => n_refused += 1,
                _ => {}
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(waiting);
    let deadline = Instant::now() + TIMEOUT;
    while !serves(address, 1) {
        assert!(Instant::now() < deadline, "the room is never given back");
    }
    collector.stop().await;
}

/// A small report in a large request keeps the request in memory until the report is durable. A compressed body counts
/// with its inflated size.
#[tokio::test(flavor = "multi_thread")]
async fn what_bodies_inflate_to_takes_the_same_room() {
    let dir = tempfile::tempdir().unwrap();
    let collector = start(&dir, |config| {
        config.connections.max_body_bytes = config.max_request_bytes;
        // Calls gather for a second here, so all of them are in memory together.
        config.wal.gather = Period(Duration::from_secs(1));
    })
    .await;
    let address = collector.listen();
    let bodies: Vec<_> = (1..=4)
        .map(|sequence| {
            let mut body = request(&[report(1, 1, sequence)]).encode_to_vec();
            // An unknown field of 3 MiB that shrinks some 40 times.
            let (mut padding, mut noise) = (vec![0; 3 << 20], sequence);
            for line in padding.chunks_mut(1 << 10) {
                for byte in &mut line[..16] {
                    noise = noise
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    *byte = noise.to_be_bytes()[0];
                }
            }
            prost::encoding::bytes::encode(15, &padding, &mut body);
            let body = crate::protocols::gzip(&body);
            assert!(body.len() < 400 << 10, "{} bytes", body.len());
            body
        })
        .collect();
    let post_all = bodies.into_iter().map(|body| {
        let encoded = [("Content-Encoding", "gzip")];
        tokio::task::spawn_blocking(move || post(address, "Upload", &encoded, &body).status)
    });
    let posting: Vec<_> = post_all.collect();
    let mut statuses = Vec::new();
    for posting in posting {
        statuses.push(posting.await.unwrap());
    }
    statuses.sort_unstable();
    assert!(statuses.starts_with(&[200]), "{statuses:?}");
    assert!(statuses.ends_with(&[429]), "{statuses:?}");
    assert!(serves(address, 9), "the room is given back");
    collector.stop().await;
}

fn open_files_limit() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits
        .lines()
        .find(|l| l.starts_with("Max open files"))
        .unwrap();
    line.split_whitespace()
        .nth(3)
        .unwrap()
        .parse()
        .unwrap_or(usize::MAX)
}

pub(crate) fn resident_bytes(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap();
    let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

/// Opens 10,000 connections if this process may open so many files, otherwise as many as it may. The test's output says
/// how many.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_idle_connections_cost_little_and_others_are_served() {
    // Soft limits are often 1,024 though the hard limit is higher. If this command fails, the limit stays.
    let _ = std::process::Command::new("prlimit")
        .args(["--pid", &std::process::id().to_string(), "--nofile=10500:"])
        .stderr(std::process::Stdio::null())
        .status();
    let n = 10_000.min(open_files_limit().saturating_sub(400));
    println!("{n} idle connections");
    assert!(
        n >= 500,
        "too few files may be open for this test to mean anything"
    );
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("no-store.sock");
    let mut collector = CollectorProcess::start_at(&dir.path().join("wal"), &socket);
    let address: SocketAddr = collector.address().parse().unwrap();
    assert!(serves(address, 1));
    let before = resident_bytes(collector.pid());
    let mut idle = Vec::with_capacity(n);
    for at in 0..n {
        let mut stream = open(address);
        // A third of the connections sends nothing, a third is HTTP/2 without a call, and a third is used once.
        match at % 3 {
            0 => {}
            1 => stream
                .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
                .unwrap(),
            _ => {
                let head = format!("GET {SERVICE}/Upload HTTP/1.1\r\nHost: test\r\n\r\n");
                stream.write_all(head.as_bytes()).unwrap();
            }
        }
        idle.push(stream);
    }
    let slowest = (2..12)
        .map(|sequence| {
            let began = Instant::now();
            assert!(serves(address, sequence));
            began.elapsed()
        })
        .max();
    let each = resident_bytes(collector.pid()).saturating_sub(before) / n;
    println!("{each} bytes each; the slowest of ten calls took {slowest:?}");
    assert!(each < 64 << 10, "{each} bytes for an idle connection");
    let mut device = crate::support::Device::connect(format!("http://{address}"))
        .await
        .unwrap();
    store_all(&mut device, &[report(1, 1, 20)]).await;
    drop(idle);
    collector.kill();
}

/// `connections.max` has its default, in a process that may open few files. Neither connections that never end nor
/// draining ones take the files that the WAL and the store need.
#[tokio::test(flavor = "multi_thread")]
async fn where_few_files_may_be_open_a_flood_of_connections_leaves_some_to_the_log() {
    check_some_are_left_to_the_log(300, 400, 350).await;
    check_some_are_left_to_the_log(256, 256, 240).await;
}

async fn check_some_are_left_to_the_log(soft: u32, hard: u32, below: usize) {
    let dir = tempfile::tempdir().unwrap();
    let wal = dir.path().join("wal");
    let socket = dir.path().join("no-store.sock");
    let mut collector = CollectorProcess::start_limited(soft, hard, &wal, &socket);
    let address: SocketAddr = collector.address().parse().unwrap();
    let of_process = format!("/proc/{}", collector.pid());
    let limits = std::fs::read_to_string(format!("{of_process}/limits")).unwrap();
    let line = limits.lines().find(|l| l.starts_with("Max open files"));
    let soft = line.unwrap().split_whitespace().nth(3).unwrap();
    assert_eq!(soft, hard.to_string(), "raised to the hard limit");
    let idle: Vec<TcpStream> = (0..500)
        .map(|_| {
            let mut stream = open(address);
            // HTTP/2 without a call; the connection is never closed by the client.
            let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
            stream
        })
        .collect();
    let n_segments = || {
        let files = std::fs::read_dir(&wal).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".wal")).count()
    };
    let mut device = crate::support::Device::connect(format!("http://{address}"))
        .await
        .unwrap();
    let deadline = Instant::now() + TIMEOUT;
    let mut installation = 0;
    // Each new segment needs one or two open files.
    while n_segments() < 4 {
        assert!(
            Instant::now() < deadline,
            "the log came to no fourth segment"
        );
        installation += 1;
        let reports: Vec<_> = (1..=500).map(|n| report(installation, 1, n)).collect();
        let acked = tokio::time::timeout(TIMEOUT, send(&mut device, &reports));
        assert!(acked.await.expect("an ack").is_empty());
    }
    let n_open = std::fs::read_dir(format!("{of_process}/fd"))
        .unwrap()
        .count();
    assert!(n_open < below, "{n_open} files are open");
    drop(idle);
    collector.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_limit_the_idlest_connection_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    let collector = start(&dir, |config| config.connections.max = 20).await;
    let address = collector.listen();
    let idle: Vec<TcpStream> = (0..25).map(|_| open(address)).collect();
    assert!(serves(address, 1));
    // The first five were closed for the last five, and a sixth for the call.
    for stream in &idle[..6] {
        read_to_end(stream);
    }
    let waits = |stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        let read = (&*stream).read(&mut [0]);
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    assert!(idle[6..].iter().all(waits));
    collector.stop().await;
}

/// Calls under way at a stop are answered; idle connections do not delay it.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_collector_finishes_calls_of_both_protocols() {
    let dir = tempfile::tempdir().unwrap();
    let collector = start(&dir, |_| {}).await;
    let address = collector.listen();
    let body = request(&[report(1, 1, 1)]).encode_to_vec();
    let mut posting = open(address);
    posting
        .write_all(upload_head(body.len()).as_bytes())
        .unwrap();
    posting.write_all(&body[..10]).unwrap();
    // A gRPC call that has sent its head and waits for its message.
    let (sender, messages) = tokio::sync::mpsc::channel::<Result<Bytes, std::io::Error>>(2);
    let grpc = half_a_grpc_call(address, "Upload", &[], messages).await;
    let idle = connect(&collector).await;
    assert!(serves(address, 2));

    let stopping = tokio::spawn(collector.stop());
    let deadline = Instant::now() + TIMEOUT;
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < deadline, "the port stays open");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    posting.write_all(&body[10..]).unwrap();
    let answer = read_answer(posting);
    assert_eq!(answer.status, 200, "{answer:?}");
    let message = request(&[report(1, 1, 3)]).encode_to_vec();
    let mut frame = vec![0];
    frame.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    frame.extend(message);
    sender.send(Ok(frame.into())).await.unwrap();
    drop(sender);
    let trailers = grpc.await.unwrap();
    assert_eq!(trailers.as_deref(), Some("0"), "grpc-status");
    stopping.await.unwrap();
    drop(idle);
}

/// An unfinished request on the admin port does not delay a stop.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_request_for_a_page_holds_up_no_stop() {
    let dir = tempfile::tempdir().unwrap();
    let collector = start(&dir, |_| {}).await;
    let mut asking = open(collector.http_listen());
    asking
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: te")
        .unwrap();
    // This request is answered on the same port, so the earlier connection was accepted.
    let answer = crate::http::send(collector.http_listen(), "GET", "/healthz", &[], b"");
    assert_eq!(answer.status, 200, "{answer:?}");
    let stopped = tokio::time::timeout(TIMEOUT, collector.stop()).await;
    stopped.expect("the collector stops");
    // The collector has also released its WAL, so another can start on it.
    start(&dir, |_| {}).await.stop().await;
    drop(asking);
}

/// Sends a gRPC call's head now and its body as `messages` come; returns the `grpc-status`.
pub(crate) async fn half_a_grpc_call(
    address: SocketAddr,
    call: &str,
    headers: &[(&str, &str)],
    messages: tokio::sync::mpsc::Receiver<Result<Bytes, std::io::Error>>,
) -> tokio::task::JoinHandle<Option<String>> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io)
        .await
        .unwrap();
    tokio::spawn(connection);
    let frames = futures::stream::unfold(messages, |mut messages| async {
        let message = messages.recv().await?;
        Some((message.map(Frame::data), messages))
    });
    let mut head = hyper::Request::post(format!("http://{address}{SERVICE}/{call}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in headers {
        head = head.header(*name, *value);
    }
    let request = head.body(StreamBody::new(Box::pin(frames))).unwrap();
    let answering = sender.send_request(request);
    tokio::spawn(async move {
        let answer = answering.await.ok()?;
        drop(sender);
        if let Some(status) = answer.headers().get("grpc-status") {
            return Some(status.to_str().unwrap().to_owned());
        }
        let collected = answer.into_body().collect().await.ok()?;
        let status = collected.trailers()?.get("grpc-status")?;
        Some(status.to_str().unwrap().to_owned())
    })
}
