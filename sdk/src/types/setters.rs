//! Setters of the structs that wrap a type of the wire.

/// Declares setters of fields of the wire's type, which a struct wraps.
macro_rules! setters {
    ($($(#[$doc:meta])+ $setter:ident($field:ident: $type:ty);)+) => { $(
        $(#[$doc])+
        #[must_use]
        pub fn $setter(mut self, $field: impl Into<$type>) -> Self {
            self.0.$field = $field.into();
            self
        }
    )+ };
}
pub(super) use setters;
