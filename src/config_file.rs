//! Logs a change of a running server's config file, because the server reads it only at its start.

use std::{
    convert::Infallible,
    future::pending,
    path::{Path, PathBuf},
    time::Duration,
};

use epwatch_server::read_config_file;

const PERIOD: Duration = Duration::from_secs(10);

/// Logs a line for each change of the file. Never returns.
pub(crate) async fn log_changes(file: Option<PathBuf>) -> Infallible {
    let Some(file) = file else {
        return pending().await;
    };
    let log = || {
        let text = "the config file has changed, and is read at the next start; only keys_file and certificates are \
                    read again by a running server";
        tracing::warn!(file = %file.display(), "{text}");
    };
    each_change(&file, PERIOD, log).await
}

/// Compares the bytes: a file that is written again as it was has not changed. An unreadable file is ignored, because
/// it may be in the middle of a replacement.
async fn each_change(file: &Path, period: Duration, mut tell: impl FnMut()) -> Infallible {
    let mut known = read_config_file(file).ok();
    loop {
        tokio::time::sleep(period).await;
        let now = read_config_file(file).ok();
        if now.is_some() && now != known {
            if known.is_some() {
                tell();
            }
            known = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn a_change_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("epwatch.toml");
        fs::write(&file, "a = 1").unwrap();
        let (told, mut tells) = tokio::sync::mpsc::unbounded_channel();
        let of_task = file.clone();
        let task = tokio::spawn(async move {
            each_change(&of_task, SHORT, || told.send(()).unwrap()).await;
        });
        // A change before the task's first read is not detected, so the test repeats it.
        for content in 0.. {
            let replacement = folder.path().join("new");
            fs::write(&replacement, format!("a = {content}")).unwrap();
            fs::rename(&replacement, &file).unwrap();
            let waited = tokio::time::timeout(100 * SHORT, tells.recv()).await;
            if waited.is_ok() {
                break;
            }
            assert!(content < 3_000, "no change was told");
        }
        task.abort();
    }
}
