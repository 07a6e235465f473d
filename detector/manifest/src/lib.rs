//! MACs per node of an ONNX model, from its graph alone.
//!
//! Input: a model file and the shapes of its symbolic inputs. Output: a [`ManifestDocument`], which is a side-car that
//! the SDK reads. Weights are skipped, so external data takes no memory. An invalid file is refused with the offset of
//! the error, never with a panic. [`ModelOutline`] has the data that explains a runtime's refusal of a file.

mod count;
mod document;
mod einsum;
mod error;
mod facts;
mod forms;
mod fused;
#[doc(hidden)]
pub mod fuzz;
mod graph;
mod infer;
mod outline;
mod read;
mod rewrite;
mod shapes;
mod sides;
mod stamp;
mod surroundings;
mod tensor;
mod turns;
mod view;
mod wire;

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek},
    path::Path,
};

use sha2::{Digest, Sha256};

pub use document::{ManifestDocument, SCHEMA, Uncounted};
pub use error::ManifestError;
pub use facts::{GraphFacts, NodeSize, graph_facts, graph_facts_of};
pub use forms::NodeForm;
pub use outline::{CompiledElsewhere, ModelOutline, Precompiled};
pub use rewrite::{Rewrite, Rewritten, rewrite, weights_outside};
pub use shapes::{FreeDim, InputShape};
pub use sides::{CrossingTensor, CrossingTensors, Place, PlacedGraph, SidesOfNodes};
pub use stamp::stamp_names;
pub use surroundings::Surroundings;

/// Counts the MACs of a model file.
///
/// # Errors
/// The file cannot be read or is not an ONNX model, or an input has no fixed shape.
pub fn manifest_of(model: &Path, shapes: &[InputShape]) -> Result<ManifestDocument, ManifestError> {
    // A file that is not a model is refused before all of it is read.
    wire::WireReader::new(File::open(model)?)?;
    let sha256 = sha256_of_file(model)?;
    counted(File::open(model)?, sha256, shapes)
}

fn counted(
    file: impl Read + Seek,
    sha256: String,
    shapes: &[InputShape],
) -> Result<ManifestDocument, ManifestError> {
    let mut model = read::model(file)?;
    shapes::fix_inputs(&mut model, shapes)?;
    let counted = count::counted(&mut model)?;
    Ok(document::document(&model, counted, sha256))
}

/// Returns the SHA-256 of a file, hexadecimal.
///
/// # Errors
/// The file cannot be read.
pub fn sha256_of_file(path: &Path) -> io::Result<String> {
    let mut file = BufReader::with_capacity(1 << 16, Sha256Reader::new(File::open(path)?));
    io::copy(&mut file, &mut io::sink())?;
    Ok(file.into_inner().digest())
}

/// Hashes all bytes that are read through it, so that a pipe needs to be read only once.
#[derive(Debug)]
pub struct Sha256Reader<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Sha256Reader<R> {
    /// A reader that has read nothing yet.
    pub fn new(inner: R) -> Self {
        let hash = Sha256::new();
        Self { inner, hash }
    }

    /// Returns the SHA-256 of all bytes that were read, hexadecimal.
    pub fn digest(self) -> String {
        epwatch_proto::hex(&self.hash.finalize())
    }
}

impl<R: Read> Read for Sha256Reader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(out)?;
        self.hash.update(&out[..n]);
        Ok(n)
    }
}

#[cfg(test)]
mod tests;
