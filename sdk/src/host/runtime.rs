//! Loads ONNX Runtime, and checks that it is new enough.
//!
//! Versions before [`OLDEST`] are refused, because they lack calls that every session needs. Placements come from
//! ORT's API from [`FIRST_WITH_ASSIGNMENT_API`] on, and from its log before; [`Watch::explain`](crate::Watch::explain)
//! reports which. Hosts that load the library themselves (`ort::init_from`) get the same error from `ort`, and use
//! [`check`]. [`disable_telemetry`] turns ONNX Runtime's own telemetry off.

#[cfg(feature = "ort")]
use std::path::Path;
use std::path::PathBuf;

#[cfg(feature = "ort")]
use epwatch_proto::error_chain;
#[cfg(feature = "ort")]
use ort::{LoadDynamicError, environment::EnvironmentBuilder};

use crate::placement;

pub use crate::host::runtime_telemetry::{
    FIRST_WITH_TELEMETRY, RuntimeTelemetry, TELEMETRY_SWITCH, disable_telemetry,
};

/// Minor version of the oldest ONNX Runtime 1.x that this build loads: 1.17, or 1.22 with feature `qnn`, because plugin
/// EPs came with it. With that feature, sessions need 1.23. `ort` gives each session a policy for its EP, and 1.22.1 then
/// aborts a process without a device.
pub const OLDEST: u32 = if cfg!(feature = "qnn") { 22 } else { 17 };

/// Minor version of the first ONNX Runtime 1.x that returns the EP of each node.
pub const FIRST_WITH_ASSIGNMENT_API: u32 = placement::FIRST_MINOR;

/// ONNX Runtime cannot be used, or only in part.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// This build cannot use the library, because it is too old.
    #[error(
        "failed to use ONNX Runtime {found} of {library}: it is too old; give 1.{OLDEST} or later \
         (1.{FIRST_WITH_ASSIGNMENT_API} or later also reports where each node runs)"
    )]
    TooOld {
        /// Its version, for example `1.16.3`.
        found: String,
        /// The library's path.
        library: PathBuf,
    },
    /// ONNX Runtime works, but cannot return placements.
    #[error(
        "failed to read placements from ONNX Runtime {found}: it is too old, or not 1.x; give \
         1.{FIRST_WITH_ASSIGNMENT_API} or later, or have the session's log read (log capture, in Rust)"
    )]
    NoAssignmentApi {
        /// Its version, for example `1.22.1`.
        found: String,
    },
    /// The library does not exist for this platform, or is not ONNX Runtime. Holds the dynamic linker's reason.
    #[error(
        "failed to load ONNX Runtime: {0}; give the path of libonnxruntime.so (Android: of the app's onnxruntime AAR; Linux: of \
         the release or the Python wheel)"
    )]
    #[cfg(feature = "ort")]
    Load(String),
}

/// Loads ONNX Runtime for this process, once. Returns the builder of the environment, as `ort::init_from` does.
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
/// [`RuntimeError::TooOld`] with the version found and the version needed, or [`RuntimeError::Load`].
#[cfg(feature = "ort")]
pub fn load(library: impl AsRef<Path>) -> Result<EnvironmentBuilder, RuntimeError> {
    ort::init_from(library).map_err(|error| match error {
        LoadDynamicError::BadVersion { version_str, path } => RuntimeError::TooOld {
            found: version_str,
            library: path,
        },
        // `ort` does not return the linker's reason as a source.
        LoadDynamicError::Dlopen { error, path } => {
            RuntimeError::Load(format!("{}: {}", path.display(), error_chain(&error)))
        }
        error => RuntimeError::Load(error.to_string()),
    })
}

/// Checks whether the ONNX Runtime of this process can return placements. If not, sessions work and their
/// latency is measured.
///
/// # Errors
/// [`RuntimeError::NoAssignmentApi`].
///
/// # Panics
/// Panics as `ort::api` does, if no library is loaded and none can be loaded. Call it after [`load`].
#[cfg(feature = "ort")]
pub fn check() -> Result<(), RuntimeError> {
    match placement::ort_version() {
        Some(found) if !has_assignment_api(&found) => Err(RuntimeError::NoAssignmentApi { found }),
        _ => Ok(()),
    }
}

/// Also true for an empty text, because nothing is known then.
pub(crate) fn has_assignment_api(version: &str) -> bool {
    let minor = placement::minor_of(version);
    version.is_empty() || minor.is_some_and(|minor| minor >= FIRST_WITH_ASSIGNMENT_API)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_and_without_a_patch_are_read() {
        for (version, expected) in [
            ("1.22.1", false),
            ("1.23", false),
            ("1.24", true),
            ("1.24.0", true),
            ("1.31.1", true),
            ("1.9.0", false),
            ("2.24.0", false),
            ("", true),
            ("nightly", false),
        ] {
            assert_eq!(has_assignment_api(version), expected, "{version}");
        }
    }

    /// Regression test: the message ended with "dlopen failed".
    #[cfg(feature = "ort")]
    #[test]
    fn a_library_that_is_missing_has_the_linkers_reason() {
        let Err(error) = load("/nowhere/libonnxruntime.so") else {
            panic!("a missing library was loaded");
        };
        let text = error.to_string();
        for part in [
            "failed to load ONNX Runtime: /nowhere/libonnxruntime.so",
            "No such file or directory",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[cfg(feature = "ort")]
    #[test]
    fn the_oldest_version_is_that_of_ort() {
        assert_eq!(OLDEST, ort::MINOR_VERSION);
    }

    #[test]
    fn errors_name_both_versions_and_the_way_out() {
        let error = RuntimeError::TooOld {
            found: "1.16.3".to_owned(),
            library: "/usr/lib/libonnxruntime.so".into(),
        };
        let text = error.to_string();
        for part in ["1.16.3", "/usr/lib/", &format!("1.{OLDEST} or later")] {
            assert!(text.contains(part), "{text}");
        }
        let text = RuntimeError::NoAssignmentApi {
            found: "1.22.1".to_owned(),
        };
        assert!(text.to_string().contains("1.24 or later"), "{text}");
    }
}
