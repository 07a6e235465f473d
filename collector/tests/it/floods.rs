//! Clients that send and never read, and HTTP/2 frames that no client library sends. Their cost is bounded, their
//! connections end, and other clients are served.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use epwatch_server::Period;

use crate::faults::CollectorProcess;
use crate::hostile::{read_to_end, resident_bytes, serves, start};
use crate::http::{SERVICE, open};
use crate::support::TIMEOUT;

/// Types of HTTP/2 frames, with the flags that are used here.
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// The setting for the initial window of a new stream.
const INITIAL_WINDOW_SIZE: u16 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The start of a connection, with or without settings.
fn preface(settings: &[u8]) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, settings));
    bytes
}

/// A call's head: literal fields, neither indexed nor Huffman coded.
fn head() -> Vec<u8> {
    let path = format!("{SERVICE}/Upload");
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path.as_str()),
        (":authority", "test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    block
}

/// Writes these bytes again and again and reads nothing, until the other side has closed. Returns how many bytes that
/// side took.
fn write_until_closed(mut stream: &TcpStream, bytes: &[u8]) -> usize {
    stream
        .set_write_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let deadline = Instant::now() + TIMEOUT;
    let mut n_taken = 0;
    loop {
        // Goes on where the last write stopped, because the bytes must stay a sequence of whole frames.
        match stream.write(&bytes[n_taken % bytes.len()..]) {
            Ok(n) => n_taken += n,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return n_taken,
        }
        assert!(
            Instant::now() < deadline,
            "it goes on after {n_taken} bytes"
        );
    }
}

/// The kernel's buffers fill up, the collector stops reading, and the connection becomes idle.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_never_reads_answers_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let collector = start(&dir, |config| {
        config.connections.idle_timeout = Period(Duration::from_millis(500));
    })
    .await;
    let address = collector.listen();
    let posting = tokio::task::spawn_blocking(move || {
        let head = format!("GET {SERVICE}/Nothing HTTP/1.1\r\nHost: test\r\n\r\n");
        write_until_closed(&open(address), head.repeat(100).as_bytes())
    });
    assert!(serves(address, 1));
    let n_taken = posting.await.unwrap();
    // Only the socket buffers took bytes: some megabytes, on both sides and in both directions.
    assert!(n_taken < 64 << 20, "{n_taken} bytes");
    assert!(serves(address, 2));
    collector.stop().await;
}

/// A client whose window is zero takes no byte of an answer: each call waits with its answer.
#[tokio::test(flavor = "multi_thread")]
async fn calls_without_a_window_are_closed() {
    let dir = tempfile::tempdir().unwrap();
    let collector = start(&dir, |config| {
        config.connections.idle_timeout = Period(Duration::from_millis(500));
    })
    .await;
    let address = collector.listen();
    let mut stream = open(address);
    let mut no_window = INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
    no_window.extend(0_u32.to_be_bytes());
    let mut bytes = preface(&no_window);
    for nth in 0..1_000 {
        let flags = END_HEADERS | END_STREAM;
        bytes.extend(frame(HEADERS, flags, 1 + 2 * nth, &head()));
    }
    // The server need not take all bytes.
    let _ = stream.write_all(&bytes);
    assert!(serves(address, 1));
    read_to_end(&stream);
    assert!(serves(address, 2));
    collector.stop().await;
}

/// A head that goes on in frame after frame is refused before it is large (CVE-2024-27316 and similar).
#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_never_ends_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let collector = start(&dir, |_| {}).await;
    let address = collector.listen();
    let writing = tokio::task::spawn_blocking(move || {
        let mut stream = open(address);
        stream.write_all(&preface(&[])).unwrap();
        stream.write_all(&frame(HEADERS, 0, 1, &head())).unwrap();
        // One field after the other, each with a value of 8,000 bytes.
        let mut field = vec![0, 1, b'x', 0x7f, 0xc1, 0x3d];
        field.extend([b'y'; 8_000]);
        write_until_closed(&stream, &frame(CONTINUATION, 0, 1, &field))
    });
    assert!(serves(address, 1));
    let n_taken = writing.await.unwrap();
    assert!(n_taken < 16 << 20, "{n_taken} bytes");
    assert!(serves(address, 2));
    collector.stop().await;
}

/// Calls that are reset at once (CVE-2023-44487), and pings whose answers are never read, leave nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn resets_and_pings_leave_nothing_behind() {
    const MAX_GROWTH: usize = 64 << 20;
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("no-store.sock");
    let mut collector = CollectorProcess::start_at(&dir.path().join("wal"), &socket);
    let address = collector.address().parse().unwrap();
    assert!(serves(address, 1));
    let before = resident_bytes(collector.pid());

    let mut resets = open(address);
    resets.set_write_timeout(Some(TIMEOUT)).unwrap();
    let reading = {
        let stream = resets.try_clone().unwrap();
        std::thread::spawn(move || read_to_end(&stream).len())
    };
    let mut bytes = preface(&[]);
    for nth in 0..100_000 {
        let stream = 1 + 2 * nth;
        bytes.extend(frame(HEADERS, END_HEADERS, stream, &head()));
        bytes.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    // The server may close it in the middle.
    let _ = resets.write_all(&bytes);

    let mut pings = open(address);
    pings
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    pings.write_all(&preface(&[])).unwrap();
    let some = frame(PING, 0, 0, &[7; 8]).repeat(1_000);
    let deadline = Instant::now() + TIMEOUT;
    // Goes on until the collector stops reading or has closed the connection.
    while pings.write_all(&some).is_ok() {
        assert!(Instant::now() < deadline, "it takes pings for ever");
    }

    assert!(serves(address, 2));
    let growth = resident_bytes(collector.pid()).saturating_sub(before);
    assert!(growth < MAX_GROWTH, "{growth} bytes");
    let _ = resets.shutdown(std::net::Shutdown::Both);
    reading.join().unwrap();
    collector.kill();
}
