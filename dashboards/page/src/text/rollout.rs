//! The answer on a roll-out in words, for the page and the command.

use std::fmt::Write as _;

use super::name::{visible, visible_sentence};
use super::number;
use super::time::length;
use crate::read::rollout::{ChipsetAnswer, Rollout, RolloutAnswer};

/// Returns why a chipset has its answer, with what comes next.
pub(crate) fn reason(of: &ChipsetAnswer) -> String {
    let mut text = visible_sentence(&of.why);
    if let Some(seconds) = of.seconds_left {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "days at most, and saturates"
        )]
        let seconds = seconds as i64;
        _ = write!(text, ", in {} at the rate so far", length(seconds));
    }
    text
}

/// Returns the answer in one sentence.
pub(crate) fn headline(found: &Rollout) -> String {
    let of = |answer: RolloutAnswer| -> Vec<String> {
        let its = found.chipsets.iter().filter(|of| of.answer == answer);
        its.map(|of| visible(&of.chipset)).collect()
    };
    let name = format!(
        "{} {}",
        visible(&found.query.model),
        visible(&found.query.version)
    );
    match found.answer {
        RolloutAnswer::Stop => format!(
            "Stop: {name} is at fault on {}",
            of(RolloutAnswer::Stop).join(", ")
        ),
        RolloutAnswer::Go => {
            let chipsets = of(RolloutAnswer::Go).len() as u64;
            format!(
                "Go: {name} is healthy on {}",
                number::of_them(chipsets, "chipset")
            )
        }
        RolloutAnswer::NotYet | RolloutAnswer::Rare => {
            let waits = of(RolloutAnswer::NotYet);
            match waits.is_empty() {
                true => format!("Not yet: {name} has too few devices on each chipset"),
                false => format!("Not yet: {name} is not proven on {}", waits.join(", ")),
            }
        }
    }
}

/// Returns the version's share of devices in each of the app's roll-out groups; `None` if the app labels none of its
/// devices.
pub(crate) fn groups(found: &Rollout) -> Option<String> {
    let groups = found.groups.as_ref()?;
    let each = groups.iter().map(|of| {
        format!(
            "{} {}: {} of {}",
            visible(&of.label),
            visible(&of.value),
            number::count(of.devices),
            number::of_them(of.of, "device")
        )
    });
    let each: Vec<String> = each.collect();
    (!each.is_empty()).then(|| format!("Roll-out groups that have it: {}.", each.join("; ")))
}

/// Returns the word for an answer.
pub(crate) fn word(answer: RolloutAnswer) -> &'static str {
    match answer {
        RolloutAnswer::Stop => "stop",
        RolloutAnswer::NotYet => "not yet",
        RolloutAnswer::Go => "go",
        RolloutAnswer::Rare => "too rare",
    }
}
