//! Pages as HTML: a template for each, over the struct of the read model.
//!
//! Templates escape by themselves. Only `Name`, `Sentence`, `Link`, `Icon` and `Drawing` reach them as they are, and each
//! of them escapes what it holds; no template says `safe`.

mod cohort;
mod empty;
mod fleet;
mod frame;
mod health;
mod incident;
mod incidents;
mod ledger;
mod orders;
mod trouble;

pub(crate) use cohort::cohort;
pub(crate) use empty::empty;
pub(crate) use fleet::{fleet, headline};
pub(crate) use frame::{Frame, Nav, OrderRight, Stale};
pub(crate) use health::health;
pub(crate) use incident::incident;
pub(crate) use incidents::incidents;
pub(crate) use ledger::ledger;
pub(crate) use orders::{orders, refused, states};
pub(crate) use trouble::{Trouble, sign_in, trouble};
