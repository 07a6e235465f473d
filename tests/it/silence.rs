//! Silent connections to every port of `serve` and of a detector do not stop the uploads of devices.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
    time::Duration,
};

use epwatch_proto::{
    samples,
    v1::{self, collector_service_client::CollectorServiceClient},
};
use epwatch_runtimes::is_nightly;
use epwatch_test_support::until;
use prost::Message;

use crate::support::{Running, epwatch, get, server};

/// To each port.
const N: usize = 20_000;
const N_BY_DAY: usize = 1_500;
/// A working port answers in much less time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of files of this process that are not connections.
const OTHER_FILES: usize = 200;

/// An address without a listener.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// Lets this process open `n` files, or as many as it may.
fn allow_open_files(n: usize) -> usize {
    // Soft limits are often 1,024 although the hard limit is higher. A failure leaves the limit as it is.
    let pid = std::process::id().to_string();
    let _ = Command::new("prlimit")
        .args(["--pid", &pid, &format!("--nofile={n}:")])
        .stderr(std::process::Stdio::null())
        .status();
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let soft = line.unwrap().split_whitespace().nth(3).unwrap();
    soft.parse().unwrap_or(usize::MAX).min(n)
}

/// Opens as many silent connections as the port takes. The readers' port leaves connections beyond its limit in the
/// system's queue, which then fills up.
fn silent_connections(port: SocketAddr, n: usize) -> Vec<TcpStream> {
    let connections = (0..n).map(|_| TcpStream::connect_timeout(&port, CONNECT_TIMEOUT));
    connections.map_while(Result::ok).collect()
}

/// An upload of one report.
fn upload(sequence: u64) -> v1::UploadRequest {
    let key = samples::key([1; 16], 1, sequence);
    let report = samples::report(key, samples::session_uid(sequence));
    v1::UploadRequest {
        reports: vec![v1::Report::from(&report).encode_to_vec().into()],
        sdk: Some((&samples::sdk()).into()),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_to_any_port_leave_uploads_as_they_were() {
    let n = match is_nightly("18,500 of 20,000 silent connections to each port") {
        true => N,
        false => N_BY_DAY,
    };
    let n = allow_open_files(n + OTHER_FILES).saturating_sub(OTHER_FILES);
    assert!(
        n >= 500,
        "too few files may be open for this test to mean anything"
    );

    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let readers = free_address();
    let password = file("password", "a password of readers");
    let config = format!("[store.reader]\nlisten = \"{readers}\"\npassword_file = {password:?}\n");
    let config = file("epwatch.toml", &config);
    let serve = format!("serve --config {}", config.display());
    let (_serve, addresses) = Running::start(&mut server(&serve, &dir.path().join("data")));
    let address = |name: &str| -> SocketAddr { addresses[name].as_str().unwrap().parse().unwrap() };

    let detector = free_address();
    let mut judging = epwatch("detector --clickhouse");
    judging.arg(addresses["store"].as_str().unwrap());
    judging.env("EPWATCH_DETECTOR__HTTP_LISTEN", detector.to_string());
    let _judging = Running(judging.stdout(std::process::Stdio::null()).spawn().unwrap());
    let alive = format!("http://{detector}/healthz");
    until("the detector listens", async || get(&alive).await.is_ok()).await;

    let endpoint = addresses["endpoint"].as_str().unwrap().to_owned();
    let ports = [
        ("devices", address("collector")),
        ("collector's admin", address("http")),
        ("page", address("page")),
        ("readers", readers),
        ("detector's admin", detector),
    ];
    for (sequence, (name, port)) in (1..).zip(ports) {
        let silent = silent_connections(port, n);
        println!("{} to {name}", silent.len());
        // The readers' port takes 64, and its queue about 128 more.
        assert!(silent.len() >= 100, "{name}: {}", silent.len());
        // A phone opens a new connection.
        let mut device = CollectorServiceClient::connect(endpoint.clone()).await;
        let device = device
            .as_mut()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let answer = device.upload(upload(sequence)).await;
        // The answer lists only reports that are not stored.
        let answer = answer.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(answer.into_inner().results, [], "{name}");
        drop(silent);
    }
    for page in [address("http"), detector] {
        let health = get(&format!("http://{page}/healthz")).await.unwrap();
        assert_eq!(health.status, 200);
    }
}
