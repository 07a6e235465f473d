//! The installations of a recording without the mark `is_unproven` that may vote, by the collector's quota over one
//! app. The detector calls it. Pure: times in, a decision out.

use std::collections::HashMap;
use std::hash::Hash;

use crate::new_installation_quota::{
    AdmittedHistory, Decision, NetworkHashes, NewInstallationQuota, QuotaLimits,
};

const DAY_MS: i64 = 86_400_000;
const HOUR_MS: i64 = 3_600_000;

/// The quota covers one app, so any name does.
const APP: &str = "";
const UNKNOWN: NetworkHashes = [0, 0];

/// Admission to one app, decided over its reports in the order of receipt, with the default limits and without
/// networks.
///
/// Installations of the first day are admitted, because a recording begins in the middle of an app's life.
#[derive(Debug)]
pub struct AppAdmission<Id> {
    /// Each installation, with whether it was admitted.
    installations: HashMap<Id, bool>,
    /// The day of the recording's first report.
    first_day: Option<u16>,
    history: AdmittedHistory,
    quota: NewInstallationQuota,
}

impl<Id> Default for AppAdmission<Id> {
    fn default() -> Self {
        Self {
            installations: HashMap::new(),
            first_day: None,
            history: AdmittedHistory::default(),
            quota: NewInstallationQuota::new(QuotaLimits::default()),
        }
    }
}

impl<Id: Eq + Hash> AppAdmission<Id> {
    /// Returns whether a report does not vote. If the collector decided, `decided` is returned.
    pub fn is_unproven(&mut self, id: Id, received_ms: i64, decided: Option<bool>) -> bool {
        let day = u16::try_from(received_ms.div_euclid(DAY_MS).max(0)).unwrap_or(u16::MAX);
        let hour = u64::try_from(received_ms.div_euclid(HOUR_MS)).unwrap_or(0);
        let first_day = *self.first_day.get_or_insert(day);
        let is_admitted = self.installations.entry(id).or_insert(false);
        if *is_admitted {
            return decided.unwrap_or(false);
        }
        let is_unproven = match decided {
            None if day != first_day => {
                self.quota.set_history(&self.history, day);
                self.quota.take(APP, UNKNOWN, hour) != Decision::Proven
            }
            decided => {
                let is_unproven = decided.unwrap_or(false);
                if !is_unproven {
                    self.quota.count(APP, UNKNOWN, hour, hour);
                }
                is_unproven
            }
        };
        *is_admitted = !is_unproven;
        if !is_unproven {
            self.history.add(APP.to_owned(), day, 1);
        }
        is_unproven
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unproven(
        admission: &mut AppAdmission<u64>,
        day: i64,
        ids: std::ops::Range<u64>,
        decided: Option<bool>,
    ) -> Vec<u64> {
        ids.filter(|id| admission.is_unproven(*id, day * DAY_MS, decided))
            .collect()
    }

    #[test]
    fn a_flood_after_the_first_day_is_admitted_up_to_the_limit_a_day() {
        let mut admission = AppAdmission::default();
        assert_eq!(unproven(&mut admission, 7, 0..500, None), [0; 0]);
        let flood = 500..5_000;
        let beyond: Vec<u64> = (2_000..5_000).collect();
        assert_eq!(unproven(&mut admission, 8, flood.clone(), None), beyond);
        assert_eq!(unproven(&mut admission, 8, 0..5_000, None), beyond);
        // Three times the median of 500 and of the 1,500 that were admitted: all that are left.
        assert_eq!(unproven(&mut admission, 9, flood, None), [0; 0]);
    }

    #[test]
    fn a_decision_of_the_collector_holds() {
        let mut admission = AppAdmission::default();
        assert_eq!(unproven(&mut admission, 7, 0..2, Some(true)), [0, 1]);
        assert_eq!(unproven(&mut admission, 8, 1..9_000, Some(false)), [0; 0]);
        assert_eq!(unproven(&mut admission, 8, 1..9_000, None), [0; 0]);
        assert_eq!(unproven(&mut admission, 8, 0..1, None), [0]);
    }
}
