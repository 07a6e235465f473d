//! A ClickHouse behind TLS whose certificate a private CA signed.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, UnixStream},
};
use tokio_rustls::TlsAcceptor;

use crate::support::{EPWATCH, Store};

fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tls")).join(name)
}

/// Terminates TLS in front of the engine.
async fn serve(listener: TcpListener, engine: PathBuf) {
    let chain = CertificateDer::pem_file_iter(fixture("server.pem")).unwrap();
    let chain = chain.map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(fixture("server.key")).unwrap();
    let config = ServerConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (acceptor, engine) = (acceptor.clone(), engine.clone());
        tokio::spawn(async move {
            // A client that does not trust the certificate disconnects.
            let Ok(mut stream) = acceptor.accept(stream).await else {
                return;
            };
            let mut engine = UnixStream::connect(engine).await.unwrap();
            let _ended = copy_bidirectional(&mut stream, &mut engine).await;
        });
    }
}

async fn migrate(address: String, ca_file: Option<PathBuf>) -> Output {
    let mut command = Command::new(EPWATCH);
    command.args(["migrate", "--clickhouse", &address]);
    command.env_remove("EPWATCH_CONFIG");
    if let Some(path) = ca_file {
        command.env("EPWATCH_STORE__CA_FILE", path);
    }
    output_of(command).await
}

async fn replay(address: &str, ca_file: Option<PathBuf>) -> Output {
    let mut command = Command::new(EPWATCH);
    command.args(["replay", "--clickhouse", address]);
    if let Some(path) = ca_file {
        command.arg("--clickhouse-ca").arg(path);
    }
    output_of(command).await
}

async fn output_of(mut command: Command) -> Output {
    let run = move || command.output().unwrap();
    tokio::task::spawn_blocking(run).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_with_a_certificate_of_a_private_ca_is_trusted_by_that_alone() {
    let store = Store::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let https = format!("https://localhost:{port}");
    let serving = tokio::spawn(serve(listener, store.engine.socket().to_owned()));

    let output = migrate(https.clone(), Some(fixture("ca.pem"))).await;
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(said, "the schema is up to date\n");

    // Neither another CA nor the public ones verify it.
    for ca_file in [Some(fixture("other-ca.pem")), None] {
        let output = migrate(https.clone(), ca_file.clone()).await;
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let output = replay(&https, ca_file).await;
        assert_eq!(output.status.code(), Some(3), "{output:?}");
    }
    // Commands that name their store by options use the CA as well.
    let output = replay(&https, Some(fixture("ca.pem"))).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    serving.abort();
    store.engine.stop().await;
}

#[tokio::test]
async fn a_ca_file_that_cannot_be_used_is_a_problem_of_the_config() {
    for (address, ca_file, expected) in [
        ("https://localhost:9", fixture("server.key"), "server.key"),
        ("https://localhost:9", fixture("none.pem"), "none.pem"),
        ("http://localhost:9", fixture("ca.pem"), "https"),
    ] {
        let output = migrate(address.to_owned(), Some(ca_file)).await;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        for text in ["EPWATCH_STORE__CA_FILE: store.ca_file: ", expected] {
            assert!(stderr.contains(text), "{text}: {stderr}");
        }
    }
}

#[tokio::test]
async fn a_ca_of_an_option_that_cannot_be_used_is_named() {
    for (address, ca_file, code, expected) in [
        (
            "https://localhost:9",
            fixture("server.key"),
            2,
            "server.key",
        ),
        ("https://localhost:9", fixture("none.pem"), 3, "none.pem"),
        ("http://localhost:9", fixture("ca.pem"), 2, "https"),
    ] {
        let output = replay(address, Some(ca_file)).await;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        for text in ["--clickhouse-ca", expected] {
            assert!(stderr.contains(text), "{text}: {stderr}");
        }
    }
}
