//! Why a verdict is what it is, one sentence each, with its numbers and their units.

mod beside;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::baseline::Origin;
use crate::placement::Unit;
use crate::signals::{Control, Elsewhere, Joined, PlacementChange, Shift, SpeedReference};
use crate::verdict::backend_code;

/// One reason of a verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// EP: work moved to the CPU.
    Placement {
        /// Devices where it did.
        hits: u64,
        /// Devices compared.
        devices: u64,
        /// Share of the work on the NPU there, in [0, 1].
        npu_share: Option<f64>,
        /// The same in the reference.
        reference_npu_share: Option<f64>,
        /// What was counted.
        unit: Unit,
        /// What it was compared with.
        origin: Origin,
        /// Chance of so many in a healthy cohort.
        p: f64,
    },
    /// EJ: and those devices are slower.
    Slower {
        /// Devices slower.
        slower: u64,
        /// Devices with a worse placement.
        hits: u64,
        /// Their median p50, in microseconds.
        p50_us: f64,
        /// That of what they were compared with.
        reference_p50_us: f64,
        /// What that is.
        reference: SpeedReference,
    },
    /// EP without EJ.
    NotSlower {
        /// Devices slower.
        slower: u64,
        /// Devices with a worse placement.
        hits: u64,
    },
    /// B: devices slower than their earlier selves.
    Shift {
        /// Devices beyond the ratio.
        hits: u64,
        /// Devices that know their earlier selves.
        devices: u64,
        /// The ratio of p10.
        beyond: f64,
        /// Chance of so many in a healthy cohort.
        p: f64,
    },
    /// A: the median device is slower than its earlier self.
    MedianSlower {
        /// Median ratio of p10.
        ratio: f64,
        /// Its lower bound.
        at_least: f64,
        /// Devices that know their earlier selves.
        devices: u64,
    },
    /// C or M: devices slow in some of their runs.
    Intermittent {
        /// Devices hit.
        hits: u64,
        /// Devices that know their earlier selves.
        devices: u64,
        /// Median over the devices hit of the share of runs beyond twice their earlier p95.
        slow_share: Option<f64>,
        /// Whether their input shape is known.
        shape_is_known: bool,
        /// Chance of so many in a healthy cohort.
        p: f64,
    },
    /// The whole cohort moved, by less than 1.6 x.
    CohortMoved {
        /// Median ratio of p10.
        ratio: f64,
        /// Devices that know their earlier selves.
        devices: u64,
    },
    /// A control did or did not slow down as well.
    PreviousVersionControl {
        /// Share of its devices beyond the same ratio, in [0, 1].
        share: f64,
        /// Whether that is as bad.
        slowed: bool,
    },
    /// Other models on the devices hit did or did not slow down.
    PeerControl {
        /// Share of the devices hit where they did, in [0, 1].
        share: f64,
        /// Whether that is most of them.
        slowed: bool,
    },
    /// The same version on other chipsets shows the same: no chipset's fault alone.
    Everywhere {
        /// Chipsets that were asked.
        chipsets: u64,
        /// Share of their devices hit in the same way, in [0, 1].
        share: f64,
        /// Their median ratio of p10, where whole cohorts moved.
        ratio: Option<f64>,
    },
    /// The previous version moved as well.
    PreviousMoved {
        /// Its median ratio of p10.
        ratio: f64,
    },
    /// The devices hit have another runtime than the reference: it may only count differently.
    NewRuntime {
        /// ORT and EP versions.
        runtimes: Vec<String>,
    },
    /// The back end could not be set up.
    Backend {
        /// The contract's reason code.
        code: String,
        /// Devices hit that gave it.
        devices: u64,
    },
    /// S: the NPU does not start.
    NpuStart {
        /// Devices where it does not.
        hits: u64,
        /// Devices seen.
        devices: u64,
        /// Of those hit, devices where a session could not be made at all.
        failed: u64,
        /// Reason codes with their devices, commonest first.
        codes: Vec<(String, u64)>,
        /// Chance of so many in a healthy cohort.
        p: f64,
    },
    /// O: outputs are off by more than is accepted.
    WrongOutputs {
        /// Devices where they are.
        hits: u64,
        /// Devices tested.
        devices: u64,
        /// Median of the largest difference between NPU and CPU.
        max_abs: f64,
        /// The accepted one.
        tolerance: f64,
        /// Median cosine of the two outputs, -1 to 1.
        cosine: Option<f64>,
        /// Share of the devices hit with the same largest element, in [0, 1].
        top1_share: Option<f64>,
        /// Chance of so many in a healthy cohort.
        p: f64,
    },
    /// OH: outputs differ between devices.
    DifferentOutputs {
        /// Devices whose output is not the commonest.
        hits: u64,
        /// Devices tested.
        devices: u64,
        /// Different outputs.
        outputs: u64,
        /// The firmware that explains it.
        firmware: Option<String>,
        /// Chance of so many in a healthy cohort.
        p: f64,
    },
    /// CV: runs vary more than they did.
    Varies {
        /// Devices where they do.
        hits: u64,
        /// Devices that know their earlier selves.
        devices: u64,
        /// Median coefficient of variation of the devices hit.
        cv: Option<f64>,
        /// What they had before.
        earlier_cv: Option<f64>,
        /// Chance of so many in a healthy cohort.
        p: f64,
    },
    /// The previous version varies more as well.
    PreviousVaries {
        /// Share of its devices, in [0, 1].
        share: f64,
    },
    /// A plain rule of the operator's fired.
    PlainRule {
        /// Its name.
        name: String,
        /// Coefficient of variation of all runs.
        cv: f64,
        /// The limit, if the rule has one.
        limit: Option<f64>,
        /// That of earlier windows, if the rule compares with it.
        baseline: Option<f64>,
    },
    /// Far fewer devices reported than usual.
    FewReporting {
        /// Devices that did, on this chipset.
        devices: u64,
        /// Median of earlier windows.
        usual: u64,
        /// How many windows that are.
        windows: u64,
    },
    /// Far more devices reported than usual, and no more than those are hit.
    Crowd {
        /// Devices that did, on this chipset.
        devices: u64,
        /// Median of earlier windows.
        usual: u64,
        /// How many windows that are.
        windows: u64,
    },
    /// More new installations than the app usually has: they do not vote.
    Flood {
        /// Installations without a vote.
        devices: u64,
    },
    /// A directive took devices off the NPU: they do not vote.
    Directed {
        /// So many.
        devices: u64,
    },
    /// What was found does not hold on the installations that were known before.
    NewcomersOnly {
        /// Installations known before the window.
        proven: u64,
        /// Devices that vote.
        devices: u64,
    },
    /// Too few are hit to wake anyone.
    FewHit {
        /// Share of the devices hit, in [0, 1].
        share: f64,
    },
    /// Too few devices in the window.
    TooFewDevices {
        /// So many.
        devices: u64,
        /// So many show a slow-down by 2 of all of them.
        needed: u64,
    },
    /// Nothing to compare with.
    NoReference {
        /// The version before, if there was one.
        previous_version: Option<String>,
        /// Devices whose placement had a reference.
        comparable_placements: u64,
        /// Devices that knew their earlier selves.
        comparable_pasts: u64,
        /// So many are needed of either.
        needed: u64,
    },
}

impl Reason {
    pub(crate) fn placement(change: &PlacementChange) -> Self {
        Reason::Placement {
            hits: change.signal.hits,
            devices: change.signal.devices,
            npu_share: change.hit_npu_share,
            reference_npu_share: change.reference_npu_share,
            unit: change.unit,
            origin: change.origin,
            p: change.signal.p,
        }
    }

    pub(crate) fn slower(change: &PlacementChange, joined: &Joined) -> Self {
        Reason::Slower {
            slower: joined.signal.hits,
            hits: change.signal.hits,
            p50_us: joined.hit_p50_us,
            reference_p50_us: joined.reference_p50_us,
            reference: joined.reference,
        }
    }

    pub(crate) fn shift(shift: &Shift) -> Self {
        Reason::Shift {
            hits: shift.signal.hits,
            devices: shift.signal.devices,
            beyond: shift.signal.threshold,
            p: shift.signal.p,
        }
    }

    pub(crate) fn control(control: Control) -> Option<Self> {
        let (share, slowed) = match control {
            Control::Absent => return None,
            Control::PreviousSteady(share) | Control::PeersSteady(share) => (share, false),
            Control::PreviousSlowed(share) | Control::PeersSlowed(share) => (share, true),
        };
        Some(match control {
            Control::PeersSteady(_) | Control::PeersSlowed(_) => {
                Reason::PeerControl { share, slowed }
            }
            _ => Reason::PreviousVersionControl { share, slowed },
        })
    }

    pub(crate) fn everywhere(others: Elsewhere) -> Self {
        Reason::Everywhere {
            chipsets: others.chipsets,
            share: others.share,
            ratio: others.ratio,
        }
    }

    pub(crate) fn is_everywhere(&self) -> bool {
        matches!(self, Reason::Everywhere { .. })
    }

    pub(crate) fn backend(change: &PlacementChange) -> Option<Self> {
        let (code, devices) = backend_code(change)?;
        let code = code.as_str().to_owned();
        Some(Reason::Backend { code, devices })
    }

    pub(crate) fn is_about_placement(&self) -> bool {
        matches!(self, Reason::Placement { .. })
    }

    pub(crate) fn is_about_newcomers(&self) -> bool {
        matches!(self, Reason::NewcomersOnly { .. })
    }
}

/// A latency for people: microseconds below a millisecond, else milliseconds.
pub(crate) fn latency(us: f64) -> String {
    match us {
        us if us < 1_000.0 => format!("{us:.0} us"),
        us if us < 100_000.0 => format!("{:.1} ms", us / 1_000.0),
        us => format!("{:.0} ms", us / 1_000.0),
    }
}

/// A share for people.
pub(crate) fn percent(share: f64) -> String {
    // One less a sum of shares may be a little below nothing, and nothing has a sign.
    let percent = share.max(0.0) * 100.0 + 0.0;
    match percent {
        p if p > 0.0 && p < 1.0 => format!("{p:.1} %"),
        p if p > 99.0 && p < 100.0 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

/// A chance for people: `1 in 2,000`, or an upper bound where it is beyond imagination.
pub(crate) fn chance(p: f64) -> String {
    if p < 1e-9 {
        return "under 1 in a billion".to_owned();
    }
    if p > 0.5 {
        return "to be expected".to_owned();
    }
    let one_in = 1.0 / p;
    // Two digits say all there is to know.
    let unit = 10f64.powf(one_in.log10().floor() - 1.0).max(1.0);
    let digits = format!("{:.0}", (one_in / unit).round() * unit);
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("1 in {grouped}")
}

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
            SpeedReference::OwnPast => "the same devices on the previous version",
            SpeedReference::BaselineWindow => "the previous version before this window",
        })
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
                p50_us,
                reference_p50_us,
                reference,
            } => write!(
                f,
                "{slower} of those {hits} are slower: median latency {} against {} of {reference}",
                latency(*p50_us),
                latency(*reference_p50_us),
            ),
            Reason::NotSlower { slower, hits } => {
                if 2 * slower > *hits {
                    let slower = format!("{slower} of those {hits} devices are slower");
                    return write!(f, "{slower}, too few of all to be sure of it yet");
                }
                write!(
                    f,
                    "latency did not follow: {slower} of those {hits} devices are slower"
                )
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
                "the median of {devices} devices takes {ratio:.2} times as long as before, surely \
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
                "the previous version in the same window {}: {} of its devices",
                if *slowed {
                    "slowed down as well"
                } else {
                    "did not slow down"
                },
                percent(*share)
            ),
            Reason::PeerControl { share, slowed } => write!(
                f,
                "other models on the devices hit {}: on {} of them",
                if *slowed {
                    "slowed down as well"
                } else {
                    "did not slow down"
                },
                percent(*share)
            ),
            Reason::Everywhere {
                chipsets,
                share,
                ratio,
            } => beside::everywhere(f, *chipsets, *share, *ratio),
            Reason::PreviousMoved { ratio } => write!(
                f,
                "the previous version moved as well in the same window, to {ratio:.2} times its \
                 earlier latency"
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
                ..
            } => beside::npu_start(f, (*hits, *devices, *failed), codes),
            Reason::WrongOutputs {
                hits,
                devices,
                max_abs,
                tolerance,
                cosine,
                top1_share,
                ..
            } => beside::wrong_outputs(
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
            } => beside::different_outputs(f, (*hits, *devices, *outputs), firmware.as_deref()),
            Reason::Varies {
                hits,
                devices,
                cv,
                earlier_cv,
                ..
            } => beside::varies(f, (*hits, *devices), cv.zip(*earlier_cv)),
            Reason::PreviousVaries { share } => write!(
                f,
                "the previous version varies more as well in the same window, on {} of its devices",
                percent(*share)
            ),
            Reason::PlainRule {
                name,
                cv,
                limit,
                baseline,
            } => beside::plain_rule(f, name, *cv, *limit, *baseline),
            Reason::FewReporting {
                devices,
                usual,
                windows,
            } => write!(
                f,
                "only {devices} devices reported on this chipset; the median of {windows} earlier \
                 windows is {usual}"
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
            Reason::NewcomersOnly { proven, devices } => write!(
                f,
                "it does not hold on the {proven} of {devices} installations that were known before \
                 this window, so it may be forged"
            ),
            Reason::FewHit { share } => write!(
                f,
                "{} of the devices are hit, too few to wake anyone",
                percent(*share)
            ),
            Reason::TooFewDevices { devices, needed } => write!(
                f,
                "{devices} devices in the window: needs about {} more devices to see a 2x change",
                needed.saturating_sub(*devices)
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
                     {comparable_pasts} know their own past, {needed} of either are needed"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(
            (latency(812.4), latency(8_249.0)),
            ("812 us".into(), "8.2 ms".into())
        );
        assert_eq!(latency(240_400.0), "240 ms");
        assert_eq!(
            (percent(0.004), percent(0.26)),
            ("0.4 %".into(), "26 %".into())
        );
        assert_eq!(
            (percent(1.0), percent(0.999)),
            ("100 %".into(), "99.9 %".into())
        );
        let chances = [0.9, 0.2, 1.0 / 2_683_438.0, 1e-12].map(chance);
        let expected = [
            "to be expected",
            "1 in 5",
            "1 in 2,700,000",
            "under 1 in a billion",
        ];
        assert_eq!(chances, expected);
    }
}
