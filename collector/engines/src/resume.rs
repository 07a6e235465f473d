//! Downloads npm's archive by curl into a file that outlives a broken download, so that the next one continues it.
//!
//! npm itself would begin again. Only builds with a pinned hash are downloaded by curl, because npm checks the
//! integrity of others. If curl is missing or fails at once, `fetch` falls back to `npm pack`. For example, only npm
//! may be configured for a proxy.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::Ordering,
};

use crate::{
    EngineError,
    command::{self, DOWNLOAD_TIMEOUT, Purpose},
    entry::{Staging, megabytes},
    pins::Plan,
    programs,
    progress::FetchProgress,
};

/// A server that sends less than this for a minute is treated as unreachable.
const LEAST_BYTES_PER_SECOND: &str = "1000";

/// Returns the archive in the work folder, or `None` if this way does not work.
///
/// `view` prints the archive's address as JSON.
pub(crate) fn download(
    view: Command,
    plan: &Plan,
    staging: &Staging<'_>,
    purpose: &Purpose,
    progress: &FetchProgress,
) -> Result<Option<PathBuf>, EngineError> {
    if plan.is_unpinned() || !programs::is_in_path("curl") {
        return Ok(None);
    }
    let Some(url) = address(view, staging, purpose) else {
        return unless_interrupted(purpose);
    };
    let partial = staging.partial;
    loop {
        let before = length(partial);
        if before > 0 {
            let here = megabytes(before);
            progress.say(&format!("continuing {} after {here}", plan.name));
        }
        progress.begin(plan, before);
        let mut report = || progress.reached(plan, length(partial));
        let curl = curl(&url, partial);
        match command::run(curl, staging.work, DOWNLOAD_TIMEOUT, purpose, &mut report) {
            Ok(()) => break,
            Err(error) if command::INTERRUPTED.load(Ordering::Relaxed) => return Err(error),
            Err(_) if length(partial) > before => {}
            // The server sent no byte. The partial file may already be whole, or may belong to another archive.
            Err(_) => {
                let _ = fs::remove_file(partial);
                return Ok(None);
            }
        }
    }
    // From here on the file belongs to this attempt, because a broken archive must not be continued.
    let archive = staging.work.join("package.tgz");
    fs::rename(partial, &archive).map_err(EngineError::io("move", partial))?;
    Ok(Some(archive))
}

fn unless_interrupted(purpose: &Purpose) -> Result<Option<PathBuf>, EngineError> {
    match command::INTERRUPTED.load(Ordering::Relaxed) {
        true => Err(EngineError::Interrupted {
            name: purpose.name.clone(),
        }),
        false => Ok(None),
    }
}

fn address(view: Command, staging: &Staging<'_>, purpose: &Purpose) -> Option<String> {
    command::run(view, staging.work, DOWNLOAD_TIMEOUT, purpose, &mut || ()).ok()?;
    let said = fs::read(staging.work.join(command::STDOUT_FILE)).ok()?;
    let url: String = serde_json::from_slice(&said).ok()?;
    url.starts_with("http").then_some(url)
}

fn curl(url: &str, into: &Path) -> Command {
    let mut curl = Command::new("curl");
    curl.args(["--fail", "--location", "--silent", "--show-error"]);
    curl.args(["--connect-timeout", "30", "--speed-time", "60"]);
    curl.args(["--speed-limit", LEAST_BYTES_PER_SECOND]);
    curl.args(["--continue-at", "-", "--output"]).arg(into);
    curl.args(["--", url]);
    curl
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        net::TcpListener,
        sync::{Arc, Mutex},
        thread,
    };

    use super::*;
    use crate::{Engine, pins::plan_here};

    const ARCHIVE: &[u8] = b"the archive, whole, from its first byte to its last";
    /// Bytes of the body that the server sends before it cuts a connection.
    const CUT: usize = 20;

    /// Serves the archive from the requested byte, and cuts the first `n_cuts` connections. Records the requested
    /// ranges.
    fn server(n_cuts: usize) -> (String, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/a.tgz", listener.local_addr().unwrap());
        let ranges = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&ranges);
        thread::spawn(move || {
            for (nth, connection) in listener.incoming().flatten().enumerate() {
                let lines = BufReader::new(&connection).lines().map(Result::unwrap);
                let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                let range = head.iter().find_map(|line| line.strip_prefix("Range: "));
                let range = range.unwrap_or_default().to_owned();
                let from = range.strip_prefix("bytes=").map_or(0, |range| {
                    range.trim_end_matches('-').parse::<usize>().unwrap()
                });
                kept.lock().unwrap().push(range);
                let end = if nth < n_cuts {
                    from + CUT
                } else {
                    ARCHIVE.len()
                };
                let (status, length) = match from {
                    0 => ("200 OK", ARCHIVE.len()),
                    _ => ("206 Partial Content", ARCHIVE.len() - from),
                };
                let last = ARCHIVE.len() - 1;
                let answer = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nContent-Range: bytes {from}-{last}/{}\r\n\r\n",
                    ARCHIVE.len()
                );
                let body = &ARCHIVE[from..end];
                // The client may be gone.
                let _ = (&connection).write_all(&[answer.as_bytes(), body].concat());
            }
        });
        (url, ranges)
    }

    /// Downloads from `url` with `here` of the archive left by an earlier try. Returns the archive, and the part that stays.
    fn downloaded(url: &str, here: &[u8]) -> (Option<Vec<u8>>, bool) {
        let work = tempfile::tempdir().unwrap();
        let partial = work.path().join(".x.part");
        if !here.is_empty() {
            fs::write(&partial, here).unwrap();
        }
        let mut view = Command::new("sh");
        view.args(["-c", "echo \"\\\"$0\\\"\"", url]);
        let purpose = Purpose {
            name: "x".to_owned(),
            install: String::new(),
            way_out: String::new(),
        };
        let plan = plan_here(Engine::OnnxRuntime).unwrap();
        let staging = Staging {
            work: work.path(),
            out: work.path(),
            partial: &partial,
        };
        let progress = FetchProgress::of(&[&plan]);
        let archive = download(view, &plan, &staging, &purpose, &progress).unwrap();
        (
            archive.map(|path| fs::read(path).unwrap()),
            partial.exists(),
        )
    }

    #[test]
    fn a_broken_download_continues_where_it_broke() {
        let (url, ranges) = server(2);
        let (archive, is_left) = downloaded(&url, b"");
        assert_eq!(archive.as_deref(), Some(ARCHIVE));
        assert!(!is_left);
        assert_eq!(*ranges.lock().unwrap(), ["", "bytes=20-", "bytes=40-"]);
    }

    #[test]
    fn what_an_earlier_command_left_is_not_fetched_again() {
        let (url, ranges) = server(0);
        let (archive, _) = downloaded(&url, &ARCHIVE[..33]);
        assert_eq!(archive.as_deref(), Some(ARCHIVE));
        assert_eq!(*ranges.lock().unwrap(), ["bytes=33-"]);
    }

    /// npm may reach its registry although curl does not.
    #[test]
    fn where_curl_fails_at_once_npm_begins_anew() {
        let (archive, is_left) = downloaded("http://127.0.0.1:9/a.tgz", &ARCHIVE[..33]);
        assert_eq!(archive, None);
        assert!(!is_left);
    }
}
