#![no_main]
//! `backup.json`, read by the command's own file: the command is not a library.

#[expect(dead_code, reason = "the target only parses")]
#[path = "../../../src/backup/manifest.rs"]
mod manifest;

/// The part of the command's `output.rs` that the file uses.
mod output {
    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    pub(crate) struct No(pub(crate) String);
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(manifest) = manifest::Manifest::parse(bytes) {
        assert!(manifest.is_whole(), "only a document with its own hash is taken");
    }
});
