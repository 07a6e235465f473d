//! Native blocks as clients of a protocol version expect them.
//!
//! The engine writes blocks of revision 0. A client that announces `client_protocol_version=N`
//! (clickhouse-go, so Grafana's official plugin; clickhouse-connect; clickhouse-driver) expects a
//! block info before every block, and from 54454 on a byte after every column's type that says
//! whether its serialisation is a special one. Finding the columns' ends needs their types; those
//! whose length cannot be told from the type are refused, not guessed.

/// From this revision on a byte says whether a column's serialisation is a special one.
const CUSTOM_SERIALIZATION_SINCE: u64 = 54_454;

/// "Overflows: no; bucket: none; end": the info of a block that is not part of an aggregation.
const BLOCK_INFO: [u8; 8] = [1, 0, 2, 0xff, 0xff, 0xff, 0xff, 0];

/// Deepest nesting of a type; deeper ones are refused before they cost stack.
const MAX_DEPTH: usize = 64;

/// How long a column of a type is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Layout {
    /// Bytes a row.
    Fixed(usize),
    Text,
    Nullable(Box<Layout>),
    Array(Box<Layout>),
    Tuple(Vec<Layout>),
    Map(Box<(Layout, Layout)>),
    /// Of these keys, which are never nullable in themselves.
    LowCardinality(Box<Layout>),
}

impl Layout {
    /// Reads a type's name; the error is ClickHouse-like.
    fn parse(name: &str) -> Result<Layout, String> {
        Self::parse_at(name, 0).ok_or_else(|| {
            format!(
                "Code: 48. DB::Exception: columns of type {name} cannot be sent in Native \
                     format; cast them, for example with toString(). (NOT_IMPLEMENTED)"
            )
        })
    }

    fn parse_at(name: &str, depth: usize) -> Option<Layout> {
        if depth > MAX_DEPTH {
            return None;
        }
        let inner = |name: &str| Self::parse_at(name, depth + 1);
        let (outer, arguments) = split_arguments(name.trim());
        let list = || arguments.map(split_list).unwrap_or_default();
        Some(match outer {
            "Int8" | "UInt8" | "Bool" | "Enum8" | "Nothing" => Layout::Fixed(1),
            "Int16" | "UInt16" | "Date" | "Enum16" | "BFloat16" => Layout::Fixed(2),
            "Int32" | "UInt32" | "Float32" | "Date32" | "DateTime" | "IPv4" | "Time"
            | "Decimal32" => Layout::Fixed(4),
            "Int64" | "UInt64" | "Float64" | "DateTime64" | "Time64" | "Decimal64" => {
                Layout::Fixed(8)
            }
            "Int128" | "UInt128" | "UUID" | "IPv6" | "Decimal128" => Layout::Fixed(16),
            "Int256" | "UInt256" | "Decimal256" => Layout::Fixed(32),
            "Decimal" => match list().first()?.parse().ok()? {
                0..=9_u32 => Layout::Fixed(4),
                10..=18 => Layout::Fixed(8),
                19..=38 => Layout::Fixed(16),
                _ => Layout::Fixed(32),
            },
            "String" => Layout::Text,
            "FixedString" => Layout::Fixed(arguments?.trim().parse().ok()?),
            "Nullable" => Layout::Nullable(Box::new(inner(arguments?)?)),
            "Array" => Layout::Array(Box::new(inner(arguments?)?)),
            "Tuple" => Layout::Tuple(elements(&list(), inner)?),
            "Nested" => Layout::Array(Box::new(Layout::Tuple(elements(&list(), inner)?))),
            "Map" => match list()[..] {
                [key, value] => Layout::Map(Box::new((inner(key)?, inner(value)?))),
                _ => return None,
            },
            "SimpleAggregateFunction" => inner(list().last()?)?,
            "LowCardinality" => {
                let keys = match inner(arguments?)? {
                    Layout::Nullable(keys) => *keys,
                    keys => keys,
                };
                Layout::LowCardinality(Box::new(keys))
            }
            "Point" => Layout::Tuple(vec![Layout::Fixed(8), Layout::Fixed(8)]),
            _ if outer.starts_with("Interval") => Layout::Fixed(8),
            _ => return None,
        })
    }
}

/// `Array(UInt8)` is `Array` with `UInt8`.
fn split_arguments(name: &str) -> (&str, Option<&str>) {
    let without_end = name.strip_suffix(')');
    match without_end.and_then(|name| name.split_once('(')) {
        Some((outer, arguments)) => (outer, Some(arguments)),
        None => (name, None),
    }
}

/// Splits at commas outside brackets and quotes.
fn split_list(arguments: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut depth, mut quote) = (0, 0_usize, None);
    let mut chars = arguments.char_indices();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (Some(_), '\\') => drop(chars.next()),
            (Some(open), c) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '`' | '"') => quote = Some(c),
            (None, '(') => depth += 1,
            (None, ')') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                parts.push(arguments[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(arguments[start..].trim());
    parts
}

/// Elements of a tuple, which may have names: `a UInt8`, `` `b c` Array(String) ``.
fn elements(parts: &[&str], inner: impl Fn(&str) -> Option<Layout>) -> Option<Vec<Layout>> {
    let element = |part: &&str| {
        if let Some(rest) = part.strip_prefix('`') {
            let (_, name) = rest.split_once("` ")?;
            return inner(name);
        }
        let named = part.split_once(' ').filter(|(name, _)| !name.contains('('));
        inner(named.map_or(*part, |(_, name)| name))
    };
    parts
        .iter()
        .filter(|part| !part.is_empty())
        .map(element)
        .collect()
}

/// The bytes so far end inside a block.
struct Incomplete;

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Incomplete> {
        let end = self.at.checked_add(n).ok_or(Incomplete)?;
        let taken = self.bytes.get(self.at..end).ok_or(Incomplete)?;
        self.at = end;
        Ok(taken)
    }

    fn take_rows(&mut self, n: usize, each: usize) -> Result<&'a [u8], Incomplete> {
        self.take(n.checked_mul(each).ok_or(Incomplete)?)
    }

    fn varint(&mut self) -> Result<usize, Incomplete> {
        let mut value = 0_usize;
        for shift in (0..usize::BITS).step_by(7) {
            let byte = self.take(1)?[0];
            value |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Incomplete)
    }

    fn u64(&mut self) -> Result<u64, Incomplete> {
        let bytes = self.take(8)?.try_into().expect("eight were taken");
        Ok(u64::from_le_bytes(bytes))
    }

    fn count(&mut self) -> Result<usize, Incomplete> {
        usize::try_from(self.u64()?).map_err(|_| Incomplete)
    }

    fn text(&mut self) -> Result<&'a [u8], Incomplete> {
        let length = self.varint()?;
        self.take(length)
    }

    /// What stands before a whole column: the version of LowCardinality's keys.
    fn skip_prefix(&mut self, layout: &Layout) -> Result<(), Incomplete> {
        match layout {
            Layout::Fixed(_) | Layout::Text => {}
            Layout::LowCardinality(_) => drop(self.take(8)?),
            Layout::Nullable(inner) | Layout::Array(inner) => self.skip_prefix(inner)?,
            Layout::Map(pair) => {
                self.skip_prefix(&pair.0)?;
                self.skip_prefix(&pair.1)?;
            }
            Layout::Tuple(elements) => {
                for element in elements {
                    self.skip_prefix(element)?;
                }
            }
        }
        Ok(())
    }

    fn skip(&mut self, layout: &Layout, rows: usize) -> Result<(), Incomplete> {
        match layout {
            Layout::Fixed(bytes) => drop(self.take_rows(rows, *bytes)?),
            Layout::Text => {
                for _ in 0..rows {
                    self.text()?;
                }
            }
            Layout::Nullable(inner) => {
                self.take(rows)?;
                self.skip(inner, rows)?;
            }
            Layout::Array(inner) => {
                let n = self.last_offset(rows)?;
                self.skip(inner, n)?;
            }
            Layout::Map(pair) => {
                let n = self.last_offset(rows)?;
                self.skip(&pair.0, n)?;
                self.skip(&pair.1, n)?;
            }
            Layout::Tuple(elements) => {
                for element in elements {
                    self.skip(element, rows)?;
                }
            }
            Layout::LowCardinality(_) if rows == 0 => {}
            Layout::LowCardinality(keys) => {
                let flags = self.u64()?;
                let has_additional_keys = flags & (1 << 9) != 0;
                if has_additional_keys {
                    let n = self.count()?;
                    self.skip(keys, n)?;
                }
                let n = self.count()?;
                // The low byte is the index type: one, two, four or eight bytes.
                self.take_rows(n, 1 << (flags & 3))?;
            }
        }
        Ok(())
    }

    fn last_offset(&mut self, rows: usize) -> Result<usize, Incomplete> {
        let offsets = self.take_rows(rows, 8)?;
        let Some(last) = offsets.last_chunk() else {
            return Ok(0);
        };
        usize::try_from(u64::from_le_bytes(*last)).map_err(|_| Incomplete)
    }
}

/// Turns blocks of revision 0 into those of a client's.
#[derive(Debug)]
pub(crate) struct Reframer {
    revision: u64,
    pending: Vec<u8>,
}

impl Reframer {
    /// For a client of this protocol version; `None` where it expects what the engine writes.
    pub(crate) fn new(revision: u64) -> Option<Reframer> {
        (revision > 0).then_some(Reframer {
            revision,
            pending: Vec::new(),
        })
    }

    /// Takes what the engine wrote and gives the blocks that are whole by now.
    ///
    /// # Errors
    /// A column has a type whose length cannot be told; the text is ClickHouse-like.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        self.pending.extend_from_slice(bytes);
        let mut out = Vec::with_capacity(self.pending.len() + 64);
        let mut done = 0;
        while done < self.pending.len() {
            let whole = out.len();
            match self.block(&self.pending[done..], &mut out) {
                Ok(length) => done += length?,
                Err(Incomplete) => {
                    out.truncate(whole);
                    break;
                }
            }
        }
        self.pending.drain(..done);
        Ok(out)
    }

    /// Says whether everything that came was given.
    ///
    /// # Errors
    /// The last block is torn.
    pub(crate) fn finish(&self) -> Result<(), String> {
        if self.pending.is_empty() {
            return Ok(());
        }
        Err("Code: 1002. DB::Exception: the answer ends inside a block. (UNKNOWN_EXCEPTION)".into())
    }

    /// Writes the first block of `bytes` and returns its length.
    fn block(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Result<usize, String>, Incomplete> {
        let mut cursor = Cursor { bytes, at: 0 };
        out.extend_from_slice(&BLOCK_INFO);
        let (columns, rows) = (cursor.varint()?, cursor.varint()?);
        out.extend_from_slice(&bytes[..cursor.at]);
        for _ in 0..columns {
            let start = cursor.at;
            cursor.text()?;
            let layout = match Layout::parse(&String::from_utf8_lossy(cursor.text()?)) {
                Ok(layout) => layout,
                Err(refusal) => return Ok(Err(refusal)),
            };
            out.extend_from_slice(&bytes[start..cursor.at]);
            if self.revision >= CUSTOM_SERIALIZATION_SINCE {
                out.push(0);
            }
            let start = cursor.at;
            if rows > 0 {
                cursor.skip_prefix(&layout)?;
                cursor.skip(&layout, rows)?;
            }
            out.extend_from_slice(&bytes[start..cursor.at]);
        }
        Ok(Ok(cursor.at))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn types_are_read() {
        for (name, expected) in [
            ("UInt8", Layout::Fixed(1)),
            ("Enum8('a(,' = 1, 'b\\'' = 2)", Layout::Fixed(1)),
            ("DateTime64(3, 'UTC')", Layout::Fixed(8)),
            ("Decimal(18, 4)", Layout::Fixed(8)),
            ("FixedString(16)", Layout::Fixed(16)),
            (
                "Tuple(a UInt8, `b c` Array(Nullable(String)))",
                Layout::Tuple(vec![
                    Layout::Fixed(1),
                    Layout::Array(Box::new(Layout::Nullable(Box::new(Layout::Text)))),
                ]),
            ),
            (
                "Map(LowCardinality(Nullable(String)), UInt64)",
                Layout::Map(Box::new((
                    Layout::LowCardinality(Box::new(Layout::Text)),
                    Layout::Fixed(8),
                ))),
            ),
            ("SimpleAggregateFunction(sum, UInt64)", Layout::Fixed(8)),
        ] {
            assert_eq!(Layout::parse(name), Ok(expected), "{name}");
        }
    }

    #[test]
    fn a_type_of_unknown_length_is_refused_by_name() {
        for name in [
            "JSON",
            "Dynamic",
            "Variant(UInt8, String)",
            "AggregateFunction(sum, UInt64)",
            "Map(String)",
            "FixedString(x)",
        ] {
            let refusal = Layout::parse(name).unwrap_err();
            assert!(
                refusal.contains(name) && refusal.contains("Code: 48"),
                "{refusal}"
            );
        }
        let deep = format!("{}UInt8{}", "Array(".repeat(100), ")".repeat(100));
        assert!(Layout::parse(&deep).is_err());
    }

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

    proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), name in "\\PC{0,40}") {
            let _ = Reframer::new(54_460).unwrap().push(&bytes);
            let _ = Layout::parse(&name);
            let mut named = vec![1, 200];
            named.extend([1, b'a', u8::try_from(name.len().min(127)).unwrap()]);
            named.extend(&name.as_bytes()[..name.len().min(127)]);
            named.extend(&bytes);
            let _ = Reframer::new(54_460).unwrap().push(&named);
        }
    }
}
