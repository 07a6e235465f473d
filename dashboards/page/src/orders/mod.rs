//! Orders of people to incidents, and their marks of changes: the only rows that this crate writes.
//!
//! An order is checked, appended with the number after the last one that its author saw, and read back. Of two with one
//! number the store's first counts, so one author wins and the other is told. The detector that leads does what counts.

mod mark;
mod new_order;
mod submit;

pub use mark::{NewMark, SubmittedMark, UndoneMark, mark, unmark};
pub use new_order::{BadField, NewOrder};
pub(crate) use new_order::{MAX_WHO, MAX_WHY};
pub(crate) use submit::submit;
pub use submit::{OrderError, SubmittedOrder, order};
