//! Reads ONNX's `TensorProto`, the message in which ONNX tools keep the test data of a model.
//!
//! The elements are in `raw_data`, little-endian, or in the packed field of their type: floats and doubles as they
//! are, integers as varints, half floats as the varint of their bits. No tensor is larger than the bytes that came.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::{
    element::ElementType,
    tensor::{GoldenError, GoldenTensor, MAX_RANK, wrong},
};

/// The fields that are read. Numbers as in `onnx.proto`.
#[derive(Debug, Default)]
struct TensorProto<'a> {
    /// Field 1.
    dims: Vec<u64>,
    /// Field 2.
    data_type: u64,
    /// Fields 4, 5, 7, 10 and 11: the field's number and its packed elements.
    packed: Option<(u32, &'a [u8])>,
    /// Field 8.
    name: &'a [u8],
    /// Field 9.
    raw_data: Option<&'a [u8]>,
}

/// Returns the input's name and the tensor.
pub(super) fn parse(bytes: &[u8]) -> Result<(String, GoldenTensor), GoldenError> {
    let proto = TensorProto::read(bytes)?;
    let element_type = ElementType::from_onnx(proto.data_type).ok_or_else(|| {
        let expected = "a data type of numbers or booleans: 1 to 7 or 9 to 13";
        wrong("data_type", expected, proto.data_type)
    })?;
    let name = std::str::from_utf8(proto.name).map_err(|_| damaged("a name in UTF-8"))?;
    let data = match (proto.raw_data, proto.packed) {
        (Some(raw), None) => raw.to_vec(),
        (None, Some((field, packed))) if field == packed_field(element_type) => {
            match element_type {
                ElementType::F32 | ElementType::F64 => packed.to_vec(),
                _ => integers(element_type, packed)?,
            }
        }
        _ => {
            return Err(damaged(
                "elements in raw_data or in the field of their type",
            ));
        }
    };
    let tensor = GoldenTensor::from_le_bytes(element_type, &proto.dims, data)?;
    Ok((name.to_owned(), tensor))
}

impl<'a> TensorProto<'a> {
    fn read(mut bytes: &'a [u8]) -> Result<Self, GoldenError> {
        use WireType::{LengthDelimited, Varint};
        let mut proto = Self::default();
        while !bytes.is_empty() {
            let (field, wire_type) = decode_key(&mut bytes).map_err(|_| damaged(MESSAGE))?;
            match (field, wire_type) {
                (1, Varint) => proto.add_dim(&mut bytes)?,
                (1, LengthDelimited) => {
                    let mut dims = content(&mut bytes)?;
                    while !dims.is_empty() {
                        proto.add_dim(&mut dims)?;
                    }
                }
                (2, Varint) => proto.data_type = varint(&mut bytes)?,
                (4 | 5 | 7 | 10 | 11, LengthDelimited) => {
                    proto.packed = Some((field, content(&mut bytes)?));
                }
                (8, LengthDelimited) => proto.name = content(&mut bytes)?,
                (9, LengthDelimited) => proto.raw_data = Some(content(&mut bytes)?),
                (13, _) => return Err(damaged(INSIDE)),
                (14, Varint) => match varint(&mut bytes)? {
                    0 => {}
                    _ => return Err(damaged(INSIDE)),
                },
                _ => skip_field(wire_type, field, &mut bytes, DecodeContext::default())
                    .map_err(|_| damaged(MESSAGE))?,
            }
        }
        Ok(proto)
    }

    fn add_dim(&mut self, bytes: &mut &[u8]) -> Result<(), GoldenError> {
        if self.dims.len() >= MAX_RANK {
            return Err(wrong("rank", format!("at most {MAX_RANK}"), "more"));
        }
        self.dims.push(varint(bytes)?);
        Ok(())
    }
}

const MESSAGE: &str = "a whole TensorProto message";
const INSIDE: &str = "elements in the file itself, not in an external file";

fn damaged(expected: &'static str) -> GoldenError {
    GoldenError::Damaged { expected }
}

fn varint(bytes: &mut &[u8]) -> Result<u64, GoldenError> {
    decode_varint(bytes).map_err(|_| damaged(MESSAGE))
}

/// The content of a field with a length.
fn content<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], GoldenError> {
    let n = usize::try_from(varint(bytes)?).unwrap_or(usize::MAX);
    let (content, rest) = bytes.split_at_checked(n).ok_or(damaged(MESSAGE))?;
    *bytes = rest;
    Ok(content)
}

/// The field that packs elements of this type.
fn packed_field(element_type: ElementType) -> u32 {
    match element_type {
        ElementType::F32 => 4,
        ElementType::I64 => 7,
        ElementType::F64 => 10,
        ElementType::U32 | ElementType::U64 => 11,
        _ => 5,
    }
}

/// Narrows varints to the bytes of their type. A negative number comes sign-extended to 64 bits.
fn integers(element_type: ElementType, mut packed: &[u8]) -> Result<Vec<u8>, GoldenError> {
    let is_signed = matches!(
        element_type,
        ElementType::I8 | ElementType::I16 | ElementType::I32 | ElementType::I64
    );
    let size = element_type.size();
    let mut data = Vec::new();
    while !packed.is_empty() {
        let bytes = varint(&mut packed)?.to_le_bytes();
        let (kept, rest) = bytes.split_at(size);
        let is_negative = is_signed && kept.last().is_some_and(|byte| *byte >= 0x80);
        let extension = if is_negative { 0xff } else { 0 };
        if rest.iter().any(|byte| *byte != extension) {
            let expected = format!("integers of {size} bytes");
            return Err(wrong("data", expected, "a larger one"));
        }
        data.extend(kept);
    }
    Ok(data)
}
