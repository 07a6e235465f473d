//! The part of the report with runs that vary more.

use std::fmt::Write;

use epwatch_model::Severity;

use crate::figures::of_scenario;
use crate::outcome::{JitterOutcome, Outcome};
use crate::scenarios::jitter_name;
use crate::stories::jitter::{Jitter, SHARES, STRENGTHS};

/// Returns the severities that were sent of runs that vary more, by share of the devices and strength.
pub(crate) fn jitter_table(outcomes: &[Outcome]) -> Option<String> {
    let strengths = STRENGTHS.map(|strength| format!("p95 {strength}x"));
    let mut text = format!(
        "## Jitter, by strength\n\nOn some devices of one of two chipsets, runs vary more from a day on. Their median and their \
         placement stay the same. p95 is a multiple of its earlier value. Fleets have 60 to 149 devices a chipset with 50 runs a day, \
         and four days of jitter. Cells are the fleets with no notification / with a ticket / with a page. Figures are of \
         `just detection FIRST_SEED 300 --only jitter`.\n\n| runs | devices | {} |\n|---|---|{}\n",
        strengths.join(" | "),
        "---|".repeat(STRENGTHS.len())
    );
    let mut any = false;
    for jitter in Jitter::ALL {
        let found = of_scenario(outcomes, &jitter_name(jitter)).into_iter();
        let found: Vec<_> = found.flat_map(|outcome| &outcome.jitters).collect();
        any |= !found.is_empty();
        for share in SHARES {
            let cells = STRENGTHS.map(|strength| {
                let sent = |severity: Severity| {
                    let is_of = |one: &&&JitterOutcome| {
                        (one.share, one.strength, one.notified) == (share, strength, severity)
                    };
                    found.iter().filter(is_of).count()
                };
                let [ticket, page] = [Severity::Ticket, Severity::Page].map(sent);
                let none = sent(Severity::None) + sent(Severity::Info);
                format!("{none} / {ticket} / {page}")
            });
            let (runs, percent) = (jitter.text(), 100.0 * share);
            let _ = writeln!(text, "| {runs} | {percent} % | {} |", cells.join(" | "));
        }
    }
    any.then_some(text)
}
