//! A model as the app names it.

use epwatch_proto::{Model, ModelHash};

use super::error::{ConfigError, text};

/// A model as the app names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    pub(crate) model: Model,
}

impl ModelInfo {
    /// A model with this id (1 to 128 bytes) and version (1 to 64 bytes).
    ///
    /// # Errors
    /// Fails if a text is empty, too long, or contains control characters.
    pub fn new(id: impl Into<String>, version: impl Into<String>) -> Result<Self, ConfigError> {
        Ok(Self {
            model: Model {
                id: text("model id", id.into(), 128)?,
                version: text("model version", version.into(), 64)?,
                sha256: None,
                source_sha256: None,
                ep_compatibility: String::new(),
            },
        })
    }

    /// Sets the SHA-256 of the model file. Without it, the SDK's thread computes it.
    #[must_use]
    pub fn with_sha256(mut self, sha256: [u8; 32]) -> Self {
        self.model.sha256 = Some(ModelHash::from(sha256));
        self
    }
}

#[doc(hidden)]
impl From<ModelInfo> for Model {
    fn from(info: ModelInfo) -> Self {
        info.model
    }
}
