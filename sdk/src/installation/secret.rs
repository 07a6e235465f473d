//! The secret of an installation, and whether a folder still holds it.

use std::{fs, io, path::Path};

use epwatch_proto::InstallationId;

use crate::folder;

pub(crate) const SECRET_BYTES: usize = 32;

/// The secret behind an installation's id. Never printed, and sent only to request deletion.
#[derive(Clone)]
pub(crate) struct Secret([u8; SECRET_BYTES]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(***)")
    }
}

impl Secret {
    pub(crate) fn new(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The bytes, for the request that presents the secret, and for its file.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn installation(&self) -> InstallationId {
        InstallationId::from_secret(&self.0)
    }
}

/// Whether this folder has an installation.
pub(crate) fn exists(dir: &Path) -> bool {
    dir.join(folder::SECRET).try_exists().unwrap_or(true)
}

/// Whether this folder still has that installation: another process of the app may have withdrawn consent, or begun a
/// new one. An unreadable file counts as unchanged.
pub(crate) fn is_still(dir: &Path, secret: &Secret) -> bool {
    match fs::read(dir.join(folder::SECRET)) {
        Ok(bytes) => bytes == secret.0,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}
