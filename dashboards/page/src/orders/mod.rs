//! Orders of people to incidents, and their marks of changes: the only rows that this crate writes.
//!
//! An order is checked, appended with the number after the last one that its author saw, and read back. Of two orders
//! with the same number, the one that the store has first counts. The other author gets an error. The leading detector
//! carries out the orders that count.

mod mark;
mod new_order;
mod submit;

pub use mark::{NewMark, SubmittedMark, UndoneMark, mark, unmark};
pub use new_order::{BadField, NewOrder};
pub(crate) use new_order::{MAX_WHO, MAX_WHY};
pub(crate) use submit::submit;
pub use submit::{OrderError, SubmittedOrder, order};
