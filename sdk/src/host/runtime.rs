//! ONNX Runtime's library, loaded with an answer to "is it new enough?".
//!
//! Any version from [`OLDEST`] on is taken: where sessions run can be read from [`FIRST_TO_TELL`]
//! on, before that from the log alone, and [`Watch::explain`](crate::Watch::explain) says so. What
//! is older than [`OLDEST`] lacks calls that every session needs. Hosts that load the library
//! themselves (`ort::init_from`) are told the same by `ort`; [`check`] is for them.

use std::path::{Path, PathBuf};

use ort::{LoadDynamicError, environment::EnvironmentBuilder};

use crate::placement;

/// Minor version of the oldest ONNX Runtime 1.x that this build works with: 1.17, or 1.22 with the
/// feature `qnn`, whose plugin EPs came with it.
pub const OLDEST: u32 = ort::MINOR_VERSION;

/// Minor version of the first ONNX Runtime 1.x that says which EP got which node.
pub const FIRST_TO_TELL: u32 = 24;

/// ONNX Runtime cannot be used, or not to the full.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// This build cannot use it at all.
    #[error(
        "failed to use ONNX Runtime {found} of {library}: it is too old; give 1.{OLDEST} or later \
         (1.{FIRST_TO_TELL} or later also tells where each node runs)"
    )]
    TooOld {
        /// Its own words, for example `1.16.3`.
        found: String,
        /// The library.
        library: PathBuf,
    },
    /// It works, but does not say where sessions run.
    #[error(
        "failed to read placements from ONNX Runtime {found}: it is too old; give 1.{FIRST_TO_TELL} \
         or later, or have the session's log read (SessionRequest::with_log_capture)"
    )]
    TooOldToTell {
        /// Its own words, for example `1.22.1`.
        found: String,
    },
    /// There is no library of that name for this platform, or it is not ONNX Runtime.
    #[error(
        "failed to load ONNX Runtime; give the path of libonnxruntime.so (Android: of the app's \
         onnxruntime AAR; Linux: of the release or the Python wheel)"
    )]
    Load(#[source] LoadDynamicError),
}

/// Loads ONNX Runtime for this process, once: the environment's builder, as of `ort::init_from`.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let environment = epwatch_sdk::runtime::load("/usr/lib/libonnxruntime.so")?.build()?;
/// if let Err(limit) = epwatch_sdk::runtime::check() {
///     eprintln!("{limit}");
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`RuntimeError::TooOld`] with the version that was found and the one that is needed,
/// [`RuntimeError::Load`] where there is nothing to load.
pub fn load(library: impl AsRef<Path>) -> Result<EnvironmentBuilder, RuntimeError> {
    ort::init_from(library).map_err(|error| match error {
        LoadDynamicError::BadVersion { version_str, path } => RuntimeError::TooOld {
            found: version_str,
            library: path,
        },
        error => RuntimeError::Load(error),
    })
}

/// Whether the ONNX Runtime of this process says where sessions run. One that cannot is no reason
/// to stop: sessions work and their latency is measured.
///
/// # Errors
/// [`RuntimeError::TooOldToTell`].
///
/// # Panics
/// As `ort::api`, where no library is loaded and none can be: call it after [`load`].
pub fn check() -> Result<(), RuntimeError> {
    match placement::ort_version() {
        Some(found) if !tells_placement(&found) => Err(RuntimeError::TooOldToTell { found }),
        _ => Ok(()),
    }
}

/// By the first two numbers; a text that is no version is not held against it.
pub(crate) fn tells_placement(version: &str) -> bool {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(1), Some(minor)) => minor >= FIRST_TO_TELL,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_and_without_a_patch_are_read() {
        for (version, tells) in [
            ("1.22.1", false),
            ("1.23", false),
            ("1.24", true),
            ("1.24.0", true),
            ("1.31.1", true),
            ("1.9.0", false),
            ("2.0.0", true),
            ("", true),
            ("nightly", true),
        ] {
            assert_eq!(tells_placement(version), tells, "{version}");
        }
    }

    #[test]
    fn errors_name_what_was_found_what_is_needed_and_the_way_out() {
        let error = RuntimeError::TooOld {
            found: "1.16.3".to_owned(),
            library: "/usr/lib/libonnxruntime.so".into(),
        };
        let text = error.to_string();
        for part in ["1.16.3", "/usr/lib/", &format!("1.{OLDEST} or later")] {
            assert!(text.contains(part), "{text}");
        }
        let text = RuntimeError::TooOldToTell {
            found: "1.22.1".to_owned(),
        };
        assert!(text.to_string().contains("1.24 or later"), "{text}");
    }
}
