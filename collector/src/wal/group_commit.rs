//! The threads: one writes and syncs groups, one keeps house (spare segments, removal), and a task
//! on the runtime completes appends, so that a group costs one wake-up across threads.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc as std_mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{mpsc, watch};

use super::api::{Batch, WalOptions, WalStats};
use super::checkpoint::{self, Checkpoint};
use super::dir::{CollectorId, WalDir};
use super::error::WalError;
use super::fill_level::FillLevel;
use super::frame::WalOffset;
use super::log::{Log, Recovery};
use epwatch_server::Clock;

/// How often a failing disk is tried while nothing comes in: readiness takes traffic away, so
/// traffic cannot be what finds out.
const PROBE_PERIOD: Duration = Duration::from_secs(1);
/// Receive times may be ahead of the clock by this before it is said: clocks are set right by seconds all the
/// time.
const MAX_AHEAD_US: u64 = 60_000_000;

type Outcome = Result<WalOffset, WalError>;

/// What happens once a batch is durable or has failed, on the runtime.
pub(crate) type Done = Box<dyn FnOnce(Outcome) + Send>;

struct Waiting {
    batch: Batch,
    done: Done,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting")
            .field("batch", &self.batch)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// Includes the group that is being written.
    in_flight_bytes: usize,
    is_closed: bool,
    /// What is under way is finished, and nothing more is taken.
    is_ending: bool,
    is_writer_asleep: bool,
}

#[derive(Debug)]
struct ReceiveTime {
    /// Never falls, whatever the clock does: it was promised to the store, and of two times nobody here can
    /// say which is wrong. One that is too late loses no report; one that is too early may, for the store
    /// lets go of what was received long ago.
    newest_us: u64,
    /// End of all frames that were stamped, durable or not.
    end: u64,
}

#[derive(Debug, Default)]
struct Counters {
    groups: AtomicU64,
    records: AtomicU64,
    failed_groups: AtomicU64,
    sync_us: AtomicU64,
}

/// A finished group: what is to happen, and how it ended.
type Group = (Vec<Done>, Outcome);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) log: Log,
    pub(crate) collector_id: CollectorId,
    pub(crate) is_failing: AtomicBool,
    /// Whether receive times are far ahead of the clock.
    is_ahead: AtomicBool,
    dir: WalDir,
    max_bytes: u64,
    max_in_flight_bytes: usize,
    gather: Duration,
    min_free_bytes: u64,
    /// A batch was refused for `max_bytes` since that was last looked at.
    was_full: AtomicBool,
    fill: Mutex<FillLevel>,
    /// What was free when it was last looked at; `u64::MAX` before that.
    free_bytes: AtomicU64,
    clock: Arc<dyn Clock>,
    queue: Mutex<Queue>,
    wake_writer: Condvar,
    stamp: Mutex<ReceiveTime>,
    counters: Counters,
    chores: std_mpsc::SyncSender<Chore>,
}

#[derive(Debug)]
enum Chore {
    PrepareSpare,
    RemoveBelow(u64),
    Stop,
}

/// Ends with the last handle of the WAL.
#[derive(Debug)]
pub(crate) struct Threads {
    shared: Arc<Shared>,
    running: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    pub(crate) fn join(&self) {
        for thread in self.running.lock().drain(..) {
            // A panic there was printed there; the WAL is closed either way.
            let _ = thread.join();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.close();
        self.join();
    }
}

/// An open WAL, its threads running.
pub(crate) struct Started {
    pub(crate) shared: Arc<Shared>,
    pub(crate) durable: watch::Receiver<WalOffset>,
    pub(crate) threads: Arc<Threads>,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) recovery: Recovery,
}

pub(crate) fn start(options: &WalOptions, dir: WalDir) -> Result<Started, WalError> {
    let id = dir.collector_id;
    let checkpoint = checkpoint::load(&*dir.storage, &id.0)
        .map_err(WalError::io("read wal checkpoint"))?
        .unwrap_or_default();
    let floor = checkpoint.highest();
    let (log, recovery) = Log::open(dir.storage.clone(), id.0, options.segment_bytes, floor)?;
    let end = log.end();
    let (chores, chores_received) = std_mpsc::sync_channel(16);
    // What the process before did not come to remove: with nothing that waits for the store no
    // checkpoint would say so again, and a WAL that is full of it takes nothing.
    let _ = chores.try_send(Chore::RemoveBelow(checkpoint.offset.0));
    let shared = Arc::new(Shared {
        log,
        collector_id: id,
        is_failing: AtomicBool::new(false),
        is_ahead: AtomicBool::new(false),
        dir,
        max_bytes: options.max_bytes,
        max_in_flight_bytes: options.max_in_flight_bytes,
        gather: options.gather,
        min_free_bytes: options.min_free_bytes,
        was_full: AtomicBool::new(false),
        fill: Mutex::new(FillLevel::Low),
        free_bytes: AtomicU64::new(u64::MAX),
        clock: options.clock.clone(),
        queue: Mutex::default(),
        wake_writer: Condvar::new(),
        stamp: Mutex::new(ReceiveTime {
            newest_us: recovery.newest_us.max(checkpoint.time_us),
            end,
        }),
        counters: Counters::default(),
        chores,
    });
    shared.look_at_disk();
    shared.look_at_clock();
    let (groups, finished) = mpsc::unbounded_channel();
    let (durable_sender, durable) = watch::channel(WalOffset(end));
    tokio::spawn(complete_groups(finished, durable_sender));
    let writer = spawn("wal-writer", {
        let shared = shared.clone();
        move || write_groups(&shared, &groups)
    })?;
    let housekeeper = spawn("wal-housekeeper", {
        let shared = shared.clone();
        move || keep_house(&shared, &chores_received)
    })?;
    let running = Mutex::new(vec![writer, housekeeper]);
    let threads = Arc::new(Threads {
        shared: shared.clone(),
        running,
    });
    Ok(Started {
        shared,
        durable,
        threads,
        checkpoint,
        recovery,
    })
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, WalError> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(WalError::io("start wal thread"))
}

impl Shared {
    pub(crate) fn enqueue(&self, batch: Batch, done: Done) -> Result<(), WalError> {
        let n_bytes = batch.frames.len();
        let mut queue = self.queue.lock();
        if queue.is_closed || queue.is_ending {
            return Err(WalError::Closed);
        }
        if let Err(error) = self.check_room(queue.in_flight_bytes + n_bytes) {
            if matches!(error, WalError::Full { .. }) {
                self.was_full.store(true, Ordering::Relaxed);
            }
            return Err(error);
        }
        // A lone batch above the limit passes, or it never could.
        if queue.in_flight_bytes > 0 && queue.in_flight_bytes + n_bytes > self.max_in_flight_bytes {
            let in_flight = queue.in_flight_bytes;
            return Err(WalError::Busy {
                in_flight,
                limit: self.max_in_flight_bytes,
            });
        }
        queue.in_flight_bytes += n_bytes;
        queue.waiting.push(Waiting { batch, done });
        // Who finds it asleep wakes it; the others of its next group need not, which is a call to
        // the kernel each.
        let is_first = std::mem::take(&mut queue.is_writer_asleep);
        drop(queue);
        if is_first {
            self.wake_writer.notify_one();
        }
        Ok(())
    }

    pub(crate) fn check_room(&self, n_bytes: usize) -> Result<(), WalError> {
        let free = self.free_bytes.load(Ordering::Relaxed);
        if free < self.min_free_bytes {
            let least = self.min_free_bytes;
            return Err(WalError::DiskLow { free, least });
        }
        let held = self.log.held_bytes();
        if held + n_bytes as u64 > self.max_bytes {
            return Err(WalError::Full {
                held,
                limit: self.max_bytes,
            });
        }
        Ok(())
    }

    pub(crate) fn is_writable(&self) -> bool {
        !self.is_failing.load(Ordering::Relaxed) && self.check_room(0).is_ok()
    }

    pub(crate) fn save_checkpoint(&self, checkpoint: &Checkpoint) -> Result<(), WalError> {
        checkpoint::save(&*self.dir.storage, &self.collector_id.0, checkpoint)
            .map_err(WalError::io("save wal checkpoint"))?;
        // If the housekeeper is behind, the next checkpoint says it again.
        let _ = self
            .chores
            .try_send(Chore::RemoveBelow(checkpoint.offset.0));
        Ok(())
    }

    pub(crate) fn watermark(&self) -> (u64, WalOffset) {
        let mut stamp = self.stamp.lock();
        stamp.newest_us = stamp.newest_us.max(self.clock.now_us());
        (stamp.newest_us, WalOffset(stamp.end))
    }

    pub(crate) fn stats(&self) -> WalStats {
        let counters = &self.counters;
        WalStats {
            end: self.log.end(),
            held_bytes: self.log.held_bytes(),
            in_flight_bytes: self.queue.lock().in_flight_bytes as u64,
            groups: counters.groups.load(Ordering::Relaxed),
            records: counters.records.load(Ordering::Relaxed),
            failed_groups: counters.failed_groups.load(Ordering::Relaxed),
            sync_us: counters.sync_us.load(Ordering::Relaxed),
            ahead_us: self.ahead_us(),
        }
    }

    fn ahead_us(&self) -> u64 {
        let newest_us = self.stamp.lock().newest_us;
        newest_us.saturating_sub(self.clock.now_us())
    }

    /// Looks how far receive times are ahead of the clock, and says it once when that becomes much and when
    /// the clock has caught up.
    fn look_at_clock(&self) {
        let ahead_us = self.ahead_us();
        let is_ahead = ahead_us > MAX_AHEAD_US;
        match (self.is_ahead.swap(is_ahead, Ordering::Relaxed), is_ahead) {
            (false, true) => tracing::error!(
                ahead_seconds = ahead_us / 1_000_000,
                "this machine's clock is behind the receive times of the log: it was wrong, or is now; until it \
                 has caught up, all reports are received at the latest of those times; what to do is in \
                 docs/operations.md under \"A collector's clock was wrong\""
            ),
            (true, false) => {
                tracing::info!("the clock has caught up with the receive times of the log")
            }
            _ => {}
        }
    }

    pub(crate) fn refuse_appends(&self) {
        self.queue.lock().is_ending = true;
    }

    pub(crate) fn close(&self) {
        self.queue.lock().is_closed = true;
        self.wake_writer.notify_one();
        let _ = self.chores.try_send(Chore::Stop);
    }

    /// Looks at what is free on the disk, and says it once when that becomes too little or enough.
    fn look_at_disk(&self) {
        // A disk that cannot say it is judged by its writes.
        let free = self.dir.storage.free_bytes().unwrap_or(u64::MAX);
        let before = self.free_bytes.swap(free, Ordering::Relaxed);
        let least = self.min_free_bytes;
        match (before < least, free < least) {
            (false, true) => {
                tracing::error!(free, least, "wal refuses reports: its disk is filling up")
            }
            (true, false) => tracing::info!(free, "wal takes reports again: its disk has space"),
            _ => {}
        }
    }

    /// Looks at what is held, and says it once when that becomes much, too much, or less.
    fn look_at_held(&self) {
        let was_full = self.was_full.swap(false, Ordering::Relaxed);
        let (held, limit) = (self.log.held_bytes(), self.max_bytes);
        let mut fill = self.fill.lock();
        let now = fill.after(held, limit, was_full);
        fill.tell(now, held, limit);
        *fill = now;
    }

    /// Waits for batches. `None` once the WAL is closed and all are taken; empty if the disk is
    /// failing and it is time to try it.
    fn next_group(&self) -> Option<Vec<Waiting>> {
        let mut queue = self.queue.lock();
        while queue.waiting.is_empty() {
            if queue.is_closed {
                return None;
            }
            queue.is_writer_asleep = true;
            let timeout = self.wake_writer.wait_for(&mut queue, PROBE_PERIOD);
            queue.is_writer_asleep = false;
            if timeout.timed_out() && self.is_failing.load(Ordering::Relaxed) {
                break;
            }
        }
        if !queue.waiting.is_empty() && !self.gather.is_zero() && !queue.is_closed {
            drop(queue);
            thread::sleep(self.gather);
            queue = self.queue.lock();
        }
        Some(std::mem::take(&mut queue.waiting))
    }

    /// Writes one group; `frames` is room that is used again.
    fn write_group(&self, group: &[Waiting], frames: &mut Vec<u8>) -> Outcome {
        frames.clear();
        let mut n_records = 0;
        for waiting in group {
            frames.extend_from_slice(&waiting.batch.frames);
            n_records += waiting.batch.n_records;
        }
        let started = Instant::now();
        let received_at_us = {
            let mut stamp = self.stamp.lock();
            stamp.newest_us = stamp.newest_us.max(self.clock.now_us());
            stamp.end = self.log.end() + frames.len() as u64;
            stamp.newest_us
        };
        let outcome = self.log.append_group(frames, received_at_us);
        let spent = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.counters.sync_us.fetch_add(spent, Ordering::Relaxed);
        match outcome {
            Ok(end) => {
                self.counters.groups.fetch_add(1, Ordering::Relaxed);
                self.counters
                    .records
                    .fetch_add(n_records as u64, Ordering::Relaxed);
                self.set_failing(None);
                Ok(WalOffset(end))
            }
            Err(error) => {
                self.stamp.lock().end = self.log.end();
                self.counters.failed_groups.fetch_add(1, Ordering::Relaxed);
                let error = WalError::io("write and sync wal group")(error);
                self.set_failing(Some(&error));
                Err(error)
            }
        }
    }

    /// Says it once when the disk begins to fail and once when it is back.
    fn set_failing(&self, error: Option<&WalError>) {
        let was_failing = self.is_failing.swap(error.is_some(), Ordering::Relaxed);
        match error {
            Some(error) if !was_failing => {
                let error = error as &(dyn std::error::Error + 'static);
                tracing::error!(error, "wal refuses reports");
            }
            None if was_failing => tracing::info!("wal takes reports again"),
            _ => {}
        }
    }
}

fn write_groups(shared: &Shared, groups: &mpsc::UnboundedSender<Group>) {
    let mut frames = Vec::new();
    while let Some(group) = shared.next_group() {
        if group.is_empty() {
            if shared.log.probe().is_ok() {
                shared.set_failing(None);
            }
            continue;
        }
        let outcome = shared.write_group(&group, &mut frames);
        let n_bytes: usize = group.iter().map(|waiting| waiting.batch.frames.len()).sum();
        shared.queue.lock().in_flight_bytes -= n_bytes;
        let waiters = group.into_iter().map(|waiting| waiting.done).collect();
        // Bounded by the bytes in flight. With the runtime gone, so are those who wait.
        let _ = groups.send((waiters, outcome));
        if shared.log.wants_spare() {
            // A segment's room is gone from the disk: looked at now, what is kept free is missed by a
            // segment and what is in flight, and not by all that a second can write.
            shared.look_at_disk();
            let _ = shared.chores.try_send(Chore::PrepareSpare);
        }
    }
}

async fn complete_groups(
    mut finished: mpsc::UnboundedReceiver<Group>,
    durable: watch::Sender<WalOffset>,
) {
    while let Some((waiters, outcome)) = finished.recv().await {
        if let Ok(end) = outcome {
            durable.send_replace(end);
        }
        for done in waiters {
            done(outcome.clone());
        }
    }
}

fn keep_house(shared: &Shared, chores: &std_mpsc::Receiver<Chore>) {
    let mut looked = Instant::now();
    let mut checkpoint = 0;
    loop {
        let chore = chores.recv_timeout(PROBE_PERIOD);
        if looked.elapsed() >= PROBE_PERIOD {
            shared.look_at_disk();
            shared.look_at_clock();
            shared.look_at_held();
            looked = Instant::now();
        }
        if shared.queue.lock().is_closed {
            return;
        }
        let done = match chore {
            Ok(Chore::PrepareSpare) if shared.log.wants_spare() => shared.log.prepare_spare(),
            Ok(Chore::PrepareSpare) => Ok(()),
            Ok(Chore::RemoveBelow(offset)) => {
                checkpoint = offset;
                shared.log.remove_below(checkpoint).map(|_| ())
            }
            // What failed before is tried again.
            Err(std_mpsc::RecvTimeoutError::Timeout) => {
                shared.log.remove_below(checkpoint).map(|_| ())
            }
            Ok(Chore::Stop) | Err(std_mpsc::RecvTimeoutError::Disconnected) => return,
        };
        if let Err(error) = done {
            // Neither is needed for acks; the disk's trouble shows where it matters.
            let error = &error as &(dyn std::error::Error + 'static);
            tracing::warn!(error, "wal housekeeping failed");
        }
    }
}
