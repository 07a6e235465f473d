//! Rewrites blocks into the form that clients of a protocol version expect.
//!
//! The engine writes blocks of revision 0. Some clients announce `client_protocol_version=N`: clickhouse-go
//! (and Grafana's official plugin with it), clickhouse-connect, clickhouse-driver. They expect a block info
//! before every block. From 54454 on they expect a byte after every column's type for a special serialisation.
//! A column whose length does not follow from its type is refused, because the start of the next one is unknown.

use super::cursor::InvalidBlock;
use super::put_varint;
use super::split::{Part, Splitter};

/// From this revision on a byte says whether a column's serialisation is a special one.
const CUSTOM_SERIALIZATION_SINCE: u64 = 54_454;

/// The info of a block that is not part of an aggregation; it reads "overflows: no; bucket: none; end".
const BLOCK_INFO: [u8; 8] = [1, 0, 2, 0xff, 0xff, 0xff, 0xff, 0];

/// Turns blocks of revision 0 into blocks of a client's revision.
#[derive(Debug)]
pub(crate) struct Reframer {
    revision: u64,
    splitter: Splitter,
}

impl Reframer {
    /// Returns `None` for version 0, which the engine writes itself.
    pub(crate) fn new(revision: u64) -> Option<Reframer> {
        (revision > 0).then(|| Reframer {
            revision,
            splitter: Splitter::default(),
        })
    }

    /// Adds bytes from the engine and returns the columns that are complete.
    ///
    /// # Errors
    /// The length of a column does not follow from its type; the text has ClickHouse's form.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        self.splitter.push(bytes);
        let mut out = Vec::with_capacity(bytes.len() + 64);
        while let Some(part) = self.splitter.next().map_err(refusal)? {
            match part {
                Part::Block { n_columns, n_rows } => {
                    out.extend_from_slice(&BLOCK_INFO);
                    put_varint(&mut out, n_columns);
                    put_varint(&mut out, n_rows);
                }
                Part::Column(column) => {
                    out.extend_from_slice(&column.head);
                    if self.revision >= CUSTOM_SERIALIZATION_SINCE {
                        out.push(0);
                    }
                    out.extend_from_slice(&column.data);
                }
            }
        }
        Ok(out)
    }

    /// Checks that the answer ended at the end of a block.
    ///
    /// # Errors
    /// The last block is torn.
    pub(crate) fn finish(&self) -> Result<(), String> {
        if self.splitter.is_at_end() {
            return Ok(());
        }
        Err("Code: 1002. DB::Exception: the answer ends inside a block. (UNKNOWN_EXCEPTION)".into())
    }
}

fn refusal(invalid: InvalidBlock) -> String {
    match invalid {
        InvalidBlock::Type { data_type, .. } => format!(
            "Code: 48. DB::Exception: columns of type {data_type} cannot be sent in Native \
             format; cast them, for example with toString(). (NOT_IMPLEMENTED)"
        ),
        InvalidBlock::Length(what) => {
            format!("Code: 1002. DB::Exception: the answer has {what}. (UNKNOWN_EXCEPTION)")
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One column `a UInt8` of the rows 7 and 8.
    const BLOCK: &[u8] = b"\x01\x02\x01a\x05UInt8\x07\x08";

    #[test]
    fn a_block_gets_what_its_client_expects() {
        let mut old = Reframer::new(54_400).unwrap();
        let mut new = Reframer::new(54_460).unwrap();
        let framed = [&BLOCK_INFO[..], BLOCK].concat();
        assert_eq!(old.push(BLOCK).unwrap(), framed);
        let custom = [&BLOCK_INFO[..], b"\x01\x02\x01a\x05UInt8\x00\x07\x08"].concat();
        assert_eq!(new.push(BLOCK).unwrap(), custom);
        assert!(Reframer::new(0).is_none());
    }

    #[test]
    fn blocks_may_come_in_pieces() {
        let two = [BLOCK, BLOCK].concat();
        let whole = Reframer::new(1).unwrap().push(&two).unwrap();
        for cut in 0..two.len() {
            let mut reframer = Reframer::new(1).unwrap();
            let mut pieces = reframer.push(&two[..cut]).unwrap();
            let is_torn = cut % BLOCK.len() != 0;
            assert_eq!(reframer.finish().is_err(), is_torn, "{cut}");
            pieces.extend(reframer.push(&two[cut..]).unwrap());
            assert_eq!(pieces, whole, "{cut}");
            reframer.finish().unwrap();
        }
    }

    #[test]
    fn a_type_of_unknown_length_is_refused_by_name() {
        let block = b"\x01\x01\x01a\x04JSON";
        let refusal = Reframer::new(1).unwrap().push(block).unwrap_err();
        assert!(
            refusal.contains("JSON") && refusal.contains("Code: 48"),
            "{refusal}"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), name in "\\PC{0,40}") {
            let _ = Reframer::new(54_460).unwrap().push(&bytes);
            let mut named = vec![1, 200];
            named.extend([1, b'a', u8::try_from(name.len().min(127)).unwrap()]);
            named.extend(&name.as_bytes()[..name.len().min(127)]);
            named.extend(&bytes);
            let _ = Reframer::new(54_460).unwrap().push(&named);
        }
    }
}
