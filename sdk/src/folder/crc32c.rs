//! CRC-32C of the SDK's files, computed a byte at a time: faster algorithms need tables of 16 KB, and reports are
//! small.

/// Castagnoli's polynomial, the lowest bit first.
const POLYNOMIAL: u32 = 0x82F6_3B78;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut bit = 0;
        // The index is below 256.
        #[expect(clippy::cast_possible_truncation, reason = "as said")]
        let mut crc = byte as u32;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ POLYNOMIAL
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(!0, |crc: u32, byte| {
        TABLE[usize::from(crc.to_le_bytes()[0] ^ byte)] ^ crc >> 8
    });
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 3720, appendix B.4.
    #[test]
    fn known_checksums() {
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xff; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(&ascending), 0x46DD_794E);
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }
}
