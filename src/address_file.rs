//! The file `metrics.address` of a data folder. It has the address of `/metrics` of the `serve` or `demo` that runs
//! there, and the window and step of its detector. `all_in_one` writes it, `epwatch status` reads it.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use epwatch_server::Period;

const NAME: &str = "metrics.address";

/// Window and step of a detector.
pub(crate) type Steps = (Period, Period);

/// The file with the address of `/metrics` and the detector's window and step, removed when it goes out of scope. It is
/// removed before the folder is unlocked, because the next process on the folder writes its own.
#[derive(Debug)]
pub(crate) struct AddressFile(PathBuf);

impl AddressFile {
    /// Writes the file. If it cannot be written, `epwatch status` shows nothing of this process.
    pub(crate) fn write(dir: &Path, http: SocketAddr, (window, step): Steps) -> Self {
        let path = dir.join(NAME);
        let local = match http.ip() {
            ip if !ip.is_unspecified() => ip,
            IpAddr::V4(_) => IpAddr::from([127, 0, 0, 1]),
            IpAddr::V6(_) => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
        };
        let address = SocketAddr::new(local, http.port());
        let text = format!("{address} {window} {step}\n");
        if let Err(error) = epwatch_server::replace_file(&path, text.as_bytes()) {
            tracing::warn!(%error, path = %path.display(), "failed to write the address of /metrics");
        }
        Self(path)
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Whether a `serve` or `demo` runs on a data folder, or was killed there.
pub(crate) fn exists(dir: &Path) -> bool {
    dir.join(NAME).exists()
}

/// Returns the address of `/metrics` and the detector's window and step.
///
/// # Errors
/// Returns the reason why the address is not known, as a part of a sentence.
pub(crate) fn read(dir: &Path) -> Result<(SocketAddr, Steps), String> {
    let text = fs::read_to_string(dir.join(NAME));
    let text = text.map_err(|_| format!("no serve runs on {}", dir.display()))?;
    parse(&text).ok_or_else(|| format!("{NAME} there holds no address"))
}

fn parse(text: &str) -> Option<(SocketAddr, Steps)> {
    let mut words = text.split_whitespace();
    let address = words.next()?.parse().ok()?;
    let mut period = || words.next()?.parse().ok();
    Some((address, (period()?, period()?)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_has_the_steps_of_its_process_and_goes_with_it() {
        use std::os::unix::fs::PermissionsExt;

        let dir = tempfile::tempdir().unwrap();
        assert!(
            read(dir.path())
                .unwrap_err()
                .starts_with("no serve runs on")
        );
        let steps = (
            Period(Duration::from_secs(7_200)),
            Period(Duration::from_secs(90)),
        );
        let file = AddressFile::write(dir.path(), "0.0.0.0:4719".parse().unwrap(), steps);
        let local = "127.0.0.1:4719".parse().unwrap();
        assert_eq!(read(dir.path()), Ok((local, steps)));
        assert!(exists(dir.path()));
        let mode = fs::metadata(dir.path().join(NAME))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(file);
        assert!(!exists(dir.path()));
        for wrong in ["", "127.0.0.1:4719", "x 1h 1h", "127.0.0.1:4719 1h x"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
