//! Options of an HTML select in a filter.

use crate::text::name::visible;

/// A select's option.
pub(super) struct Choosable {
    pub(super) value: String,
    pub(super) label: String,
    pub(super) is_chosen: bool,
}

/// Returns each value once. The chosen value is always among them, even if it is unknown.
pub(super) fn choosable<'a>(
    values: impl Iterator<Item = &'a str>,
    chosen: Option<&'a str>,
) -> Vec<Choosable> {
    let mut all: Vec<&str> = Vec::new();
    for value in values.chain(chosen) {
        if !all.contains(&value) {
            all.push(value);
        }
    }
    let option = |value: &&str| Choosable {
        value: (*value).to_owned(),
        label: visible(value),
        is_chosen: chosen == Some(*value),
    };
    all.iter().map(option).collect()
}
