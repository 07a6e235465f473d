//! mTLS: clients with a certificate of the operator's authority, with one of another authority, and with none. The
//! authorities are read again while the collector runs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use epwatch_collector::Collector;
use epwatch_collector::config::{CollectorConfig, KeyKind, NewKey, TlsConfig};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};

use crate::identity::replace;
use crate::support::{
    Device, TIMEOUT, check_metrics, config, key_for, report, request, start_alone, with_key,
};

fn fixture(name: &str) -> PathBuf {
    let tls = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tls");
    tls.join(name)
}

fn pem(name: &str) -> String {
    std::fs::read_to_string(fixture(name)).unwrap()
}

/// Uploads once on a new connection. `Err(None)` means that the connection was refused.
async fn upload(
    address: SocketAddr,
    device: Option<&str>,
    key: &NewKey,
) -> Result<(), Option<Status>> {
    let mut tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(pem("ca.pem")))
        .domain_name("localhost");
    if let Some(name) = device {
        let (certificate, key) = (pem(&format!("{name}.pem")), pem(&format!("{name}.key")));
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
    let channel = endpoint.tls_config(tls).unwrap().connect().await;
    // TLS 1.3 lets the client begin before the server has seen its certificate.
    let mut device = Device::new(channel.map_err(|_| None)?);
    let sent = device
        .upload(with_key(request(&[report(1, 1, 1)]), &key.secret))
        .await;
    sent.map(|_| ()).map_err(|status| {
        let is_answer = std::error::Error::source(&status).is_none();
        is_answer.then_some(status)
    })
}

struct Port {
    _dir: tempfile::TempDir,
    collector: Collector,
    own: NewKey,
    app: NewKey,
    client_ca: PathBuf,
}

async fn port(change: impl FnOnce(&mut TlsConfig)) -> Port {
    let dir = tempfile::tempdir().unwrap();
    let client_ca = dir.path().join("clients.pem");
    std::fs::copy(fixture("device-ca.pem"), &client_ca).unwrap();
    let (own, app) = (NewKey::random().unwrap(), NewKey::random().unwrap());
    let mut own_key = key_for(&own, "com.example.camera");
    (own_key.kind, own_key.name) = (KeyKind::Own, "robots".to_owned());
    let mut tls = TlsConfig {
        cert_file: fixture("server.pem"),
        key_file: fixture("server.key"),
        client_ca: Some(client_ca.clone()),
        ..TlsConfig::default()
    };
    change(&mut tls);
    let config = CollectorConfig {
        keys: vec![own_key, key_for(&app, "com.example.camera")],
        tls: Some(tls),
        ..config(&dir.path().join("wal"))
    };
    Port {
        collector: start_alone(&dir, config).await,
        _dir: dir,
        own,
        app,
        client_ca,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_own_devices_needs_a_certificate_of_their_authority() {
    let port = port(|_| {}).await;
    let address = port.collector.listen();
    upload(address, Some("device"), &port.own).await.unwrap();
    let status = upload(address, None, &port.own).await.unwrap_err().unwrap();
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    assert!(status.message().contains("client certificate"), "{status}");
    check_metrics(
        &port.collector,
        &["epwatch_collector_key_requests_total{key=\"robots\",result=\"without_certificate\"} 1"],
    );
    // Apps on phones have no certificate, and presenting one does no harm.
    upload(address, None, &port.app).await.unwrap();
    upload(address, Some("device"), &port.app).await.unwrap();
    // A certificate of another authority ends the connection, whatever the key is.
    for key in [&port.own, &port.app] {
        let refused = upload(address, Some("other-device"), key).await;
        assert!(matches!(refused, Err(None)), "{refused:?}");
    }
    port.collector.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kinds_of_keys_that_need_a_certificate_are_the_operators_choice() {
    let none = port(|tls| tls.client_cert_required = Some(Vec::new())).await;
    let address = none.collector.listen();
    upload(address, None, &none.own).await.unwrap();
    upload(address, Some("device"), &none.own).await.unwrap();
    none.collector.stop().await;
    let all = port(|tls| {
        tls.client_cert_required = Some(vec![KeyKind::App, KeyKind::Own]);
    })
    .await;
    let address = all.collector.listen();
    let status = upload(address, None, &all.app).await.unwrap_err().unwrap();
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    upload(address, Some("device"), &all.app).await.unwrap();
    all.collector.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn authorities_are_replaced_while_it_runs() {
    let port = port(|_| {}).await;
    let address = port.collector.listen();
    let until = async |device: &str, is_admitted: bool| {
        let deadline = Instant::now() + TIMEOUT;
        while upload(address, Some(device), &port.own).await.is_ok() != is_admitted {
            assert!(Instant::now() < deadline, "the file was not read again");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    until("other-device", false).await;
    let both = pem("device-ca.pem") + &pem("other-device-ca.pem");
    replace(&port.client_ca, both.as_bytes());
    until("other-device", true).await;
    until("device", true).await;
    replace(&port.client_ca, pem("other-device-ca.pem").as_bytes());
    until("device", false).await;
    until("other-device", true).await;
    port.collector.stop().await;
}

/// While devices get certificates of a new authority, `client_ca` has both, and the earlier one may end. Neither a check
/// nor the gauge of `cert_file` says that the server's certificate ended.
#[tokio::test(flavor = "multi_thread")]
async fn an_ended_authority_is_named_and_stops_no_client() {
    let port = port(|tls| {
        let file = tls.client_ca.as_ref().unwrap();
        let both = pem("device-ca.pem") + &pem("ended-device-ca.pem");
        std::fs::write(file, both).unwrap();
    })
    .await;
    let address = port.collector.listen();
    for device in ["device", "ended-device"] {
        upload(address, Some(device), &port.own).await.unwrap();
    }
    upload(address, None, &port.app).await.unwrap();
    // From `openssl x509 -enddate` of ended-device-ca.pem and server.pem.
    check_metrics(
        &port.collector,
        &[
            "epwatch_collector_tls_client_ca_not_after_timestamp_seconds 1609459200",
            "epwatch_collector_tls_not_after_timestamp_seconds 4948848736",
        ],
    );
    port.collector.stop().await;
}

#[test]
fn an_authority_that_cannot_be_used_is_a_problem_of_the_config() {
    let dir = tempfile::tempdir().unwrap();
    let problem = |client_ca: Option<PathBuf>, required| {
        let tls = TlsConfig {
            cert_file: fixture("server.pem"),
            key_file: fixture("server.key"),
            client_ca,
            client_cert_required: required,
        };
        let config = CollectorConfig {
            tls: Some(tls),
            ..config(&dir.path().join("wal"))
        };
        let problems = config.validate().unwrap_err();
        problems
            .0
            .iter()
            .map(|p| format!("{p}\n"))
            .collect::<String>()
    };
    let missing = problem(Some(dir.path().join("none.pem")), None);
    assert!(missing.contains("tls.client_ca"), "{missing}");
    let no_certificate = problem(Some(fixture("device.key")), None);
    assert!(
        no_certificate.contains("holds no PEM certificate"),
        "{no_certificate}"
    );
    let without = problem(None, Some(vec![KeyKind::Own]));
    assert!(without.contains("tls.client_cert_required"), "{without}");
}

#[test]
fn a_certificate_of_version_1_is_named_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name| {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/tls")
            .join(name)
    };
    let config = CollectorConfig {
        tls: Some(TlsConfig {
            cert_file: file("version-1.pem"),
            key_file: file("version-1.key"),
            ..TlsConfig::default()
        }),
        ..config(&dir.path().join("wal"))
    };
    let problems = config.validate().unwrap_err();
    let texts: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
    let [text] = &*texts else {
        panic!("{texts:?}");
    };
    for words in [
        "tls.cert_file",
        "expected version 3",
        "-addext subjectAltName",
    ] {
        assert!(text.contains(words), "{text}");
    }
}
