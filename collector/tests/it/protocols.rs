//! The same calls by gRPC and by HTTP POST, compressed and not, with the refusals of each protocol.

use std::io::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use epwatch_proto::v1::{self, Outcome};
use epwatch_server::ByteSize;
use prost::Message;
use tonic::Code;
use tonic::codec::CompressionEncoding;

use crate::http::{SERVICE, post, send as send_http};
use crate::support::{
    COUNTED, REQUEST_ID, Store, check_metrics, config, connect, report, request, start,
    start_alone, store_all,
};

pub(crate) fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_arrive_by_post_and_by_grpc_in_every_encoding() {
    let store = Store::start().await;
    let collector = start(&store, "wal").await;
    let address = collector.listen();

    let body = |sequence| request(&[report(1, 1, sequence)]).encode_to_vec();
    let zstd = |plain: &[u8]| zstd::encode_all(plain, 3).unwrap();
    for (encoding, body) in [
        ("identity", body(1)),
        ("gzip", gzip(&body(2))),
        ("zstd", zstd(&body(3))),
    ] {
        let answer = post(address, "Upload", &[("Content-Encoding", encoding)], &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/proto"));
        let response = v1::UploadResponse::decode(answer.body.as_slice()).unwrap();
        assert!(response.results.is_empty());
        assert!(response.server_time_unix_ms > 0);
        // The acknowledgement names the request and the number of its reports.
        assert_eq!((response.n_reports, response.request_id), (1, REQUEST_ID));
    }
    let plain = connect(&collector).await;
    let grpc = [
        plain.clone(),
        plain.clone().send_compressed(CompressionEncoding::Gzip),
        plain.send_compressed(CompressionEncoding::Zstd),
    ];
    for (mut device, sequence) in grpc.into_iter().zip(4..) {
        store_all(&mut device, &[report(1, 1, sequence)]).await;
    }
    // A repeated report is a duplicate, whichever protocol it uses.
    let answer = post(address, "Upload", &[], &body(6));
    let response = v1::UploadResponse::decode(answer.body.as_slice()).unwrap();
    assert_eq!(response.results[0].outcome(), Outcome::Duplicate);

    collector.stop().await;
    assert_eq!(store.number(COUNTED).await, 6);
    store.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn posts_are_refused_as_json_with_the_status_of_their_code() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(&dir.path().join("wal"));
    config.max_request_bytes = ByteSize(64 << 10);
    let collector = start_alone(&dir, config).await;
    let address = collector.listen();
    let sound = request(&[report(1, 1, 1)]).encode_to_vec();

    let check = |headers: &[(&str, &str)], body: &[u8], status: u16, code: &str, text: &str| {
        let answer = post(address, "Upload", headers, body);
        assert_eq!(answer.status, status, "{answer:?}");
        let document = answer.json();
        assert_eq!(document["code"], code, "{document}");
        let message = document["message"].as_str().unwrap();
        assert!(message.contains(text), "{message}");
        assert_eq!(document["details"], serde_json::Value::Null, "final");
        assert_eq!(answer.header("retry-after"), None);
        answer
    };
    check(&[], b"\xff\xff", 400, "invalid_argument", "protobuf");
    check(&[], b"", 400, "invalid_argument", "reports");
    let large = vec![0; (64 << 10) + 1];
    check(&[], &large, 413, "out_of_range", "65536");
    let json = [("Content-Type", "application/json")];
    let answer = check(&json, &sound, 415, "invalid_argument", "application/proto");
    assert_eq!(answer.header("accept-post"), Some("application/proto"));
    let version = [("Connect-Protocol-Version", "2")];
    let answer = send_http(
        address,
        "POST",
        &format!("{SERVICE}/Upload"),
        &[version[0], ("Content-Type", "application/proto")],
        &sound,
    );
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (400, Some("invalid_argument"))
    );
    let brotli = [("Content-Encoding", "br")];
    let answer = check(&brotli, &sound, 501, "unimplemented", "gzip");
    assert_eq!(
        answer.header("accept-encoding"),
        Some("gzip, zstd, identity")
    );
    for timeout in ["", "-1", "12345678901", "1s"] {
        let headers = [("Connect-Timeout-Ms", timeout)];
        check(&headers, &sound, 400, "invalid_argument", "ten digits");
    }
    let now = [("Connect-Timeout-Ms", "0")];
    check(&now, &sound, 504, "deadline_exceeded", "timeout");

    let answer = send_http(address, "GET", &format!("{SERVICE}/Upload"), &[], b"");
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
    for path in [
        "/",
        "/epwatch.v1.CollectorService",
        "/epwatch.v1.CollectorService/Uploads",
    ] {
        let answer = send_http(address, "POST", path, &[], b"");
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (404, Some("unimplemented"))
        );
    }
    collector.stop().await;
}

/// A few kilobytes would inflate to many megabytes. The limit stops them in every encoding and protocol.
#[tokio::test(flavor = "multi_thread")]
async fn decompression_bombs_are_refused_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir.path().join("wal"));
    let collector = start_alone(&dir, config).await;
    let address = collector.listen();
    let zeros = vec![0; 64 << 20];
    for (encoding, bomb) in [
        ("gzip", gzip(&zeros)),
        ("zstd", zstd::encode_all(zeros.as_slice(), 3).unwrap()),
    ] {
        assert!(bomb.len() < 100 << 10);
        let answer = post(address, "Upload", &[("Content-Encoding", encoding)], &bomb);
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(
            answer.json()["message"]
                .as_str()
                .unwrap()
                .contains("inflated")
        );
    }
    // The message is below the size limit, but above the limit of the ratio.
    let mut message = request(&[]);
    message.reports = vec![vec![0; 3 << 20].into()];
    let device = connect(&collector).await;
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Zstd] {
        let mut device = device.clone().send_compressed(encoding);
        let status = device.upload(message.clone()).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains("inflated"), "{status}");
        assert!(status.details().is_empty(), "final");
    }
    collector.stop().await;
}

/// Each member takes 20 bytes and needs its own set-up; a body of 3 MB can contain 150,000 members.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_members_are_refused_for_good_and_a_few_are_one_body() {
    let dir = tempfile::tempdir().unwrap();
    let collector = start_alone(&dir, config(&dir.path().join("wal"))).await;
    let address = collector.listen();
    let zstd = |plain: &[u8]| zstd::encode_all(plain, 3).unwrap();
    let body = |sequence| request(&[report(1, 1, sequence)]).encode_to_vec();
    for (encoding, compress, sequence) in
        [("gzip", gzip as fn(&[u8]) -> Vec<u8>, 1), ("zstd", zstd, 2)]
    {
        let headers = [("Content-Encoding", encoding)];
        let empty = compress(b"").repeat(150_000);
        let answer = post(address, "Upload", &headers, &empty);
        assert_eq!(answer.status, 400, "{answer:?}");
        let document = answer.json();
        assert!(
            document["message"].as_str().unwrap().contains("members"),
            "{document}"
        );
        let (one, other) = (body(sequence), body(sequence + 10));
        let joined = [compress(&one), compress(&other)].concat();
        let answer = post(address, "Upload", &headers, &joined);
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    check_metrics(
        &collector,
        &["epwatch_collector_requests_refused_total{reason=\"bomb\"} 2"],
    );
    collector.stop().await;
}

/// A call that a full WAL refused may be retried; both protocols send the delay.
#[tokio::test(flavor = "multi_thread")]
async fn pushback_says_when_to_come_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(&dir.path().join("wal"));
    config.wal.max_bytes = ByteSize(256 << 10);
    config.batch.drain_timeout = epwatch_server::Period(std::time::Duration::ZERO);
    let collector = start_alone(&dir, config).await;
    let mut device = connect(&collector).await;
    let mut refused = None;
    for first in (1..100_000).step_by(50) {
        let reports: Vec<_> = (first..first + 50).map(|n| report(1, 1, n)).collect();
        if let Err(status) = device.upload(request(&reports)).await {
            refused = Some((status, reports));
            break;
        }
    }
    let (status, reports) = refused.expect("the log fills");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.metadata().get("grpc-retry-pushback-ms").is_some());
    let details = String::from_utf8_lossy(status.details()).into_owned();
    assert!(details.contains("google.rpc.RetryInfo"), "{details}");

    let body = request(&reports).encode_to_vec();
    let answer = post(collector.listen(), "Upload", &[], &body);
    assert_eq!(answer.status, 429, "{answer:?}");
    let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!(seconds >= 1);
    let document = answer.json();
    assert_eq!(document["code"], "resource_exhausted");
    assert_eq!(document["details"][0]["type"], "google.rpc.RetryInfo");
    let value = document["details"][0]["value"].as_str().unwrap();
    assert!(!STANDARD_NO_PAD.decode(value).unwrap().is_empty());
    collector.stop().await;
}
