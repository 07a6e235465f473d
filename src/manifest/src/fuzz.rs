//! What the fuzz target runs over a stranger's model. Finds are panics and memory.

use std::{io::Cursor, path::PathBuf};

use crate::ModelOutline;

/// Counts the MACs of a model.
pub fn model(bytes: &[u8]) {
    let shapes = "x=1,3,32,32".parse().into_iter().collect::<Vec<_>>();
    // A model that cannot be counted is no find.
    let _ = crate::counted(Cursor::new(bytes), "0".repeat(64), &shapes);
    if let Ok(outline) = ModelOutline::read(Cursor::new(bytes), PathBuf::new()) {
        let _ = (
            outline.custom_ops(),
            outline.precompiled(),
            outline.empty_input(),
        );
    }
}
