//! Types of columns: their names, and the layout of their values in a block.

/// Deepest nesting of a type; deeper ones are refused before they cost stack.
const MAX_DEPTH: usize = 64;

/// Types whose values have one width in bytes, whatever arguments are in their brackets.
#[rustfmt::skip]
const FIXED: [(&str, usize); 32] = [
    ("Bool", 1), ("Int8", 1), ("UInt8", 1), ("Enum8", 1), ("Nothing", 1),
    ("Int16", 2), ("UInt16", 2), ("Enum16", 2), ("BFloat16", 2), ("Date", 2),
    ("Int32", 4), ("UInt32", 4), ("Float32", 4), ("Decimal32", 4), ("Date32", 4), ("DateTime", 4), ("Time", 4), ("IPv4", 4),
    ("Int64", 8), ("UInt64", 8), ("Float64", 8), ("Decimal64", 8), ("DateTime64", 8), ("Time64", 8),
    ("Int128", 16), ("UInt128", 16), ("Decimal128", 16), ("UUID", 16), ("IPv6", 16),
    ("Int256", 32), ("UInt256", 32), ("Decimal256", 32),
];

/// A type whose values have one width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FixedType {
    /// The name without brackets: `DateTime64`.
    pub(super) name: &'static str,
    /// Bytes of a value, at least 1.
    pub(super) width: usize,
}

/// The layout of a column's values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ColumnType {
    Fixed(FixedType),
    String,
    Nullable(Box<ColumnType>),
    Array(Box<ColumnType>),
    Tuple(Vec<ColumnType>),
    /// Keys of this type, which has no `Nullable` here: the first key stands for NULL.
    LowCardinality(Box<ColumnType>),
}

impl ColumnType {
    /// Reads a type's name. `None` if the length of its values does not follow from the name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::parse_at(name, 0)
    }

    fn parse_at(name: &str, depth: usize) -> Option<Self> {
        if depth > MAX_DEPTH {
            return None;
        }
        let inner = |name: &str| Self::parse_at(name, depth + 1);
        let (outer, arguments) = split_arguments(name.trim());
        let list = || arguments.map(split_list).unwrap_or_default();
        Some(match outer {
            "String" => Self::String,
            "Nullable" => Self::Nullable(Box::new(inner(arguments?)?)),
            "Array" => Self::Array(Box::new(inner(arguments?)?)),
            "Tuple" => Self::Tuple(elements(&list(), inner)?),
            "Nested" => Self::Array(Box::new(Self::Tuple(elements(&list(), inner)?))),
            // A map has the layout of an array of its keys and values.
            "Map" => match list()[..] {
                [key, value] => {
                    Self::Array(Box::new(Self::Tuple(vec![inner(key)?, inner(value)?])))
                }
                _ => return None,
            },
            "SimpleAggregateFunction" => inner(list().last()?)?,
            "LowCardinality" => match inner(arguments?)? {
                Self::Nullable(keys) => Self::LowCardinality(keys),
                keys => Self::LowCardinality(Box::new(keys)),
            },
            "Point" => Self::Tuple(vec![inner("Float64")?, inner("Float64")?]),
            "Decimal" => fixed("Decimal", decimal_width(list().first()?.parse().ok()?)),
            "FixedString" => {
                let width = arguments?.trim().parse().ok();
                fixed("FixedString", width.filter(|width| *width > 0)?)
            }
            _ if outer.starts_with("Interval") => fixed("Interval", 8),
            _ => {
                let (name, width) = *FIXED.iter().find(|(name, _)| *name == outer)?;
                fixed(name, width)
            }
        })
    }

    /// Counts the parts of the type, itself included, for which `is` returns true.
    pub(super) fn count(&self, is: fn(&Self) -> bool) -> usize {
        let inside: usize = match self {
            Self::Fixed(_) | Self::String => 0,
            Self::Nullable(inner) | Self::Array(inner) | Self::LowCardinality(inner) => {
                inner.count(is)
            }
            Self::Tuple(elements) => elements.iter().map(|element| element.count(is)).sum(),
        };
        inside + usize::from(is(self))
    }
}

fn fixed(name: &'static str, width: usize) -> ColumnType {
    ColumnType::Fixed(FixedType { name, width })
}

fn decimal_width(precision: u32) -> usize {
    match precision {
        0..=9 => 4,
        10..=18 => 8,
        19..=38 => 16,
        _ => 32,
    }
}

/// Splits a name from its arguments: `Array(UInt8)` gives `Array` and `UInt8`.
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

/// Reads the elements of a tuple, which may have names: `a UInt8`, `` `b c` Array(String) ``.
fn elements(parts: &[&str], inner: impl Fn(&str) -> Option<ColumnType>) -> Option<Vec<ColumnType>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_read() {
        for (name, expected) in [
            ("UInt8", fixed("UInt8", 1)),
            ("Enum8('a(,' = 1, 'b\\'' = 2)", fixed("Enum8", 1)),
            ("DateTime64(3, 'UTC')", fixed("DateTime64", 8)),
            ("IntervalDay", fixed("Interval", 8)),
            ("Decimal(18, 4)", fixed("Decimal", 8)),
            ("FixedString(16)", fixed("FixedString", 16)),
            (
                "Tuple(a UInt8, `b c` Array(Nullable(String)))",
                ColumnType::Tuple(vec![
                    fixed("UInt8", 1),
                    ColumnType::Array(Box::new(ColumnType::Nullable(Box::new(ColumnType::String)))),
                ]),
            ),
            (
                "Map(LowCardinality(Nullable(String)), UInt64)",
                ColumnType::Array(Box::new(ColumnType::Tuple(vec![
                    ColumnType::LowCardinality(Box::new(ColumnType::String)),
                    fixed("UInt64", 8),
                ]))),
            ),
            ("SimpleAggregateFunction(sum, UInt64)", fixed("UInt64", 8)),
        ] {
            assert_eq!(ColumnType::parse(name), Some(expected), "{name}");
        }
    }

    #[test]
    fn a_type_of_unknown_length_is_refused() {
        for name in [
            "JSON",
            "Dynamic",
            "Variant(UInt8, String)",
            "AggregateFunction(sum, UInt64)",
            "Map(String)",
            "FixedString(x)",
            "FixedString(0)",
        ] {
            assert_eq!(ColumnType::parse(name), None, "{name}");
        }
        let deep = format!("{}UInt8{}", "Array(".repeat(100), ")".repeat(100));
        assert_eq!(ColumnType::parse(&deep), None);
    }

    proptest::proptest! {
        #[test]
        fn any_name_is_read_or_refused(name in "\\PC{0,40}") {
            let _ = ColumnType::parse(&name);
        }
    }
}
