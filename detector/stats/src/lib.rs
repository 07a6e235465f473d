//! The statistics of the detector: pure functions, each with its reference.
//!
//! Input: counts and edges (latency histograms), exact moments, counts and ratios of devices. Output: numbers.
//! No I/O, no clock, no state. A statistic that is undefined is `None`, never a zero or a NaN that looks like
//! a result.
//!
//! [`beta_binomial`] and [`order_stat`] decide, over devices. [`variance_split`], [`dip`], [`mixture`] and [`valley`]
//! only describe a cohort and name the finding. On merged runs they would fire on healthy cohorts, because runs of one
//! device are not independent. So every chance or likelihood here takes the number of independent observations from its
//! caller.

pub mod beta_binomial;
pub mod dip;
#[path = "generated/dip_table.rs"]
mod dip_table;
mod elementary;
pub mod histogram;
pub mod mixture;
pub mod moments;
pub mod order_stat;
pub mod valley;
pub mod variance_split;

/// A run is slow beyond this multiple of the p10 of its own device or launch.
pub const SLOW_RUN: f64 = 1.7;

pub use histogram::{Bucket, HistogramError, RangeHistogram};
pub use moments::Moments;
pub use variance_split::{VarianceSplit, Weighting};
