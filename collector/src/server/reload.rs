//! Reloads key and certificate files when they change and on SIGHUP. Invalid files change nothing and are logged.
//!
//! Files are polled once a second, without a watch of the file system: they are replaced by renames, by symbolic links
//! of secret mounts, and over network file systems. Polling three files costs nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::ingest::auth::AppKeys;
use crate::metrics::Metrics;
use crate::parts::Parts;
use crate::server::tls::Tls;

const PERIOD: Duration = Duration::from_secs(1);

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
    seen: FileStamps,
    /// `Err` is the reason why nothing changed.
    reload: Box<dyn Fn() -> Result<(), String> + Send>,
}

impl Watched {
    fn new(
        name: &'static str,
        files: Vec<PathBuf>,
        reload: impl Fn() -> Result<(), String> + Send + 'static,
    ) -> Self {
        let reload = Box::new(reload);
        Self {
            name,
            files,
            // The files may have changed since they were first read, so the first poll reloads them.
            seen: FileStamps::new(),
            reload,
        }
    }

    fn poll(&mut self, is_forced: bool, metrics: &Metrics) {
        let now = stamp(&self.files);
        if now == self.seen && !is_forced {
            return;
        }
        // Taken before the reload: a later write is found by the next poll.
        self.seen = now;
        let result = match (self.reload)() {
            Ok(()) => {
                tracing::info!(what = self.name, "read again");
                "done"
            }
            Err(why) => {
                tracing::error!(
                    what = self.name,
                    why,
                    "failed to read again, nothing changed"
                );
                "failed"
            }
        };
        metrics.reloads.get_or_create(&[("result", result)]).inc();
    }
}

/// Watches the files of keys and certificate until `stop` is cancelled. Without such files SIGHUP keeps
/// its default action.
pub(crate) fn watch(
    parts: &Parts,
    keys: Arc<AppKeys>,
    tls: Option<Arc<Tls>>,
    stop: CancellationToken,
) {
    let (config, metrics) = (&parts.config, parts.metrics.clone());
    let mut watched = Vec::new();
    if let Some(file) = &config.keys_file {
        watched.push(Watched::new("keys_file", vec![file.clone()], move || {
            keys.reload()
                .map(|_| ())
                .map_err(|problems| problems.to_string())
        }));
    }
    if let (Some(files), Some(tls)) = (&config.tls, tls) {
        let paths = vec![files.cert_file.clone(), files.key_file.clone()];
        watched.push(Watched::new("tls", paths, move || {
            tls.reload().map_err(|error| error.to_string())
        }));
    }
    if watched.is_empty() {
        return;
    }
    tokio::spawn(async move {
        let mut hangup = signal(SignalKind::hangup())
            .inspect_err(|error| tracing::warn!(%error, "failed to listen for SIGHUP"))
            .ok();
        loop {
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
            for some in &mut watched {
                some.poll(is_forced, &metrics);
            }
        }
    });
}
