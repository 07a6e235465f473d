//! Backups by time in one folder, and the latest one as a metric.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::manifest::NAME as MANIFEST;

/// A backup's name in its folder; later ones sort after earlier ones.
const FORMAT: &str = "%Y-%m-%dT%H-%M-%SZ";
/// An unfinished backup of this age is a leftover; one that another process is making is younger.
const UNFINISHED_AFTER: Duration = Duration::from_secs(86_400);
/// File of a data folder with the seconds since 1970 of its latest backup.
const LATEST: &str = "last-backup";

/// Returns the name of a backup that is made now.
pub(super) fn name_now() -> String {
    Timestamp::now().strftime(FORMAT).to_string()
}

fn is_name(name: &str) -> bool {
    jiff::civil::DateTime::strptime(FORMAT, name).is_ok()
}

/// Removes all but the latest `keep` backups of a folder, and the unfinished backups of killed runs. Returns the
/// removed folders. Folders with other names stay.
pub(super) fn prune(folder: &Path, keep: usize) -> anyhow::Result<Vec<PathBuf>> {
    let failed = || format!("failed to list {}", folder.display());
    let (mut whole, mut useless) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(folder).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if is_name(&name) {
            let is_whole = path.join(MANIFEST).exists();
            (if is_whole { &mut whole } else { &mut useless }).push(path);
        } else if let Some((of, _)) = name.split_once(".unfinished-")
            && is_name(of)
            && is_old(&path)
        {
            useless.push(path);
        }
    }
    whole.sort();
    whole.truncate(whole.len().saturating_sub(keep));
    useless.extend(whole);
    useless.sort();
    for path in &useless {
        let removed = fs::remove_dir_all(path);
        removed.with_context(|| format!("failed to remove {}", path.display()))?;
    }
    Ok(useless)
}

fn is_old(path: &Path) -> bool {
    let changed = path.metadata().and_then(|metadata| metadata.modified());
    changed
        .is_ok_and(|at| SystemTime::now().duration_since(at).unwrap_or_default() > UNFINISHED_AFTER)
}

/// Writes the time of a backup into its data folder. If this fails, only the metric is out of date.
pub(super) fn note(data_dir: &Path, taken_at_ms: u64) {
    let path = data_dir.join(LATEST);
    let seconds = (taken_at_ms / 1_000).to_string();
    // Root may make the backup, while the server that reads the time runs as another user.
    let noted = epwatch_server::replace_readable_file(&path, seconds.as_bytes());
    if let Err(error) = noted {
        tracing::warn!(%error, path = %path.display(), "failed to note the time of the backup for the metrics");
    }
}

/// Returns the metrics of the backups of a data folder.
pub(crate) fn metrics(data_dir: &Path) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(LatestBackup(data_dir.join(LATEST))));
    registry
}

/// The file [`LATEST`], read at each scrape because another process writes it.
#[derive(Debug)]
struct LatestBackup(PathBuf);

impl Collector for LatestBackup {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        let seconds = ConstGauge::new(text.trim().parse::<i64>().unwrap_or(0));
        let metric = encoder.encode_descriptor(
            "epwatch_store_last_backup_timestamp_seconds",
            "Time of the latest backup by epwatch store backup, 0 for none",
            None,
            seconds.metric_type(),
        )?;
        seconds.encode(metric)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_whole_backups_are_kept_and_nothing_else_of_others_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, is_whole: bool| {
            fs::create_dir(dir.path().join(name)).unwrap();
            if is_whole {
                fs::write(dir.path().join(name).join(MANIFEST), "{}").unwrap();
            }
        };
        for day in 1..=4 {
            make(&format!("2026-11-0{day}T01-00-00Z"), true);
        }
        make("2026-11-05T01-00-00Z", false);
        make("by-hand", true);
        make("2026-11-06T01-00-00Z.unfinished-abc", false);
        let removed = prune(dir.path(), 2).unwrap();
        let removed: Vec<_> = removed
            .iter()
            .map(|path| path.file_name().unwrap())
            .collect();
        assert_eq!(
            removed,
            [
                "2026-11-01T01-00-00Z",
                "2026-11-02T01-00-00Z",
                "2026-11-05T01-00-00Z"
            ]
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4);
        assert!(is_name(&name_now()));
        assert_eq!(prune(dir.path(), 2).unwrap(), [""; 0].map(PathBuf::from));
    }
}
