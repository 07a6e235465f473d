//! Parts of the reasons' sentences that depend on more than one number. Each begins with its own separator, or
//! is empty.

use std::fmt::Write;

use epwatch_proto::ReasonCode;

use crate::late_runs::LateRuns;
use crate::numbers::{counted, percent};
use crate::placement::WorkUnit;

use super::{CertifiedFirmware, SlowLimit, many_are_new};

/// Number of codes that a sentence names; the rest is counted.
const MAX_CODES: usize = 3;

pub(super) const UNHEARD_OF: &str =
    "; nothing shows that it ever starts on this chipset, which may have none";

pub(super) fn shares(now: &Option<f64>, before: &Option<f64>, unit: WorkUnit) -> String {
    now.zip(*before).map_or(String::new(), |(now, before)| {
        let (now, before) = (percent(now), percent(before));
        format!(": {now} of the {unit} on the NPU instead of {before}")
    })
}

pub(super) fn certifier(certified_by: &str) -> &str {
    match certified_by {
        "" => "a certifier without a name",
        name => name,
    }
}

pub(super) fn certified_share(share: &Option<f64>, unit: WorkUnit) -> String {
    share.map_or(String::new(), |share| {
        format!(
            " with {} of the {unit} on the NPU of this chipset",
            percent(share)
        )
    })
}

pub(super) fn certified_firmware(firmware: &Option<CertifiedFirmware>) -> String {
    let Some(CertifiedFirmware {
        firmware,
        is_theirs,
    }) = firmware
    else {
        return String::new();
    };
    match is_theirs {
        true => format!(" with firmware {firmware}"),
        false => format!(" with firmware {firmware}, the nearest to theirs that has a certificate"),
    }
}

pub(super) fn share_of_hits(share: &Option<f64>, unit: WorkUnit) -> String {
    share.map_or(String::new(), |share| {
        format!(", with {} of the {unit} there", percent(share))
    })
}

pub(super) fn slower_devices(slower: u64, compared: u64, hits: u64) -> String {
    let which = match slower == compared {
        true => format!("all {compared} of those"),
        false => format!("{slower} of those {compared}"),
    };
    which
        + if compared < hits {
            " that ran often enough to compare"
        } else {
            ""
        }
}

pub(super) fn not_slower(slower: u64, compared: u64) -> String {
    let (before, after) = match 2 * slower <= compared {
        true => ("latency did not follow: ", ""),
        false => ("", ", too few to be sure of it yet"),
    };
    format!(
        "{before}of those devices that ran often enough to compare, {slower} of {compared} are slower{after}"
    )
}

pub(super) fn slow_runs(slow_share: Option<f64>, limit: SlowLimit, shape_is_known: bool) -> String {
    let limit = match limit {
        SlowLimit::TwiceP95 => "twice their earlier p95",
        SlowLimit::Apart => "1.4 times their earlier p95, and next to none slightly less",
        SlowLimit::Median => "1.6 times their earlier median",
    };
    let share = slow_share.map_or(String::new(), |share| {
        format!(": {} of the runs take over {limit}", percent(share))
    });
    share
        + if shape_is_known {
            ""
        } else {
            "; input shapes are not known, so larger inputs may be why, and this wakes no one: an app that times its runs \
             itself sends the shape of each with `record_shape`"
        }
}

pub(super) fn quiet(devices: u64, of_version: bool) -> String {
    let devices = counted(devices, "device");
    match of_version {
        true => format!("{devices} of this version reported in the window, on any version"),
        false => format!("{devices} reported in the window"),
    }
}

pub(super) fn on_share(share: f64, slowed: bool) -> String {
    match slowed {
        true => format!("as well, on {}", percent(share)),
        false if share == 0.0 => "on none".to_owned(),
        false => format!("on only {}", percent(share)),
    }
}

pub(super) fn other_chipsets(chipsets: u64) -> String {
    match chipsets {
        1 => "the app's other chipset shows".to_owned(),
        n => format!("the app's {n} other chipsets show"),
    }
}

pub(super) fn same_effect(share: f64, ratio: Option<f64>, new_runtimes: &[String]) -> String {
    let effect = match ratio {
        Some(ratio) => format!("{ratio:.2} times the earlier latency at the median"),
        None => format!("on {} of their devices", percent(share)),
    };
    let why = match (ratio, new_runtimes) {
        (_, [_, ..]) => new_runtime(new_runtimes),
        (Some(_), []) => "a heavier model or larger inputs rather than a fallback".to_owned(),
        (None, []) => "load, larger inputs or the app itself rather than a fallback".to_owned(),
    };
    format!("{effect}: {why}")
}

/// Returns why a whole cohort moved.
pub(super) fn heavier(new_runtimes: &[String]) -> String {
    match new_runtimes {
        [] => "a heavier model, or a mild fallback".to_owned(),
        new => new_runtime(new),
    }
}

fn new_runtime(runtimes: &[String]) -> String {
    let runtimes = runtimes.join(", ");
    format!(
        "the runtime is new on these devices ({runtimes}), so compare with the previous version's runtime first"
    )
}

pub(super) fn without_session(failed: u64, hits: u64) -> String {
    match failed {
        0 if hits > 0 => String::new(),
        failed if failed >= hits => ", where no session on it could be made".to_owned(),
        failed => format!(", on {failed} of them no session on it could be made"),
    }
}

pub(super) fn codes(codes: &[(String, u64)]) -> String {
    let mut text = String::new();
    for (at, (code, devices)) in codes.iter().take(MAX_CODES).enumerate() {
        let before = if at == 0 { ": " } else { ", " };
        let _ = write!(text, "{before}{code} on {devices}");
    }
    if codes.len() > MAX_CODES {
        let _ = write!(text, " and {} more codes", codes.len() - MAX_CODES);
    }
    let refused = ReasonCode::EpcontextIncompatible.as_str();
    if codes.first().is_some_and(|(code, _)| code == refused) {
        text.push_str("; the compiled model is not for them");
    }
    text
}

pub(super) fn similarity(cosine: Option<f64>, top1_share: Option<f64>) -> String {
    let cosine = cosine.map(|cosine| format!("; cosine of the two outputs {cosine:.4}"));
    let same = top1_share.map(|share| {
        format!(
            "; the largest element is the same on {} of them",
            percent(share)
        )
    });
    cosine.unwrap_or_default() + &same.unwrap_or_default()
}

pub(super) fn what_differs(is_rounding: bool) -> &'static str {
    match is_rounding {
        true => {
            "rounding modes differ (floor, nearest even, a last bit), and all are as near to their CPU's as rounding leaves \
             them (a cosine of 0.98 or more), so it is not a fault"
        }
        false => "the model does not behave the same on every phone",
    }
}

pub(super) fn firmware_of_hits(firmware: Option<&str>) -> String {
    firmware.map_or(String::new(), |firmware| {
        format!("; all of those have firmware {firmware}, the others do not")
    })
}

pub(super) fn cvs(now: Option<f64>, before: Option<f64>) -> String {
    now.zip(before).map_or(String::new(), |(now, before)| {
        format!(": median coefficient of variation {now:.3} instead of {before:.3}")
    })
}

pub(super) fn limits(limit: Option<f64>, baseline: Option<f64>) -> String {
    let limit = limit.map(|limit| format!(", above {limit}"));
    let baseline = baseline.map(|cv| format!(", {cv:.3} in earlier windows"));
    limit.unwrap_or_default() + &baseline.unwrap_or_default()
}

pub(super) fn doubt(proven: u64, devices: u64, flood: bool) -> &'static str {
    match flood || many_are_new(proven, devices) {
        true => "may be forged",
        false => "is not sure enough to wake anyone",
    }
}

pub(super) fn expectation(is_expected: bool) -> &'static str {
    match is_expected {
        true => "the config (`detector.expects_npu`) says that it belongs there",
        false => "no version before and no certified placement says how much it should have",
    }
}

pub(super) fn make(device_models: &[String], firmware: Option<&str>) -> String {
    let named = device_models.iter().take(MAX_CODES).cloned();
    let named = named.collect::<Vec<_>>().join(", ");
    let more = match device_models.len().saturating_sub(MAX_CODES) {
        0 => String::new(),
        more => format!(" and {more} more models"),
    };
    match (named.is_empty(), firmware) {
        (true, firmware) => format!("firmware {}", firmware.unwrap_or_default()),
        (false, None) => format!("{named}{more}"),
        (false, Some(firmware)) => format!("{named}{more} (all with firmware {firmware})"),
    }
}

pub(super) fn slow_runs_compared(devices: u64) -> String {
    match devices {
        0 => {
            " in their fast runs (slow ones were not compared: the devices have too few)".to_owned()
        }
        devices => format!(", in their slow runs too on {devices} of them"),
    }
}

pub(super) fn passed_over(
    versions: &[String],
    compared_with: Option<&str>,
    is_at_fault: bool,
) -> String {
    let has = match versions.len() {
        1 => "has",
        _ => "have",
    };
    let against = match compared_with {
        Some(version) => format!("this version is compared with {version}"),
        None => "no version before is a reference".to_owned(),
    };
    let verdict = match is_at_fault {
        true => ": it does not mend that fault",
        false => "",
    };
    let versions = versions.join(", ");
    format!("{versions} {has} an open incident on this chipset, so {against}{verdict}")
}

pub(super) fn as_before(devices: u64, with_slow_runs: u64, before: Option<&str>) -> String {
    let slow_runs = slow_runs_compared(with_slow_runs);
    match before {
        Some(version) => format!(
            "{devices} devices were compared with windows of this version before the incident of {version} and are about \
             as fast{slow_runs}"
        ),
        None => format!(
            "{devices} devices were compared with earlier windows of this version and are about as fast{slow_runs}, which \
             tells that nothing changed and not that it was right"
        ),
    }
}

pub(super) fn nothing_to_compare(previous_version: Option<&str>) -> String {
    match previous_version {
        Some(version) => format!("version {version} gives nothing to compare with"),
        None => "no earlier version to compare with".to_owned(),
    }
}

pub(super) fn late(place: &str, late: &LateRuns) -> String {
    let (are, deadline_ms) = (runs_are(late.share), late.deadline_ms);
    let before = late.previous_version.as_ref().zip(late.previous_share);
    let before =
        before.map(|(version, share)| format!("{} with version {version}", of_runs(share)));
    let elsewhere = late.other_chipsets;
    let elsewhere = elsewhere.map(|share| format!("{} on the other chipsets", of_runs(share)));
    let compared: Vec<String> = before.into_iter().chain(elsewhere).collect();
    let compared = match compared.is_empty() {
        true => String::new(),
        false => format!("; in the same window {}", compared.join(" and ")),
    };
    format!("{are} later than {deadline_ms} ms on {place}{compared}")
}

/// Returns a share of runs with its verb: `4 of 10 runs are`.
fn runs_are(share: f64) -> String {
    let share = of_runs(share);
    match &*share {
        "none" => "no run is".to_owned(),
        "all" => "all runs are".to_owned(),
        one if one.starts_with("1 of ") => format!("{one} runs is"),
        many => format!("{many} runs are"),
    }
}

/// Returns a share as a count of 10 runs if that is close enough, else of 100, or of 1,000 near 0 and 1.
fn of_runs(share: f64) -> String {
    let rounded = |of: f64| (share * of).round();
    if share <= 0.0 {
        return "none".to_owned();
    }
    if share >= 1.0 {
        return "all".to_owned();
    }
    if rounded(1_000.0) < 1.0 {
        return "under 1 of 1,000".to_owned();
    }
    if rounded(1_000.0) >= 1_000.0 {
        return "over 999 of 1,000".to_owned();
    }
    if !(0.01..=0.99).contains(&share) {
        return format!("{} of 1,000", rounded(1_000.0));
    }
    let is_about_tenths = (share * 10.0 - rounded(10.0)).abs() <= 0.25;
    match is_about_tenths && (0.095..=0.905).contains(&share) {
        true => format!("{} of 10", rounded(10.0)),
        false => format!("{} of 100", rounded(100.0)),
    }
}

#[cfg(test)]
mod tests {
    use crate::reason::Reason;

    #[test]
    fn shares_of_runs_are_counts_that_a_person_can_picture() {
        let said = [
            0.0, 0.000_2, 0.004, 0.012, 0.1, 0.15, 0.42, 0.5, 0.97, 0.996, 0.999_9, 1.0,
        ]
        .map(super::of_runs);
        let expected = [
            "none",
            "under 1 of 1,000",
            "4 of 1,000",
            "1 of 100",
            "1 of 10",
            "15 of 100",
            "4 of 10",
            "5 of 10",
            "97 of 100",
            "996 of 1,000",
            "over 999 of 1,000",
            "all",
        ];
        assert_eq!(said, expected);
        let verbs = [0.0, 0.1, 0.4, 1.0].map(super::runs_are);
        let expected = [
            "no run is",
            "1 of 10 runs is",
            "4 of 10 runs are",
            "all runs are",
        ];
        assert_eq!(verbs, expected);
    }

    /// Both make the verdict data quality, but only a flood is called forged.
    #[test]
    fn a_few_newcomers_and_a_flood_have_different_sentences() {
        let text = |flood| {
            let reason = Reason::NewcomersOnly {
                proven: 95,
                devices: 100,
                flood,
            };
            reason.to_string()
        };
        assert!(text(false).ends_with("not sure enough to wake anyone"));
        assert!(text(true).ends_with("it may be forged"));
    }
}
