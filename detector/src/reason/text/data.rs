//! Sentences about the data: devices that are missing, too many or too new, and references that are missing.

use std::fmt;

use crate::reason::{counted, many_are_new};

pub(super) fn few_reporting(
    f: &mut fmt::Formatter<'_>,
    devices: u64,
    usual: u64,
    windows: u64,
) -> fmt::Result {
    write!(
        f,
        "only {} reported on this chipset; the median of {windows} earlier windows is {usual}",
        counted(devices, "device")
    )
}

pub(super) fn crowd(
    f: &mut fmt::Formatter<'_>,
    devices: u64,
    usual: u64,
    windows: u64,
) -> fmt::Result {
    write!(
        f,
        "{devices} devices reported on this chipset, where the median of {windows} earlier windows is \
         {usual}; no more are hit than came to those, so they may be made up"
    )
}

pub(super) fn newcomers_only(
    f: &mut fmt::Formatter<'_>,
    proven: u64,
    devices: u64,
    flood: bool,
) -> fmt::Result {
    let so = if flood || many_are_new(proven, devices) {
        "so it may be forged"
    } else {
        "so it is not sure enough to wake anyone"
    };
    write!(
        f,
        "it does not hold on the {proven} of {devices} installations that were known before this \
         window, {so}"
    )
}

pub(super) fn too_few_devices(
    f: &mut fmt::Formatter<'_>,
    devices: u64,
    needed: u64,
) -> fmt::Result {
    write!(
        f,
        "{} in the window: needs about {} to see a 2x change",
        counted(devices, "device"),
        counted(needed.saturating_sub(devices), "more device")
    )
}

pub(super) fn no_reference(
    f: &mut fmt::Formatter<'_>,
    previous_version: Option<&str>,
    (comparable_placements, comparable_pasts): (u64, u64),
    needed: u64,
) -> fmt::Result {
    match previous_version {
        Some(version) => write!(f, "version {version} gives nothing to compare with")?,
        None => f.write_str("no earlier version to compare with")?,
    }
    write!(
        f,
        ": {comparable_placements} devices have a placement with a reference and {comparable_pasts} \
         know their past on another version, firmware or runtime; {needed} of either are needed"
    )
}

#[cfg(test)]
mod tests {
    use crate::reason::Reason;

    /// Both make the verdict data quality; only a flood is called forged.
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
