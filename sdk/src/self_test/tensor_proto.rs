//! Reads ONNX's `TensorProto`, the message that ONNX tools use for a model's test data.
//!
//! The elements are in `raw_data`, little-endian, or in the packed field of their type. In the packed field, floats and
//! doubles are stored as their bits, integers as varints, and half floats as the varint of their bits.

use prost::Message;

use super::{
    element::ElementType,
    tensor::{GoldenError, GoldenTensor, wrong},
};

/// The fields that are read. Their numbers are from `onnx.proto`. Floats are read as their bits, so that no NaN
/// changes.
#[derive(Clone, PartialEq, Message)]
struct TensorProto {
    #[prost(uint64, repeated, tag = "1")]
    dims: Vec<u64>,
    #[prost(uint64, tag = "2")]
    data_type: u64,
    #[prost(fixed32, repeated, tag = "4")]
    float_data: Vec<u32>,
    #[prost(uint64, repeated, tag = "5")]
    int32_data: Vec<u64>,
    #[prost(uint64, repeated, tag = "7")]
    int64_data: Vec<u64>,
    #[prost(string, tag = "8")]
    name: String,
    #[prost(bytes = "vec", optional, tag = "9")]
    raw_data: Option<Vec<u8>>,
    #[prost(fixed64, repeated, tag = "10")]
    double_data: Vec<u64>,
    #[prost(uint64, repeated, tag = "11")]
    uint64_data: Vec<u64>,
    #[prost(bytes = "vec", repeated, tag = "13")]
    external_data: Vec<Vec<u8>>,
    #[prost(uint64, tag = "14")]
    data_location: u64,
}

/// Returns the input's name and the tensor.
pub(super) fn parse(bytes: &[u8]) -> Result<(String, GoldenTensor), GoldenError> {
    let proto = TensorProto::decode(bytes).map_err(|_| damaged("a whole TensorProto message"))?;
    if !proto.external_data.is_empty() || proto.data_location != 0 {
        let expected = "elements in the file itself, not in an external file";
        return Err(damaged(expected));
    }
    let element_type = ElementType::from_onnx(proto.data_type).ok_or_else(|| {
        let expected = "a data type of numbers or booleans: 1 to 7 or 9 to 13";
        wrong("data_type", expected, proto.data_type)
    })?;
    let floats = proto.float_data.into_iter().map(u64::from).collect();
    let fields = [
        (4, floats),
        (5, proto.int32_data),
        (7, proto.int64_data),
        (10, proto.double_data),
        (11, proto.uint64_data),
    ];
    let mut given = fields.into_iter().filter(|(_, n)| !n.is_empty());
    let data = match (proto.raw_data, given.next(), given.next()) {
        (Some(raw), None, _) => raw,
        (None, Some((field, numbers)), None) if field == packed_field(element_type) => {
            narrowed(element_type, &numbers)?
        }
        _ => {
            let expected = "elements in raw_data or in the field of their type";
            return Err(damaged(expected));
        }
    };
    let tensor = GoldenTensor::from_le_bytes(element_type, &proto.dims, data)?;
    Ok((proto.name, tensor))
}

fn damaged(expected: &'static str) -> GoldenError {
    GoldenError::Damaged { expected }
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

/// Narrows numbers to the bytes of their type. A negative number arrives sign-extended to 64 bits.
fn narrowed(element_type: ElementType, numbers: &[u64]) -> Result<Vec<u8>, GoldenError> {
    let is_signed = matches!(
        element_type,
        ElementType::I8 | ElementType::I16 | ElementType::I32 | ElementType::I64
    );
    let size = element_type.size();
    let mut data = Vec::with_capacity(numbers.len() * size);
    for number in numbers {
        let bytes = number.to_le_bytes();
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
