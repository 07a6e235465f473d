//! The wire format of protocol buffers, as far as a reader of single fields needs it: fields by number, without a schema.

/// A field's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum FieldValue<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// Returns each field of a message, in its order; `None` if the bytes are no message.
pub(super) fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, FieldValue<'_>)>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let value = match key & 7 {
            0 => FieldValue::Varint(varint(&mut bytes)?),
            1 => FieldValue::Fixed64(u64::from_le_bytes(take(&mut bytes, 8)?.try_into().ok()?)),
            2 => {
                let n = usize::try_from(varint(&mut bytes)?).ok()?;
                FieldValue::Bytes(take(&mut bytes, n)?)
            }
            5 => FieldValue::Fixed32(u32::from_le_bytes(take(&mut bytes, 4)?.try_into().ok()?)),
            _ => return None,
        };
        if key >> 3 == 0 {
            return None;
        }
        fields.push((key >> 3, value));
    }
    Some(fields)
}

/// Numbers of a repeated field, packed or one by one.
pub(super) fn numbers(value: FieldValue<'_>) -> Option<Vec<u64>> {
    match value {
        FieldValue::Varint(number) => Some(vec![number]),
        FieldValue::Bytes(mut packed) => {
            let mut numbers = Vec::new();
            while !packed.is_empty() {
                numbers.push(varint(&mut packed)?);
            }
            Some(numbers)
        }
        _ => None,
    }
}

fn take<'a>(bytes: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(n)?;
    *bytes = rest;
    Some(taken)
}

pub(super) fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
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
