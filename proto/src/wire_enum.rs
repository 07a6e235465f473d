//! The enums of the contract: one Rust enum each, without `UNSPECIFIED`, which no sender means.
//!
//! `as_str` is the name in SQL columns, metric labels and JSON: the .proto's name in lower case
//! without the enum's prefix.

/// An enum of the contract by its numbers on the wire.
pub(crate) trait WireEnum: Copy + 'static {
    /// Name in the contract.
    const NAME: &'static str;
    const VALUES: &'static [Self];

    fn number(self) -> i32;

    /// `None` for UNSPECIFIED, and for a number that this version does not know.
    fn from_number(number: i32) -> Option<Self>;
}

/// Declares a parsed enum with its wire enum, its names, and the conversions between them.
///
/// `Variant = WireVariant "name"`; a test compares the names with the names in the .proto.
macro_rules! wire_enum {
    (
        $(#[$attr:meta])*
        pub enum $name:ident: $wire:ident {
            $( $(#[$vattr:meta])* $variant:ident = $wire_variant:ident $text:literal, )+
        }
    ) => {
        $(#[$attr])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $( $(#[$vattr])* $variant, )+
        }

        impl $name {
            /// Every value, in the order of the contract.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )+];

            /// The name in SQL, metrics and JSON.
            pub fn as_str(self) -> &'static str {
                match self {
                    $( Self::$variant => $text, )+
                }
            }

            /// The value of that name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|v| v.as_str() == name)
            }

            /// The number on the wire.
            pub fn to_wire(self) -> i32 {
                $crate::wire_enum::WireEnum::number(self)
            }
        }

        impl $crate::wire_enum::WireEnum for $name {
            const NAME: &'static str = stringify!($wire);
            const VALUES: &'static [Self] = Self::ALL;

            fn number(self) -> i32 {
                i32::from(match self {
                    $( Self::$variant => $crate::v1::$wire::$wire_variant, )+
                })
            }

            #[inline]
            fn from_number(number: i32) -> Option<Self> {
                match $crate::v1::$wire::try_from(number).ok()? {
                    $crate::v1::$wire::Unspecified => None,
                    $( $crate::v1::$wire::$wire_variant => Some(Self::$variant), )+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(self.as_str())
            }
        }
    };
}
pub(crate) use wire_enum;

#[cfg(test)]
mod tests {
    use super::WireEnum;
    use crate::message::{Enum, Kind};
    use crate::*;

    #[track_caller]
    fn check(name: &str, wire_name: &str, prefix: &str) {
        let expected = wire_name
            .strip_prefix(prefix)
            .unwrap_or_else(|| panic!("{wire_name} lacks {prefix}"));
        assert_eq!(name, expected.to_lowercase());
    }

    macro_rules! check_names {
        ($($name:ident $prefix:literal)+) => { $(
            for value in $name::ALL.iter().copied() {
                let wire = v1::$name::try_from(value.number()).unwrap();
                check(value.as_str(), wire.as_str_name(), $prefix);
                assert_eq!($name::from_name(value.as_str()), Some(value));
                assert_eq!(Enum::<$name>::parse("f", value.to_wire()), Ok(value));
            }
            assert_eq!(
                Enum::<$name>::parse("f", 0).unwrap_err().outcome(),
                Outcome::RefusedMalformed
            );
            let newer = Enum::<$name>::parse("f", 9_999).unwrap_err();
            assert_eq!((newer.field(), newer.outcome()), ("f", Outcome::RefusedUnsupported));
        )+ };
    }

    #[test]
    fn names_are_those_of_the_contract_and_unknown_numbers_are_unsupported() {
        check_names! {
            BaselineAbsence "BASELINE_ABSENCE_" BaselineKind "BASELINE_KIND_"
            ContextKind "CONTEXT_KIND_" DirectiveRefusal "DIRECTIVE_REFUSAL_"
            DropReason "DROP_REASON_" EpBackend "EP_BACKEND_" EpLinkage "EP_LINKAGE_"
            GraphKind "GRAPH_KIND_" HistScheme "HIST_SCHEME_" Outcome "OUTCOME_"
            Phase "PHASE_" PlacementSource "PLACEMENT_SOURCE_" PowerSave "POWER_SAVE_"
            RamClass "RAM_CLASS_" ReasonCode "REASON_CODE_" SelectionPolicy "SELECTION_POLICY_"
            SessionAge "SESSION_AGE_" StartPhase "START_PHASE_" Thermal "THERMAL_"
            UploadFailureKind "UPLOAD_FAILURE_KIND_"
        }
    }
}
