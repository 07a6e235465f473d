//! Reasons as sentences.

use std::fmt;

use crate::baseline::Origin;
use crate::placement::Unit;
use crate::signals::SpeedReference;
use crate::signals::ep_placement::TOTAL_BELOW;

use super::{Reason, counted, latency, many_are_new, percent, secondary};

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unit::Macs => "MACs",
            Unit::Nodes => "nodes",
        })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::PreviousVersion => "the previous version on this chipset",
            Origin::Certified => "the certified placement",
            Origin::OtherChipsets => "the median of other chipsets",
            Origin::SameVersion => "this version before on this chipset",
        })
    }
}

impl fmt::Display for SpeedReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SpeedReference::SameVersion => "devices of the same version that kept their placement",
            SpeedReference::PreviousVersion => "devices still on the previous version",
            SpeedReference::OwnPast => "the same devices before",
            SpeedReference::BaselineWindow => "this chipset before this window",
        })
    }
}

fn on_share(share: f64, slowed: bool) -> String {
    match slowed {
        true => format!("as well, on {}", percent(share)),
        false if share == 0.0 => "on none".to_owned(),
        false => format!("on only {}", percent(share)),
    }
}

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
                write!(
                    f,
                    "{hits} of {devices} devices run more on the CPU than {origin}"
                )?;
                if let (Some(now), Some(before)) = (npu_share, reference_npu_share) {
                    let (now, before) = (percent(*now), percent(*before));
                    write!(f, ": {now} of the {unit} on the NPU instead of {before}")?;
                }
                Ok(())
            }
            Reason::Slower {
                slower,
                hits,
                compared,
                p50_us,
                reference_p50_us,
                reference,
            } => {
                if slower == compared {
                    write!(f, "all {compared} of those")?;
                } else {
                    write!(f, "{slower} of those {compared}")?;
                }
                if compared < hits {
                    f.write_str(" that ran often enough to compare")?;
                }
                write!(
                    f,
                    " are slower: median latency {} against {} of {reference}",
                    latency(*p50_us),
                    latency(*reference_p50_us),
                )
            }
            Reason::NotSlower { slower, compared } => {
                if 2 * slower <= *compared {
                    f.write_str("latency did not follow: ")?;
                }
                write!(
                    f,
                    "of those devices that ran often enough to compare, {slower} of {compared} are slower"
                )?;
                if 2 * slower > *compared {
                    f.write_str(", too few to be sure of it yet")?;
                }
                Ok(())
            }
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
            } => {
                write!(
                    f,
                    "{hits} of {devices} devices are slow in some of their runs and as fast as before \
                     in the others"
                )?;
                if let Some(share) = slow_share {
                    let share = percent(*share);
                    write!(f, ": {share} of the runs take over twice their earlier p95")?;
                }
                if !shape_is_known {
                    f.write_str("; input shapes are not known, so larger inputs may be why")?;
                }
                Ok(())
            }
            Reason::CohortMoved { ratio, devices } => write!(
                f,
                "all {devices} devices together moved to {ratio:.2} times their earlier latency: a \
                 heavier model, or a mild fallback"
            ),
            Reason::PreviousVersionControl { share, slowed } => write!(
                f,
                "the previous version in the same window slowed down {} of its devices",
                on_share(*share, *slowed)
            ),
            Reason::PeerControl { share, slowed } => write!(
                f,
                "other models slowed down {} of the devices hit",
                on_share(*share, *slowed)
            ),
            Reason::Everywhere {
                chipsets,
                share,
                ratio,
            } => secondary::everywhere(f, *chipsets, *share, *ratio),
            Reason::Firmware {
                firmware,
                hits,
                devices,
                other_hits,
                other_devices,
            } => write!(
                f,
                "it comes with a firmware: {hits} of {devices} devices on {firmware} are hit, and \
                 {other_hits} of {other_devices} on others of this chipset"
            ),
            Reason::PreviousMoved { ratio } => write!(
                f,
                "the previous version moved as well in the same window, to {ratio:.2} times its \
                 earlier latency"
            ),
            Reason::OnRuntime { runtimes } => write!(
                f,
                "all of them run it with another runtime than the reference ({}), which may be why",
                runtimes.join(", ")
            ),
            Reason::NewRuntime { runtimes } => write!(
                f,
                "the devices hit have another runtime than the reference ({}), which may only \
                 count nodes differently",
                runtimes.join(", ")
            ),
            Reason::Backend { code, devices } => {
                write!(
                    f,
                    "the NPU's back end gave {code} on {devices} of the devices hit"
                )
            }
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
            Reason::PreviousVaries { share } => write!(
                f,
                "the previous version varies more as well in the same window, on {} of its devices",
                percent(*share)
            ),
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
            } => write!(
                f,
                "only {} reported on this chipset; the median of {windows} earlier windows is {usual}",
                counted(*devices, "device")
            ),
            Reason::Crowd {
                devices,
                usual,
                windows,
            } => write!(
                f,
                "{devices} devices reported on this chipset, where the median of {windows} earlier \
                 windows is {usual}; no more are hit than came to those, so they may be made up"
            ),
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
            } => {
                let so = if *flood || many_are_new(*proven, *devices) {
                    "so it may be forged"
                } else {
                    "so it is not sure enough to wake anyone"
                };
                write!(
                    f,
                    "it does not hold on the {proven} of {devices} installations that were known \
                     before this window, {so}"
                )
            }
            Reason::FewHit { share } => write!(
                f,
                "{} of the devices are hit, too few to wake anyone",
                percent(*share)
            ),
            Reason::TooFewDevices { devices, needed } => write!(
                f,
                "{} in the window: needs about {} to see a 2x change",
                counted(*devices, "device"),
                counted(needed.saturating_sub(*devices), "more device")
            ),
            Reason::NoReference {
                previous_version,
                comparable_placements,
                comparable_pasts,
                needed,
            } => {
                match previous_version {
                    Some(version) => write!(f, "version {version} gives nothing to compare with")?,
                    None => f.write_str("no earlier version to compare with")?,
                }
                write!(
                    f,
                    ": {comparable_placements} devices have a placement with a reference and \
                     {comparable_pasts} know their past on another version, firmware or runtime; \
                     {needed} of either are needed"
                )
            }
            Reason::HardlyOnNpu { off_npu, devices } => write!(
                f,
                "the model asks for the NPU, which has under {} of the work on {off_npu} of the {devices} \
                 devices whose placement could be read; no version before and no certified placement says how \
                 much it should have",
                percent(TOTAL_BELOW)
            ),
            Reason::AsBefore { devices } => write!(
                f,
                "{devices} devices were compared with earlier windows of this version and are about as fast, \
                 which tells that nothing changed and not that it was right"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict is data quality for either.
    #[test]
    fn a_few_newcomers_and_a_flood_are_told_apart() {
        let told = |flood| {
            let reason = Reason::NewcomersOnly {
                proven: 95,
                devices: 100,
                flood,
            };
            reason.to_string()
        };
        assert!(told(false).ends_with("not sure enough to wake anyone"));
        assert!(told(true).ends_with("it may be forged"));
    }
}
