//! Judges a model before it ships, from launches that were measured elsewhere.
//!
//! Input: placements, run times of launches, and layer counts. Output: a [`verdict::Verdict`] or a [`Judged`] with the
//! numbers behind it. The crate has no I/O and no clock, and random draws have a fixed seed. A launch (a process with
//! one session) is the unit. Runs of one launch share its clocks and its heat, so they are not independent. A test over
//! runs fails unchanged models.
//!
//! - [`policy`]: the limits; [`placement`]: judges the result of `inspect` by them, without statistics; [`change`]:
//!   compares it with the earlier model.
//! - [`verdict`]: the result as a document. [`report`]: the same for terminals, pull requests and CI servers.
//!   [`evidence`]: the same as in-toto statements, in signed envelopes of [`dsse`].
//! - [`read`]: files of other tools, each as a [`run`]. [`run_document`]: our own file of a launch. [`launches`]: judges them by the rules below. [`macs`]: the
//!   placement that a profile shows. [`mistakes`]: misreadings that are named instead of computed.
//! - [`comparison`]: pairs of launches on one device, for a regression and for slow phases.
//! - [`measured`]: launches without a baseline against the limits of the policy.
//! - [`limits`]: absolute limits, the CV's limit, and what a limit costs on a healthy model.
//! - [`farm_job`]: jobs of a device farm that failed.
//! - [`calibration`]: launches of one model against itself, for the floor of each limit on a device.
//! - [`unpaired`]: single launches on different phones of one kind, as a device farm measures.
//! - [`ops`]: other forms of ops, as they were measured by chipset; [`advice`]: the forms that fit a node.
//! - [`time`]: estimates of time of nodes on the CPU and of crossings, as ranges.
//! - [`layers`]: layer counts of a farm, where MACs are not available.

pub mod advice;
mod answers;
mod arms;
mod bounds;
pub mod calibration;
pub mod change;
pub mod comparison;
pub mod dsse;
pub mod evidence;
pub mod farm_job;
mod files;
#[doc(hidden)]
pub mod fuzz;
mod group;
pub mod groups;
pub mod intermittent;
mod judged;
pub mod launch;
pub mod launches;
pub mod layers;
pub mod limits;
pub mod macs;
pub mod measured;
pub mod mistakes;
pub mod model_limits;
pub mod ops;
pub mod placement;
mod placements;
pub mod policy;
pub mod profile;
mod quantisation;
pub mod read;
pub mod report;
pub mod run;
pub mod run_document;
pub mod throttle;
pub mod time;
pub mod unpaired;
pub mod verdict;

pub use judged::Judged;
pub use launch::Launch;
