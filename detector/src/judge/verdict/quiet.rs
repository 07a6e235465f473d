//! A fleet that goes quiet: an app, or a version of one of its models, with under a quarter of its usual devices. After
//! a bad key in a release, a class that a shrinker removed, or a blocked host, no report arrives that could show the
//! fault.

use std::collections::HashSet;
use std::time::Duration;

use epwatch_model::{
    CohortKey, CohortVerdict, ModelKey, Reason, Severity, VerdictClass, VerdictNumbers,
};
use jiff::Timestamp;

use crate::read::Reporting;

/// Share of the usual devices below which an app or a version is quiet.
const QUIET: f64 = 0.25;

/// Minimum share of the usual devices in a healthy window. The chance of a count is computed with it.
const HEALTHY: f64 = 0.5;

/// If new installations replace at least this share of the missing ones, they are the same devices.
const REINSTALLED: f64 = 0.5;

/// With fewer usual devices than this, an app is not judged, because so few vary by chance.
const MIN_OF_APP: u64 = 20;

/// With fewer usual devices than this, a version is not judged, because devices leave it for the next one.
const MIN_OF_VERSION: u64 = 50;

/// Returns the verdicts on apps and versions that are quiet, as tickets, and on others that were quiet recently, as
/// healthy. If an app is quiet itself, its versions are not named in addition.
pub(crate) fn quiet(
    reporting: &[Reporting],
    window_end: Timestamp,
    window: Duration,
) -> Vec<CohortVerdict> {
    let of_apps = reporting.iter().filter(|one| one.is_of_app());
    let of_apps = of_apps.filter_map(|one| judged(one, window_end, window));
    let mut verdicts: Vec<CohortVerdict> = of_apps.collect();
    let quiet_apps: HashSet<(String, String)> = verdicts
        .iter()
        .filter(|verdict| verdict.severity >= Severity::Ticket)
        .map(|verdict| app_of(&verdict.key.model))
        .collect();
    let of_versions = reporting
        .iter()
        .filter(|one| !one.is_of_app() && !quiet_apps.contains(&app_of(&one.model)));
    verdicts.extend(of_versions.filter_map(|one| judged(one, window_end, window)));
    verdicts
}

fn app_of(model: &ModelKey) -> (String, String) {
    (model.app_id.clone(), model.environment.clone())
}

/// Returns the verdict on an app or a version; `None` without a recent fault, or if too little is known.
fn judged(reporting: &Reporting, window_end: Timestamp, window: Duration) -> Option<CohortVerdict> {
    let usual = reporting.usual();
    let (least, now) = match reporting.is_of_app() {
        true => (MIN_OF_APP, reporting.windows.first().copied()?),
        // Devices that now have another version still report, and are not missing.
        false => (MIN_OF_VERSION, reporting.still_here),
    };
    if usual < least {
        return None;
    }
    let is_quiet = (now as f64) < QUIET * usual as f64;
    if !is_quiet && !reporting.lacked(QUIET) {
        return None;
    }
    let missing = usual.saturating_sub(now);
    let (class, severity, p) = match is_quiet {
        true => {
            let p = chance_of_at_most(now, HEALTHY * usual as f64);
            (VerdictClass::DataQuality, Severity::Ticket, p)
        }
        false => (VerdictClass::Healthy, Severity::None, 1.0),
    };
    // Devices that report under new ids are not missing.
    let is_reinstall =
        !reporting.is_of_app() && reporting.new_here as f64 >= REINSTALLED * missing as f64;
    let reasons = is_quiet.then(|| match is_reinstall {
        true => Reason::Reinstalled {
            devices: now,
            usual,
            new: reporting.new_here,
        },
        false => Reason::Quiet {
            devices: now,
            usual,
            of_version: !reporting.is_of_app(),
        },
    });
    let next_step = match is_quiet {
        true if is_reinstall => "Look at what went out last: an update that clears the app's data, or installs it anew, takes \
                                 every device's past with it. Nothing is known to be wrong with the model."
            .to_owned(),
        true => "Look at what went out last: an app key that the collector refuses (`epwatch_collector_reports_total` by \
                 outcome), a shrinker that removed the SDK's classes, or a host or certificate that devices do not \
                 reach any more."
            .to_owned(),
        false => String::new(),
    };
    let key = CohortKey {
        model: reporting.model.clone(),
        model_version: reporting.version.clone(),
        chipset: String::new(),
        firmware: None,
    };
    Some(CohortVerdict {
        reasons: reasons.into_iter().collect(),
        numbers: VerdictNumbers {
            devices_seen: usual,
            devices_on_chipset: usual,
            devices_eligible: usual,
            devices_hit: missing,
            ..VerdictNumbers::default()
        },
        next_step,
        p,
        ..CohortVerdict::new(key, (window_end, window), class, severity)
    })
}

/// Bound of the chance that a Poisson count with this mean is at most `n` (Chernoff: e^-m (em/n)^n).
fn chance_of_at_most(n: u64, mean: f64) -> f64 {
    let n = n as f64;
    if n >= mean {
        return 1.0;
    }
    let exponent = match n > 0.0 {
        true => n - mean + n * (mean / n).ln(),
        false => -mean,
    };
    exponent.exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, model};

    fn reporting(version: &str, now: u64, still_here: u64, usual: u64) -> Reporting {
        let mut windows = vec![usual; 14];
        windows[0] = now;
        let mut model = model();
        if version.is_empty() {
            model.model_id = String::new();
        }
        Reporting {
            model,
            version: version.to_owned(),
            windows,
            still_here,
            new_here: 0,
            week_before: 7,
        }
    }

    fn found(reporting: &[Reporting]) -> Vec<(String, VerdictClass)> {
        let verdicts = quiet(reporting, at(0), Duration::from_secs(86_400));
        let named = verdicts.into_iter();
        named
            .map(|verdict| (verdict.key.model_version, verdict.class))
            .collect()
    }

    const QUIET_APP: (&str, VerdictClass) = ("", VerdictClass::DataQuality);

    #[track_caller]
    fn check(reporting: &[Reporting], expected: &[(&str, VerdictClass)]) {
        let found = found(reporting);
        let found: Vec<(&str, VerdictClass)> = found
            .iter()
            .map(|(name, class)| (&**name, *class))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn under_a_quarter_of_the_usual_devices_is_quiet() {
        check(&[reporting("", 0, 0, 100)], &[QUIET_APP]);
        check(&[reporting("", 24, 24, 100)], &[QUIET_APP]);
        check(&[reporting("", 25, 25, 100)], &[]);
        check(&[reporting("", 0, 0, 19)], &[]);
    }

    #[test]
    fn a_version_is_quiet_only_if_its_devices_report_under_no_other() {
        let gone = ("2.0.0", VerdictClass::DataQuality);
        check(&[reporting("2.0.0", 0, 3, 60)], &[gone]);
        check(&[reporting("2.0.0", 0, 55, 60)], &[]);
        check(&[reporting("2.0.0", 0, 0, 49)], &[]);
        let both = [reporting("", 2, 2, 80), reporting("2.0.0", 0, 0, 60)];
        check(&both, &[QUIET_APP]);
    }

    /// The reason once said that 0 devices reported.
    #[test]
    fn new_installation_ids_on_all_devices_are_a_reinstall() {
        let told = |new_here| {
            let one = Reporting {
                new_here,
                ..reporting("2.0.0", 0, 0, 60)
            };
            let verdicts = quiet(&[one], at(0), Duration::from_secs(86_400));
            verdicts[0].reasons[0].to_string()
        };
        assert!(
            told(58).starts_with("0 of the usual 60 installations"),
            "{}",
            told(58)
        );
        assert!(told(58).contains("58 that are new"), "{}", told(58));
        assert!(
            told(20).starts_with("0 devices of this version"),
            "{}",
            told(20)
        );
    }

    #[test]
    fn a_weekend_is_as_the_weekend_before() {
        let mut weekend = reporting("", 8, 8, 100);
        weekend.windows[7] = 9;
        check(&[weekend], &[]);
    }

    #[test]
    fn an_app_that_came_back_is_healthy_until_its_incident_ends() {
        let mut back = reporting("", 95, 95, 100);
        back.windows[4] = 3;
        check(&[back.clone()], &[("", VerdictClass::Healthy)]);
        back.windows[4] = 100;
        back.windows[5] = 3;
        check(&[back], &[]);
    }

    #[test]
    fn the_chance_is_a_bound_of_poissons() {
        // scipy.stats.poisson.cdf(12, 25) = 0.00314412; cdf(49, 100) = 1.25e-08.
        assert!((0.003_144..0.02).contains(&chance_of_at_most(12, 25.0)));
        assert!((1.2e-8..1e-6).contains(&chance_of_at_most(49, 100.0)));
        assert!(chance_of_at_most(0, 25.0) < 1.5e-11);
    }
}
