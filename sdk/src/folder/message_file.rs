//! Content of the SDK's small files: 8 bytes of name and version, the CRC-32C (little-endian) of the rest, an encoded
//! message. They are not JSON, because code that reads JSON would make the library in an app larger.

use prost::Message;

use super::crc32c::crc32c;

/// Name and version of a file's format.
pub(crate) type Magic = [u8; 8];

pub(crate) fn to_bytes(magic: &Magic, message: &impl Message) -> Vec<u8> {
    let message = message.encode_to_vec();
    let mut bytes = magic.to_vec();
    bytes.extend(crc32c(&message).to_le_bytes());
    bytes.extend(message);
    bytes
}

/// `None` unless it is a whole file of this format.
pub(crate) fn parse<M: Message + Default>(magic: &Magic, bytes: &[u8]) -> Option<M> {
    let rest = bytes.strip_prefix(magic)?;
    let (checksum, message) = rest.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*checksum) != crc32c(message) {
        return None;
    }
    M::decode(message).ok()
}
