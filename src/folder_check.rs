//! Whether a server can make a folder and write into it. This check before a start looks only, and makes nothing.

use std::io::ErrorKind;
use std::path::{self, Path, PathBuf};

use rustix::fs::Access;

use crate::folder_lock;

/// File systems of Linux's kernel. Root may write there by its rights, and still can make nothing.
const OF_KERNEL: [&str; 2] = ["/proc", "/sys"];

/// Returns the reason why a server could not use a folder of its data, as a text after its key. The folder need not
/// exist, but then the nearest one above it must take new files.
pub(crate) fn problem(folder: &Path) -> Option<String> {
    if folder.as_os_str().is_empty() {
        return Some("must name a folder; `.` is the current one".to_owned());
    }
    looked_at(folder, |at| folder_lock::whose(at).unwrap_or_default())
}

/// Works like [`problem`] for a folder that is not one of the data.
pub(crate) fn problem_of_other(folder: &Path) -> Option<String> {
    looked_at(folder, |_| String::new())
}

/// Returns the path without links, as far as it exists.
pub(crate) fn resolved(folder: &Path) -> PathBuf {
    let absolute = path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let mut resolved = absolute.ancestors().filter_map(|at| {
        let below = absolute.strip_prefix(at).ok()?;
        Some(at.canonicalize().ok()?.join(below))
    });
    resolved.next().unwrap_or_else(|| absolute.clone())
}

/// Returns the nearest folder that exists, with the free bytes of its volume; `u64::MAX` if they are unknown.
pub(crate) fn free_bytes(folder: &Path) -> (PathBuf, u64) {
    let absolute = path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let mut known = absolute.ancestors().filter_map(|at| {
        let volume = rustix::fs::statvfs(at).ok()?;
        Some((
            at.to_owned(),
            volume.f_bavail.saturating_mul(volume.f_frsize),
        ))
    });
    known.next().unwrap_or((absolute.clone(), u64::MAX))
}

fn looked_at(folder: &Path, whose: impl Fn(&Path) -> String) -> Option<String> {
    let (shown, absolute) = (folder.display(), path::absolute(folder));
    let absolute = match absolute {
        Ok(absolute) => absolute,
        Err(error) => return Some(format!("{shown} cannot be found: {error}")),
    };
    for at in absolute.ancestors() {
        let found = at.metadata();
        return match found {
            Ok(found) if !found.is_dir() => {
                Some(format!("must be a folder, and {} is not one", at.display()))
            }
            Ok(_) => {
                let why = why_not_writable(at)?;
                Some(match at == absolute {
                    true => format!("files cannot be written into {shown}: {why}{}", whose(at)),
                    false => format!(
                        "{shown} cannot be made in {}: {why}; make it for the user who runs the server",
                        at.display()
                    ),
                })
            }
            Err(_) if at.is_symlink() => Some(format!(
                "must be a folder, and {} is a link to nothing",
                at.display()
            )),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                continue;
            }
            Err(error) => Some(format!("{shown} cannot be made: {error}")),
        };
    }
    None
}

/// Returns the reason why this user cannot make files in a folder that exists.
fn why_not_writable(folder: &Path) -> Option<String> {
    let real = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    if OF_KERNEL.iter().any(|root| real.starts_with(root)) {
        return Some("the kernel's own file systems take no files".to_owned());
    }
    let access = rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK);
    access.err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_there_or_can_be_made_is_no_problem() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["", "new", "new/er"] {
            assert_eq!(problem(&dir.path().join(folder)), None, "{folder}");
        }
        assert_eq!(problem(Path::new(".")), None);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named_with_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink("nothing", at("link")).unwrap();
        for (folder, expected) in [
            (at("file"), "file is not one"),
            (at("file/below/it"), "file is not one"),
            (at("link"), "is a link to nothing"),
            (
                "/proc/nope".into(),
                "/proc/nope cannot be made in /proc: the kernel's own",
            ),
            (
                "/sys".into(),
                "files cannot be written into /sys: the kernel's own",
            ),
            ("a\0b".into(), "cannot be made: "),
            ("".into(), "must name a folder"),
        ] {
            let found = problem(&folder).unwrap();
            assert!(found.contains(expected), "{found}");
        }
    }
}
