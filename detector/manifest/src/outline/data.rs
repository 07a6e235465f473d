//! Data of a model that is in other files, or was precompiled, and checks whether it exists.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use epwatch_proto::{QnnCompiledFor, chipset::soc_by_qnn_id};

use crate::shapes::list;

/// First words of the file that Git LFS leaves in the place of a large one.
const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// A tensor whose data is in another file.
#[derive(Debug, Default)]
pub(super) struct DataElsewhere {
    pub(super) tensor: String,
    pub(super) location: String,
    pub(super) offset: u64,
    /// Length of the data; `None` if it extends to the end of the file.
    pub(super) length: Option<u64>,
    pub(super) dims: Vec<u64>,
    /// Size, computed from shape and kind of elements; `None` if it is not known.
    pub(super) bytes: Option<u64>,
}

/// A node that contains a precompiled graph.
#[derive(Debug, Default)]
pub(super) struct Context {
    pub(super) node: String,
    /// The file next to the model; `None` if the node has the bytes itself, or shares the bytes of another node.
    pub(super) file: Option<String>,
    /// Whether the graph is compiled for several chipsets.
    pub(super) is_for_many: bool,
}

/// A precompiled graph, as far as its file describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Precompiled {
    /// QNN's number of the chipset; `None` for several chipsets, or if the file names none.
    pub chipset: Option<u32>,
    /// Version of the QNN SDK that compiled it, for example `2.51.0`.
    pub sdk: Option<String>,
}

/// Why a session of QNN's emulator shows nothing about a compiled graph: the emulator makes one for any chipset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompiledElsewhere {
    /// The chipset refuses a graph of another chipset.
    ForAnother {
        /// Which chipset the graph was compiled for, and which one refuses it.
        error: String,
        /// How to get a graph for this chipset.
        way_out: &'static str,
    },
    /// The file does not name one chipset.
    Unnamed {
        /// Why nothing is known, and what helps.
        error: &'static str,
    },
}

impl Precompiled {
    /// Why an emulated session proves nothing on this chipset, by QNN's number; `None` if the graph was compiled for it.
    pub fn elsewhere(&self, asked: u32) -> Option<CompiledElsewhere> {
        let named = |qnn_id: u32| match soc_by_qnn_id(qnn_id) {
            Some(soc) => format!("{} (QNN's {qnn_id})", soc.soc),
            None => format!("QNN's chipset {qnn_id}"),
        };
        match self.chipset {
            Some(qnn_id) if qnn_id == asked => None,
            Some(qnn_id) => Some(CompiledElsewhere::ForAnother {
                error: format!(
                    "the graph was compiled for {}, and not for {}.",
                    named(qnn_id),
                    named(asked)
                ),
                way_out: "Compile it for this chipset too, and give each its own file ([variants] of the policy).",
            }),
            None => Some(CompiledElsewhere::Unnamed {
                error: "the graph was compiled before, and the file does not name one chipset; the emulator makes a session \
                        of such a graph for any. Judge the model that it was compiled from",
            }),
        }
    }
}

impl DataElsewhere {
    /// The reason why the data cannot be read, with the names of tensor and file.
    pub(super) fn problem(&self, folder: &Path) -> Option<String> {
        let Self {
            tensor,
            location,
            offset,
            ..
        } = self;
        // ONNX Runtime refuses a path out of the folder in its own words.
        if location.is_empty() || Path::new(location).is_absolute() || location.contains("..") {
            return None;
        }
        let whose = format!("tensor {tensor} has its data in {location}");
        let has = match size_of_file(&folder.join(location)) {
            Ok(has) => has,
            Err(why) => return Some(format!("{whose}, which {why}")),
        };
        if let (Some(length), Some(bytes)) = (self.length, self.bytes)
            && length != bytes
        {
            return Some(format!(
                "{whose}: {length} bytes, and its shape [{}] takes {bytes}",
                list(&self.dims)
            ));
        }
        let needs = self.length.or(self.bytes)?;
        let end = offset.checked_add(needs);
        if end.is_none_or(|end| end > has.bytes) {
            return Some(format!(
                "{whose}: {needs} bytes from byte {offset}, and the file has {}{}",
                has.bytes, has.remark
            ));
        }
        None
    }
}

impl Context {
    pub(super) fn problem(&self, folder: &Path) -> Option<String> {
        let file = self.file.as_ref()?;
        let whose = format!("EPContext {} has its compiled graph in {file}", self.node);
        match size_of_file(&folder.join(file)) {
            Ok(has) if has.bytes == 0 || !has.remark.is_empty() => {
                let bytes = has.bytes;
                Some(format!("{whose}, which has {bytes} bytes{}", has.remark))
            }
            Ok(_) => None,
            Err(why) => Some(format!("{whose}, which {why}")),
        }
    }
}

struct FileSize {
    bytes: u64,
    /// A remark if the file is something else, such as an LFS pointer; otherwise empty.
    remark: &'static str,
}

fn size_of_file(path: &PathBuf) -> Result<FileSize, String> {
    let found = path.metadata().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "is not there; it belongs next to the model".to_owned(),
        _ => format!("cannot be read: {error}"),
    })?;
    if !found.is_file() {
        return Err("is not a plain file".to_owned());
    }
    let mut head = Vec::new();
    let read = File::open(path)
        .and_then(|file| file.take(LFS_POINTER.len() as u64).read_to_end(&mut head));
    read.map_err(|error| format!("cannot be read: {error}"))?;
    let remark = match head == LFS_POINTER {
        true => ": it is a pointer of Git LFS; run `git lfs pull`",
        false => "",
    };
    Ok(FileSize {
        bytes: found.len(),
        remark,
    })
}

/// Parses QNN's compatibility text. A context for many chipsets gets no chipset.
pub(super) fn precompiled(
    contexts: &[Context],
    compatibility: Option<&str>,
) -> Option<Precompiled> {
    if contexts.is_empty() {
        return None;
    }
    let made_for = QnnCompiledFor::of_text(compatibility.unwrap_or_default());
    let is_for_many = contexts.iter().any(|context| context.is_for_many);
    Some(Precompiled {
        chipset: made_for.qnn_id.filter(|_| !is_for_many),
        sdk: made_for.sdk.map(str::to_owned),
    })
}
