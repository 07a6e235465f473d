//! A collector whose ClickHouse is not ready at the start takes reports, and writes them later.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
};

use epwatch_test_support::until;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, UnixStream},
};

use crate::support::{Running, Store, epwatch, get, json, server};

/// A proxy in front of the engine.
#[derive(Debug, Default)]
struct Proxy {
    /// Whether the proxy forwards connections; before that, it answers with 503 as proxies do.
    is_open: AtomicBool,
    n_refused: AtomicU32,
}

impl Proxy {
    async fn run(self: Arc<Self>, listener: TcpListener, engine: PathBuf) {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (proxy, engine) = (self.clone(), engine.clone());
            tokio::spawn(async move {
                if proxy.is_open.load(SeqCst) {
                    let mut engine = UnixStream::connect(engine).await.unwrap();
                    let _ended = copy_bidirectional(&mut stream, &mut engine).await;
                    return;
                }
                let mut request = vec![0; 64 * 1024];
                let _read = stream.read(&mut request).await;
                let answer = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\
                               content-length: 8\r\n\r\nno store";
                let _written = stream.write_all(answer).await;
                let _closed = stream.shutdown().await;
                // The rest is read, because unread bytes would reset the connection and lose the answer.
                let _rest = stream.read_to_end(&mut request).await;
                proxy.n_refused.fetch_add(1, SeqCst);
            });
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_starts_behind_a_proxy_that_refuses_and_writes_once_it_does_not() {
    let store = Store::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let proxy = Arc::new(Proxy::default());
    let engine = store.engine.socket().to_owned();
    let serving = tokio::spawn(proxy.clone().run(listener, engine));
    // The database does not exist yet.
    let mut collector = server(
        &format!("collector --clickhouse {address}"),
        &store.dir.path().join("data"),
    );
    let (mut running, addresses) =
        Running::start(collector.env("EPWATCH_STORE__DATABASE", "later"));

    let collector = addresses["collector"].as_str().unwrap();
    let load = format!("load --rate=100 --duration=500ms --endpoint http://{collector}");
    let said = json(&mut epwatch(&load));
    let acked = said["acked"].as_u64().unwrap();
    assert!(acked > 0 && said["acked"] == said["sent"], "{said}");

    until("it asks again and again", async || {
        proxy.n_refused.load(SeqCst) > 10
    })
    .await;
    assert!(running.0.try_wait().unwrap().is_none(), "it lives");
    proxy.is_open.store(true, SeqCst);
    let ready = format!("http://{}/readyz", addresses["http"].as_str().unwrap());
    until("the store has the reports", async || {
        get(&ready).await.unwrap().status == 200
    })
    .await;
    until("each report counts", async || {
        let sql = "SELECT count() FROM later.counted_reports_v1";
        let counted = store.client().query(sql).fetch_one::<u64>().await;
        counted.is_ok_and(|n| n == acked)
    })
    .await;
    assert!(running.0.try_wait().unwrap().is_none(), "it lives");
    drop(running);
    serving.abort();
    store.engine.stop().await;
}
