//! Golden inputs, and the folder of ONNX tensors that holds one.

use std::{io, path::Path};

use sha2::{Digest, Sha256};

use super::{
    tensor::{GoldenError, GoldenTensor, MAX_GOLDEN_BYTES, wrong},
    tensor_proto,
};
use crate::folder::files;

const MAX_INPUTS: usize = 64;
const MAX_ID_BYTES: usize = 64;
const MAX_NAME_BYTES: usize = 256;

/// Reference inputs of a model, which a self-test runs. Use random or public data, never the data of a user.
///
/// ```
/// use epwatch_sdk::self_test::{GoldenInput, GoldenTensor};
///
/// let image: Vec<f32> = (0..3 * 8 * 8).map(|i| i as f32 / 192.0).collect();
/// let golden = GoldenInput::new("gradient-1")?
///     .with_tolerance(0.05)?
///     .with_input("x", GoldenTensor::new(&[1, 3, 8, 8], &image)?)?;
/// assert_eq!(golden.inputs().count(), 1);
/// # Ok::<(), epwatch_sdk::self_test::GoldenError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct GoldenInput {
    id: String,
    tolerance: Option<f64>,
    inputs: Vec<(String, GoldenTensor)>,
}

impl GoldenInput {
    /// Makes a golden input without tensors. Reports name it by its id (1 to 64 bytes).
    ///
    /// # Errors
    /// Fails if the id is empty, too long, or holds control characters.
    pub fn new(id: impl Into<String>) -> Result<Self, GoldenError> {
        let id = id.into();
        check_text("id", &id, MAX_ID_BYTES)?;
        Ok(Self {
            id,
            tolerance: None,
            inputs: Vec::new(),
        })
    }

    /// Reads `input_0.pb`, `input_1.pb` and so on from a folder, each an ONNX `TensorProto` with the name of the
    /// model's input. This is the layout of ONNX's test data; `output_*.pb` are ignored. The folder's name is the id.
    /// Blocks on the disk.
    ///
    /// # Errors
    /// Fails if a file cannot be read or a field is out of bounds.
    pub fn load(folder: impl AsRef<Path>) -> Result<Self, GoldenError> {
        let folder = folder.as_ref();
        let id = folder.file_name().unwrap_or_default().to_string_lossy();
        let mut golden = Self::new(id)?;
        for n in 0.. {
            let path = folder.join(format!("input_{n}.pb"));
            let failed = |source| GoldenError::Io {
                path: path.display().to_string(),
                source,
            };
            let bytes = match files::read_at_most(&path, MAX_GOLDEN_BYTES as u64) {
                Ok(bytes) => bytes,
                Err(error) if n > 0 && error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(failed(error)),
            };
            let added = golden.with_tensor_proto(&bytes);
            golden = added.map_err(|e| failed(io::Error::new(io::ErrorKind::InvalidData, e)))?;
        }
        Ok(golden)
    }

    /// Adds an input from the bytes of an ONNX `TensorProto`, which also holds its name. It is for inputs that are not
    /// files, for example assets of an Android app.
    ///
    /// # Errors
    /// Fails if the elements are in an external file or are not numbers, or a field is out of bounds.
    pub fn with_tensor_proto(self, bytes: &[u8]) -> Result<Self, GoldenError> {
        let (name, tensor) = tensor_proto::parse(bytes)?;
        self.with_input(name, tensor)
    }

    /// Adds an input under its name in the model (1 to 256 bytes).
    ///
    /// # Errors
    /// Fails if the name is out of bounds or given twice, or the inputs are more than 64 or larger than 64 MiB together.
    pub fn with_input(
        mut self,
        name: impl Into<String>,
        tensor: GoldenTensor,
    ) -> Result<Self, GoldenError> {
        let name = name.into();
        check_text("input name", &name, MAX_NAME_BYTES)?;
        if self.inputs.iter().any(|(known, _)| *known == name) {
            return Err(wrong("input name", "each once", name));
        }
        if self.inputs.len() >= MAX_INPUTS {
            return Err(wrong("inputs", format!("at most {MAX_INPUTS}"), "more"));
        }
        self.inputs.push((name, tensor));
        let n_bytes: usize = self.inputs.iter().map(|(_, t)| t.data().len()).sum();
        if n_bytes > MAX_GOLDEN_BYTES {
            let expected = format!("at most {MAX_GOLDEN_BYTES} bytes together");
            return Err(wrong("inputs", expected, n_bytes));
        }
        Ok(self)
    }

    /// Sets the greatest absolute difference between the outputs of NPU and CPU that is accepted.
    ///
    /// # Errors
    /// Fails if it is negative or not finite.
    pub fn with_tolerance(mut self, tolerance: f64) -> Result<Self, GoldenError> {
        if !tolerance.is_finite() || tolerance < 0.0 {
            let expected = "a finite number, 0 or more";
            return Err(wrong("tolerance", expected, tolerance));
        }
        self.tolerance = Some(tolerance);
        Ok(self)
    }

    /// Returns the id that names this input in reports.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the greatest absolute difference that is accepted, if one was given.
    pub fn tolerance(&self) -> Option<f64> {
        self.tolerance
    }

    /// Returns the inputs by name, in the order they were added.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, &GoldenTensor)> {
        self.inputs.iter().map(|(name, tensor)| (&**name, tensor))
    }

    /// Identifies the content; an input with other content makes another test.
    pub(super) fn checksum(&self) -> [u8; 32] {
        let mut sha = Sha256::new();
        hash_part(&mut sha, self.id.as_bytes());
        match self.tolerance {
            Some(tolerance) => hash_part(&mut sha, &tolerance.to_le_bytes()),
            None => hash_part(&mut sha, &[]),
        }
        for (name, tensor) in &self.inputs {
            hash_part(&mut sha, name.as_bytes());
            hash_part(&mut sha, &[tensor.element_type.code()]);
            let dims: Vec<u8> = tensor.dims().iter().flat_map(|d| d.to_le_bytes()).collect();
            hash_part(&mut sha, &dims);
            hash_part(&mut sha, tensor.data());
        }
        sha.finalize().into()
    }
}

/// Adds the length first, so that no two lists of parts give one hash.
pub(super) fn hash_part(sha: &mut Sha256, part: &[u8]) {
    let n = u64::try_from(part.len()).unwrap_or(u64::MAX);
    sha.update(n.to_le_bytes());
    sha.update(part);
}

fn check_text(field: &'static str, text: &str, max_bytes: usize) -> Result<(), GoldenError> {
    let is_fine =
        !text.is_empty() && text.len() <= max_bytes && !text.chars().any(char::is_control);
    match is_fine {
        true => Ok(()),
        false => Err(wrong(
            field,
            format!("1 to {max_bytes} bytes of text"),
            text,
        )),
    }
}
