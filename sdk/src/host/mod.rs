//! The device below the SDK: its description, its temperature, its runtimes.

pub(crate) mod device;
pub mod preflight;
#[cfg(feature = "qnn")]
pub mod qnn;
pub mod runtime;
#[expect(unsafe_code, reason = "the switch is an environment variable")]
pub(crate) mod runtime_telemetry;
pub(crate) mod thermal_zones;
