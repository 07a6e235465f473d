//! A ClickHouse behind TLS whose certificate a private CA signed.

use std::{path::PathBuf, process::Command, sync::Arc};

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

use crate::support::{Store, check_ends, check_succeeds, epwatch, tls};

/// Terminates TLS in front of the engine.
async fn serve(listener: TcpListener, engine: PathBuf) {
    let chain = CertificateDer::pem_file_iter(tls("server.pem")).unwrap();
    let chain = chain.map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(tls("server.key")).unwrap();
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

fn migrate(address: &str, ca_file: Option<PathBuf>) -> Command {
    let mut command = epwatch(&format!("migrate --clickhouse {address}"));
    command.envs(ca_file.map(|path| ("EPWATCH_STORE__CA_FILE", path)));
    command
}

fn replay(address: &str, ca_file: Option<PathBuf>) -> Command {
    let mut command = epwatch(&format!("replay --clickhouse {address}"));
    if let Some(path) = ca_file {
        command.arg("--clickhouse-ca").arg(path);
    }
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_with_a_certificate_of_a_private_ca_is_trusted_by_that_alone() {
    let store = Store::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let https = format!(
        "https://localhost:{}",
        listener.local_addr().unwrap().port()
    );
    let serving = tokio::spawn(serve(listener, store.engine.socket().to_owned()));

    let said = check_succeeds(&mut migrate(&https, Some(tls("ca.pem"))));
    assert_eq!(said, "the schema is up to date\n");

    // Neither another CA nor the public CAs verify the certificate.
    for ca_file in [Some(tls("other-ca.pem")), None] {
        check_ends(&mut migrate(&https, ca_file.clone()), 3);
        check_ends(&mut replay(&https, ca_file), 3);
    }
    // Commands that name their store by options use the CA as well.
    check_ends(&mut replay(&https, Some(tls("ca.pem"))), 0);
    serving.abort();
    store.engine.stop().await;
}

#[test]
fn a_ca_that_cannot_be_used_is_named() {
    for (address, ca_file, code_of_replay, expected) in [
        ("https://localhost:9", "server.key", 2, "server.key"),
        ("https://localhost:9", "none.pem", 3, "none.pem"),
        ("http://localhost:9", "ca.pem", 2, "https"),
    ] {
        // If the config names the file, the error is a problem of the config.
        let (_, stderr) = check_ends(&mut migrate(address, Some(tls(ca_file))), 2);
        for text in ["EPWATCH_STORE__CA_FILE: store.ca_file: ", expected] {
            assert!(stderr.contains(text), "{text}: {stderr}");
        }
        let (_, stderr) = check_ends(&mut replay(address, Some(tls(ca_file))), code_of_replay);
        for text in ["--clickhouse-ca", expected] {
            assert!(stderr.contains(text), "{text}: {stderr}");
        }
    }
}
