//! Mounts that only one command sees.

use std::{fs, os::unix::fs::MetadataExt as _, process::Command};

/// Returns `unshare` for a command with its own mounts; the command's arguments are to be added.
///
/// A user namespace gives the right to mount. Root has that right without a namespace, and inside a `chroot` no new
/// namespace is allowed.
#[must_use]
pub fn with_own_mounts() -> Command {
    let is_root = fs::metadata("/proc/self").is_ok_and(|of| of.uid() == 0);
    let mut command = Command::new("unshare");
    if !is_root {
        command.arg("--map-root-user");
    }
    command.arg("--mount");
    command
}
