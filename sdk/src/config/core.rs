//! Configuration of a core.

use epwatch_proto::{App, Device, Runtime, Sdk};

use super::error::{ConfigError, text};
use crate::{directives, policy};

/// Configuration of a [`Core`](crate::simulation::Core).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CoreConfig {
    /// The app that embeds the SDK.
    pub app: App,
    /// Description of the device, as in [`SdkConfigBuilder::with_device`](crate::SdkConfigBuilder::with_device).
    pub device: Device,
    /// The inference runtime. ORT's version is read when a session is made.
    pub runtime: Runtime,
    /// The SDK; its language is `rust` unless a binding sets another one.
    pub sdk: Sdk,
    /// Id of this boot, empty if not known.
    pub boot_id: String,
    /// Clean runs after which a version's latency counts as known.
    pub settled_runs: u64,
    /// Public keys of directives, by id.
    pub(crate) directive_keys: Vec<(String, [u8; 32])>,
}

impl CoreConfig {
    /// An app with this id (1 to 128 bytes) in environment `production`.
    ///
    /// # Errors
    /// Fails if the id is empty, too long, or contains control characters.
    pub fn new(app_id: impl Into<String>, device: Device) -> Result<Self, ConfigError> {
        Ok(Self {
            app: App {
                id: text("app id", app_id.into(), 128)?,
                version: String::new(),
                build: String::new(),
                environment: "production".to_owned(),
                rollout_labels: Vec::new(),
            },
            device,
            runtime: Runtime::default(),
            sdk: Sdk {
                name: "epwatch-sdk".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                language: "rust".to_owned(),
            },
            boot_id: String::new(),
            settled_runs: policy::SETTLED_RUNS,
            directive_keys: Vec::new(),
        })
    }

    /// Accepts directives signed with this key; see
    /// [`SdkConfigBuilder::with_directive_key`](crate::SdkConfigBuilder::with_directive_key).
    ///
    /// # Errors
    /// Fails if the id is empty, longer than 64 bytes or given twice, if the key is invalid, or if there are eight keys
    /// already.
    #[cfg(feature = "simulation")]
    pub fn with_directive_key(
        mut self,
        key_id: impl Into<String>,
        public_key: [u8; 32],
    ) -> Result<Self, ConfigError> {
        add_directive_key(&mut self.directive_keys, key_id.into(), public_key)?;
        Ok(self)
    }
}

pub(super) fn add_directive_key(
    keys: &mut Vec<(String, [u8; 32])>,
    key_id: String,
    public_key: [u8; 32],
) -> Result<(), ConfigError> {
    let key_id = text("directive key id", key_id, 64)?;
    let wrong = |problem| ConfigError::DirectiveKey {
        key_id: key_id.clone(),
        problem,
    };
    if !directives::is_sound(&public_key) {
        return Err(wrong(
            "the 32 bytes of an Ed25519 public key, not a placeholder",
        ));
    }
    if keys.iter().any(|(id, _)| *id == key_id) {
        return Err(wrong("each id once"));
    }
    if keys.len() >= directives::MAX_KEYS {
        return Err(wrong("at most 8 keys"));
    }
    keys.push((key_id, public_key));
    Ok(())
}
