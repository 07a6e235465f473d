//! The settings that all launches of a folder share, so that a kept launch of another command is refused.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use anyhow::Context;
use epwatch_proto::hex;
use sha2::{Digest, Sha256};

use crate::{
    args::Command,
    inputs::InputKind,
    job::{AFFINITY, Ep},
};

/// The settings of the launches, in words: an option may be the user's own, or set by another one. Files and folders
/// are named by the beginning of their SHA-256, since the same one may have another path.
pub(crate) type Settings = BTreeMap<String, String>;

/// Settings that are files or folders.
pub(crate) const ORT: &str = "ONNX Runtime";
pub(crate) const PROVIDER: &str = "QNN's plugin";
pub(crate) const BACKEND: &str = "QNN's back end";
pub(crate) const AFFINITY_FILE: &str = "op_affinity's file";
pub(crate) const CUSTOM_OPS: &str = "custom ops";
pub(crate) const INPUTS: &str = "inputs";

/// Returns the settings of a command whose paths were found.
pub(crate) fn settings(
    command: &Command,
    ort: &Path,
    ep: &Ep,
    inputs: &InputKind,
    custom_ops: &[PathBuf],
) -> anyhow::Result<Settings> {
    let mut found = Settings::new();
    let mut add = |what: &str, value: String| found.insert(what.to_owned(), value);
    add("warm-up runs", command.warmup.to_string());
    add("timed runs", command.runs.to_string());
    add(ORT, short(&sha256_of(ort)?));
    if let Ep::Qnn {
        provider,
        backend,
        soc_model,
        options,
    } = ep
    {
        add(PROVIDER, short(&sha256_of(provider)?));
        add(BACKEND, short(&sha256_of(backend)?));
        let number = soc_model.clone().unwrap_or_else(|| "none".to_owned());
        add("emulated chipset", number);
        let affinity = options.iter().find(|option| option.key == AFFINITY);
        if let Some(file) = affinity.filter(|option| !option.value.is_empty()) {
            add(AFFINITY_FILE, short(&sha256_of(Path::new(&file.value))?));
        }
    }
    if !custom_ops.is_empty() {
        let hashes = custom_ops.iter().map(|library| sha256_of(library));
        let hashes = hashes.collect::<anyhow::Result<Vec<_>>>()?;
        add(
            CUSTOM_OPS,
            hashes
                .iter()
                .map(|hash| short(hash))
                .collect::<Vec<_>>()
                .join(", "),
        );
    }
    add(
        INPUTS,
        match inputs {
            InputKind::Folder(folder) => format!("folder {}", short(&sha256_of_folder(folder)?)),
            ready => format!("{ready:?}").to_lowercase(),
        },
    );
    Ok(found)
}

/// The first setting that differs; `None` if all are the same.
pub(crate) fn difference<'a>(kept: &'a Settings, now: &'a Settings) -> Option<&'a str> {
    let mut names = kept.keys().chain(now.keys());
    let name = names.find(|name| kept.get(*name) != now.get(*name))?;
    Some(name)
}

/// Enough digits of a hash to tell files apart.
pub(crate) fn short(hash: &str) -> String {
    hash.chars().take(12).collect()
}

/// Returns the SHA-256 of a file, hexadecimal.
pub(crate) fn sha256_of(path: &Path) -> anyhow::Result<String> {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let (mut hash, mut part) = (Sha256::new(), vec![0; 1 << 16]);
        loop {
            match file.read(&mut part)? {
                0 => return Ok(hex(&hash.finalize())),
                n => hash.update(&part[..n]),
            }
        }
    };
    read().with_context(|| format!("failed to read {}", path.display()))
}

/// Returns one SHA-256 of the names and the content of a folder's files.
fn sha256_of_folder(folder: &Path) -> anyhow::Result<String> {
    let shown = || format!("failed to read {}", folder.display());
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in folder.read_dir().with_context(shown)? {
        files.push(entry.with_context(shown)?.path());
    }
    files.retain(|path| path.is_file());
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        hash.update(file.file_name().unwrap_or_default().as_encoded_bytes());
        hash.update(sha256_of(&file)?);
    }
    Ok(hex(&hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_that_differs_is_named() {
        let of = |pairs: &[(&str, &str)]| -> Settings {
            let owned = pairs.iter().map(|(a, b)| (a.to_string(), b.to_string()));
            owned.collect()
        };
        let kept = of(&[("inputs", "noise"), ("timed runs", "30")]);
        assert_eq!(difference(&kept, &kept), None);
        let now = of(&[("inputs", "zeros"), ("timed runs", "30")]);
        assert_eq!(difference(&kept, &now), Some("inputs"));
        assert_eq!(difference(&of(&[]), &now), Some("inputs"));
    }

    #[test]
    fn a_folder_is_named_by_its_content() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for folder in [&one, &other] {
            std::fs::write(folder.path().join("input_0.pb"), "a").unwrap();
        }
        let hash = |folder: &tempfile::TempDir| sha256_of_folder(folder.path()).unwrap();
        assert_eq!(hash(&one), hash(&other));
        std::fs::write(other.path().join("input_0.pb"), "b").unwrap();
        assert_ne!(hash(&one), hash(&other));
    }
}
