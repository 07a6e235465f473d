//! Repeated fields.

use std::collections::BTreeSet;
use std::marker::PhantomData;

use super::sets::EnumNumbers;
use super::{Checked, CheckedMessage, Enum, Kind, Message, Name};
use crate::error::ParseError;
use crate::wire::Value;
use crate::wire_enum::WireEnum;

/// Fails if there are more than `max` entries.
pub(crate) fn at_most(field: &str, len: usize, max: usize) -> Result<(), ParseError> {
    if len > max {
        let expected = format!("at most {max} entries");
        return Err(ParseError::malformed(field, expected, len));
    }
    Ok(())
}

/// Fails if two entries have the same key.
pub(crate) fn each_once<'a, T, K: Ord>(
    field: &str,
    values: &'a [T],
    key: impl Fn(&'a T) -> K,
) -> Result<(), ParseError> {
    if values.len() < 2 {
        return Ok(());
    }
    let mut seen = BTreeSet::new();
    match values.iter().position(|value| !seen.insert(key(value))) {
        None => Ok(()),
        Some(at) => {
            let entry = format!("{field}[{at}]");
            Err(ParseError::malformed(
                &entry,
                "each at most once",
                "a second one",
            ))
        }
    }
}

/// Parses at most `max` entries. An error names the entry.
fn parse_list<W, P>(
    field: &str,
    values: Vec<W>,
    max: usize,
    mut parse: impl FnMut(W) -> Result<P, ParseError>,
) -> Result<Vec<P>, ParseError> {
    at_most(field, values.len(), max)?;
    let mut parsed = Vec::with_capacity(values.len());
    for (index, value) in values.into_iter().enumerate() {
        let value = parse(value).map_err(|e| e.inside(&format!("{field}[{index}]")))?;
        parsed.push(value);
    }
    Ok(parsed)
}

/// Counts an entry; `None` beyond `max`.
#[inline]
fn count(n: &mut usize, max: usize) -> Option<()> {
    *n += 1;
    (*n <= max).then_some(())
}

/// A list of at most `MAX` messages.
pub(crate) struct List<M, const MAX: usize>(PhantomData<M>);

impl<M: Message, const MAX: usize> Kind for List<M, MAX> {
    type Wire = Vec<M::Wire>;
    type Parsed = Vec<M>;

    fn parse(field: &str, values: Vec<M::Wire>) -> Result<Vec<M>, ParseError> {
        parse_list(field, values, MAX, M::try_from)
    }

    fn encode(values: &Vec<M>) -> Vec<M::Wire> {
        values.iter().map(Into::into).collect()
    }
}

impl<M: CheckedMessage, const MAX: usize> Checked for List<M, MAX> {
    type Seen<'a> = usize;
    const MOST: usize = MAX;

    #[inline]
    fn see<'a>(seen: &mut usize, value: Value<'a>) -> Option<()> {
        count(seen, MAX)?;
        M::check(value.bytes()?).map(|_| ())
    }
}

/// A list of at most `MAX` texts of 1 to `MAX_BYTES` bytes.
pub(crate) struct Names<const MAX: usize, const MAX_BYTES: usize>;

impl<const MAX: usize, const MAX_BYTES: usize> Kind for Names<MAX, MAX_BYTES> {
    type Wire = Vec<String>;
    type Parsed = Vec<String>;

    fn parse(field: &str, values: Vec<String>) -> Result<Vec<String>, ParseError> {
        parse_list(field, values, MAX, |value| {
            Name::<MAX_BYTES>::parse("", value)
        })
    }

    fn encode(values: &Vec<String>) -> Vec<String> {
        values.clone()
    }
}

impl<const MAX: usize, const MAX_BYTES: usize> Checked for Names<MAX, MAX_BYTES> {
    type Seen<'a> = usize;

    #[inline]
    fn see<'a>(seen: &mut usize, value: Value<'a>) -> Option<()> {
        count(seen, MAX)?;
        (!value.text(MAX_BYTES)?.is_empty()).then_some(())
    }
}

/// A list of at most `MAX` numbers.
pub(crate) struct Numbers<const MAX: usize>;

impl<const MAX: usize> Kind for Numbers<MAX> {
    type Wire = Vec<u64>;
    type Parsed = Vec<u64>;

    fn parse(field: &str, values: Vec<u64>) -> Result<Vec<u64>, ParseError> {
        at_most(field, values.len(), MAX)?;
        Ok(values)
    }

    fn encode(values: &Vec<u64>) -> Vec<u64> {
        values.clone()
    }
}

impl<const MAX: usize> Checked for Numbers<MAX> {
    type Seen<'a> = usize;

    #[inline]
    fn see<'a>(seen: &mut usize, value: Value<'a>) -> Option<()> {
        value.each_number(|_| count(seen, MAX))
    }
}

/// A list of at most `MAX` values of an enum.
pub(crate) struct Enums<E, const MAX: usize>(PhantomData<E>);

impl<E: WireEnum, const MAX: usize> Kind for Enums<E, MAX> {
    type Wire = Vec<i32>;
    type Parsed = Vec<E>;

    fn parse(field: &str, values: Vec<i32>) -> Result<Vec<E>, ParseError> {
        parse_list(field, values, MAX, |value| Enum::parse("", value))
    }

    fn encode(values: &Vec<E>) -> Vec<i32> {
        values.iter().map(|value| value.number()).collect()
    }
}

impl<E: WireEnum, const MAX: usize> Checked for Enums<E, MAX> {
    type Seen<'a> = usize;

    #[inline]
    fn see<'a>(seen: &mut usize, value: Value<'a>) -> Option<()> {
        value.each_number(|number| {
            count(seen, MAX)?;
            E::from_number(i32::try_from(number).ok()?).map(|_| ())
        })
    }
}

/// Values of an enum, each at most once.
pub(crate) struct EnumSet<E>(PhantomData<E>);

impl<E: WireEnum> Kind for EnumSet<E> {
    type Wire = Vec<i32>;
    type Parsed = Vec<E>;

    fn parse(field: &str, values: Vec<i32>) -> Result<Vec<E>, ParseError> {
        let values = parse_list(field, values, E::VALUES.len(), |value| {
            Enum::parse("", value)
        })?;
        each_once(field, &values, |value: &E| value.number())?;
        Ok(values)
    }

    fn encode(values: &Vec<E>) -> Vec<i32> {
        values.iter().map(|value| value.number()).collect()
    }
}

impl<E: WireEnum> Checked for EnumSet<E> {
    type Seen<'a> = EnumNumbers;

    #[inline]
    fn see<'a>(seen: &mut EnumNumbers, value: Value<'a>) -> Option<()> {
        value.each_number(|number| {
            let number = i32::try_from(number).ok()?;
            E::from_number(number)?;
            seen.add(number)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_in_lists_say_which_entry() {
        let error = Names::<8, 4>::parse("eps", vec!["a".into(), String::new()]).unwrap_err();
        assert_eq!(error.field(), "eps[1]");
    }
}
