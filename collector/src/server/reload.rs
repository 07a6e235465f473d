//! Reloads key and certificate files when they change and on SIGHUP. Invalid files change nothing and are logged.
//!
//! Files are polled once a second, without a watch of the file system. A watch could miss replacements by renames, by
//! symbolic links of secret mounts, and over network file systems. Polling four files costs nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use epwatch_server::TaskSet;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::ingest::auth::AppKeys;
use crate::metrics::Metrics;
use crate::server::tls::Tls;

const PERIOD: Duration = Duration::from_secs(1);
/// How often the log names a certificate that is not valid, or will soon end.
const WARN_PERIOD: Duration = Duration::from_secs(86_400);
/// The time that a renewal has to write certificate and key one after the other.
const GRACE: Duration = Duration::from_secs(10);

/// Inode, size and modification time of each file; `None` while it cannot be read.
type FileStamps = Vec<Option<(u64, u64, i64, i64)>>;

fn stamp(files: &[PathBuf]) -> FileStamps {
    let of = |path: &PathBuf| {
        let about = fs::metadata(path).ok()?;
        Some((about.ino(), about.size(), about.mtime(), about.mtime_nsec()))
    };
    files.iter().map(of).collect()
}

/// A set of files with the action that reloads them.
struct Watched {
    name: &'static str,
    files: Vec<PathBuf>,
    /// `None` before the first poll.
    seen: Option<FileStamps>,
    state: State,
    /// `Err` is the reason why nothing changed.
    reload: Box<dyn Fn() -> Result<(), String> + Send>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The collector uses the current content of the files.
    Current,
    /// The files have been unusable since this time; they may be half of a renewal.
    Trying(Instant),
    /// The files stayed unusable, which was logged.
    Failed,
}

impl Watched {
    fn new(
        name: &'static str,
        files: Vec<PathBuf>,
        reload: impl Fn() -> Result<(), String> + Send + 'static,
    ) -> Self {
        Self {
            name,
            files,
            seen: None,
            state: State::Current,
            reload: Box::new(reload),
        }
    }

    fn poll(&mut self, is_forced: bool, now: Instant, metrics: &Metrics) {
        let stamps = stamp(&self.files);
        // The files may have changed since they were read at the start, so the first poll reads them. It logs nothing.
        let is_first = self.seen.is_none();
        let is_changed = self.seen.as_ref() != Some(&stamps);
        if !is_changed && !is_forced && !matches!(self.state, State::Trying(_)) {
            return;
        }
        // The stamps are taken before the reload, so that the next poll finds a later write.
        self.seen = Some(stamps);
        let result = match ((self.reload)(), self.state) {
            (Ok(()), _) => {
                self.state = State::Current;
                if is_first {
                    return;
                }
                tracing::info!(what = self.name, "read again");
                "done"
            }
            (Err(why), State::Current) if !is_forced => {
                self.state = State::Trying(now);
                let (what, files) = (self.name, &self.files);
                tracing::warn!(
                    what,
                    ?files,
                    why,
                    "not usable yet, perhaps half of a renewal"
                );
                return;
            }
            (Err(_), State::Trying(since)) if !is_forced && now - since < GRACE => return,
            (Err(why), _) => {
                self.state = State::Failed;
                let text = "failed to read again, nothing changed";
                tracing::error!(what = self.name, why, "{text}");
                "failed"
            }
        };
        let is_current = i64::from(self.state == State::Current);
        let gauge = metrics.files_current.get_or_create(&[("files", self.name)]);
        gauge.set(is_current);
        metrics.reloads.get_or_create(&[("result", result)]).inc();
    }
}

/// Logs a warning if the certificate ends soon or no device accepts it, and if an authority of clients ends.
fn warn_of_the_end(tls: &Tls) {
    let now = Timestamp::now();
    if let Some(problem) = tls.authority_problem(now) {
        tracing::warn!(problem, "an authority in collector.tls.client_ca ends");
    }
    let problem = tls.validity().and_then(|of| of.problem(now));
    match problem {
        Some((problem, true)) => {
            let text = "the certificate of collector.tls.cert_file is not valid";
            tracing::error!(problem, "{text}");
        }
        Some((problem, false)) => {
            let text = "the certificate of collector.tls.cert_file ends soon";
            tracing::warn!(problem, "{text}");
        }
        None => {}
    }
}

/// Watches the files of keys and certificate until `stop` is cancelled. SIGHUP reads them at once.
pub(crate) fn watch(
    context: &Context,
    keys: Arc<AppKeys>,
    tls: Option<Arc<Tls>>,
    stop: CancellationToken,
    tasks: &TaskSet,
) {
    let (config, metrics) = (&context.config, context.metrics.clone());
    let mut watched = Vec::new();
    if let Some(file) = &config.keys_file {
        watched.push(Watched::new("keys_file", vec![file.clone()], move || {
            keys.reload().map_err(|problems| problems.to_string())
        }));
    }
    if let Some(tls) = tls.clone() {
        let paths = tls.files();
        let gauges = (
            metrics.tls_not_before.clone(),
            metrics.tls_not_after.clone(),
            metrics.tls_client_ca_not_after.clone(),
        );
        let show = move |tls: &Tls| {
            let validity = tls.validity();
            let second = |time: Option<Timestamp>| time.map_or(0, Timestamp::as_second);
            gauges.0.set(second(validity.map(|of| of.not_before)));
            gauges.1.set(second(validity.map(|of| of.not_after)));
            gauges.2.set(second(tls.first_end_of_authorities()));
        };
        show(&tls);
        watched.push(Watched::new("tls", paths, move || {
            tls.reload().map_err(|error| error.to_string())?;
            show(&tls);
            Ok(())
        }));
    }
    for some in &watched {
        let gauge = metrics.files_current.get_or_create(&[("files", some.name)]);
        gauge.set(1);
    }
    let (watched, stopped) = (Arc::new(Mutex::new(watched)), stop.clone());
    let poll = move || {
        let (watched, tls) = (watched.clone(), tls.clone());
        poll_files(watched, tls, metrics.clone(), stopped.clone())
    };
    tokio::spawn(tasks.clone().restarted("reload".to_owned(), stop, poll));
}

async fn poll_files(
    watched: Arc<Mutex<Vec<Watched>>>,
    tls: Option<Arc<Tls>>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) {
    let mut hangup = signal(SignalKind::hangup())
        .inspect_err(|error| tracing::warn!(%error, "failed to listen for SIGHUP"))
        .ok();
    let mut warned_at: Option<Instant> = None;
    loop {
        if let Some(tls) = &tls
            && warned_at.is_none_or(|at| at.elapsed() >= WARN_PERIOD)
        {
            warned_at = Some(Instant::now());
            warn_of_the_end(tls);
        }
        let forced = async {
            match &mut hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        let is_forced = tokio::select! {
            _ = forced => true,
            () = tokio::time::sleep(PERIOD) => false,
            () = stop.cancelled() => return,
        };
        for some in watched.lock().iter_mut() {
            some.poll(is_forced, Instant::now(), &metrics);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;

    #[test]
    fn files_that_are_right_again_within_the_grace_are_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tls.pem");
        let (metrics, start) = (Metrics::new(), Instant::now());
        let is_sound = Arc::new(AtomicBool::new(true));
        let reads = is_sound.clone();
        let mut watched = Watched::new("tls", vec![file.clone()], move || {
            reads.load(Relaxed).then_some(()).ok_or("half".to_owned())
        });
        let mut poll = |seconds, is_forced| {
            watched.poll(is_forced, start + Duration::from_secs(seconds), &metrics);
            let n = |result| metrics.reloads.get_or_create(&[("result", result)]).get();
            let is_current = metrics
                .files_current
                .get_or_create(&[("files", "tls")])
                .get();
            (n("done"), n("failed"), is_current)
        };
        fs::write(&file, "one").unwrap();
        assert_eq!(poll(0, false), (0, 0, 0), "the first poll is not a reload");
        // First one half of a renewal is written, then the other half.
        is_sound.store(false, Relaxed);
        fs::write(&file, "two").unwrap();
        assert_eq!(poll(1, false), (0, 0, 0));
        assert_eq!(poll(10, false), (0, 0, 0));
        is_sound.store(true, Relaxed);
        assert_eq!(poll(11, false), (1, 0, 1), "without a change of this file");
        // Files that stay wrong are reported once, until a renewal replaces them.
        is_sound.store(false, Relaxed);
        fs::write(&file, "three").unwrap();
        assert_eq!(poll(12, false), (1, 0, 1));
        assert_eq!(poll(21, false), (1, 0, 1));
        assert_eq!(poll(22, false), (1, 1, 0));
        assert_eq!(poll(60, false), (1, 1, 0));
        assert_eq!(
            poll(61, true),
            (1, 2, 0),
            "SIGHUP asks for the answer at once"
        );
        is_sound.store(true, Relaxed);
        fs::write(&file, "fours").unwrap();
        assert_eq!(poll(62, false), (2, 2, 1));
    }
}
