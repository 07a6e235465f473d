//! A percentage of the command line.

use std::str::FromStr;

use crate::inspect;

/// A share, given as a percentage on the command line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Percent(pub(super) f64);

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = inspect::share_of_percent(text).map(Self);
        share.ok_or_else(|| "expected a percentage, for example 2%".to_owned())
    }
}
