//! The part of the protocol buffers wire format that a reader of single fields needs: fields by number, without a
//! schema.

pub(super) use epwatch_proto::wire::{Value as FieldValue, varint};

use epwatch_proto::wire::each_field;

/// Returns each field of a message, in its order; `None` if the bytes are not a message.
pub(super) fn fields(bytes: &[u8]) -> Option<Vec<(u64, FieldValue<'_>)>> {
    let mut fields = Vec::new();
    each_field(bytes, |number, value| {
        fields.push((number.into(), value));
        Some(())
    })?;
    Some(fields)
}

/// Numbers of a repeated field, packed or one by one.
pub(super) fn numbers(value: FieldValue<'_>) -> Option<Vec<u64>> {
    let mut numbers = Vec::new();
    value.each_number(|number| {
        numbers.push(number);
        Some(())
    })?;
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_those_of_the_encoding_guide() {
        assert_eq!(
            fields(&[0x08, 0x96, 0x01]),
            Some(vec![(1, FieldValue::Varint(150))])
        );
        assert_eq!(
            fields(b"\x12\x07testing"),
            Some(vec![(2, FieldValue::Bytes(b"testing"))])
        );
        assert_eq!(
            numbers(FieldValue::Bytes(&[3, 0x8e, 2])),
            Some(vec![3, 270])
        );
        for cut in [
            &b"\x12\x07test"[..],
            &[0x08],
            &[0x0b],
            &[0x00, 0x00],
            &[0xff; 11],
        ] {
            assert_eq!(fields(cut), None, "{cut:?}");
        }
    }
}
