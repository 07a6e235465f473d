//! Sentences about the controls: the previous version, other models, other chipsets, firmwares.

use std::fmt;

use crate::reason::percent;

pub(super) fn previous_version(
    f: &mut fmt::Formatter<'_>,
    share: f64,
    slowed: bool,
) -> fmt::Result {
    f.write_str("the previous version in the same window slowed down ")?;
    write!(f, "{} of its devices", on_share(share, slowed))
}

pub(super) fn peers(f: &mut fmt::Formatter<'_>, share: f64, slowed: bool) -> fmt::Result {
    let share = on_share(share, slowed);
    write!(f, "other models slowed down {share} of the devices hit")
}

fn on_share(share: f64, slowed: bool) -> String {
    match slowed {
        true => format!("as well, on {}", percent(share)),
        false if share == 0.0 => "on none".to_owned(),
        false => format!("on only {}", percent(share)),
    }
}

pub(super) fn everywhere(
    f: &mut fmt::Formatter<'_>,
    chipsets: u64,
    share: f64,
    ratio: Option<f64>,
) -> fmt::Result {
    match chipsets {
        1 => f.write_str("the app's other chipset shows")?,
        n => write!(f, "the app's {n} other chipsets show")?,
    }
    f.write_str(" the same with this version in the same window, ")?;
    match ratio {
        Some(ratio) => write!(
            f,
            "{ratio:.2} times the earlier latency at the median: a heavier model or larger inputs \
             rather than a fallback"
        ),
        None => write!(
            f,
            "on {} of their devices: load, larger inputs or the app itself rather than a fallback",
            percent(share)
        ),
    }
}

pub(super) fn firmware(
    f: &mut fmt::Formatter<'_>,
    firmware: &str,
    (hits, devices): (u64, u64),
    (other_hits, other_devices): (u64, u64),
) -> fmt::Result {
    write!(
        f,
        "it comes with a firmware: {hits} of {devices} devices on {firmware} are hit, and \
         {other_hits} of {other_devices} on others of this chipset"
    )
}
