//! The enums of the contract: one Rust enum each, without the `UNSPECIFIED` that nobody means.
//!
//! `as_str` is the name in SQL columns, metric labels and JSON: the .proto's name in lower case
//! without the enum's prefix.

/// Declares a parsed enum with its wire enum, its names, and the conversions between them.
///
/// `Variant = WireVariant "name"`; the table is checked against the .proto's names in a test.
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

            /// Reads the number on the wire.
            ///
            /// # Errors
            /// Malformed for UNSPECIFIED, which no sender means; unsupported for a number that
            /// this version does not know. Both name `field`.
            pub fn parse(field: &str, value: i32) -> Result<Self, $crate::error::ParseError> {
                match $crate::v1::$wire::try_from(value) {
                    $( Ok($crate::v1::$wire::$wire_variant) => Ok(Self::$variant), )+
                    Ok($crate::v1::$wire::Unspecified) => Err(
                        $crate::error::ParseError::malformed(
                            field,
                            concat!("a ", stringify!($wire)),
                            "UNSPECIFIED",
                        ),
                    ),
                    Err(_) => Err($crate::error::ParseError::unsupported(
                        field,
                        concat!("a known ", stringify!($wire)),
                        value,
                    )),
                }
            }

            /// The number on the wire.
            pub fn to_wire(self) -> i32 {
                i32::from($crate::v1::$wire::from(self))
            }
        }

        impl From<$name> for $crate::v1::$wire {
            fn from(value: $name) -> Self {
                match value {
                    $( $name::$variant => Self::$wire_variant, )+
                }
            }
        }

        impl TryFrom<$crate::v1::$wire> for $name {
            type Error = $crate::error::ParseError;
            fn try_from(value: $crate::v1::$wire) -> Result<Self, Self::Error> {
                Self::parse(stringify!($wire), i32::from(value))
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
                check(value.as_str(), v1::$name::from(value).as_str_name(), $prefix);
                assert_eq!($name::from_name(value.as_str()), Some(value));
                assert_eq!($name::parse("f", value.to_wire()), Ok(value));
            }
            assert_eq!(
                $name::parse("f", 0).unwrap_err().outcome(),
                Outcome::RefusedMalformed
            );
            let newer = $name::parse("f", 9_999).unwrap_err();
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
            RamClass "RAM_CLASS_" ReasonCode "REASON_CODE_" SessionAge "SESSION_AGE_"
            StartPhase "START_PHASE_" Thermal "THERMAL_"
            UploadFailureKind "UPLOAD_FAILURE_KIND_"
        }
    }
}
