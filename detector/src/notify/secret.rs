//! Secrets of channels: from a file, and never in a log.

use std::fmt;
use std::path::Path;

use super::error::NotifyError;

/// A routing key, a webhook's address or a signing key.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Secret {
    /// Reads one from a file that holds it and nothing else.
    pub(super) fn read(channel: &str, path: &Path) -> Result<Self, NotifyError> {
        let failed = |source| NotifyError::Secret {
            channel: channel.to_owned(),
            path: path.to_owned(),
            source,
        };
        let text = epwatch_server::read_secret(path, channel).map_err(failed)?;
        let text = text.trim();
        if text.is_empty() {
            return Err(failed(std::io::Error::other("the file is empty")));
        }
        Ok(Self(text.to_owned()))
    }

    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}
