//! ONNX Runtime's own telemetry: the switch that turns it off, and whether that is set.
//!
//! Official builds for Linux, macOS, Android and iOS from 1.29 on send events to Microsoft. The environment variable
//! [`TELEMETRY_SWITCH`] prevents that, if it is set when ONNX Runtime makes its environment. The call
//! `DisableTelemetryEvents` comes too late: the device id is already on disk, and the upload is tried all the same.
//! docs/privacy.md describes the observations.

use std::env;

use serde::Serialize;

use crate::placement;

/// Environment variable that turns ONNX Runtime's own telemetry off, with `1`, `true`, `yes`, `on` or `y`.
pub const TELEMETRY_SWITCH: &str = "ORT_DISABLE_TELEMETRY";

/// Minor version of the first ONNX Runtime 1.x whose official builds send telemetry on Linux and Android.
pub const FIRST_WITH_TELEMETRY: u32 = 29;

/// Whether ONNX Runtime sends telemetry of its own, judged by version and environment. A private build may have no
/// telemetry, and Windows has a switch of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RuntimeTelemetry {
    /// The version is not known yet.
    #[default]
    Unknown,
    /// The version is too old to send any.
    NotInThisVersion,
    /// [`TELEMETRY_SWITCH`] is set.
    SwitchedOff,
    /// Nothing turns it off.
    NotSwitchedOff,
}

impl RuntimeTelemetry {
    /// Reads the environment of this process, for a version such as `1.31.1`.
    pub(crate) fn of(ort_version: &str) -> Self {
        let switch = env::var(TELEMETRY_SWITCH).unwrap_or_default();
        Self::with(ort_version, &switch)
    }

    fn with(ort_version: &str, switch: &str) -> Self {
        let sends = placement::minor_of(ort_version).map(|minor| minor >= FIRST_WITH_TELEMETRY);
        match sends {
            _ if ort_version.is_empty() => Self::Unknown,
            Some(false) => Self::NotInThisVersion,
            _ if is_on(switch) => Self::SwitchedOff,
            _ => Self::NotSwitchedOff,
        }
    }

    /// Returns a sentence for people, if there is anything to tell them.
    pub(crate) fn sentence(self) -> Option<&'static str> {
        match self {
            Self::Unknown | Self::NotInThisVersion => None,
            Self::SwitchedOff => Some(
                "its own telemetry is switched off, if ORT_DISABLE_TELEMETRY was set before its environment was made",
            ),
            Self::NotSwitchedOff => Some(
                "it sends telemetry of its own to Microsoft, as official builds do: ORT_DISABLE_TELEMETRY=1 turns that off, \
                 set before its environment is made",
            ),
        }
    }
}

/// Reads the switch's value as ONNX Runtime does.
fn is_on(switch: &str) -> bool {
    let word = switch.trim().to_ascii_lowercase();
    matches!(word.as_str(), "1" | "true" | "yes" | "on" | "y")
}

/// Turns ONNX Runtime's own telemetry off for this process, by [`TELEMETRY_SWITCH`]. Call it before ONNX Runtime makes its
/// environment: before [`load`](super::runtime::load), at the start of `main`. A later call has no effect.
///
/// To avoid this `unsafe` call, set the variable where the process is started, for example in its systemd unit.
///
/// # Safety
/// The same as for [`std::env::set_var`]: no other thread may read or write the environment at this moment, except
/// through `std::env`.
pub unsafe fn disable_telemetry() {
    // SAFETY: the caller promises what `set_var` requires.
    unsafe { env::set_var(TELEMETRY_SWITCH, "1") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_and_switch_decide() {
        use RuntimeTelemetry::{NotInThisVersion, NotSwitchedOff, SwitchedOff, Unknown};
        for (version, switch, expected) in [
            ("", "1", Unknown),
            ("1.28.0", "", NotInThisVersion),
            ("1.29.0", "", NotSwitchedOff),
            ("1.31.1", "0", NotSwitchedOff),
            ("1.31.1", "never", NotSwitchedOff),
            ("1.31.1", "1", SwitchedOff),
            ("1.31.1", " Yes ", SwitchedOff),
            // The runtime's build decides, and the build is not known here.
            ("2.0.0", "", NotSwitchedOff),
        ] {
            let found = RuntimeTelemetry::with(version, switch);
            assert_eq!(found, expected, "{version} {switch:?}");
        }
    }
}
