//! Plots as SVG: pure functions from numbers to text. Colours and type come from the style sheet by class; nothing
//! here is random, reads a clock, or writes a `style`.

pub(crate) mod bars;
mod changes;
pub(crate) mod density;
mod gaps;
pub(crate) mod golden;
pub(crate) mod ratios;
mod row_layout;
pub(crate) mod scale;
pub(crate) mod spark;
pub(crate) mod strip;
pub(crate) mod style;
pub(crate) mod svg;
pub(crate) mod timeline;

#[cfg(test)]
mod tests;
