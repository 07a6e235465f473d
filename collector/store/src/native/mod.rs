//! ClickHouse's Native format: blocks of columns, as servers send and take them over HTTP.
//!
//! The collector encodes rows with [`encode`], the detector reads answers with [`decode`], and the embedded engine's
//! front reframes blocks. Clients that announce a protocol version need such reframed blocks. A block costs the engine
//! about 40 % as much as the same rows in RowBinary, in both directions. Its layout without a protocol version:
//!
//! ```text
//! varint columns | varint rows | each column: text name | text type | prefix | data
//! ```
//!
//! Numbers are little-endian, and a text follows its length as a varint. A block without rows has neither
//! prefixes nor data. The data of a column, by its type:
//!
//! | type | data |
//! |---|---|
//! | `Array` | the end of each row's elements among all elements (u64 each), then the elements as a column |
//! | `Map` | as an array, then the keys as a column and the values as a column |
//! | `Tuple`, `Nested` | each element as a column |
//! | `Nullable` | a byte for each value, 1 for NULL, then all values |
//! | `LowCardinality` | u64 flags and index width, u64 keys, each key once, u64 rows, each row's index |
//!
//! `LowCardinality` has the u64 1 as its prefix; a prefix comes before all other bytes of its column. Specification:
//! <https://clickhouse.com/docs/interfaces/specs/NativeFormat>.

mod cursor;
pub mod decode;
pub mod encode;
pub(crate) mod reframe;
mod split;
mod types;

pub(crate) use self::cursor::Cursor;

/// Version of the serialisation of `LowCardinality`, the only one that exists.
const LOW_CARDINALITY_VERSION: u64 = 1;
/// Flags of `LowCardinality` data whose keys are all in the block itself.
const OWN_KEYS: u64 = HAS_OWN_KEYS | 1 << 10;
/// The flag that keys follow. The flags' low byte is the binary logarithm of an index's bytes.
const HAS_OWN_KEYS: u64 = 1 << 9;

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

/// Writes a varint: seven bits a byte, the lowest first.
#[inline]
fn put_varint(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        // The cast keeps the low byte.
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}
