//! A store that goes away in the middle of an evaluation, at one request after another, and one that is slow to take an
//! incident.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use epwatch_detector::notify::Occasion;
use epwatch_server::ManualClock;
use epwatch_store::StoreTarget;
use epwatch_test_support::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::incidents::{Pager, Running};
use crate::support::{TestStore, base};
use crate::windows::{after, roll_out};

/// A proxy of the store. Once armed, it dies at the first request, then at the fourth, the seventh and so on. Every
/// other time it passes the request on and loses the answer.
struct Flaky {
    is_armed: Arc<AtomicBool>,
    deaths: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

/// One lifetime of the proxy.
struct Life {
    is_armed: Arc<AtomicBool>,
    /// Requests until it ends.
    left: AtomicI64,
    loses_answer: bool,
    end: mpsc::Sender<()>,
    real: PathBuf,
}

impl Flaky {
    fn start(listener: UnixListener, real: PathBuf) -> Flaky {
        let is_armed = Arc::new(AtomicBool::new(false));
        let deaths = Arc::new(AtomicU64::new(0));
        let (armed, died) = (is_armed.clone(), deaths.clone());
        let task = tokio::spawn(async move {
            for life in 0_i64.. {
                let (end, mut ended) = mpsc::channel(1);
                let life = Arc::new(Life {
                    is_armed: armed.clone(),
                    left: AtomicI64::new(3 * life),
                    loses_answer: life % 2 == 1,
                    end,
                    real: real.clone(),
                });
                let mut connections = JoinSet::new();
                loop {
                    tokio::select! {
                        Ok((client, _)) = listener.accept() => {
                            connections.spawn(life.clone().carry(client));
                        }
                        _ = ended.recv() => break,
                    }
                }
                connections.shutdown().await;
                died.fetch_add(1, Ordering::SeqCst);
            }
        });
        Flaky {
            is_armed,
            deaths,
            task,
        }
    }
}

impl Life {
    async fn carry(self: Arc<Self>, mut client: UnixStream) {
        let Ok(mut server) = UnixStream::connect(&self.real).await else {
            return;
        };
        let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let mut is_last = false;
        loop {
            tokio::select! {
                n = client.read(&mut asked) => {
                    let Ok(n @ 1..) = n else { return };
                    let begins = asked[..n].starts_with(b"POST ") || asked[..n].starts_with(b"GET ");
                    if begins && self.is_armed.load(Ordering::SeqCst) {
                        is_last = self.left.fetch_sub(1, Ordering::SeqCst) <= 0;
                        if is_last && !self.loses_answer {
                            let _ = self.end.send(()).await;
                            return;
                        }
                    }
                    if server.write_all(&asked[..n]).await.is_err() {
                        return;
                    }
                }
                n = server.read(&mut answered) => {
                    let Ok(n @ 1..) = n else { return };
                    if is_last {
                        let _ = self.end.send(()).await;
                        return;
                    }
                    if client.write_all(&answered[..n]).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn a_store_that_dies_in_mid_evaluation_loses_no_page_and_repeats_none() {
    let store = TestStore::start().await;
    let base = base();
    roll_out(&store, base).await;
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("store");
    let flaky = Flaky::start(UnixListener::bind(&socket).unwrap(), store.socket());
    let client = epwatch_store::client(&StoreTarget::unix(&socket, "epwatch"));

    let clock = Arc::new(ManualClock::at(after(base, 60)));
    let pager = Pager::default();
    let running = Running::start_over(client, &clock, &pager);
    running.judged(after(base, 60)).await;
    flaky.is_armed.store(true, Ordering::SeqCst);
    clock.set(after(base, 120));
    running.judged(after(base, 120)).await;
    let page = [(Occasion::Firing, vec!["SM8635".to_owned()])];
    until("the page", || std::future::ready(pager.told() == page)).await;
    let firing = "SELECT count() FROM incidents_v1 WHERE state = 'firing'";
    until("the incident", || async { store.count(firing).await == 1 }).await;
    assert!(flaky.deaths.load(Ordering::SeqCst) >= 3);
    // At the stop the detector saves that the page went out. It tries once, so the store must answer.
    flaky.is_armed.store(false, Ordering::SeqCst);
    running.stop().await;
    flaky.task.abort();

    // Lost deliveries are neither forgotten nor repeated.
    let running = Running::start(&store, &clock, &pager);
    clock.set(after(base, 121));
    running.judged(after(base, 121)).await;
    running.stop().await;
    assert_eq!(pager.told(), page);
    assert_eq!(store.count("SELECT count() FROM incidents_v1").await, 1);
    store.stop().await;
}

/// A proxy of the store that holds back requests that insert incidents until it is told to release them.
struct Keeping {
    kept: Arc<AtomicU64>,
    lets_go: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Keeping {
    fn start(listener: UnixListener, real: PathBuf) -> Keeping {
        let kept = Arc::new(AtomicU64::new(0));
        let lets_go = watch::Sender::new(false);
        let (of_kept, of_lets_go) = (kept.clone(), lets_go.clone());
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let passing = pass(
                    client,
                    real.clone(),
                    of_kept.clone(),
                    of_lets_go.subscribe(),
                );
                connections.spawn(passing);
            }
        });
        Keeping {
            kept,
            lets_go,
            task,
        }
    }
}

async fn pass(
    mut client: UnixStream,
    real: PathBuf,
    kept: Arc<AtomicU64>,
    mut lets_go: watch::Receiver<bool>,
) {
    let Ok(mut server) = UnixStream::connect(real).await else {
        return;
    };
    let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            n = client.read(&mut asked) => {
                let Ok(n @ 1..) = n else { return };
                let text = String::from_utf8_lossy(&asked[..n]);
                if text.starts_with("POST ") && text.contains("INSERT+INTO+%60incidents%60%28") {
                    kept.fetch_add(1, Ordering::SeqCst);
                    let _ = lets_go.wait_for(|lets_go| *lets_go).await;
                }
                if server.write_all(&asked[..n]).await.is_err() {
                    return;
                }
            }
            n = server.read(&mut answered) => {
                let Ok(n @ 1..) = n else { return };
                if client.write_all(&answered[..n]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// The person paged may acknowledge at once, so the incident is stored before. If the store is slow, the page goes out
/// without waiting longer.
#[tokio::test]
async fn a_page_waits_a_moment_for_the_incidents_row_and_goes_out_without() {
    let store = TestStore::start().await;
    let base = base();
    roll_out(&store, base).await;
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("store");
    let keeping = Keeping::start(UnixListener::bind(&socket).unwrap(), store.socket());
    let client = epwatch_store::client(&StoreTarget::unix(&socket, "epwatch"));

    let clock = Arc::new(ManualClock::at(after(base, 120)));
    let pager = Pager::default();
    let running = Running::start_over(client, &clock, &pager);
    let n_kept = || std::future::ready(keeping.kept.load(Ordering::SeqCst) > 0);
    until("an incident that is not stored", n_kept).await;
    assert_eq!(pager.told(), []);
    let page = [(Occasion::Firing, vec!["SM8635".to_owned()])];
    until("the page", || std::future::ready(pager.told() == page)).await;
    let stored = "SELECT count() FROM incidents_v1";
    assert_eq!(store.count(stored).await, 0);

    keeping.lets_go.send_replace(true);
    until("the incident", || async { store.count(stored).await == 1 }).await;
    running.stop().await;
    assert_eq!(pager.told(), page);
    keeping.task.abort();
    store.stop().await;
}
