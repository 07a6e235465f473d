//! Golden inputs and their file, `.epwtest`.
//!
//! All numbers are little-endian, texts UTF-8 without control characters:
//!
//! ```text
//! magic        8 bytes   "epwtest\n"
//! version      u16       1
//! id           u8 length, text         1 to 64 bytes; named in reports
//! tolerance    u8 0 or 1, then f64     if 1: finite, 0 or more
//! inputs       u8        1 to 64, then for each:
//!   name       u16 length, text        1 to 256 bytes, each once; as the model has it
//!   type       u8        1 f16, 2 f32, 3 f64, 4 i8, 5 i16, 6 i32, 7 i64, 8 u8, 9 u16, 10 u32,
//!                        11 u64, 12 bool (0 or 1 in a byte)
//!   rank       u8        0 to 8
//!   dims       u64 each  1 or more
//!   data       elements in row-major order, as many bytes as type and dims say
//! checksum     32 bytes  SHA-256 of everything before it
//! ```
//!
//! At most 64 MiB, and nothing after the checksum. A reader allocates no more than really came.

use std::{fs, io, path::Path};

use sha2::{Digest, Sha256};

use super::element::{ElementType, GoldenElement};

const MAGIC: &[u8; 8] = b"epwtest\n";
const VERSION: u16 = 1;
const CHECKSUM_BYTES: usize = 32;
/// Largest file, and so largest input.
pub const MAX_GOLDEN_BYTES: usize = 64 << 20;
const MAX_INPUTS: usize = 64;
const MAX_ID_BYTES: usize = 64;
const MAX_NAME_BYTES: usize = 256;
const MAX_RANK: usize = 8;

/// A golden input that cannot be made or read, and what would be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GoldenError {
    /// The file cannot be read or written.
    #[error("failed to access golden input {path}")]
    Io {
        /// The file.
        path: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// It is no golden input, or one of a newer version, or was damaged on its way.
    #[error("failed to read golden input: expected {expected}; make the file again")]
    Damaged {
        /// What was expected.
        expected: &'static str,
    },
    /// A field is out of bounds.
    #[error("failed to accept {field} of a golden input: expected {expected}, got {got}")]
    Field {
        /// Which one.
        field: &'static str,
        /// What is accepted.
        expected: String,
        /// What came.
        got: String,
    },
}

fn wrong(field: &'static str, expected: impl ToString, got: impl ToString) -> GoldenError {
    GoldenError::Field {
        field,
        expected: expected.to_string(),
        got: epwatch_proto::clipped(&got.to_string(), 64),
    }
}

fn checked_text(field: &'static str, text: &str, max_bytes: usize) -> Result<(), GoldenError> {
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

/// One input: type, shape and elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoldenTensor {
    element_type: ElementType,
    dims: Vec<u64>,
    data: Vec<u8>,
}

impl GoldenTensor {
    /// A tensor of these dimensions, each 1 or more, at most 8 of them, none: a scalar.
    ///
    /// # Errors
    /// If the dimensions are out of bounds or do not make up the number of elements.
    pub fn new<T: GoldenElement>(dims: &[u64], elements: &[T]) -> Result<Self, GoldenError> {
        let mut data = Vec::with_capacity(std::mem::size_of_val(elements));
        for element in elements {
            element.write(&mut data);
        }
        Self::from_le_bytes(T::TYPE, dims, data)
    }

    /// As [`Self::new`], from little-endian bytes.
    ///
    /// # Errors
    /// As [`Self::new`]; for `Bool` also if a byte is neither 0 nor 1.
    pub fn from_le_bytes(
        element_type: ElementType,
        dims: &[u64],
        data: Vec<u8>,
    ) -> Result<Self, GoldenError> {
        let expected = byte_length(element_type, dims)?;
        if data.len() != expected {
            let expected = format!("{expected} bytes for these dimensions");
            return Err(wrong("data", expected, data.len()));
        }
        if element_type == ElementType::Bool && data.iter().any(|byte| *byte > 1) {
            return Err(wrong("data", "0 or 1 in each byte of a bool", "another"));
        }
        Ok(Self {
            element_type,
            dims: dims.to_vec(),
            data,
        })
    }

    /// What its elements are.
    pub fn element_type(&self) -> ElementType {
        self.element_type
    }

    /// Its dimensions.
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// Its elements, little-endian.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    pub(crate) fn to_value(&self) -> ort::Result<ort::value::DynValue> {
        let dims = self.dims.iter().map(|d| i64::try_from(*d));
        let dims: Vec<i64> = dims
            .collect::<Result<_, _>>()
            .map_err(|_| ort::Error::new("a dimension is too large"))?;
        self.element_type.tensor(&dims, &self.data)
    }
}

/// How many bytes a tensor takes.
fn byte_length(element_type: ElementType, dims: &[u64]) -> Result<usize, GoldenError> {
    if dims.len() > MAX_RANK {
        return Err(wrong("rank", format!("at most {MAX_RANK}"), dims.len()));
    }
    let mut bytes = element_type.size();
    for dim in dims {
        let dim = usize::try_from(*dim).unwrap_or(usize::MAX);
        bytes = bytes.saturating_mul(dim);
        if dim == 0 || bytes > MAX_GOLDEN_BYTES {
            let expected = format!("1 or more each, together at most {MAX_GOLDEN_BYTES} bytes");
            return Err(wrong("dims", expected, format!("{dims:?}")));
        }
    }
    Ok(bytes)
}

/// Reference inputs of a model: what a self-test feeds it. Random or public data, never a user's.
///
/// ```
/// use epwatch_sdk::self_test::{GoldenInput, GoldenTensor};
///
/// let image: Vec<f32> = (0..3 * 8 * 8).map(|i| i as f32 / 192.0).collect();
/// let golden = GoldenInput::new("gradient-1")?
///     .with_tolerance(0.05)?
///     .with_input("x", GoldenTensor::new(&[1, 3, 8, 8], &image)?)?;
/// let bytes = golden.to_bytes();
/// assert_eq!(GoldenInput::parse(&bytes)?, golden);
/// # Ok::<(), epwatch_sdk::self_test::GoldenError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct GoldenInput {
    id: String,
    tolerance: Option<f64>,
    inputs: Vec<(String, GoldenTensor)>,
}

impl GoldenInput {
    /// Inputs of this id (1 to 64 bytes), to be filled with [`Self::with_input`].
    ///
    /// # Errors
    /// If the id is empty, too long, or holds control characters.
    pub fn new(id: impl Into<String>) -> Result<Self, GoldenError> {
        let id = id.into();
        checked_text("id", &id, MAX_ID_BYTES)?;
        Ok(Self {
            id,
            tolerance: None,
            inputs: Vec::new(),
        })
    }

    /// The greatest absolute difference between the outputs of NPU and CPU that is accepted.
    ///
    /// # Errors
    /// If it is negative or not finite.
    pub fn with_tolerance(mut self, tolerance: f64) -> Result<Self, GoldenError> {
        if !tolerance.is_finite() || tolerance < 0.0 {
            let expected = "a finite number, 0 or more";
            return Err(wrong("tolerance", expected, tolerance));
        }
        self.tolerance = Some(tolerance);
        Ok(self)
    }

    /// An input of the model, by the name that the model has for it (1 to 256 bytes).
    ///
    /// # Errors
    /// If the name is out of bounds or there already, or the whole grows too large.
    pub fn with_input(
        mut self,
        name: impl Into<String>,
        tensor: GoldenTensor,
    ) -> Result<Self, GoldenError> {
        let name = name.into();
        checked_text("input name", &name, MAX_NAME_BYTES)?;
        if self.inputs.iter().any(|(known, _)| *known == name) {
            return Err(wrong("input name", "each once", name));
        }
        if self.inputs.len() >= MAX_INPUTS {
            return Err(wrong("inputs", format!("at most {MAX_INPUTS}"), "more"));
        }
        self.inputs.push((name, tensor));
        let n_bytes = self.n_bytes();
        if n_bytes > MAX_GOLDEN_BYTES {
            let expected = format!("at most {MAX_GOLDEN_BYTES} bytes together");
            return Err(wrong("inputs", expected, n_bytes));
        }
        Ok(self)
    }

    /// What reports call it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The greatest absolute difference that is accepted, if one was given.
    pub fn tolerance(&self) -> Option<f64> {
        self.tolerance
    }

    /// The inputs by name, in the order they were added.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, &GoldenTensor)> {
        self.inputs.iter().map(|(name, tensor)| (&**name, tensor))
    }

    fn n_bytes(&self) -> usize {
        let inputs = self.inputs.iter();
        let inputs = inputs.map(|(name, t)| 4 + name.len() + 8 * t.dims.len() + t.data.len());
        let head = MAGIC.len() + 2 + 1 + self.id.len() + 9 + 1;
        head + inputs.sum::<usize>() + CHECKSUM_BYTES
    }

    /// The file's content.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.n_bytes());
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.push(small(self.id.len()));
        out.extend(self.id.as_bytes());
        out.push(u8::from(self.tolerance.is_some()));
        if let Some(tolerance) = self.tolerance {
            out.extend(tolerance.to_le_bytes());
        }
        out.push(small(self.inputs.len()));
        for (name, tensor) in &self.inputs {
            let name_bytes = u16::try_from(name.len()).expect("names are at most 256 bytes");
            out.extend(name_bytes.to_le_bytes());
            out.extend(name.as_bytes());
            out.push(tensor.element_type.code());
            out.push(small(tensor.dims.len()));
            for dim in &tensor.dims {
                out.extend(dim.to_le_bytes());
            }
            out.extend(&tensor.data);
        }
        let checksum = Sha256::digest(&out);
        out.extend(checksum);
        out
    }

    /// What identifies the content: the file's checksum.
    pub(crate) fn checksum(&self) -> [u8; CHECKSUM_BYTES] {
        let bytes = self.to_bytes();
        let checksum = bytes.last_chunk().expect("every file ends in its checksum");
        *checksum
    }

    /// Reads a file's content.
    ///
    /// # Errors
    /// If it is damaged, of another version, or a field is out of bounds.
    pub fn parse(bytes: &[u8]) -> Result<Self, GoldenError> {
        let damaged = |expected| GoldenError::Damaged { expected };
        if bytes.len() > MAX_GOLDEN_BYTES {
            let expected = format!("at most {MAX_GOLDEN_BYTES} bytes");
            return Err(wrong("file size", expected, bytes.len()));
        }
        if !bytes.starts_with(MAGIC) {
            return Err(damaged("the magic of an .epwtest file"));
        }
        let (body, checksum) = bytes
            .split_last_chunk::<CHECKSUM_BYTES>()
            .ok_or(damaged("a whole file"))?;
        if Sha256::digest(body).as_slice() != checksum {
            return Err(damaged("the checksum of the content"));
        }
        let mut reader = Reader(body.get(MAGIC.len()..).ok_or(damaged("a whole file"))?);
        let version = u16::from_le_bytes(reader.array()?);
        if version != VERSION {
            return Err(wrong(
                "version",
                format!("{VERSION} (update the SDK?)"),
                version,
            ));
        }
        let id_bytes = usize::from(reader.byte()?);
        let mut golden = Self::new(reader.text(id_bytes)?)?;
        golden = match reader.byte()? {
            0 => golden,
            1 => golden.with_tolerance(f64::from_le_bytes(reader.array()?))?,
            other => return Err(wrong("tolerance", "0 or 1 before it", other)),
        };
        let n_inputs = reader.byte()?;
        if n_inputs == 0 {
            return Err(wrong("inputs", "1 or more", 0));
        }
        for _ in 0..n_inputs {
            let name_bytes = usize::from(u16::from_le_bytes(reader.array()?));
            let name = reader.text(name_bytes)?.to_owned();
            golden = golden.with_input(name, reader.tensor()?)?;
        }
        match reader.0 {
            [] => Ok(golden),
            _ => Err(damaged("nothing between the last input and the checksum")),
        }
    }

    /// Reads a file. Blocks on the disk.
    ///
    /// # Errors
    /// As [`Self::parse`], and if the file cannot be read.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, GoldenError> {
        let path = path.as_ref();
        let io = |source| GoldenError::Io {
            path: path.display().to_string(),
            source,
        };
        let most = MAX_GOLDEN_BYTES as u64;
        match crate::folder::files::read_bounded(path, most).map_err(io)? {
            Some(bytes) => Self::parse(&bytes),
            None => Err(io(io::ErrorKind::NotFound.into())),
        }
    }

    /// Writes a file. Blocks on the disk.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), GoldenError> {
        let path = path.as_ref();
        fs::write(path, self.to_bytes()).map_err(|source| GoldenError::Io {
            path: path.display().to_string(),
            source,
        })
    }
}

fn small(n: usize) -> u8 {
    u8::try_from(n).expect("ids, inputs and ranks are at most 64")
}

/// What is left of a file.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], GoldenError> {
        let taken = self.0.split_at_checked(n);
        let (taken, rest) = taken.ok_or(GoldenError::Damaged {
            expected: "as many bytes as the file says it has",
        })?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GoldenError> {
        let taken = self.take(N)?;
        Ok(taken.try_into().expect("as many were taken"))
    }

    fn byte(&mut self) -> Result<u8, GoldenError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn text(&mut self, n: usize) -> Result<&'a str, GoldenError> {
        std::str::from_utf8(self.take(n)?).map_err(|_| GoldenError::Damaged {
            expected: "texts in UTF-8",
        })
    }

    fn tensor(&mut self) -> Result<GoldenTensor, GoldenError> {
        let code = self.byte()?;
        let element_type =
            ElementType::from_code(code).ok_or_else(|| wrong("type", "1 to 12", code))?;
        let rank = usize::from(self.byte()?);
        if rank > MAX_RANK {
            return Err(wrong("rank", format!("at most {MAX_RANK}"), rank));
        }
        let mut dims = Vec::with_capacity(rank);
        for _ in 0..rank {
            dims.push(u64::from_le_bytes(self.array()?));
        }
        let n = byte_length(element_type, &dims)?;
        let data = self.take(n)?.to_vec();
        GoldenTensor::from_le_bytes(element_type, &dims, data)
    }
}
