//! Functions that the fuzz targets run over a stranger's model. Findings are panics and excessive memory.

use std::{fs, io::Cursor, path::PathBuf};

use crate::ModelOutline;

/// Counts the MACs of a model.
pub fn model(bytes: &[u8]) {
    let shapes = "x=1,3,32,32".parse().into_iter().collect::<Vec<_>>();
    // A model that cannot be counted is not a finding.
    let _ = crate::counted(Cursor::new(bytes), "0".repeat(64), &shapes);
    if let Ok(outline) = ModelOutline::read(Cursor::new(bytes), PathBuf::new()) {
        let _ = (
            outline.custom_ops(),
            outline.precompiled(),
            outline.empty_input(),
        );
    }
}

/// Rewrites every node that a rule matches.
///
/// # Panics
/// The copy is not a whole model, or the folder for temporary files cannot be written.
pub fn rewrite(bytes: &[u8]) {
    // A folder for each thread, since tests run at the same time.
    let name = format!("{}-{:?}", std::process::id(), std::thread::current().id());
    let folder = std::env::temp_dir().join(format!("epwatch-fuzz-{name}"));
    fs::create_dir_all(&folder).expect("a folder for temporary files");
    let (model, copy) = (folder.join("model.onnx"), folder.join("copy.onnx"));
    fs::write(&model, bytes).expect("a temporary file");
    let found = crate::rewrite(&model, &copy, &[], |_| true);
    if found.is_ok_and(|found| !found.rewrites.is_empty()) {
        let copy = fs::read(&copy).expect("a copy, where something was rewritten");
        let read = crate::read::model(Cursor::new(copy));
        assert!(
            !matches!(read, Err(crate::ManifestError::NotOnnx { .. })),
            "the copy is not a whole model"
        );
    }
    let _ = fs::remove_dir_all(&folder);
}
