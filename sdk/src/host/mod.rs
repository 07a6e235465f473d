//! The device below the SDK: its facts, its temperature, its runtimes.

pub(crate) mod device;
pub mod preflight;
#[cfg(feature = "qnn")]
pub mod qnn;
pub mod runtime;
pub(crate) mod thermal_zones;
