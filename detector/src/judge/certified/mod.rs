//! Placements that labs and pipelines certified, which are the reference of a version that has no past. They come from
//! the store's `certified_placements_v1`, or from a file with its columns. Everything here is pure, except reading the
//! file.

mod file;
mod placement;

pub use file::CertifiedError;
pub(crate) use placement::CertifiedRow;
pub use placement::{Certified, CertifiedPlacement};
