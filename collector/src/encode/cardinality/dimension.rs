//! The kinds of names that are limited.

/// The kinds of names that are limited, each with its label in the metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Dimension {
    Model,
    Version,
    Chipset,
    ShapeKey,
}

impl Dimension {
    pub(crate) const ALL: [Self; 4] = [Self::Model, Self::Version, Self::Chipset, Self::ShapeKey];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Version => "version",
            Self::Chipset => "chipset",
            Self::ShapeKey => "shape_key",
        }
    }
}
