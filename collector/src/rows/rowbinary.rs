//! Rows as ClickHouse's RowBinary, encoded once for however many tries their insert takes.
//!
//! The client's own inserts check each value of each row against the table's types, which costs
//! more than everything else the writer does; here the types are held to the tables by a test.
//!
//! RowBinary: numbers little endian, texts and lists after their length as a varint, a nullable
//! value after a byte that is 1 for NULL, tuples and fixed strings element after element.

use bytes::Bytes;
use clickhouse::Row;
use serde::ser::{
    Error as _, Impossible, Serialize, SerializeSeq, SerializeStruct, SerializeTuple,
};

/// Large enough that a chunk costs nothing, small enough to be sent while the next is taken.
const CHUNK_BYTES: usize = 1 << 20;

/// Rows of one table, ready to be sent as often as it takes.
#[derive(Debug, Clone)]
pub(crate) struct Body {
    /// `(a, b, c)`.
    pub(crate) columns: String,
    /// Encoded rows, whole ones in each chunk.
    pub(crate) chunks: Vec<Bytes>,
    pub(crate) n_rows: usize,
}

/// A [`Body`] that rows are added to.
#[derive(Debug, Default)]
pub(crate) struct BodyWriter {
    chunks: Vec<Bytes>,
    chunk: Vec<u8>,
    n_rows: usize,
}

impl BodyWriter {
    /// Encodes a row; all rows of a body are of one type.
    pub(crate) fn push<R: Row + Serialize>(&mut self, row: &R) {
        if self.chunk.capacity() == 0 {
            self.chunk.reserve(CHUNK_BYTES + (64 << 10));
        }
        let out = &mut self.chunk;
        row.serialize(&mut Encoder { out })
            .expect("rows hold only what RowBinary has");
        self.n_rows += 1;
        if self.chunk.len() >= CHUNK_BYTES {
            self.chunks.push(std::mem::take(&mut self.chunk).into());
        }
    }

    /// Ends the body of rows of that type.
    pub(crate) fn finish<R: Row>(mut self) -> Body {
        if !self.chunk.is_empty() {
            self.chunks.push(self.chunk.into());
        }
        Body {
            columns: format!("({})", R::COLUMN_NAMES.join(", ")),
            chunks: self.chunks,
            n_rows: self.n_rows,
        }
    }
}

struct Encoder<'a> {
    out: &'a mut Vec<u8>,
}

/// A type that no row has.
#[derive(Debug, thiserror::Error)]
#[error("failed to encode a row: {0}")]
pub(crate) struct EncodeError(String);

impl serde::ser::Error for EncodeError {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

type Encoded = Result<(), EncodeError>;
type None = Impossible<(), EncodeError>;

fn unknown<T>(kind: &str) -> Result<T, EncodeError> {
    Err(EncodeError::custom(format!("RowBinary has no {kind}")))
}

impl Encoder<'_> {
    #[inline]
    fn len(&mut self, len: usize) {
        // Nearly all texts and lists are short.
        if let Ok(len @ ..0x80) = u8::try_from(len) {
            return self.out.push(len);
        }
        prost::encoding::encode_varint(len as u64, self.out);
    }
}

macro_rules! numbers {
    ($($name:ident $type:ty),+) => {
        $(#[inline] fn $name(self, value: $type) -> Encoded {
            self.out.extend_from_slice(&value.to_le_bytes());
            Ok(())
        })+
    };
}

macro_rules! absent {
    ($($name:ident($($arg:ty),*) -> $result:ty;)+) => {
        $(fn $name(self, $(_: $arg),*) -> Result<$result, EncodeError> {
            unknown(stringify!($name))
        })+
    };
}

impl serde::Serializer for &mut Encoder<'_> {
    type Ok = ();
    type Error = EncodeError;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = None;
    type SerializeTupleVariant = None;
    type SerializeMap = None;
    type SerializeStruct = Self;
    type SerializeStructVariant = None;

    numbers! {
        serialize_i8 i8, serialize_i16 i16, serialize_i32 i32, serialize_i64 i64,
        serialize_u8 u8, serialize_u16 u16, serialize_u32 u32, serialize_u64 u64,
        serialize_f32 f32, serialize_f64 f64
    }

    fn serialize_bool(self, value: bool) -> Encoded {
        self.out.push(u8::from(value));
        Ok(())
    }

    fn serialize_str(self, text: &str) -> Encoded {
        self.len(text.len());
        self.out.extend_from_slice(text.as_bytes());
        Ok(())
    }

    fn serialize_none(self) -> Encoded {
        self.out.push(1);
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Encoded {
        self.out.push(0);
        value.serialize(self)
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Self, EncodeError> {
        let Some(len) = len else {
            return unknown("list of unknown length");
        };
        self.len(len);
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, EncodeError> {
        Ok(self)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, EncodeError> {
        Ok(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, v: &T) -> Encoded {
        v.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Encoded {
        unknown("variant")
    }

    absent! {
        serialize_char(char) -> ();
        serialize_bytes(&[u8]) -> ();
        serialize_unit() -> ();
        serialize_unit_struct(&'static str) -> ();
        serialize_unit_variant(&'static str, u32, &'static str) -> ();
        serialize_tuple_struct(&'static str, usize) -> None;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> None;
        serialize_map(Option<usize>) -> None;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> None;
    }
}

impl SerializeSeq for &mut Encoder<'_> {
    type Ok = ();
    type Error = EncodeError;

    #[inline]
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Encoded {
        value.serialize(&mut **self)
    }

    fn end(self) -> Encoded {
        Ok(())
    }
}

impl SerializeTuple for &mut Encoder<'_> {
    type Ok = ();
    type Error = EncodeError;

    #[inline]
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Encoded {
        value.serialize(&mut **self)
    }

    fn end(self) -> Encoded {
        Ok(())
    }
}

impl SerializeStruct for &mut Encoder<'_> {
    type Ok = ();
    type Error = EncodeError;

    #[inline]
    fn serialize_field<T: Serialize + ?Sized>(&mut self, _: &'static str, value: &T) -> Encoded {
        value.serialize(&mut **self)
    }

    fn end(self) -> Encoded {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;

    #[derive(Row, Serialize)]
    struct Sample<'a> {
        id: [u8; 2],
        n: u32,
        name: &'a str,
        maybe: Option<i64>,
        list: Vec<Vec<u16>>,
        map: Vec<(&'a str, u64)>,
        flag: bool,
        x: f64,
    }

    fn body<'a>(rows: impl IntoIterator<Item = Sample<'a>>) -> Body {
        let mut body = BodyWriter::default();
        for row in rows {
            body.push(&row);
        }
        body.finish::<Sample<'_>>()
    }

    /// By hand, after the format's documentation.
    #[test]
    fn a_row_is_encoded_field_by_field() {
        let long = "é".repeat(100);
        let row = |name, maybe| Sample {
            id: [7, 8],
            n: 0x0102_0304,
            name,
            maybe,
            list: vec![vec![1, 2], vec![]],
            map: vec![("k", 3)],
            flag: true,
            x: 1.0,
        };
        let body = body([row("ab", None), row(&long, Some(-1))]);
        let tail = [
            &[2, 2, 1, 0, 2, 0, 0, 1, 1, b'k', 3, 0, 0, 0, 0, 0, 0, 0, 1][..],
            &1.0_f64.to_le_bytes(),
        ]
        .concat();
        let first = [&[7, 8, 4, 3, 2, 1, 2, b'a', b'b', 1][..], &tail].concat();
        let head = [7, 8, 4, 3, 2, 1, 0xc8, 1];
        let second = [&head[..], long.as_bytes(), &[0], &[0xff; 8], &tail].concat();
        assert_eq!(body.n_rows, 2);
        assert_eq!(body.columns, "(id, n, name, maybe, list, map, flag, x)");
        assert_eq!(body.chunks, [[first, second].concat()]);
    }

    #[test]
    fn many_rows_are_cut_between_rows() {
        let name = "x".repeat(1000);
        let rows = (0..2_500).map(|n| Sample {
            id: [0, 0],
            n,
            name: &name,
            maybe: None,
            list: Vec::new(),
            map: Vec::new(),
            flag: false,
            x: 0.0,
        });
        let body = body(rows);
        let one = 2 + 4 + 2 + 1000 + 1 + 1 + 1 + 1 + 8;
        assert!(body.chunks.len() >= 2);
        assert!(body.chunks.iter().all(|chunk| chunk.len() % one == 0));
        let total: usize = body.chunks.iter().map(Bytes::len).sum();
        assert_eq!(total, 2_500 * one);
    }
}
