//! Enums whose values have a name in the store, in JSON and in labels.

/// Declares such an enum: each value with its name. The names are a contract.
#[macro_export]
macro_rules! named {
    (
        $(#[$attr:meta])*
        $vis:vis enum $name:ident {
            $( $(#[$value_attr:meta])* $value:ident = $text:literal, )+
        }
    ) => {
        $(#[$attr])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
        )]
        $vis enum $name {
            $( $(#[$value_attr])* #[serde(rename = $text)] $value, )+
        }

        impl $name {
            /// Every value, in order.
            $vis const ALL: &'static [Self] = &[$( Self::$value, )+];

            /// Returns the value with a name; `None` for an unknown name.
            #[must_use]
            $vis fn parse(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str() == name)
            }

            /// Returns the name used in the store, in JSON and in labels.
            #[must_use]
            $vis const fn as_str(self) -> &'static str {
                match self {
                    $( Self::$value => $text, )+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}
