//! Authentication: app keys, their scopes and rotation, and the certificate.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use epwatch_collector::Collector;
use epwatch_collector::config::{AppKeyConfig, KeyKind, NewKey, TlsConfig};
use epwatch_proto::v1::{self, Outcome};
use epwatch_test_support::until;
use prost::Message;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::{Code, Request, Status};

use crate::hostile::half_a_grpc_call;
use crate::http::{SERVICE, open, post, read_answer};
use crate::log_lines::{capture, lines};
use crate::support::{
    Device, Store, TIMEOUT, check_metrics, config, connect, key_for, metric, report, request,
    start_alone, with_key,
};

const CALLS: [&str; 4] = [
    "Upload",
    "DeleteInstallation",
    "PutModelManifest",
    "PutCertifiedPlacement",
];

/// Calls by gRPC with an empty message, because the key is checked first.
async fn call(device: &mut Device, name: &str, key: Option<&str>) -> Result<(), Status> {
    fn keyed<M>(message: M, key: Option<&str>) -> Request<M> {
        match key {
            Some(key) => with_key(message, key),
            None => Request::new(message),
        }
    }
    match name {
        "Upload" => {
            let message = request(&[report(1, 1, 1)]);
            device.upload(keyed(message, key)).await.map(|_| ())
        }
        "DeleteInstallation" => {
            let message = v1::DeleteInstallationRequest {
                secret: vec![7; 32].into(),
            };
            let answer = device.delete_installation(keyed(message, key)).await;
            answer.map(|_| ())
        }
        "PutModelManifest" => {
            let message = v1::PutModelManifestRequest::default();
            let answer = device.put_model_manifest(keyed(message, key)).await;
            answer.map(|_| ())
        }
        other => {
            assert_eq!(other, "PutCertifiedPlacement", "a call without a row here");
            let message = v1::PutCertifiedPlacementRequest::default();
            let answer = device.put_certified_placement(keyed(message, key)).await;
            answer.map(|_| ())
        }
    }
}

/// Reads the list of calls in the contract. A call that is added there and not to the tables here fails this test.
#[test]
fn every_call_of_the_contract_is_in_the_tables() {
    let contract = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../proto/epwatch/v1/collector.proto"
    ));
    let calls = contract.lines().filter_map(|line| {
        let (name, _) = line.trim().strip_prefix("rpc ")?.split_once('(')?;
        Some(name)
    });
    assert_eq!(calls.collect::<Vec<_>>(), CALLS);
}

/// A collector whose store never answers: a call past the key check fails for that reason.
async fn start_without_store(dir: &tempfile::TempDir, keys: Vec<AppKeyConfig>) -> Collector {
    let mut config = config(&dir.path().join("wal"));
    config.keys = keys;
    start_alone(dir, config).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_is_taken_without_a_key_that_is_valid_now() {
    let dir = tempfile::tempdir().unwrap();
    let (valid, revoked) = (NewKey::random().unwrap(), NewKey::random().unwrap());
    let stranger = NewKey::random().unwrap();
    let mut ended = key_for(&revoked, "com.example.camera");
    ended.revoked = true;
    let certifier = NewKey::random().unwrap();
    let mut pipeline = key_for(&certifier, "com.example.camera");
    pipeline.kind = KeyKind::Pipeline;
    let keys = vec![key_for(&valid, "com.example.camera"), pipeline, ended];
    let collector = start_without_store(&dir, keys).await;
    let mut device = connect(&collector).await;
    for name in CALLS {
        for key in [None, Some(&stranger), Some(&revoked)] {
            let key = key.map(|key| key.secret.as_str());
            let status = call(&mut device, name, key).await.unwrap_err();
            assert_eq!(status.code(), Code::Unauthenticated, "{name}: {status}");
            assert!(key.is_none_or(|key| !format!("{status:?}").contains(key)));

            let header = key.map(|key| format!("Bearer {key}"));
            let headers: Vec<(&str, &str)> = header
                .iter()
                .map(|value| ("Authorization", value.as_str()))
                .collect();
            let answer = post(collector.listen(), name, &headers, b"");
            assert_eq!(answer.status, 401, "{name}: {answer:?}");
            assert_eq!(answer.json()["code"], "unauthenticated");
        }
        let valid = match name {
            "PutModelManifest" | "PutCertifiedPlacement" => &certifier,
            _ => &valid,
        };
        let outcome = call(&mut device, name, Some(&valid.secret)).await;
        let is_past_the_key = outcome
            .as_ref()
            .map_or_else(|status| status.code() == Code::InvalidArgument, |()| true);
        assert!(is_past_the_key, "{name}: {outcome:?}");
    }
    collector.stop().await;
}

/// A call without a valid key is refused by its head: no byte of the announced body is awaited, kept, inflated or
/// decoded. The same holds for a manifest with a key that ships inside an app.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_body_is_read_before_the_key_is_proved() {
    let dir = tempfile::tempdir().unwrap();
    let (revoked, shipped) = (NewKey::random().unwrap(), NewKey::random().unwrap());
    let stranger = NewKey::random().unwrap();
    let mut ended = key_for(&revoked, "com.example.camera");
    ended.revoked = true;
    let shipped_key = key_for(&shipped, "com.example.camera");
    let collector = start_without_store(&dir, vec![ended, shipped_key]).await;
    let address = collector.listen();

    let check = async |name: &str, key: Option<&NewKey>, http: u16, grpc: &str| {
        let bearer = key.map(|key| format!("Bearer {}", key.secret));
        for encoding in ["identity", "gzip", "zstd"] {
            let mut stream = open(address);
            write!(
                stream,
                "POST {SERVICE}/{name} HTTP/1.1\r\nHost: test\r\nContent-Type: application/proto\r\n\
                 Content-Encoding: {encoding}\r\nContent-Length: 1000000\r\n"
            )
            .unwrap();
            if let Some(bearer) = &bearer {
                write!(stream, "Authorization: {bearer}\r\n").unwrap();
            }
            stream.write_all(b"\r\n").unwrap();
            let answer = read_answer(stream);
            assert_eq!(answer.status, http, "{name} {encoding}: {answer:?}");

            let mut headers = vec![("grpc-encoding", encoding)];
            headers.extend(
                bearer
                    .iter()
                    .map(|bearer| ("authorization", bearer.as_str())),
            );
            // The call's message never comes.
            let (_sender, messages) = tokio::sync::mpsc::channel(1);
            let calling = half_a_grpc_call(address, name, &headers, messages).await;
            let status = tokio::time::timeout(TIMEOUT, calling).await.unwrap();
            assert_eq!(status.unwrap().as_deref(), Some(grpc), "{name} {encoding}");
        }
    };
    for name in CALLS {
        for key in [None, Some(&stranger), Some(&revoked)] {
            check(name, key, 401, "16").await;
        }
    }
    for name in ["PutModelManifest", "PutCertifiedPlacement"] {
        check(name, Some(&shipped), 403, "7").await;
    }
    // A client that sends the whole message gets the same answer.
    let mut message = request(&[report(1, 1, 1)]);
    message.reports = vec![vec![7; 3 << 20].into()];
    let status = connect(&collector).await.upload(message).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    collector.stop().await;
}

/// Many HTTP/1.1 clients read the answer only when they have sent the whole body. A client with a revoked key must get
/// the answer and no reset, otherwise it sends the same call for ever.
#[tokio::test(flavor = "multi_thread")]
async fn who_reads_the_answer_after_the_body_hears_why_it_was_refused() {
    let dir = tempfile::tempdir().unwrap();
    let revoked = NewKey::random().unwrap();
    let mut ended = key_for(&revoked, "com.example.camera");
    ended.revoked = true;
    let collector = start_without_store(&dir, vec![ended]).await;
    let mut stream = open(collector.listen());
    let pieces = vec![vec![0; 64 << 10]; 8];
    write!(
        stream,
        "POST {SERVICE}/Upload HTTP/1.1\r\nHost: test\r\nContent-Type: application/proto\r\n\
         Authorization: Bearer {}\r\nContent-Length: {}\r\n\r\n",
        revoked.secret,
        pieces.concat().len()
    )
    .unwrap();
    for piece in &pieces {
        tokio::time::sleep(Duration::from_millis(20)).await;
        stream.write_all(piece).unwrap();
    }
    let mut rest = stream.try_clone().unwrap();
    let answer = read_answer(stream);
    assert_eq!(answer.status, 401, "{answer:?}");
    assert_eq!(answer.header("connection"), Some("close"));
    // No reset.
    assert_eq!(rest.read(&mut [0]).unwrap(), 0);
    collector.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_writes_its_own_app_and_nothing_else() {
    let store = Store::start().await;
    let mut config = config(&store.dir.path().join("wal"));
    let (other, shipped) = (NewKey::random().unwrap(), NewKey::random().unwrap());
    let certifier = NewKey::random().unwrap();
    let mut pipeline = key_for(&certifier, "com.example.other");
    pipeline.kind = KeyKind::Pipeline;
    config.keys = vec![
        key_for(&other, "com.example.other"),
        pipeline,
        key_for(&shipped, "com.example.camera"),
    ];
    let collector = crate::support::start_with(&store, config).await;
    let address = collector.listen();

    let authorization = |key: &NewKey| format!("Bearer {}", key.secret);
    let (by_other, by_shipped) = (authorization(&other), authorization(&shipped));
    let by_certifier = authorization(&certifier);
    let upload = request(&[report(1, 1, 1)]).encode_to_vec();
    let answer = post(address, "Upload", &[("Authorization", &by_other)], &upload);
    let response = v1::UploadResponse::decode(answer.body.as_slice()).unwrap();
    assert_eq!(response.results[0].outcome(), Outcome::RefusedWrongApp);
    assert!(!response.results[0].retryable);

    // Rows that come with the other app's key belong to the other app, whatever the model's name is.
    let manifest = crate::calls::manifest("detector").encode_to_vec();
    let answer = post(
        address,
        "PutModelManifest",
        &[("Authorization", &by_certifier)],
        &manifest,
    );
    assert_eq!(answer.status, 200, "{answer:?}");
    let foreign = "SELECT count() AS n FROM model_manifests WHERE app_id != 'com.example.other'";
    assert_eq!(store.number(foreign).await, 0);

    // A pipeline's key uploads nothing.
    let auth = [("Authorization", by_certifier.as_str())];
    let answer = post(address, "Upload", &auth, &upload);
    assert_eq!(answer.status, 403, "{answer:?}");
    // A key that ships in an app uploads, and certifies nothing.
    let answer = post(
        address,
        "Upload",
        &[("Authorization", &by_shipped)],
        &upload,
    );
    assert_eq!(answer.status, 200, "{answer:?}");
    for name in ["PutModelManifest", "PutCertifiedPlacement"] {
        let answer = post(address, name, &[("Authorization", &by_shipped)], &manifest);
        assert_eq!(answer.status, 403, "{answer:?}");
        assert_eq!(answer.json()["code"], "permission_denied");
    }
    store.end(collector).await;
}

/// Replaces a file in the way in which secrets are usually deployed.
pub(crate) fn replace(path: &Path, content: &[u8]) {
    let temporary = path.with_extension("new");
    std::fs::write(&temporary, content).unwrap();
    std::fs::rename(&temporary, path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_rotated_and_revoked_while_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.toml");
    let (old, new) = (NewKey::random().unwrap(), NewKey::random().unwrap());
    let entry = |key: &NewKey| format!("[[keys]]\nsha256 = \"{}\"\napp = \"*\"\n", key.sha256);
    replace(&file, entry(&old).as_bytes());
    let mut config = config(&dir.path().join("wal"));
    config.keys_file = Some(file.clone());
    let collector = start_alone(&dir, config).await;
    let mut device = connect(&collector).await;
    call(&mut device, "Upload", Some(&old.secret))
        .await
        .unwrap();

    let deadline = Instant::now() + TIMEOUT;
    let mut until_valid = async |key: &NewKey, is_valid: bool| {
        while call(&mut device, "Upload", Some(&key.secret)).await.is_ok() != is_valid {
            assert!(Instant::now() < deadline, "the file was not read again");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    replace(&file, format!("{}{}", entry(&old), entry(&new)).as_bytes());
    until_valid(&new, true).await;
    until_valid(&old, true).await;
    replace(&file, entry(&new).as_bytes());
    until_valid(&old, false).await;
    until_valid(&new, true).await;
    // An invalid file removes no key.
    replace(&file, b"[[keys]]\nsha256 = 7\n");
    let n_failed = || {
        metric(
            &collector,
            "epwatch_collector_reloads_total{result=\"failed\"}",
        )
    };
    until("the broken file is read", async || n_failed() == 1.0).await;
    call(&mut device, "Upload", Some(&new.secret))
        .await
        .unwrap();
    collector.stop().await;
}

const CA: &[u8] = include_bytes!("../tls/ca.pem");

fn leaf(name: &str) -> (Vec<u8>, Vec<u8>) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
    let read = |kind: &str| std::fs::read(dir.join(format!("{name}.{kind}"))).unwrap();
    (read("pem"), read("key"))
}

/// The certificate that a new connection is shown, and the protocol that was agreed.
async fn shown(address: SocketAddr, protocol: &str) -> (CertificateDer<'static>, Vec<u8>) {
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(CA).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(client))
        .connect(name, stream)
        .await
        .unwrap();
    let session = stream.get_ref().1;
    let certificate = session.peer_certificates().unwrap()[0].clone().into_owned();
    (certificate, session.alpn_protocol().unwrap().to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_is_shown_without_a_restart() {
    capture();
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (leaf("one"), leaf("two"));
    let files = TlsConfig {
        cert_file: dir.path().join("tls.pem"),
        key_file: dir.path().join("tls.key"),
        ..TlsConfig::default()
    };
    replace(&files.cert_file, &one.0);
    replace(&files.key_file, &one.1);
    let mut config = config(&dir.path().join("wal"));
    config.tls = Some(files.clone());
    let collector = start_alone(&dir, config).await;
    let address = collector.listen();
    let certificate = |pem: &[u8]| CertificateDer::from_pem_slice(pem).unwrap();
    let (first, protocol) = shown(address, "h2").await;
    assert_eq!(
        (first, protocol.as_slice()),
        (certificate(&one.0), &b"h2"[..])
    );
    let tls = tonic::transport::ClientTlsConfig::new()
        .ca_certificate(tonic::transport::Certificate::from_pem(CA))
        .domain_name("localhost");
    let channel = tonic::transport::Endpoint::from_shared(format!("https://{address}"))
        .unwrap()
        .tls_config(tls)
        .unwrap()
        .connect()
        .await
        .unwrap();
    let mut device = Device::new(channel);
    call(&mut device, "Upload", None).await.unwrap();

    // The expected times are from `openssl x509 -enddate` for each certificate.
    let ends = |at: &str| format!("epwatch_collector_tls_not_after_timestamp_seconds {at}");
    check_metrics(&collector, &[&ends("4949250424")]);

    // The certificate comes seconds before its key. Until both are there the old pair stays, and that is not a failure.
    replace(&files.cert_file, &two.0);
    let cert_file = files.cert_file.display().to_string();
    until("half of a renewal is seen", async || {
        !lines(&["WARN", "half of a renewal", &cert_file]).is_empty()
    })
    .await;
    assert_eq!(shown(address, "h2").await.0, certificate(&one.0));
    replace(&files.key_file, &two.1);
    let deadline = Instant::now() + TIMEOUT;
    while shown(address, "http/1.1").await.0 != certificate(&two.0) {
        assert!(Instant::now() < deadline, "the new pair is not shown");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    check_metrics(
        &collector,
        &[
            "epwatch_collector_reloads_total{result=\"failed\"} 0",
            "epwatch_collector_files_current{files=\"tls\"} 1",
            &ends("4949164024"),
        ],
    );
    // The connection that was open before the renewal goes on.
    call(&mut device, "Upload", None).await.unwrap();
    collector.stop().await;
}

#[test]
fn a_certificate_without_its_key_is_a_problem_of_the_config() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(&dir.path().join("wal"));
    let files = TlsConfig {
        cert_file: dir.path().join("tls.pem"),
        key_file: dir.path().join("tls.key"),
        ..TlsConfig::default()
    };
    config.tls = Some(files.clone());
    config.keys_file = Some(dir.path().join("keys.toml"));
    let text = |config: &epwatch_collector::config::CollectorConfig| {
        let problems = config.validate().unwrap_err();
        problems
            .0
            .iter()
            .map(|p| format!("{p}\n"))
            .collect::<String>()
    };
    let both = text(&config);
    assert!(
        both.contains("tls.cert_file") && both.contains("keys_file"),
        "{both}"
    );
    std::fs::write(&files.cert_file, leaf("one").0).unwrap();
    std::fs::write(&files.key_file, leaf("two").1).unwrap();
    assert!(
        text(&config).contains("is not the key of"),
        "{}",
        text(&config)
    );
}
