//! Tables of messages. A table holds each field's number, name and kind once; parser, encoder and fast
//! validator follow from it.
//!
//! A kind is a type that holds the bound: `Name<64>` is text of 1 to 64 bytes, `List<Session, 64>` at
//! most 64 sessions. What fields must fulfil together is written next to the table, by hand.
//! A test compares every table with `epwatch/v1/*.proto`.

mod lists;
mod nested;
mod numbers;
mod sets;
mod texts;

use crate::error::ParseError;
use crate::wire::{Value, each_field};

pub(crate) use lists::{EnumSet, Enums, List, Names, Numbers, at_most, each_once};
pub(crate) use nested::{Inner, InnerOrDefault, MaybeInner, once};
pub use numbers::MAX_UNIX_MS;
pub(crate) use numbers::{
    AtMost32, AtMost64, Bool, Count, Enum, Finite, Fixed64, I32, MAX_COUNT, Maybe, Positive32,
    PositiveCount, Share, U32, U64, UnixMs, bounded, within,
};
pub(crate) use sets::{EnumNumbers, Few, Last};
pub(crate) use texts::{Blob, Exact, MaybeBytes, Name, Text};

/// A field's types and its bound.
pub(crate) trait Kind {
    /// Type in the generated message.
    type Wire;
    /// Type in the parsed message.
    type Parsed;

    fn parse(field: &str, value: Self::Wire) -> Result<Self::Parsed, ParseError>;

    fn encode(value: &Self::Parsed) -> Self::Wire;

    /// Makes a sender's value fit the bound, if the kind can do so.
    fn fit(_value: &mut Self::Parsed) {}
}

/// A kind of which the fast validator checks encoded fields.
pub(crate) trait Checked: Kind {
    /// Part of the field that the message's own checks need. The default stands for an absent field.
    type Seen<'a>: Default;
    /// Maximum number of times that the field may occur, if it is a list of messages.
    const MOST: usize = usize::MAX;

    /// `None` unless the field is surely within its bound. The last of several numbers or texts counts,
    /// as in the parser.
    fn see<'a>(seen: &mut Self::Seen<'a>, value: Value<'a>) -> Option<()>;

    /// Whether the field may be absent or was seen.
    #[inline]
    fn is_there(_seen: &Self::Seen<'_>) -> bool {
        true
    }
}

/// A parsed message.
pub(crate) trait Message: TryFrom<Self::Wire, Error = ParseError> + 'static {
    /// The generated message.
    type Wire: for<'a> From<&'a Self>;

    /// Makes a sender's values fit their bounds: see [`Kind::fit`].
    fn fit(&mut self) {}
}

/// A message that the fast validator checks.
pub(crate) trait CheckedMessage: Message {
    /// Part of the message that the enclosing message needs.
    type Kept<'a>;

    /// `None` unless the parser surely accepts the message.
    fn check(bytes: &[u8]) -> Option<Self::Kept<'_>>;
}

/// The seen fields of a table.
pub(crate) trait Fields<'a>: Default {
    fn see(&mut self, number: u32, value: Value<'a>) -> Option<()>;

    /// Whether every required field was seen.
    fn is_whole(&self) -> bool;
}

/// Checks each field of an encoded message by its kind, then keeps a part of them.
#[inline(always)]
pub(crate) fn check_fields<'a, F: Fields<'a>, K>(
    bytes: &'a [u8],
    keep: impl FnOnce(F) -> Option<K>,
) -> Option<K> {
    let mut fields = F::default();
    each_field(bytes, |number, value| fields.see(number, value))?;
    fields.is_whole().then_some(fields).and_then(keep)
}

/// Makes the conversions of a message from its table.
///
/// - `Parsed = v1::Wire { field: Kind, ... }` for messages that only the parser reads;
/// - `mod fields: Parsed = v1::Wire { number field: Kind, ... }` also checks encoded messages;
/// - `mod fields: Parsed = v1::Wire { number field as name: Kind, ... }` for a parsed type whose fields have other
///   names;
/// - `mod fields: Parsed from v1::Wire { ... }` for a parsed type that has other fields: the conversions
///   are written by hand, and `ParsedFields` holds each field as its kind parses it.
///
/// After the table come these lines, each only if needed, in this order:
/// - `rule function;` checks what the parsed fields must fulfil together;
/// - `keeps Type = function;` does so for the checked fields, and returns the part of them that the enclosing message
///   needs. `checked by hand;` leaves `CheckedMessage` to the file.
macro_rules! message {
    ($parsed:ident = $wire:ty { $( $field:ident: $kind:ty, )+ } $( rule $rule:expr; )?) => {
        message!(@convert $parsed $wire { $( $field $field $kind, )+ } $( rule $rule )?);
    };
    (mod $fields:ident: $parsed:ident = $wire:ty { $( $number:literal $field:ident: $kind:ty, )+ }
        $( rule $rule:expr; )? $( keeps $kept:ty = $keep:expr; )? $( checked by $hand:ident; )?) => {
        message!(@convert $parsed $wire { $( $field $field $kind, )+ } $( rule $rule )?);
        message!(@check $fields $parsed $( keeps $kept = $keep )? $( by $hand )?);
        message!(@seen $fields $wire { $( $number $field: $kind, )+ });
    };
    (mod $fields:ident: $parsed:ident = $wire:ty {
        $( $number:literal $field:ident as $own:ident: $kind:ty, )+
    } keeps $kept:ty = $keep:expr;) => {
        message!(@convert $parsed $wire { $( $field $own $kind, )+ });
        message!(@check $fields $parsed keeps $kept = $keep);
        message!(@seen $fields $wire { $( $number $field: $kind, )+ });
    };
    (mod $fields:ident: $parsed:ident from $wire:ty { $( $number:literal $field:ident: $kind:ty, )+ }
        checked by hand;) => {
        impl $crate::message::Message for $parsed {
            type Wire = $wire;
        }
        message!(@seen $fields $wire { $( $number $field: $kind, )+ });

        struct ParsedFields {
            $( $field: <$kind as $crate::message::Kind>::Parsed, )+
        }

        impl ParsedFields {
            fn parse(wire: $wire) -> Result<Self, $crate::error::ParseError> {
                use $crate::message::Kind;
                Ok(Self {
                    $( $field: <$kind>::parse(stringify!($field), wire.$field)?, )+
                })
            }
        }
    };
    (@convert $parsed:ident $wire:ty { $( $field:ident $own:ident $kind:ty, )+ }
        $( rule $rule:expr )?) => {
        impl $crate::message::Message for $parsed {
            type Wire = $wire;

            fn fit(&mut self) {
                use $crate::message::Kind;
                $( <$kind>::fit(&mut self.$own); )+
            }
        }

        impl TryFrom<$wire> for $parsed {
            type Error = $crate::error::ParseError;

            fn try_from(wire: $wire) -> Result<Self, Self::Error> {
                use $crate::message::Kind;
                let parsed = Self {
                    $( $own: <$kind>::parse(stringify!($field), wire.$field)?, )+
                };
                $( let parsed = $rule(parsed)?; )?
                Ok(parsed)
            }
        }

        impl From<&$parsed> for $wire {
            fn from(parsed: &$parsed) -> Self {
                use $crate::message::Kind;
                Self {
                    $( $field: <$kind>::encode(&parsed.$own), )+
                }
            }
        }
    };
    (@check $fields:ident $parsed:ident) => {
        message!(@check $fields $parsed keeps () = |_| Some(()));
    };
    (@check $fields:ident $parsed:ident keeps $kept:ty = $keep:expr) => {
        impl $crate::message::CheckedMessage for $parsed {
            type Kept<'a> = $kept;

            #[inline]
            fn check<'a>(bytes: &'a [u8]) -> Option<$kept> {
                $crate::message::check_fields::<$fields::Seen<'a>, _>(bytes, $keep)
            }
        }
    };
    (@check $fields:ident $parsed:ident by hand) => {};
    (@seen $fields:ident $wire:ty { $( $number:literal $field:ident: $kind:ty, )+ }) => {
        pub(crate) mod $fields {
            use super::*;

            #[derive(Default)]
            #[allow(dead_code, reason = "most fields are only checked")]
            pub(crate) struct Seen<'a> {
                $( pub(crate) $field: <$kind as $crate::message::Checked>::Seen<'a>, )+
            }

            impl<'a> $crate::message::Fields<'a> for Seen<'a> {
                #[inline(always)]
                fn see(&mut self, number: u32, value: $crate::wire::Value<'a>) -> Option<()> {
                    use $crate::message::Checked;
                    match number {
                        $( $number => <$kind>::see(&mut self.$field, value), )+
                        _ => Some(()),
                    }
                }

                #[inline(always)]
                fn is_whole(&self) -> bool {
                    use $crate::message::Checked;
                    $( <$kind>::is_there(&self.$field) )&&+
                }
            }

            /// Numbers by names.
            #[allow(dead_code, non_upper_case_globals, reason = "the contract's names")]
            pub(crate) mod field {
                $( pub(crate) const $field: u32 = $number; )+
            }

            /// Number, name and most occurrences of each field.
            #[allow(dead_code, reason = "reports are counted before they are decoded")]
            pub(crate) const MOST: &[(u32, &str, usize)] = &[
                $( ($number, stringify!($field), <$kind as $crate::message::Checked>::MOST), )+
            ];

            #[cfg(test)]
            #[test]
            fn the_table_is_the_contracts() {
                let fields = [$( ($number, stringify!($field)), )+];
                $crate::message::tests::check_table(stringify!($wire), &fields);
            }
        }
    };
}
pub(crate) use message;

#[cfg(test)]
pub(crate) mod tests {
    const CONTRACT: &str = concat!(
        include_str!("../../epwatch/v1/collector.proto"),
        include_str!("../../epwatch/v1/directive.proto"),
        include_str!("../../epwatch/v1/placement.proto"),
        include_str!("../../epwatch/v1/report.proto"),
        include_str!("../../epwatch/v1/session.proto"),
    );

    #[track_caller]
    pub(crate) fn check_table(wire: &str, fields: &[(u32, &str)]) {
        let message = wire.rsplit("::").next().expect(wire);
        let head = format!("\nmessage {message} {{\n");
        let (_, body) = CONTRACT.split_once(&head).expect(wire);
        let (body, _) = body.split_once("\n}").expect(wire);
        let mut expected = Vec::new();
        for line in body
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
        {
            let Some((declared, number)) = line.split_once(" = ") else {
                continue;
            };
            let name = declared.rsplit(' ').next().expect(line);
            expected.push((number.trim_end_matches(';').parse().expect(line), name));
        }
        assert_eq!(fields, expected, "{wire}");
    }
}
