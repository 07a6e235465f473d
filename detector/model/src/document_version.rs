//! The version of an incident's document, which is one of its fields.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Version of the documents that are written and read. It is raised with every change of a field.
pub const DOCUMENT_VERSION: u32 = 1;

/// The field `version` of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DocumentVersion;

impl Serialize for DocumentVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(DOCUMENT_VERSION)
    }
}

impl<'de> Deserialize<'de> for DocumentVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u32::deserialize(deserializer)? {
            DOCUMENT_VERSION => Ok(Self),
            found => Err(serde::de::Error::custom(format_args!(
                "its version is {found}, expected {DOCUMENT_VERSION}"
            ))),
        }
    }
}
