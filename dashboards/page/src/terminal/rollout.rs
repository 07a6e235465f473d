//! The answer on a roll-out, as text for a terminal.

use std::fmt::Write as _;

use super::table::{head, table};
use crate::read::rollout::{Rollout, RolloutAnswer};
use crate::text::name::visible;
use crate::text::number;
use crate::text::rollout::{groups, headline, reason, word};

/// Returns the answer, a line for each chipset and firmware, and why each is not yet fine.
pub(crate) fn rollout_text(found: &Rollout) -> String {
    let mut text = headline(found);
    text.push_str("\n\n");
    let mut rows = vec![head(&[
        "ANSWER",
        "CHIPSET",
        "DEVICES",
        "COMPARED",
        "NEEDED",
        "MEDIAN",
        "SLOWER",
        "ON NPU",
        "CERTIFIED",
    ])];
    for of in &found.chipsets {
        rows.push(vec![
            word(of.answer).to_owned(),
            visible(&of.chipset),
            format!(
                "{} of {}",
                number::count(of.devices),
                number::count(of.devices_on_chipset)
            ),
            number::count(of.compared),
            number::count(of.needed),
            number::ms(of.p50_us),
            number::times(of.latency_ratio),
            number::share(of.npu_share),
            number::share(of.certified_npu_share),
        ]);
        rows.extend(of.firmwares.iter().map(|firmware| {
            vec![
                word(firmware.answer).to_owned(),
                format!("  firmware {}", visible(&firmware.firmware)),
                number::count(firmware.devices),
                number::count(firmware.compared),
                number::count(of.needed),
                number::ms(firmware.p50_us),
                number::times(firmware.latency_ratio),
                number::share(firmware.npu_share),
                String::new(),
            ]
        }));
    }
    text.push_str(&table(&rows));
    let mut why = found
        .chipsets
        .iter()
        .filter(|of| of.answer != RolloutAnswer::Go)
        .peekable();
    if why.peek().is_some() {
        text.push('\n');
    }
    for of in why {
        let incident = of.incident.as_ref();
        let incident = incident.map(|id| format!("; epwatch incident {}", visible(id)));
        let incident = incident.unwrap_or_default();
        _ = writeln!(text, "{}: {}{incident}", visible(&of.chipset), reason(of));
    }
    if let Some(line) = groups(found) {
        _ = write!(text, "\n{line}\n");
    }
    _ = write!(
        text,
        "\nNeeded in one window, to see a model that is twice as slow: {} devices, or {} where placements cannot be read.",
        found.needed.with_placements, found.needed.without
    );
    text
}
