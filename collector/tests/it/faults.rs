//! Killed collectors, killed engines, a store that is away: no acknowledged report is lost, and none counts twice.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use epwatch_store::StoreTarget;

use crate::support::{
    COUNTED, Device, ROWS, Store, TIMEOUT, config, connect, report, request, send, start,
    start_alone, start_at,
};

const DISTINCT: &str = "SELECT uniqExact(installation, stream_id, sequence) AS n FROM reports";

/// Variables that are set for the child that is a collector: its WAL's directory and the store's socket.
const CHILD_WAL: &str = "EPWATCH_COLLECTOR_CHILD_WAL";
const CHILD_STORE: &str = "EPWATCH_COLLECTOR_CHILD_STORE";
const LISTENING: &str = "listening on ";

/// Not a test of its own: the collector of `a_killed_collector_...`, in a process of its own.
#[tokio::test(flavor = "multi_thread")]
async fn collector_child_entry() {
    let (Ok(wal), Ok(store)) = (std::env::var(CHILD_WAL), std::env::var(CHILD_STORE)) else {
        return;
    };
    let target = StoreTarget::parse(&store, "epwatch").unwrap();
    let client = epwatch_store::client(&target);
    let config = config(Path::new(&wal));
    let collector = start_at(config, client).await;
    println!("{LISTENING}{}", collector.listen());
    std::future::pending::<()>().await;
}

/// A collector in a process of its own, killed when dropped.
pub(crate) struct CollectorProcess {
    child: Child,
    address: String,
    /// Kept open, because the child's test harness prints a line after a minute and would end without a reader.
    _printed: Lines<BufReader<ChildStdout>>,
}

impl CollectorProcess {
    fn start(wal: &Path, store: &Store) -> Self {
        Self::start_at(wal, &store.socket())
    }

    /// Starts a collector whose store is at this socket, if one runs there.
    pub(crate) fn start_at(wal: &Path, socket: &Path) -> Self {
        Self::run(Command::new(std::env::current_exe().unwrap()), wal, socket)
    }

    /// Does the same as [`Self::start_at`], with these limits of open files.
    pub(crate) fn start_limited(soft: u32, hard: u32, wal: &Path, socket: &Path) -> Self {
        let mut shell = Command::new("sh");
        let limits = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\"");
        shell.arg("-c").arg(limits);
        shell.arg(std::env::current_exe().unwrap());
        Self::run(shell, wal, socket)
    }

    fn run(mut program: Command, wal: &Path, socket: &Path) -> Self {
        let mut child = program
            .args(["--exact", "faults::collector_child_entry", "--nocapture"])
            .env(CHILD_WAL, wal)
            .env(CHILD_STORE, format!("unix:{}", socket.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = printed.by_ref().find_map(|line| {
            let line = line.unwrap();
            let (_, address) = line.split_once(LISTENING)?;
            Some(address.to_owned())
        });
        Self {
            child,
            address: address.expect("the child says where it listens"),
            _printed: printed,
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for CollectorProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends this device's reports one after the other, each until it is acknowledged.
async fn send_until_acked(
    address: Arc<std::sync::Mutex<String>>,
    installation: u8,
    n_reports: u64,
    n_acked: Arc<AtomicU64>,
) {
    let deadline = Instant::now() + TIMEOUT;
    let mut device: Option<Device> = None;
    for sequence in 1..=n_reports {
        let message = request(&[report(installation, 1, sequence)]);
        loop {
            assert!(
                Instant::now() < deadline,
                "report {sequence} was never acknowledged"
            );
            let current = format!("http://{}", address.lock().unwrap());
            if device.is_none() {
                device = Device::connect(current).await.ok();
            }
            match device.as_mut() {
                Some(open) => match open.upload(message.clone()).await {
                    Ok(_) => break,
                    Err(_) => device = None,
                },
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        n_acked.fetch_add(1, Ordering::SeqCst);
    }
}

/// Starts devices that send 100 reports each.
fn start_load(
    address: &str,
    n_devices: u8,
) -> (
    Arc<std::sync::Mutex<String>>,
    Vec<tokio::task::JoinHandle<()>>,
    Arc<AtomicU64>,
) {
    let address = Arc::new(std::sync::Mutex::new(address.to_owned()));
    let n_acked = Arc::new(AtomicU64::new(0));
    let devices = (1..=n_devices)
        .map(|device| {
            tokio::spawn(send_until_acked(
                address.clone(),
                device,
                100,
                n_acked.clone(),
            ))
        })
        .collect();
    (address, devices, n_acked)
}

async fn wait_for_acks(n_acked: &AtomicU64, n: u64) {
    let deadline = Instant::now() + TIMEOUT;
    while n_acked.load(Ordering::SeqCst) < n {
        assert!(
            Instant::now() < deadline,
            "only {} acks",
            n_acked.load(Ordering::SeqCst)
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_collector_loses_and_doubles_nothing() {
    let store = Store::start().await;
    let wal = store.dir.path().join("wal");
    let mut collector = CollectorProcess::start(&wal, &store);
    let (address, devices, n_acked) = start_load(&collector.address, 10);
    for round in 1..=4 {
        wait_for_acks(&n_acked, round * 150).await;
        collector.kill();
        collector = CollectorProcess::start(&wal, &store);
        address.lock().unwrap().clone_from(&collector.address);
    }
    for device in devices {
        device.await.unwrap();
    }
    store.eventually(DISTINCT, 1000).await;
    store.eventually(COUNTED, 1000).await;
    // Reports may have been sent again after a lost ack, but no row of a batch is stored twice.
    let twice = "SELECT count() AS n FROM (SELECT collector_id, wal_offset FROM reports \
                 GROUP BY collector_id, wal_offset HAVING count() > 1)";
    assert_eq!(store.number(twice).await, 0);
    collector.kill();
    store.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_engine_loses_and_doubles_nothing() {
    let store = Store::start().await;
    let collector = start(&store, "wal").await;
    let (_, devices, n_acked) = start_load(&collector.listen().to_string(), 10);
    for round in 1..=3 {
        wait_for_acks(&n_acked, round * 200).await;
        store.kill_child().await;
    }
    for device in devices {
        device.await.unwrap();
    }
    store.eventually(DISTINCT, 1000).await;
    store.eventually(COUNTED, 1000).await;
    store.eventually(ROWS, 1000).await;
    assert_eq!(
        store.number("SELECT count() AS n FROM report_copies").await,
        1000
    );
    store.end(collector).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_store_is_away_acks_go_on_and_it_catches_up() {
    let dir = tempfile::tempdir().unwrap();
    let collector = start_alone(&dir, config(&dir.path().join("wal"))).await;
    let mut device = connect(&collector).await;
    let reports: Vec<_> = (1..=500).map(|sequence| report(1, 1, sequence)).collect();
    for some in reports.chunks(50) {
        assert!(
            send(&mut device, some).await.is_empty(),
            "acknowledged without a store"
        );
    }
    assert!(!collector.is_drained());
    let mut dump = Vec::new();
    let dumped = epwatch_collector::dump_wal(&dir.path().join("wal"), &mut dump).unwrap();
    assert_eq!((dumped.reports, dumped.skipped_bytes), (500, 0));
    let recorded = epwatch_proto::recorded::RecordedReader::new(&dump[..]);
    for (record, sent) in recorded.zip(&reports) {
        let record = record.unwrap();
        assert_eq!(record.app_id, "com.example.camera");
        assert_eq!(record.report, prost::Message::encode_to_vec(sent));
    }

    let store = Store::start_in(dir).await;
    store.eventually(COUNTED, 500).await;
    let missing = "SELECT toUInt64(sum(abs(missing))) AS n FROM loss_ledger_v1";
    assert_eq!(store.number(missing).await, 0);
    let out_of_order = "SELECT count() AS n FROM (SELECT sequence, row_number() OVER \
                        (ORDER BY wal_offset) AS place FROM reports) WHERE sequence != place";
    assert_eq!(store.number(out_of_order).await, 0);
    store.end(collector).await;
}
