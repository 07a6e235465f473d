//! The device port with hand-made clients.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::pin::{Pin, pin};

use http::Request;

use super::*;
use crate::fuzz::Nobody;
use crate::metrics::KeyMetrics;

const TIMEOUT: Duration = Duration::from_secs(60);

fn server(set: impl FnOnce(&mut CollectorConfig)) -> DeviceServer<Nobody> {
    let mut config = CollectorConfig::default();
    set(&mut config);
    let keys = Arc::new(AppKeys::new(&config, KeyMetrics::default()).unwrap());
    DeviceServer::new(&config, Nobody, keys, None, Arc::new(Metrics::new()))
}

/// A client's connection that makes progress only while it is polled.
type Undriven = Pin<Box<dyn Future<Output = Result<(), h2::Error>> + Send>>;

/// Makes one call over a new connection and leaves it open.
async fn call_once(address: SocketAddr) -> (h2::client::SendRequest<bytes::Bytes>, Undriven) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    let mut connection: Undriven = Box::pin(connection);
    let request = Request::post("http://test/epwatch.v1.CollectorService/Upload")
        .header("content-type", "application/grpc")
        .body(())
        .unwrap();
    let calling = async {
        let mut sender = sender.ready().await.unwrap();
        let (answering, mut body) = sender.send_request(request, false).unwrap();
        // One empty message.
        let frame = bytes::Bytes::from_static(&[0; 5]);
        body.send_data(frame, true).unwrap();
        assert_eq!(answering.await.unwrap().status(), 200);
        sender
    };
    let mut calling = pin!(calling);
    let sender = poll_fn(|cx| {
        let _ = connection.as_mut().poll(cx);
        calling.as_mut().poll(cx)
    });
    (sender.await, connection)
}

/// A client that is not polled never acknowledges GOAWAY. If accepts waited for draining connections, only `max`
/// connections and the draining ones would be accepted here.
#[tokio::test]
async fn accepts_do_not_wait_for_draining_connections() {
    const MAX: usize = 50;
    const N_CLIENTS: usize = 400;
    let mut server = server(|config| config.connections.max = MAX);
    server.drain_timeout = Duration::from_secs(3_600);
    let metrics = server.metrics.clone();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(server.serve(listener, CancellationToken::new()));
    let mut idle = Vec::new();
    for nth in 0..N_CLIENTS {
        let called = timeout(TIMEOUT, call_once(address)).await;
        idle.push(called.unwrap_or_else(|_| panic!("client {nth} is not accepted")));
        let n_open = usize::try_from(metrics.connections.get()).unwrap();
        assert!(n_open <= MAX + MAX / 2 + 1, "{n_open} files");
    }
    assert_eq!(metrics.requests.get(), N_CLIENTS as u64);
}

/// After the close timeout, connections end in whatever state their calls are.
#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_aborted_cuts_the_calls_under_way() {
    let server = server(|_| {});
    let metrics = server.metrics.clone();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server.serve(listener, stop.clone()));
    let mut calling = std::net::TcpStream::connect(address).unwrap();
    calling.set_read_timeout(Some(TIMEOUT)).unwrap();
    calling
        .write_all(
            b"POST /epwatch.v1.CollectorService/Upload HTTP/1.1\r\nHost: test\r\n\
              Content-Type: application/proto\r\nContent-Length: 2\r\n\r\n",
        )
        .unwrap();
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while metrics.requests.get() == 0 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the call never arrives"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stop.cancel();
    serving.abort();
    let _ = serving.await;
    // These bytes complete the body; they are an unknown field.
    let _ = calling.write_all(&[0x78, 0]);
    let mut answer = Vec::new();
    // A reset ends the connection too.
    let _ = calling.read_to_end(&mut answer);
    assert_eq!(String::from_utf8_lossy(&answer), "");
}
