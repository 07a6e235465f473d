//! Whole numbers in as few bytes as they need: seven bits each, the lowest first (LEB128). Data that is held for
//! millions of reports has this form.

pub(crate) fn push(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push((value & 0x7f) as u8);
}

/// Takes a number from the front of `bytes`; 0 at their end. Most have one byte.
#[inline]
pub(crate) fn take(bytes: &mut &[u8]) -> u64 {
    match bytes.split_first() {
        Some((byte, rest)) if *byte < 0x80 => {
            *bytes = rest;
            u64::from(*byte)
        }
        _ => take_long(bytes),
    }
}

fn take_long(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0_u64, 0);
    while let Some((byte, rest)) = bytes.split_first() {
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 || shift > 63 {
            break;
        }
    }
    value
}
