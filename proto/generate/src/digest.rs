//! Digest of the contract's files, which is written at the head of the generated code.

use std::{error::Error, fmt::Write, fs, path::Path};

use sha2::{Digest, Sha256};

/// Name and text of every file in `epwatch/v1`, in the order of their names.
pub(crate) fn contract_digest(proto: &Path) -> Result<String, Box<dyn Error>> {
    let mut files = fs::read_dir(proto.join("epwatch/v1"))?.collect::<Result<Vec<_>, _>>()?;
    files.sort_by_key(fs::DirEntry::file_name);
    let mut hash = Sha256::new();
    for file in files {
        let text = fs::read(file.path())?;
        hash.update(file.file_name().as_encoded_bytes());
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    let mut digest = String::new();
    for byte in hash.finalize() {
        write!(digest, "{byte:02x}")?;
    }
    Ok(digest)
}
