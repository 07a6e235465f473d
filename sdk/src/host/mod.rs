//! The device below the SDK: what it is, how warm it is, which runtimes it has.

pub(crate) mod device;
pub mod preflight;
#[cfg(feature = "qnn")]
pub mod qnn;
pub mod runtime;
pub(crate) mod thermal_zones;
