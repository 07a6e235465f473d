//! The configuration that a host gives; `build` checks it.

mod core;
mod endpoint;
mod error;
mod health;
mod model;
mod sdk;

pub use self::core::CoreConfig;
pub use error::ConfigError;
pub(crate) use health::HealthListener;
pub use model::ModelInfo;
pub use sdk::{SdkConfig, SdkConfigBuilder, TrustedRoots};
