//! Labelled fleets: recorded reports with the truth about every cohort.
//!
//! A [`Family`] is one app with a subject model and a peer model on some chipsets. It has earlier windows on version
//! 1.0.0, then a roll-out of 2.0.0, which is healthy, healthy with a confounder, or at fault. Reports are built
//! directly, not by the SDK's core, because rates of false pages need millions. Everything follows from the seed.

mod circumstance;
mod comparison;
mod family;
mod measured;
mod noise;
mod reports;
mod spec;
mod truth;
mod uploads;
mod window;

pub use circumstance::Circumstance;
pub use comparison::{ks_p_value, sarle, wasserstein_log};
pub use family::{CohortLabel, Family, FamilyReport};
pub use measured::base_us;
pub use spec::FamilySpec;
pub use truth::{Benign, Fault, FaultKind, PlacementView, Truth};
