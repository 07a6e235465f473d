//! What earlier windows of the same length had: devices by chipset, and CV by version and chipset. Of
//! windows that overlap, those speak that speak for the past of signals too, and of those the latest too.

use std::collections::BTreeMap;

use crate::cohort::ModelKey;

/// Devices that a chipset usually has in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsualDevices {
    /// Median over earlier windows.
    pub devices: u64,
    /// How many windows that are.
    pub windows: u64,
}

/// Coefficients of variation that a cohort usually has: means over earlier windows.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct UsualCv {
    /// Of all runs, every device counted the same.
    pub all: f64,
    /// Within a device.
    pub within: f64,
}

impl UsualOfModel {
    /// Returns the CV of the previous version on a chipset, else that of this one.
    #[must_use]
    pub fn cv_of(&self, version: &str, previous: Option<&str>, chipset: &str) -> Option<UsualCv> {
        let of = |version: &str| self.cv.get(&(version.to_owned(), chipset.to_owned()));
        previous.and_then(of).or_else(|| of(version)).copied()
    }
}

/// What one model usually has.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UsualOfModel {
    /// By chipset, over all versions.
    pub devices: BTreeMap<String, UsualDevices>,
    /// Mean CV, by (version, chipset).
    pub cv: BTreeMap<(String, String), UsualCv>,
}

/// What all models usually have.
#[derive(Debug, Default)]
pub(super) struct Usual(pub(super) BTreeMap<ModelKey, UsualOfModel>);

impl UsualDevices {
    /// Takes the counts of each window; `None` without any.
    pub(super) fn of(mut counts: Vec<u64>) -> Option<Self> {
        counts.sort_unstable();
        Some(Self {
            devices: *counts.get(counts.len() / 2)?,
            windows: counts.len() as u64,
        })
    }
}

impl Usual {
    pub(super) fn of(&self, model: &ModelKey) -> UsualOfModel {
        self.0.get(model).cloned().unwrap_or_default()
    }
}
