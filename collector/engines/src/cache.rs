//! The cache folder, and the printing of progress lines.

use std::{env, io::Write, path::PathBuf};

use crate::EngineError;

/// Returns the folder that holds the engines, absolute; it may not exist yet.
///
/// # Errors
/// No environment variable names a cache folder.
pub fn cache_dir() -> Result<PathBuf, EngineError> {
    let folder = |key: &str| {
        env::var_os(key)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let dir = folder("EPWATCH_CACHE")
        .or_else(|| folder("XDG_CACHE_HOME").map(|dir| dir.join("epwatch")))
        .or_else(|| folder("HOME").map(|dir| dir.join(".cache/epwatch")))
        .ok_or(EngineError::NoCacheFolder)?;
    // Children run in other folders, and libraries are loaded by this path.
    std::path::absolute(&dir).map_err(EngineError::io("resolve", dir))
}

/// Receives a line at each step of a fetch.
pub(crate) type Say<'a> = dyn FnMut(&str) + 'a;

/// Prints to standard error, because standard output is for the command's answer. Ignores a closed standard error.
pub(crate) fn print(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
