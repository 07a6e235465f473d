//! Reasons as sentences, for people: one file for each kind of finding.

mod controls;
mod data;
mod latency;
mod placement;
mod secondary;

use std::fmt;

use super::{Reason, percent};

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Placement {
                hits,
                devices,
                npu_share,
                reference_npu_share,
                unit,
                origin,
                ..
            } => {
                let shares = npu_share.zip(*reference_npu_share);
                placement::moved_to_cpu(f, (*hits, *devices), shares, *unit, *origin)
            }
            Reason::OnRuntime { runtimes } => placement::on_runtime(f, runtimes),
            Reason::NewRuntime { runtimes } => placement::new_runtime(f, runtimes),
            Reason::HardlyOnNpu { off_npu, devices } => {
                placement::hardly_on_npu(f, *off_npu, *devices)
            }
            Reason::Backend { code, devices } => write!(
                f,
                "the NPU's back end gave {code} on {devices} of the devices hit"
            ),

            Reason::Slower {
                slower,
                hits,
                compared,
                p50_us,
                reference_p50_us,
                reference,
            } => latency::slower(
                f,
                (*slower, *compared, *hits),
                (*p50_us, *reference_p50_us),
                *reference,
            ),
            Reason::NotSlower { slower, compared } => latency::not_slower(f, *slower, *compared),
            Reason::Shift {
                hits,
                devices,
                beyond,
                ..
            } => write!(
                f,
                "{hits} of {devices} devices take at least {beyond} times as long as they did \
                 themselves before"
            ),
            Reason::MedianSlower {
                ratio,
                at_least,
                devices,
            } => write!(
                f,
                "the median of {devices} devices takes {ratio:.2} times as long as before, at least \
                 {at_least:.2}"
            ),
            Reason::Intermittent {
                hits,
                devices,
                slow_share,
                shape_is_known,
                ..
            } => latency::intermittent(f, (*hits, *devices), *slow_share, *shape_is_known),
            Reason::CohortMoved { ratio, devices } => write!(
                f,
                "all {devices} devices together moved to {ratio:.2} times their earlier latency: a \
                 heavier model, or a mild fallback"
            ),
            Reason::AsBefore { devices } => write!(
                f,
                "{devices} devices were compared with earlier windows of this version and are about as fast, \
                 which tells that nothing changed and not that it was right"
            ),

            Reason::PreviousVersionControl { share, slowed } => {
                controls::previous_version(f, *share, *slowed)
            }
            Reason::PeerControl { share, slowed } => controls::peers(f, *share, *slowed),
            Reason::Everywhere {
                chipsets,
                share,
                ratio,
            } => controls::everywhere(f, *chipsets, *share, *ratio),
            Reason::Firmware {
                firmware,
                hits,
                devices,
                other_hits,
                other_devices,
            } => controls::firmware(
                f,
                firmware,
                (*hits, *devices),
                (*other_hits, *other_devices),
            ),
            Reason::PreviousMoved { ratio } => write!(
                f,
                "the previous version moved as well in the same window, to {ratio:.2} times its \
                 earlier latency"
            ),
            Reason::PreviousVaries { share } => write!(
                f,
                "the previous version varies more as well in the same window, on {} of its devices",
                percent(*share)
            ),

            Reason::NpuStart {
                hits,
                devices,
                failed,
                codes,
                is_unheard_of,
                ..
            } => secondary::npu_start(f, (*hits, *devices, *failed), codes, *is_unheard_of),
            Reason::WrongOutputs {
                hits,
                devices,
                max_abs,
                tolerance,
                cosine,
                top1_share,
                ..
            } => secondary::wrong_outputs(
                f,
                (*hits, *devices),
                (*max_abs, *tolerance),
                *cosine,
                *top1_share,
            ),
            Reason::DifferentOutputs {
                hits,
                devices,
                outputs,
                firmware,
                ..
            } => secondary::different_outputs(f, (*hits, *devices, *outputs), firmware.as_deref()),
            Reason::Varies {
                hits,
                devices,
                cv,
                earlier_cv,
                ..
            } => secondary::varies(f, (*hits, *devices), cv.zip(*earlier_cv)),
            Reason::CvRule {
                name,
                cv,
                limit,
                baseline,
            } => secondary::cv_rule(f, name, *cv, *limit, *baseline),

            Reason::FewReporting {
                devices,
                usual,
                windows,
            } => data::few_reporting(f, *devices, *usual, *windows),
            Reason::Crowd {
                devices,
                usual,
                windows,
            } => data::crowd(f, *devices, *usual, *windows),
            Reason::Directed { devices } => write!(
                f,
                "{devices} devices do not vote: a directive took them off the NPU"
            ),
            Reason::Flood { devices } => write!(
                f,
                "{devices} installations are new, far more than this app usually has, and do not vote: \
                 reports may be forged"
            ),
            Reason::NewcomersOnly {
                proven,
                devices,
                flood,
            } => data::newcomers_only(f, *proven, *devices, *flood),
            Reason::FewHit { share } => write!(
                f,
                "{} of the devices are hit, too few to wake anyone",
                percent(*share)
            ),
            Reason::TooFewDevices { devices, needed } => {
                data::too_few_devices(f, *devices, *needed)
            }
            Reason::NoReference {
                previous_version,
                comparable_placements,
                comparable_pasts,
                needed,
            } => data::no_reference(
                f,
                previous_version.as_deref(),
                (*comparable_placements, *comparable_pasts),
                *needed,
            ),
        }
    }
}
