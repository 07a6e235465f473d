//! A model that is judged: its file and the files that it needs next to it, each by its SHA-256.

use std::path::Path;

use epwatch_gate::verdict::{GatedFile, GatedModel};
use epwatch_manifest::ModelOutline;

use crate::input_file::{self, FilePurpose};

/// Hashes the files of a model. A file next to it that is missing, or is not a plain file, is left out: the session
/// reports it.
///
/// # Errors
/// A file cannot be read; the text names it unless it is the model itself.
pub(super) fn gated_model(path: &Path) -> Result<GatedModel, String> {
    let sha256 = input_file::sha256(path, FilePurpose::Model)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let outline = ModelOutline::of(path).ok();
    let mut data = Vec::new();
    for file in outline.iter().flat_map(ModelOutline::data_files) {
        let file = folder.join(file);
        let shown = file.display().to_string();
        if input_file::check(&file, FilePurpose::Model).is_err() {
            continue;
        }
        data.push(GatedFile {
            sha256: input_file::sha256(&file, FilePurpose::Model)
                .map_err(|error| format!("its data {shown}: {error}"))?,
            path: shown,
        });
    }
    Ok(GatedModel {
        path: path.display().to_string(),
        sha256,
        data,
    })
}
