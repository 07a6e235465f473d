//! Data completeness: far fewer devices reported than usual, or far more. Missing devices may be the broken
//! ones, so the cohort is not called healthy. Surplus devices may be forged, so alone they do not page.

use epwatch_model::{CohortVerdict, Reason, Severity, VerdictClass};

use crate::read::UsualDevices;

/// Share of the usual number below which reports are missing: an outage of the collector, a release that does
/// not start, a withdrawn consent.
const FEW: f64 = 0.5;

/// Multiple of the usual number from which a chipset has new devices.
const MANY: f64 = 1.5;

/// Minimum share of the usual number that must be hit in addition to the surplus, because the usual number
/// varies from window to window.
const OF_USUAL: f64 = 0.25;

/// With fewer usual devices than this, a surplus is not doubted, because so few vary by chance.
const MIN_USUAL: u64 = 5;

/// Number of windows that are needed to know the usual number of devices.
const MIN_WINDOWS: u64 = 3;

/// With fewer usual devices than this, a smaller number is not doubted, because so few vary by chance.
const MIN_DEVICES: u64 = 20;

/// Turns "healthy" into data quality if fewer than half of a chipset's usual devices reported. `now` counts
/// devices of all versions on the chipset.
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

/// Turns a page into a ticket if the surplus over the usual number of devices could explain all hits. Forged
/// installations may report again and then count as known, but their number stays unusual. A real fault hits the usual
/// devices too, whatever the surplus. Only the `not_own` devices of the page can be forged, because the others have a
/// key that ships in no app.
pub(crate) fn doubt_crowd(
    verdict: &mut CohortVerdict,
    not_own: u64,
    now: u64,
    usual: Option<UsualDevices>,
) {
    let known = |usual: &UsualDevices| usual.windows >= MIN_WINDOWS && usual.devices >= MIN_USUAL;
    let Some(usual) = usual.filter(known) else {
        return;
    };
    let is_page = verdict.severity == Severity::Page;
    if !is_page || not_own == 0 || (now as f64) < MANY * usual.devices as f64 {
        return;
    }
    let beyond = now.saturating_sub(usual.devices).min(not_own);
    let of_usual = verdict.numbers.devices_hit.saturating_sub(beyond);
    if of_usual as f64 >= OF_USUAL * usual.devices as f64 {
        return;
    }
    verdict.severity = Severity::Ticket;
    let first = "Look at where the devices come from that this chipset did not have before; if they are \
                 real:";
    verdict.next_step = format!("{first}\n{}", verdict.next_step);
    let reason = Reason::Crowd {
        devices: now,
        usual: usual.devices,
        windows: usual.windows,
    };
    verdict.reasons.insert(0, reason);
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

    #[track_caller]
    fn check_crowd(
        hit_share: f64,
        (not_own, now): (u64, u64),
        usual: Option<(u64, u64)>,
        expected: Severity,
    ) {
        let mut verdict = judged(
            &Fleet::with_fallback(hit_share).window(),
            None,
            &reference(),
        );
        let usual = usual.map(|(devices, windows)| UsualDevices { devices, windows });
        doubt_crowd(&mut verdict, not_own, now, usual);
        assert_eq!(verdict.severity, expected, "{:#?}", verdict.reasons);
    }

    /// 60 devices, of which 40 or all are hit.
    #[test]
    fn a_crowd_that_alone_is_hit_pages_nobody() {
        let of_all = (60, 60);
        check_crowd(0.66, of_all, Some((20, 14)), Severity::Ticket);
        check_crowd(0.66, of_all, Some((50, 14)), Severity::Page);
        check_crowd(0.66, of_all, None, Severity::Page);
        check_crowd(1.0, of_all, Some((20, 14)), Severity::Page);
        check_crowd(0.9, of_all, Some((30, 14)), Severity::Page);
    }

    /// A key that does not ship in an app does not belong to a stranger.
    #[test]
    fn devices_of_own_keys_are_no_made_up_crowd() {
        check_crowd(0.66, (0, 60), Some((20, 14)), Severity::Page);
        check_crowd(0.66, (30, 60), Some((20, 14)), Severity::Page);
        check_crowd(0.66, (38, 60), Some((20, 14)), Severity::Ticket);
    }

    #[test]
    fn nothing_is_usual_before_three_windows_or_with_few_devices() {
        check(60, Some((600, 2)), VerdictClass::Healthy);
        check(3, Some((19, 7)), VerdictClass::Healthy);
        check(60, None, VerdictClass::Healthy);
    }
}
