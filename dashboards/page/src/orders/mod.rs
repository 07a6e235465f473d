//! Orders of people to incidents: the only rows that this crate writes.
//!
//! An order is checked, appended with the number after the last one that its author saw, and read back. Of two with one
//! number the store's first counts, so one author wins and the other is told. The detector that leads does what counts.

mod kind;
mod place;

pub use kind::{BadField, NewOrder, OrderKind};
pub(crate) use kind::{MAX_WHO, MAX_WHY};
pub(crate) use place::place;
pub use place::{OrderError, PlacedOrder, order};
