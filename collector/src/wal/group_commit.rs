//! Group commit. One thread writes and syncs groups, another does housekeeping (spare segments, removal, disk and clock
//! checks). A task on the runtime completes appends, so that a group costs one wake-up across threads. [`super::Wal`]
//! is the handle; [`super::log`] writes the bytes.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc as std_mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use epwatch_server::Clock;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::report_path::REPORT_PATH;

use super::api::{Batch, WalOptions, WalStats};
use super::checkpoint::{self, Checkpoint, SavedCheckpoint};
use super::clock_jump::ClockJump;
use super::dir::WalDir;
use super::error::WalError;
use super::fill_level::FillLevel;
use super::frame::WalOffset;
use super::log::{Log, WalRecovery};

/// Pause between probes of a failing disk. A collector that is not ready gets no traffic, so without probes no append
/// would find that the disk is back.
const PROBE_PERIOD: Duration = Duration::from_secs(1);
/// How far receive times may be ahead of the clock without a log line, because clocks are often corrected by seconds.
const MAX_AHEAD_US: u64 = 60_000_000;

/// The thread that writes and syncs groups.
const WRITER: &str = "wal-writer";
/// The thread that makes spare segments, removes segments and runs checks.
const HOUSEKEEPER: &str = "wal-housekeeper";

type Outcome = Result<WalOffset, WalError>;

/// Runs on the runtime once a batch is durable or has failed.
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
    /// Bytes in flight, including the group that is being written.
    in_flight_bytes: usize,
    is_closed: bool,
    /// True if new appends are refused while appends under way are finished.
    is_ending: bool,
    is_writer_asleep: bool,
}

#[derive(Debug)]
struct ReceiveTime {
    /// Never falls, even if the clock is set back: the store relies on it. Nothing here can tell which of two times is
    /// wrong. A time that is too late loses no report. A time that is too early may lose one, because the store expires
    /// old reports.
    newest_us: u64,
    /// End of all stamped frames, durable or not.
    end: u64,
    jump: ClockJump,
}

impl ReceiveTime {
    /// Returns the clock's time, unless the clock jumped ahead.
    fn now_us(&mut self, clock: &dyn Clock) -> Result<u64, WalError> {
        let (wall_us, steady_us) = (clock.now_us(), clock.steady_us());
        self.jump.check(wall_us, steady_us, self.newest_us)
    }

    /// Moves the latest receive time on to the clock's time.
    fn advance(&mut self, clock: &dyn Clock) -> Result<u64, WalError> {
        self.newest_us = self.now_us(clock)?.max(self.newest_us);
        Ok(self.newest_us)
    }
}

/// A finished group: its callbacks and its outcome.
type Group = (Vec<Done>, Outcome);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) log: Log,
    pub(crate) is_failing: AtomicBool,
    is_ahead: AtomicBool,
    has_jumped: AtomicBool,
    pub(crate) dir: WalDir,
    pub(super) options: WalOptions,
    /// A batch was refused for `max_bytes` since the last check.
    was_full: AtomicBool,
    fill: Mutex<FillLevel>,
    /// Free bytes at the last check; `u64::MAX` before the first.
    free_bytes: AtomicU64,
    queue: Mutex<Queue>,
    wake_writer: Condvar,
    stamp: Mutex<ReceiveTime>,
    /// Counts of groups and records; [`Shared::stats`] fills the other fields.
    counts: Mutex<WalStats>,
    /// Segments below this offset are freed. It is an atomic, because a chore is dropped while the queue of chores is
    /// full.
    free_below: AtomicU64,
    chores: std_mpsc::SyncSender<Chore>,
    /// Cancelled once the WAL is being closed, so that its threads may end.
    closing: CancellationToken,
}

#[derive(Debug)]
enum Chore {
    PrepareSpare,
    FreeSegments,
    Stop,
}

/// Closes the WAL with its last handle.
#[derive(Debug)]
pub(crate) struct Threads {
    pub(crate) shared: Arc<Shared>,
    pub(crate) durable: watch::Receiver<WalOffset>,
    running: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    /// Waits for the threads and then releases the directory's lock. A drop would come too late, because calls that
    /// were cut may keep handles for longer.
    pub(crate) fn join(&self) {
        for thread in self.running.lock().drain(..) {
            // A panicking thread has printed its panic; the WAL is closed in any case.
            let _ = thread.join();
        }
        self.shared.dir.release();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.close();
        self.join();
    }
}

/// Opens the WAL of a directory and starts its threads.
pub(crate) fn start(
    options: &WalOptions,
    dir: WalDir,
) -> Result<(Arc<Threads>, Checkpoint, WalRecovery), WalError> {
    let id = dir.collector_id;
    let found = checkpoint::load_or_make(&*dir.storage, &id.0);
    let found = found.map_err(WalError::io("read wal checkpoint"))?;
    let floor = found.known().unwrap_or_default().highest();
    let (log, mut recovery) = Log::open(dir.storage.clone(), id.0, options.segment_bytes, floor)?;
    let checkpoint = writers_start(&found, &log, &mut recovery);
    let end = log.end();
    let (chores, chores_received) = std_mpsc::sync_channel(16);
    // Frees segments that the previous process did not remove. If no record waits for the store, no later checkpoint
    // would remove them, and they could fill the WAL.
    let _ = chores.try_send(Chore::FreeSegments);
    let shared = Arc::new(Shared {
        log,
        is_failing: AtomicBool::new(false),
        is_ahead: AtomicBool::new(false),
        has_jumped: AtomicBool::new(false),
        dir,
        options: options.clone(),
        was_full: AtomicBool::new(false),
        fill: Mutex::new(FillLevel::Low),
        free_bytes: AtomicU64::new(u64::MAX),
        queue: Mutex::default(),
        wake_writer: Condvar::new(),
        stamp: Mutex::new(ReceiveTime {
            newest_us: recovery.newest_us.max(checkpoint.time_us),
            end,
            jump: ClockJump::default(),
        }),
        counts: Mutex::default(),
        free_below: AtomicU64::new(checkpoint.offset.0),
        chores,
        closing: CancellationToken::new(),
    });
    shared.check_disk();
    shared.check_clock();
    let (groups, finished) = mpsc::unbounded_channel();
    let (durable_sender, durable) = watch::channel(WalOffset(end));
    let completing = complete_groups(finished, durable_sender);
    let tasks = &shared.options.tasks;
    tokio::spawn(tasks.essential("wal-completion", &shared.closing, completing));
    let writer = spawn(WRITER, &shared, move |shared| {
        let _refused = RefuseAtEnd(shared);
        write_groups(shared, &groups);
    })?;
    let housekeeper = spawn(HOUSEKEEPER, &shared, move |shared| {
        housekeep(shared, &chores_received);
    })?;
    let running = Mutex::new(vec![writer, housekeeper]);
    let threads = Arc::new(Threads {
        shared,
        durable,
        running,
    });
    Ok((threads, checkpoint, recovery))
}

/// Returns the position from which the writer goes on.
pub(super) fn writers_start(
    found: &SavedCheckpoint,
    log: &Log,
    recovery: &mut WalRecovery,
) -> Checkpoint {
    let mut checkpoint = found.known().unwrap_or_default();
    recovery.is_checkpoint_lost = found.latest.is_none() && recovery.segments > 0;
    if recovery.is_checkpoint_lost && checkpoint.offset.0 < log.start() {
        // The segments below the lost checkpoint are already freed, so the writer begins at the first one left.
        checkpoint.offset = WalOffset(log.start());
        checkpoint.batch_end = None;
    }
    checkpoint
}

fn spawn(
    name: &'static str,
    shared: &Arc<Shared>,
    run: impl FnOnce(&Shared) + Send + 'static,
) -> Result<JoinHandle<()>, WalError> {
    let guard = shared.options.tasks.guard(name, &shared.closing);
    let shared = shared.clone();
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            run(&shared);
            guard.returned();
        })
        .map_err(WalError::io("start wal thread"))
}

/// Refuses appends once the writing thread ends, however it ends. Otherwise calls would wait for a sync that never
/// comes.
struct RefuseAtEnd<'a>(&'a Shared);

impl Drop for RefuseAtEnd<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.is_closed = true;
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        // The drop answers each waiting append with `WalError::Closed`.
        drop(waiting);
    }
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
        // A batch above the limit passes if it is alone, because otherwise it could never pass.
        if queue.in_flight_bytes > 0
            && queue.in_flight_bytes + n_bytes > self.options.max_in_flight_bytes
        {
            let in_flight = queue.in_flight_bytes;
            return Err(WalError::Busy {
                in_flight,
                limit: self.options.max_in_flight_bytes,
            });
        }
        queue.in_flight_bytes += n_bytes;
        queue.waiting.push(Waiting { batch, done });
        // Only the first append of a group wakes the writer: each wake-up is a system call.
        let is_first = std::mem::take(&mut queue.is_writer_asleep);
        drop(queue);
        if is_first {
            self.wake_writer.notify_one();
        }
        Ok(())
    }

    pub(crate) fn check_room(&self, n_bytes: usize) -> Result<(), WalError> {
        let free = self.free_bytes.load(Ordering::Relaxed);
        if free < self.options.min_free_bytes {
            let least = self.options.min_free_bytes;
            return Err(WalError::DiskLow { free, least });
        }
        let held = self.log.held_bytes();
        if held + n_bytes as u64 > self.options.max_bytes {
            return Err(WalError::Full {
                held,
                limit: self.options.max_bytes,
            });
        }
        Ok(())
    }

    /// Returns why appends are refused, if they are.
    pub(crate) fn refusal(&self) -> Option<String> {
        if self.is_failing.load(Ordering::Relaxed) {
            return Some("wal cannot be written: its disk fails".to_owned());
        }
        if self.has_jumped.load(Ordering::Relaxed) {
            return Some("wal refuses reports: this machine's clock jumped ahead".to_owned());
        }
        match self.check_room(0) {
            Ok(()) => None,
            Err(WalError::DiskLow { free, least }) => Some(format!(
                "wal refuses reports: {free} bytes are free on the volume of {}, less than collector.wal.min_free_bytes \
                 ({least})",
                self.options.dir.display()
            )),
            Err(_) => Some("wal is full: collector.wal.max_bytes wait for the store".to_owned()),
        }
    }

    pub(crate) fn save_checkpoint(&self, checkpoint: &Checkpoint) -> Result<(), WalError> {
        // The directory's lock is not released during the save. Nothing is saved once the directory may belong to
        // another process.
        let _lock = self.dir.lock.lock();
        if self.closing.is_cancelled() {
            return Err(WalError::Closed);
        }
        checkpoint::save(&*self.dir.storage, &self.dir.collector_id.0, checkpoint)
            .map_err(WalError::io("save wal checkpoint"))?;
        let offset = checkpoint.offset.0;
        self.free_below.store(offset, Ordering::Relaxed);
        // If the housekeeper is behind, it frees the segments once it is idle.
        let _ = self.chores.try_send(Chore::FreeSegments);
        Ok(())
    }

    pub(crate) fn watermark(&self) -> (u64, WalOffset) {
        let mut stamp = self.stamp.lock();
        // If the clock jumped ahead, the time before the jump stays.
        let _ = stamp.advance(&*self.options.clock);
        (stamp.newest_us, WalOffset(stamp.end))
    }

    pub(crate) fn stats(&self) -> WalStats {
        let counts = *self.counts.lock();
        WalStats {
            end: self.log.end(),
            held_bytes: self.log.held_bytes(),
            in_flight_bytes: self.queue.lock().in_flight_bytes as u64,
            ahead_us: self.ahead_us(),
            free_bytes: self.free_bytes.load(Ordering::Relaxed),
            ..counts
        }
    }

    fn ahead_us(&self) -> u64 {
        let newest_us = self.stamp.lock().newest_us;
        newest_us.saturating_sub(self.options.clock.now_us())
    }

    /// Logs once when the clock jumps ahead, and once when it is right again.
    fn note_jump(&self, error: Option<&WalError>) {
        let had_jumped = self.has_jumped.swap(error.is_some(), Ordering::Relaxed);
        match error {
            Some(error) if !had_jumped => tracing::error!(
                %error,
                "wal refuses reports; what to do is in docs/repair.md under \"A collector's clock was wrong\""
            ),
            None if had_jumped => tracing::info!("wal takes reports again: the clock is right"),
            _ => {}
        }
    }

    /// Checks whether the clock jumped. Logs once when receive times get far ahead of the clock, and once when the
    /// clock has caught up.
    fn check_clock(&self) {
        let now_us = self.stamp.lock().now_us(&*self.options.clock);
        self.note_jump(now_us.as_ref().err());
        let ahead_us = self.ahead_us();
        let is_ahead = ahead_us > MAX_AHEAD_US;
        match (self.is_ahead.swap(is_ahead, Ordering::Relaxed), is_ahead) {
            (false, true) => tracing::error!(
                ahead_seconds = ahead_us / 1_000_000,
                "this machine's clock is behind the receive times of the WAL: it was wrong, or is now; until it \
                 has caught up, all reports get the latest of those times; what to do is in \
                 docs/repair.md under \"A collector's clock was wrong\""
            ),
            (true, false) => {
                tracing::info!("the clock has caught up with the receive times of the WAL")
            }
            _ => {}
        }
    }

    pub(crate) fn refuse_appends(&self) {
        self.queue.lock().is_ending = true;
    }

    pub(crate) fn close(&self) {
        self.closing.cancel();
        self.queue.lock().is_closed = true;
        self.wake_writer.notify_one();
        let _ = self.chores.try_send(Chore::Stop);
    }

    /// Updates the free space, and logs once when it gets too low or sufficient.
    fn check_disk(&self) {
        // If the file system does not report free space, only failed writes show a full disk.
        let free = self.dir.storage.free_bytes().unwrap_or(u64::MAX);
        let before = self.free_bytes.swap(free, Ordering::Relaxed);
        let least = self.options.min_free_bytes;
        match (before < least, free < least) {
            (false, true) => {
                tracing::error!(
                    path = %self.options.dir.display(),
                    free,
                    least,
                    key = "collector.wal.min_free_bytes",
                    "wal refuses reports: too little space is free on its volume; free some, or lower the key"
                )
            }
            (true, false) => tracing::info!(
                path = %self.options.dir.display(),
                free,
                "wal takes reports again: its volume has space"
            ),
            _ => {}
        }
    }

    /// Updates the fill level, which logs its changes.
    fn check_fill(&self) {
        let was_full = self.was_full.swap(false, Ordering::Relaxed);
        let (held, limit) = (self.log.held_bytes(), self.options.max_bytes);
        let mut fill = self.fill.lock();
        let now = fill.after(held, limit, was_full);
        fill.log_change(now, held, limit);
        *fill = now;
    }

    /// Waits for batches. `None` once the WAL is closed and drained; empty if a probe of a failing disk is due.
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
        if !queue.waiting.is_empty() && !self.options.gather.is_zero() && !queue.is_closed {
            drop(queue);
            thread::sleep(self.options.gather);
            queue = self.queue.lock();
        }
        Some(std::mem::take(&mut queue.waiting))
    }

    /// Writes one group; `frames` is a reused buffer.
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
            let newest_us = stamp.advance(&*self.options.clock);
            self.note_jump(newest_us.as_ref().err());
            let newest_us = newest_us?;
            stamp.end = self.log.end() + frames.len() as u64;
            newest_us
        };
        let from = WalOffset(self.log.end());
        let outcome = self.log.append_group(frames, received_at_us);
        let spent = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let mut counts = self.counts.lock();
        counts.sync_us += spent;
        match outcome {
            Ok(end) => {
                counts.groups += 1;
                counts.records += n_records as u64;
                self.set_failing(None);
                let end = WalOffset(end);
                tracing::debug!(target: REPORT_PATH, %from, %end, n_records, "a group of reports is on disk");
                Ok(end)
            }
            Err(error) => {
                counts.failed_groups += 1;
                self.stamp.lock().end = self.log.end();
                let error = WalError::io("write and sync wal group")(error);
                self.set_failing(Some(&error));
                Err(error)
            }
        }
    }

    /// Logs once when the disk starts to fail, and once when it is back.
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
        if shared.options.tasks.must_end(WRITER) {
            return;
        }
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
        // The channel's content is bounded by the bytes in flight. If the runtime is gone, no calls wait either.
        let _ = groups.send((waiters, outcome));
        if shared.log.wants_spare() {
            // A new segment takes space. With a check now, the overshoot is at most one segment and the bytes in
            // flight. Otherwise it could be all the bytes that are written in a second.
            shared.check_disk();
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

fn housekeep(shared: &Shared, chores: &std_mpsc::Receiver<Chore>) {
    let mut checked = Instant::now();
    loop {
        let chore = chores.recv_timeout(PROBE_PERIOD);
        if shared.options.tasks.must_end(HOUSEKEEPER) {
            return;
        }
        if checked.elapsed() >= PROBE_PERIOD {
            shared.check_disk();
            shared.check_clock();
            shared.check_fill();
            checked = Instant::now();
        }
        if shared.queue.lock().is_closed {
            return;
        }
        let done = match chore {
            Ok(Chore::PrepareSpare) if shared.log.wants_spare() => shared.log.prepare_spare(),
            Ok(Chore::PrepareSpare) => Ok(()),
            // The timeout retries a removal that failed.
            Ok(Chore::FreeSegments) | Err(std_mpsc::RecvTimeoutError::Timeout) => {
                let below = shared.free_below.load(Ordering::Relaxed);
                shared.log.remove_below(below).map(|_| ())
            }
            Ok(Chore::Stop) | Err(std_mpsc::RecvTimeoutError::Disconnected) => return,
        };
        if let Err(error) = done {
            // Acks need no housekeeping, so a warning is enough. The writer notices a failing disk itself.
            let error = &error as &(dyn std::error::Error + 'static);
            tracing::warn!(error, "wal housekeeping failed");
        }
    }
}
