//! Placements that labs and pipelines certified, the reference of a version that has no past: from the store's
//! `certified_placements_v1`, or from a file with its columns. Pure but for the file.

mod file;
mod placement;

pub use file::CertifiedError;
pub(crate) use placement::CertifiedRow;
pub use placement::{Certified, CertifiedPlacement};
