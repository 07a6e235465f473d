//! The way of a POST: through the proxies that the environment names, within its time limit, and only to its own
//! address.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::super::expected::Expected;
use super::super::http::HttpChannel;
use super::*;

/// Addresses that a copy of this test, started with another environment, posts to.
const ADDRESSES: &str = "EPWATCH_TEST_ADDRESSES";

/// Heads of the requests that a server or a proxy received.
type Heads = Arc<Mutex<Vec<String>>>;

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Reads up to the empty line and no further.
async fn head(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Answers one request with 200.
async fn take(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, heads: Heads) {
    let head = head(&mut stream).await;
    assert!(head.contains("content-length: 2\r\n"), "{head}");
    let mut body = [0; 2];
    stream.read_exact(&mut body).await.unwrap();
    heads.lock().push(head);
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    stream.write_all(answer).await.unwrap();
    // Waits until the other side has read the answer and closes.
    let _ = stream.read_u8().await;
}

async fn start_http_server() -> (SocketAddr, Heads) {
    let (heads, (listener, address)) = (Heads::default(), listen().await);
    let taken = heads.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(take(stream, taken.clone()));
        }
    });
    (address, heads)
}

fn tls_file(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/tls");
    PathBuf::from(folder).join(name)
}

async fn start_https_server() -> (SocketAddr, Heads) {
    let provider = rustls::crypto::ring::default_provider();
    let certificate = CertificateDer::from_pem_file(tls_file("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(tls_file("server.key")).unwrap();
    let config = ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (heads, (listener, address)) = (Heads::default(), listen().await);
    let taken = heads.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, taken) = (acceptor.clone(), taken.clone());
            tokio::spawn(async move { take(acceptor.accept(stream).await.unwrap(), taken).await });
        }
    });
    (address, heads)
}

/// Connects for CONNECT, and forwards a request in absolute form.
async fn start_proxy() -> (SocketAddr, Heads) {
    let (heads, (listener, address)) = (Heads::default(), listen().await);
    let taken = heads.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let taken = taken.clone();
            tokio::spawn(async move {
                let head = head(&mut client).await;
                taken.lock().push(head.clone());
                let (method, rest) = head.split_once(' ').unwrap();
                let (target, rest) = rest.split_once(' ').unwrap();
                let (host, forwarded) = if method == "CONNECT" {
                    (target, String::new())
                } else {
                    let target = target.strip_prefix("http://").unwrap();
                    let (host, path) = target.split_once('/').unwrap();
                    (host, format!("{method} /{path} {rest}"))
                };
                let mut server = TcpStream::connect(host).await.unwrap();
                if method == "CONNECT" {
                    let answer = b"HTTP/1.1 200 Connection established\r\n\r\n";
                    client.write_all(answer).await.unwrap();
                }
                server.write_all(forwarded.as_bytes()).await.unwrap();
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (address, heads)
}

async fn post(url: &str, timeout: Duration) -> Result<(), NotifyError> {
    let mut channel = HttpChannel::new("webhook", url)?;
    channel.timeout = timeout;
    let json = b"{}".to_vec();
    channel
        .post(HeaderMap::new(), json, &Expected::SUCCESS)
        .await
}

/// The environment belongs to a process, so a copy of this test with its own variables makes the posts.
#[tokio::test(flavor = "multi_thread")]
async fn proxies_of_the_environment_are_obeyed() {
    if let Ok(addresses) = std::env::var(ADDRESSES) {
        for url in addresses.split(' ') {
            post(url, Duration::from_secs(30)).await.unwrap();
        }
        return;
    }
    let (proxy, proxied) = start_proxy().await;
    let (http, http_heads) = start_http_server().await;
    let (https, https_heads) = start_https_server().await;
    let addresses = format!(
        "http://{http}/hook?a=b https://user:p%40ss@{https}/hook http://localhost:{}/direct",
        http.port()
    );
    let this = concat!(module_path!(), "::proxies_of_the_environment_are_obeyed");
    let (_, this) = this.split_once("::").unwrap();
    let mut copy = Command::new(std::env::current_exe().unwrap());
    copy.args(["--exact", this])
        .env(ADDRESSES, addresses)
        .env("SSL_CERT_FILE", tls_file("ca.pem"))
        .env("HTTP_PROXY", format!("http://proxy:word@{proxy}"))
        .env("HTTPS_PROXY", format!("http://{proxy}"))
        .env("NO_PROXY", "localhost")
        .env_remove("SSL_CERT_DIR")
        .env_remove("REQUEST_METHOD");
    let ran = tokio::task::spawn_blocking(move || copy.output());
    let ran = ran.await.unwrap().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    assert!(String::from_utf8_lossy(&ran.stdout).contains("1 passed"));

    let lines = |heads: &Heads| -> Vec<String> {
        let heads = heads.lock();
        let first = heads
            .iter()
            .map(|head| head.lines().next().unwrap().to_owned());
        first.collect()
    };
    let forwarded = format!("POST http://{http}/hook?a=b HTTP/1.1");
    let tunnelled = format!("CONNECT {https} HTTP/1.1");
    assert_eq!(lines(&proxied), [forwarded, tunnelled]);
    let expected = ["POST /hook?a=b HTTP/1.1", "POST /direct HTTP/1.1"];
    assert_eq!(lines(&http_heads), expected);
    assert_eq!(lines(&https_heads), ["POST /hook HTTP/1.1"]);

    // "proxy:word" is for the proxy, "user:p@ss" for the address.
    let proxied = proxied.lock();
    let basic = "proxy-authorization: Basic cHJveHk6d29yZA==\r\n";
    assert!(proxied[0].contains(basic), "{}", proxied[0]);
    let https_heads = https_heads.lock();
    let basic = "authorization: Basic dXNlcjpwQHNz\r\n";
    assert!(https_heads[0].contains(basic), "{}", https_heads[0]);
    assert!(https_heads[0].contains(&format!("host: {https}\r\n")));
}

#[tokio::test]
async fn a_channel_that_does_not_answer_in_time_is_tried_again() {
    let (_silent, address) = listen().await;
    let url = format!("http://{address}/");
    let error = post(&url, Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(error.retry(), Retry::WithBackoff);
}

/// A refusal that never ends is cut, and a refusal that breaks off still counts as one.
#[tokio::test]
async fn the_beginning_of_a_refusal_is_kept() {
    for (text, expected) in [
        ("x".repeat(5_000), "x".repeat(300)),
        ("cut".into(), String::new()),
    ] {
        let (listener, address) = listen().await;
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            while stream.read_line(&mut line).await.unwrap() > 2 {}
            let head = "HTTP/1.1 400 Bad Request\r\ncontent-length: 1000000\r\n\r\n";
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(text.as_bytes()).await.unwrap();
        });
        let url = format!("http://{address}/");
        let error = post(&url, Duration::from_secs(30)).await.unwrap_err();
        let NotifyError::Refused { status, detail, .. } = error else {
            panic!("{error}");
        };
        assert_eq!((status, detail), (400, expected));
    }
}
