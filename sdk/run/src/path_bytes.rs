//! Paths in JSON as their bytes, because names of files need not be text.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    path.as_os_str().as_bytes().serialize(to)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    Vec::deserialize(from).map(|bytes| OsString::from_vec(bytes).into())
}

/// The same form for several paths.
pub(crate) mod each {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

    use super::{Deserialize, Deserializer, OsString, PathBuf, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        let bytes = paths.iter().map(|path| path.as_os_str().as_bytes());
        bytes.collect::<Vec<_>>().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<PathBuf>, D::Error> {
        let paths = Vec::<Vec<u8>>::deserialize(from)?.into_iter();
        Ok(paths
            .map(|bytes| OsString::from_vec(bytes).into())
            .collect())
    }
}
