//! The finding that a verdict is made from: class, severity, reasons and counts.

use epwatch_model::{Reason, Severity, Signal, TOTAL_FALLBACK_BELOW, VerdictClass};

use crate::judge::signals::PlacementChange;

/// A class with its evidence, before the verdict's numbers and next step are added.
#[derive(Clone)]
pub(super) struct Finding {
    pub(super) class: VerdictClass,
    pub(super) severity: Severity,
    pub(super) reasons: Vec<Reason>,
    pub(super) hits: u64,
    pub(super) eligible: u64,
    pub(super) p: f64,
    /// Reasons of other findings that are worth a ticket. They do not change the class or severity.
    pub(super) also: Vec<Reason>,
}

/// Share of the eligible devices below which a fallback is [`VerdictClass::SomeDevicesFallback`].
pub(crate) const MOST_DEVICES: f64 = 0.8;

/// Share of the devices hit below which a finding does not page. A fault that matters hits 5 % of them, and a
/// window may show slightly less.
pub(super) const MIN_PAGE_SHARE: f64 = 0.04;

/// Heat and load slow a device by less than this. The clock changes latency by a factor of 2 at most. The CPU takes 3
/// to 80 times as long as the NPU (both measured). If every model of a device is slower by more, the device has lost
/// its NPU.
pub(super) const FASTER_THAN_CPU: f64 = 3.0;

impl Finding {
    /// Makes a finding with class and counts of a placement that got worse.
    pub(super) fn by_placement(
        change: &PlacementChange,
        severity: Severity,
        reasons: Vec<Reason>,
    ) -> Self {
        let class = class_of(change);
        Finding {
            eligible: change.n_compared(),
            ..Finding::of(&change.signal, class, severity, reasons)
        }
    }

    /// Turns a fallback into a start failure if half of its devices failed to start.
    pub(super) fn started_by(mut self, starts: Option<&Finding>) -> Self {
        let is_known = self.class == VerdictClass::NpuStartFailure;
        if let Some(starts) = starts.filter(|starts| !is_known && 2 * starts.hits >= self.hits) {
            self.class = VerdictClass::NpuStartFailure;
            let reasons = starts.reasons.iter().cloned();
            self.reasons.splice(0..0, reasons);
        }
        self
    }

    pub(super) fn raised_to(mut self, others: &[Option<Finding>]) -> Self {
        let severities = others.iter().flatten().map(|other| other.severity);
        self.severity = severities.fold(self.severity, Severity::max);
        self
    }

    /// Returns the first of the most severe findings, with the reasons of the others that are worth a ticket; `None`
    /// without any.
    pub(super) fn worst(mut found: Vec<Finding>) -> Option<Finding> {
        let severities = found.iter().map(|one| one.severity);
        let most = severities.max()?;
        let first = found.iter().position(|one| one.severity == most)?;
        let mut worst = found.remove(first);
        let others = found
            .into_iter()
            .filter(|one| one.severity >= Severity::Ticket);
        // The reason `NoControl` belongs only to the finding that waits for a second window.
        let told = |reason: &Reason| !matches!(reason, Reason::NoControl);
        worst.also = others.flat_map(|one| one.reasons).filter(told).collect();
        Some(worst)
    }

    /// Turns a page into a ticket if too few devices are hit. Devices that a directive took off the NPU count
    /// as not hit.
    pub(super) fn lower_if_few_hit(&mut self, directed: u64) {
        let share = self.hits as f64 / (self.eligible + directed).max(1) as f64;
        if self.severity == Severity::Page && share < MIN_PAGE_SHARE {
            self.severity = Severity::Ticket;
            self.reasons.push(Reason::FewHit { share });
        }
    }

    /// Names a flood of new installations; it makes the class data quality if nothing worse was found.
    pub(super) fn name_flood(&mut self, devices: u64) {
        if devices == 0 {
            return;
        }
        if self.severity < Severity::Ticket {
            self.class = VerdictClass::DataQuality;
            self.severity = Severity::Info;
            self.reasons.insert(0, Reason::Flood { devices });
        } else {
            self.reasons.push(Reason::Flood { devices });
        }
    }

    /// Names the devices under a directive if the others are too few.
    pub(super) fn name_directed(&mut self, devices: u64) {
        if devices > 0 && self.class == VerdictClass::NotEnoughData {
            self.reasons.push(Reason::Directed { devices });
        }
    }

    /// Makes a finding with the counts of the deciding signal.
    pub(super) fn of(
        signal: &Signal,
        class: VerdictClass,
        severity: Severity,
        reasons: Vec<Reason>,
    ) -> Self {
        Finding {
            hits: signal.hits,
            eligible: signal.devices,
            p: signal.p,
            ..Self::nothing(class, severity, reasons)
        }
    }

    pub(super) fn nothing(class: VerdictClass, severity: Severity, reasons: Vec<Reason>) -> Self {
        Finding {
            class,
            severity,
            reasons,
            hits: 0,
            eligible: 0,
            p: 1.0,
            also: Vec::new(),
        }
    }
}

/// Returns the class of a placement that got worse.
pub(super) fn class_of(change: &PlacementChange) -> VerdictClass {
    if change.backend_code().is_some() {
        VerdictClass::NpuStartFailure
    } else if change.alternates() {
        VerdictClass::IntermittentFallback
    } else if change.share_hit() < MOST_DEVICES {
        VerdictClass::SomeDevicesFallback
    } else if change
        .hit_npu_share
        .is_some_and(|share| share < TOTAL_FALLBACK_BELOW)
    {
        VerdictClass::TotalFallback
    } else {
        VerdictClass::PartialFallback
    }
}
