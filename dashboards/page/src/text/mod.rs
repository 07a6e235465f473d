//! Text for people: numbers with units, times, names that devices chose, and the words of verdicts. Pure.

pub(crate) mod name;
pub(crate) mod number;
pub(crate) mod rollout;
pub(crate) mod terms;
pub(crate) mod time;
pub(crate) mod words;
