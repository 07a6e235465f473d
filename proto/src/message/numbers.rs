//! Numbers, booleans and enums.

use std::fmt::Display;
use std::marker::PhantomData;

use super::{Checked, Kind};
use crate::error::ParseError;
use crate::wire::Value;
use crate::wire_enum::WireEnum;

/// Latest wall time that is accepted, 2299-12-31: the last that the store's date type holds.
pub const MAX_UNIX_MS: i64 = 10_413_791_999_999;

/// A number within bounds.
pub(crate) fn within<T: PartialOrd + Display>(
    field: &str,
    value: T,
    min: T,
    max: T,
) -> Result<T, ParseError> {
    // This form refuses NaN, which compares with nothing.
    if value >= min && value <= max {
        return Ok(value);
    }
    let expected = format!("{min} to {max}");
    Err(ParseError::malformed(field, expected, value))
}

/// Declares a kind of a number: its type, its reader on the wire, the condition and its text.
macro_rules! bounded {
    ($( $(#[$attr:meta])* $kind:ident $(<const $max:ident: $max_type:ty>)? =
        $number:ty as $read:ident, $holds:expr, $expected:expr; )+) => { $(
        $(#[$attr])*
        pub(crate) struct $kind $(<const $max: $max_type>)?;

        impl $(<const $max: $max_type>)? $crate::message::Kind for $kind $(<$max>)? {
            type Wire = $number;
            type Parsed = $number;

            fn parse(
                field: &str,
                value: $number,
            ) -> Result<$number, $crate::error::ParseError> {
                let holds: fn(&$number) -> bool = $holds;
                if holds(&value) {
                    return Ok(value);
                }
                Err($crate::error::ParseError::malformed(field, $expected, value))
            }

            fn encode(value: &$number) -> $number {
                *value
            }
        }

        impl $(<const $max: $max_type>)? $crate::message::Checked for $kind $(<$max>)? {
            type Seen<'a> = $number;

            #[inline]
            fn see<'a>(
                seen: &mut $number,
                value: $crate::wire::Value<'a>,
            ) -> Option<()> {
                *seen = value.$read()?;
                Some(())
            }

            #[inline]
            fn is_there(seen: &$number) -> bool {
                let holds: fn(&$number) -> bool = $holds;
                holds(seen)
            }
        }
    )+ };
}
pub(crate) use bounded;

/// Largest counter: a thousand events a second for 8,900 years. Sums of many stay within `i64`.
pub(crate) const MAX_COUNT: u64 = 1 << 48;

bounded! {
    Count = u64 as u64, |n| *n <= MAX_COUNT, format!("0 to {MAX_COUNT}");
    PositiveCount = u64 as u64, |n| (1..=MAX_COUNT).contains(n), format!("1 to {MAX_COUNT}");
    U64 = u64 as u64, |_| true, "a number";
    U32 = u32 as u32, |_| true, "a number";
    I32 = i32 as i32, |_| true, "a number";
    Bool = bool as bool, |_| true, "a boolean";
    Fixed64 = u64 as fixed64, |_| true, "a number";
    Positive32 = u32 as u32, |n| *n > 0, "1 or more";
    AtMost64<const MAX: u64> = u64 as u64, |n| *n <= MAX, format!("0 to {MAX}");
    AtMost32<const MAX: u32> = u32 as u32, |n| *n <= MAX, format!("0 to {MAX}");
    /// Wall time by any side's clock: any date that the store can hold.
    UnixMs = i64 as i64, |ms| (0..=MAX_UNIX_MS).contains(ms), format!("0 to {MAX_UNIX_MS}");
    Finite = f64 as f64, |v| v.is_finite() && *v >= 0.0, "a finite number, 0 or more";
    Share = f64 as f64, |v| (0.0..=1.0).contains(v), "0 to 1";
}

/// A value that may be absent.
pub(crate) struct Maybe<K>(PhantomData<K>);

impl<K: Kind> Kind for Maybe<K> {
    type Wire = Option<K::Wire>;
    type Parsed = Option<K::Parsed>;

    fn parse(field: &str, value: Option<K::Wire>) -> Result<Option<K::Parsed>, ParseError> {
        value.map(|value| K::parse(field, value)).transpose()
    }

    fn encode(value: &Option<K::Parsed>) -> Option<K::Wire> {
        value.as_ref().map(K::encode)
    }
}

impl<K: Checked> Checked for Maybe<K> {
    type Seen<'a> = Option<K::Seen<'a>>;

    #[inline]
    fn see<'a>(seen: &mut Option<K::Seen<'a>>, value: Value<'a>) -> Option<()> {
        let mut value_seen = K::Seen::default();
        K::see(&mut value_seen, value)?;
        *seen = Some(value_seen);
        Some(())
    }

    #[inline]
    fn is_there(seen: &Option<K::Seen<'_>>) -> bool {
        seen.as_ref().is_none_or(K::is_there)
    }
}

/// A value of the contract's enum that this version has.
pub(crate) struct Enum<E>(PhantomData<E>);

impl<E: WireEnum> Kind for Enum<E> {
    type Wire = i32;
    type Parsed = E;

    fn parse(field: &str, value: i32) -> Result<E, ParseError> {
        E::from_number(value).ok_or_else(|| match value {
            0 => ParseError::malformed(field, format!("a {}", E::NAME), "UNSPECIFIED"),
            _ => ParseError::unsupported(field, format!("a known {}", E::NAME), value),
        })
    }

    fn encode(value: &E) -> i32 {
        value.number()
    }
}

impl<E: WireEnum> Checked for Enum<E> {
    type Seen<'a> = i32;

    #[inline]
    fn see<'a>(seen: &mut i32, value: Value<'a>) -> Option<()> {
        *seen = value.i32()?;
        Some(())
    }

    #[inline]
    fn is_there(seen: &i32) -> bool {
        E::from_number(*seen).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_within_no_bounds() {
        assert!(Share::parse("s", f64::NAN).is_err());
        assert!(Finite::parse("s", f64::NAN).is_err());
        assert!(Share::parse("s", 1.0).is_ok());
        assert!(Share::parse("s", 1.000_001).is_err());
    }
}
