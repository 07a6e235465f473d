//! Checks a compiled model (EPContext) before it is loaded: is it for this device?
//!
//! The file's metadata has a text in which the EP describes the target of the compilation. The runtime hands this text
//! to the EP (`GetModelCompatibilityForEpDevices`). ONNX Runtime's call for the text parses the whole model. So this
//! module reads the text itself, and skips the compiled graphs. An EP need not answer. QNN's text is compared with the
//! device directly, without QNN's EP.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Seek},
    path::Path,
};

use epwatch_proto::{Accelerator, QnnCompiledFor, ReasonCode, chipset::Soc};

use crate::types;

/// Metadata key of a precompiled model, before the EP's name.
pub(crate) const EP_COMPATIBILITY: &str = "ep_compatibility_info.";

/// Longest compatibility text that a report holds, in bytes.
pub(crate) const MAX_EP_COMPATIBILITY_BYTES: usize = 512;

/// Maximum number of fields that are read from a file. A compiled model has few nodes.
const MAX_FIELDS: u32 = 200_000;
/// Longest name or key that is read, in bytes.
const MAX_NAME_BYTES: u64 = 256;

/// Whether a compiled model is for this device, before it is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compatibility {
    /// The EP has no objection to the model.
    Optimal,
    /// The model was compiled for another chipset or runtime and may still load, but should be compiled again.
    PreferRecompilation,
    /// The model will not load here.
    Unsupported,
}

impl Compatibility {
    /// Returns the reason code for explanations and reports.
    pub fn reason(self) -> Option<types::ReasonCode> {
        match self {
            Self::Optimal => None,
            Self::PreferRecompilation => Some(ReasonCode::EpcontextForAnother.into()),
            Self::Unsupported => Some(ReasonCode::EpcontextIncompatible.into()),
        }
    }
}

/// The information in a compiled model's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CompiledModel {
    /// The EP in the key of the metadata.
    ep: String,
    /// The EP's text.
    pub(crate) text: String,
    /// Whether the compiled graph serves several chipsets.
    is_for_many: bool,
}

/// The known properties of the device.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Here<'a> {
    pub(crate) soc: Option<&'static Soc>,
    pub(crate) qnn_sdk: &'a str,
}

impl CompiledModel {
    /// Reads a file. `None` if it is not a compiled model for a requested EP, or has no compatibility text. A file that
    /// cannot be read is also `None`, because loading it gives the error.
    pub(crate) fn of_file(path: &Path, requested: &[String]) -> Option<Self> {
        // Opening a FIFO would wait for a writer.
        let found = fs::metadata(path).ok()?;
        let file = found.is_file().then(|| File::open(path).ok())??;
        Self::read(BufReader::new(file), found.len(), requested)
    }

    fn read(input: impl BufRead + Seek, end: u64, requested: &[String]) -> Option<Self> {
        let mut wire = Wire {
            input,
            at: 0,
            left: MAX_FIELDS,
        };
        let (mut found, mut contexts, mut is_for_many) = (None, 0, false);
        while wire.at < end {
            match wire.field(end)? {
                // Field 7 of a ModelProto is its graph.
                (7, Value::Until(graph)) => {
                    while wire.at < graph {
                        match wire.field(graph)? {
                            (1, Value::Until(node)) => {
                                let is_context = wire.node(node, &mut is_for_many)?;
                                contexts += u32::from(is_context);
                            }
                            (_, value) => wire.skip(value)?,
                        }
                    }
                }
                // A pair of the metadata.
                (14, Value::Until(pair)) => {
                    let (key, text) = wire.pair(pair)?;
                    let ep = key.strip_prefix(EP_COMPATIBILITY);
                    let of = |name: &str| Accelerator::of_ep(name);
                    let is_asked =
                        |ep: &&str| requested.iter().any(|asked| of(asked).is_same(of(ep)));
                    if let Some(ep) = ep.filter(is_asked) {
                        found = Some((ep.to_owned(), text));
                    }
                }
                (_, value) => wire.skip(value)?,
            }
        }
        let (ep, text) = found.filter(|(_, text)| contexts > 0 && !text.is_empty())?;
        Some(Self {
            ep,
            text,
            is_for_many,
        })
    }

    /// Whether an EP of this name compiled it.
    #[cfg(feature = "qnn")]
    pub(crate) fn is_of(&self, ep: &str) -> bool {
        Accelerator::of_ep(ep).is_same(Accelerator::of_ep(&self.ep))
    }

    pub(crate) fn is_of_qnn(&self) -> bool {
        Accelerator::of_ep(&self.ep) == Accelerator::QnnHtp
    }

    /// The answer from the file's text alone, without the EP.
    pub(crate) fn by_text(&self, here: Here<'_>) -> Option<Compatibility> {
        if !self.is_of_qnn() {
            return None;
        }
        let made_for = QnnCompiledFor::of_text(&self.text);
        if made_for.is_newer_than(here.qnn_sdk) {
            return Some(Compatibility::Unsupported);
        }
        let is_for_other = here.soc.is_some_and(|soc| made_for.is_for_other_than(soc));
        (is_for_other && !self.is_for_many).then_some(Compatibility::PreferRecompilation)
    }
}

/// Reads protobuf fields, with the numbers of `onnx.proto`.
struct Wire<R> {
    input: R,
    at: u64,
    left: u32,
}

#[derive(Debug, Clone, Copy)]
enum Value {
    Number(u64),
    /// A text or a message, which ends at this offset.
    Until(u64),
}

impl<R: BufRead + Seek> Wire<R> {
    /// Returns a field's number and value. `None` for a damaged file.
    fn field(&mut self, end: u64) -> Option<(u64, Value)> {
        self.left = self.left.checked_sub(1)?;
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => Value::Until(self.at.checked_add(8)?),
            2 => {
                let len = self.varint()?;
                Value::Until(self.at.checked_add(len)?)
            }
            5 => Value::Until(self.at.checked_add(4)?),
            _ => return None,
        };
        let is_within = match value {
            Value::Number(_) => self.at <= end,
            Value::Until(until) => until <= end,
        };
        is_within.then_some((tag >> 3, value))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            self.input.read_exact(&mut byte).ok()?;
            self.at += 1;
            number |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn skip(&mut self, value: Value) -> Option<()> {
        if let Value::Until(until) = value {
            let bytes = i64::try_from(until.checked_sub(self.at)?).ok()?;
            self.input.seek_relative(bytes).ok()?;
            self.at = until;
        }
        Some(())
    }

    /// A text's first bytes.
    fn text(&mut self, until: u64, most: u64) -> Option<String> {
        let len = (until - self.at).min(most);
        let mut bytes = Vec::new();
        self.input.by_ref().take(len).read_to_end(&mut bytes).ok()?;
        self.at += u64::try_from(bytes.len()).ok()?;
        self.skip(Value::Until(until))?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn pair(&mut self, end: u64) -> Option<(String, String)> {
        let (mut key, mut text) = (String::new(), String::new());
        while self.at < end {
            match self.field(end)? {
                (1, Value::Until(until)) => key = self.text(until, MAX_NAME_BYTES)?,
                (2, Value::Until(until)) => {
                    text = self.text(until, MAX_EP_COMPATIBILITY_BYTES as u64)?;
                }
                (_, value) => self.skip(value)?,
            }
        }
        Some((key, text))
    }

    /// Returns whether a node is a compiled graph, and notes whether it serves several chipsets.
    fn node(&mut self, end: u64, is_for_many: &mut bool) -> Option<bool> {
        let mut is_context = false;
        while self.at < end {
            match self.field(end)? {
                (4, Value::Until(until)) => {
                    is_context = self.text(until, MAX_NAME_BYTES)? == "EPContext";
                }
                (5, Value::Until(attribute)) => {
                    let (mut name, mut int) = (String::new(), 0);
                    while self.at < attribute {
                        match self.field(attribute)? {
                            (1, Value::Until(until)) => name = self.text(until, MAX_NAME_BYTES)?,
                            (3, Value::Number(number)) => int = number,
                            (_, value) => self.skip(value)?,
                        }
                    }
                    *is_for_many |= name == "is_multi_soc_ep_context" && int != 0;
                }
                (_, value) => self.skip(value)?,
            }
        }
        Some(is_context)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use epwatch_proto::{chipset::soc_by_name, placement::QNN_EP};

    use super::*;

    fn field(number: u64, bytes: &[u8]) -> Vec<u8> {
        let len = bytes.len();
        let mut field = vec![u8::try_from((number << 3) | 2).unwrap()];
        field.push(u8::try_from((len & 0x7f) | 0x80).unwrap());
        field.push(u8::try_from(len >> 7).unwrap());
        field.extend(bytes);
        field
    }

    /// A model of one node with this op, and with this text of QNN.
    fn model(op_type: &str, is_for_many: bool, text: &str) -> Vec<u8> {
        let mut attribute = field(1, b"is_multi_soc_ep_context");
        attribute.extend([3 << 3, u8::from(is_for_many)]);
        let mut node = field(5, &attribute);
        node.extend(field(5, &field(4, &[0; 5000])));
        node.extend(field(4, op_type.as_bytes()));
        let mut pair = field(1, format!("{EP_COMPATIBILITY}{QNN_EP}").as_bytes());
        pair.extend(field(2, text.as_bytes()));
        let mut model = vec![8, 10];
        model.extend(field(7, &field(1, &node)));
        model.extend(field(14, &pair));
        model
    }

    fn read(bytes: &[u8], asked: &str) -> Option<CompiledModel> {
        let end = u64::try_from(bytes.len()).unwrap();
        CompiledModel::read(Cursor::new(bytes), end, &[asked.to_owned()])
    }

    const TEXT: &str = "v2:6:2.51.0:5.51.0:0:57:0:0";

    #[test]
    fn a_compiled_model_says_what_it_was_compiled_for() {
        let found = read(&model("EPContext", false, TEXT), QNN_EP).unwrap();
        assert_eq!(found.text, TEXT);
        let here = |soc, qnn_sdk| Here {
            soc: soc_by_name(soc),
            qnn_sdk,
        };
        let again = Some(Compatibility::PreferRecompilation);
        assert_eq!(found.by_text(here("SM8635", "")), again);
        assert_eq!(found.by_text(here("SM8650", "")), None);
        assert_eq!(found.by_text(here("unknown", "2.51.0")), None);
        let refused = Some(Compatibility::Unsupported);
        assert_eq!(found.by_text(here("SM8650", "2.47.0")), refused);
        let for_many = read(&model("EPContext", true, TEXT), "qnn").unwrap();
        assert_eq!(for_many.by_text(here("SM8635", "")), None);
    }

    #[test]
    fn other_files_are_not_asked_about() {
        assert_eq!(read(&model("Conv", false, TEXT), QNN_EP), None);
        assert_eq!(read(&model("EPContext", false, ""), QNN_EP), None);
        assert_eq!(
            read(&model("EPContext", false, TEXT), "CUDAExecutionProvider"),
            None
        );
        assert_eq!(read(b"not a model", QNN_EP), None);
        assert_eq!(read(&[], QNN_EP), None);
        // An endless list of empty fields.
        assert_eq!(read(&[0x3a, 0].repeat(300_000), QNN_EP), None);
        assert_eq!(
            CompiledModel::of_file(Path::new("/"), &[QNN_EP.to_owned()]),
            None
        );
    }

    /// A damaged file causes no panic, and its truncated content is not used.
    #[test]
    fn a_damaged_file_says_nothing() {
        let whole = model("EPContext", false, TEXT);
        for at in 0..whole.len() {
            assert_eq!(read(&whole[..at], QNN_EP), None, "{at}");
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            let _ = read(&damaged, QNN_EP);
        }
    }
}
