//! One of the two models that are measured, with the facts that all its launches share.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use anyhow::Context;
use epwatch_gate::run::Arm;
use epwatch_manifest::ModelOutline;
use epwatch_proto::{ModelManifest, SideCar};

use crate::{settings::sha256_of, unchanged::FileState, wrong_use::WrongUse};

/// One of the two models.
pub(crate) struct Side {
    pub(crate) arm: Arm,
    pub(crate) model: PathBuf,
    pub(crate) sha256: String,
    /// SHA-256 of the files next to the model that hold its tensors.
    pub(crate) data: BTreeMap<String, String>,
    /// All these files, as they were before they were hashed.
    files: Vec<FileState>,
    /// MACs of its nodes.
    pub(crate) manifest: Option<SideCar>,
}

impl Side {
    /// Hashes the model. `argument` is its name on the command line.
    pub(crate) fn new(arm: Arm, argument: &str, model: &Path) -> anyhow::Result<Self> {
        let outline = ModelOutline::of(model).ok();
        if let Some(why) = outline.as_ref().and_then(ModelOutline::irregular_data) {
            return Err(WrongUse(format!("{argument} {}: {why}", model.display())).into());
        }
        let folder = model.parent().unwrap_or(Path::new(""));
        let found = outline.iter().flat_map(ModelOutline::data_files);
        let paths = found.map(|file| (file.display().to_string(), folder.join(file)));
        // A missing file is left out, because the session tells of it.
        let data: Vec<_> = paths.filter(|(_, path)| path.is_file()).collect();
        let mut files = Vec::new();
        for path in data.iter().map(|(_, path)| path.as_path()).chain([model]) {
            let state = FileState::of(path);
            files.push(state.with_context(|| format!("failed to read {}", path.display()))?);
        }
        let data = data
            .into_iter()
            .map(|(name, path)| Ok((name, sha256_of(&path)?)));
        Ok(Self {
            arm,
            model: model.to_owned(),
            sha256: sha256_of(model)?,
            data: data.collect::<anyhow::Result<_>>()?,
            files,
            manifest: None,
        })
    }

    /// The first of its files that is another one than at the beginning.
    pub(crate) fn changed(&self) -> Option<&Path> {
        self.files.iter().find_map(FileState::changed)
    }

    /// The same, by the hash of each file too: not every file system records each change.
    pub(crate) fn changed_by_hash(&self) -> anyhow::Result<Option<PathBuf>> {
        let folder = self.model.parent().unwrap_or(Path::new(""));
        let data = self.data.iter();
        let data = data.map(|(name, sha256)| (folder.join(name), sha256));
        for (path, sha256) in data.chain([(self.model.clone(), &self.sha256)]) {
            if sha256_of(&path)? != *sha256 {
                return Ok(Some(path));
            }
        }
        Ok(self.changed().map(Path::to_owned))
    }

    /// Reads the MACs of the model's nodes, once, so that the file may be a pipe of the shell.
    pub(crate) fn add_macs(&mut self, argument: &str, path: Option<&Path>) -> Result<(), WrongUse> {
        if let Some(path) = path {
            let read = read_side_car(path, &self.sha256);
            self.manifest = Some(read.map_err(|error| {
                WrongUse(format!(
                    "{argument} {} cannot be used: {error:#}; expected JSON as `epwatch manifest` writes it for {}",
                    path.display(),
                    self.model.display()
                ))
            })?);
        }
        Ok(())
    }
}

/// Longest side-car.
const MOST_SIDE_CAR_BYTES: u64 = 256 << 20;

fn read_side_car(path: &Path, model_sha256: &str) -> anyhow::Result<SideCar> {
    // A named FIFO may wait for ever, and a pipe of the shell has a writer.
    let is_pipe = ["/dev/stdin", "/dev/fd", "/proc/self/fd"]
        .iter()
        .any(|of| path.starts_with(of));
    if !is_pipe && !path.metadata()?.is_file() {
        anyhow::bail!("it is not a regular file");
    }
    let mut bytes = Vec::new();
    let read = File::open(path)?
        .take(MOST_SIDE_CAR_BYTES + 1)
        .read_to_end(&mut bytes)?;
    if read as u64 > MOST_SIDE_CAR_BYTES {
        anyhow::bail!("it has more than {} MiB", MOST_SIDE_CAR_BYTES >> 20);
    }
    let side_car: SideCar = serde_json::from_slice(&bytes)?;
    if side_car.model_hash()?.to_string() != model_sha256 {
        anyhow::bail!(
            "it is of another model, with the SHA-256 {}",
            side_car.model_sha256
        );
    }
    ModelManifest::try_from(side_car.clone())?;
    Ok(side_car)
}
