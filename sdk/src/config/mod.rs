//! Configuration that a host gives, checked when it is built.

mod core;
mod endpoint;
mod error;
mod model;
mod sdk;

pub use self::core::CoreConfig;
pub use error::ConfigError;
pub use model::ModelInfo;
pub use sdk::{SdkConfig, SdkConfigBuilder, TrustedRoots};
