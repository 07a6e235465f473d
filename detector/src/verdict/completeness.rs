//! Data completeness: far fewer devices reported than usual. What is missing may be what is broken,
//! so a cohort is not called healthy then.

use crate::reason::Reason;
use crate::source::UsualDevices;

use super::{CohortVerdict, Severity, VerdictClass};

/// Below this share of the usual number something keeps reports back: an outage of the collector, a
/// release that does not start, an SDK that lost its consent.
const FEW: f64 = 0.5;

/// Windows before a number is usual.
const MIN_WINDOWS: u64 = 3;

/// Devices below which the number wavers by itself.
const MIN_DEVICES: u64 = 20;

/// Says so where fewer than half of the devices that a chipset usually has reported. `now`: devices
/// of all versions on the chipset.
pub(crate) fn doubt(verdict: &mut CohortVerdict, now: u64, usual: Option<UsualDevices>) {
    let Some(usual) = usual else { return };
    let known = usual.windows >= MIN_WINDOWS && usual.devices >= MIN_DEVICES;
    if !known || now as f64 >= FEW * usual.devices as f64 {
        return;
    }
    let reason = Reason::FewReporting {
        devices: now,
        usual: usual.devices,
        windows: usual.windows,
    };
    if verdict.class == VerdictClass::Healthy {
        verdict.class = VerdictClass::DataQuality;
        verdict.severity = Severity::Info;
        verdict.next_step = "Find out why reports are missing: a collector that refuses them, a \
                             release that does not start, or devices that left."
            .to_owned();
        verdict.reasons.insert(0, reason);
    } else {
        verdict.reasons.push(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fleet, judged, reference};

    #[track_caller]
    fn check(now: u64, usual: Option<(u64, u64)>, expected: VerdictClass) {
        let mut verdict = judged(&Fleet::default().window(), None, &reference());
        let usual = usual.map(|(devices, windows)| UsualDevices { devices, windows });
        doubt(&mut verdict, now, usual);
        assert_eq!(verdict.class, expected);
    }

    #[test]
    fn a_cohort_that_lost_most_of_its_devices_is_not_called_healthy() {
        check(60, Some((150, 7)), VerdictClass::DataQuality);
        check(60, Some((110, 7)), VerdictClass::Healthy);
    }

    #[test]
    fn nothing_is_usual_before_three_windows_or_with_few_devices() {
        check(60, Some((600, 2)), VerdictClass::Healthy);
        check(3, Some((19, 7)), VerdictClass::Healthy);
        check(60, None, VerdictClass::Healthy);
    }
}
