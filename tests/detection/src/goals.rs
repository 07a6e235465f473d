//! The part of the report with the detector's goals, each with the figure that was reached.

use crate::figures::{drawn_faults, of_scenario, share_bounds};
use crate::labelled::Circumstance;
use crate::outcome::{FaultOutcome, Healthy, Outcome, Repair};
use crate::scenarios::{REPAIRED_RUNS, SESSIONS_AMONG_CHIPSETS, circumstance_name, repaired_name};

/// Maximum number of false pages in a number of windows of the operational mix.
const MOST_FALSE_PAGES: (u64, u64) = (3, 100_000);

type Matches<'a> = &'a dyn Fn(&FaultOutcome) -> bool;

/// For devices with 50 runs a day: the goals for the shares of repaired faults that end within a day and that come
/// again.
const ENDED: f64 = 0.9;
const CAME_AGAIN: f64 = 0.01;

/// Returns the table of goals, the ones missed by the largest margin first; `None` without faults.
pub(crate) fn goals(outcomes: &[Outcome]) -> Option<String> {
    drawn_faults(outcomes).next()?;
    let mut lines: Vec<(f64, String)> = Vec::new();
    let met = |is_met: bool| if is_met { 1.0 } else { -1.0 };
    let operational = healthy(outcomes, "operational");
    let (pages, windows) = MOST_FALSE_PAGES;
    let line = format!(
        "| false pages of the operational mix | {pages} in {windows} windows | {} in {} windows | | |",
        operational.pages, operational.windows
    );
    let is_met = operational.pages * windows <= pages * operational.windows;
    lines.push((met(is_met), line));
    let shared = healthy(outcomes, "shared load");
    let apps: u64 = of_scenario(outcomes, "shared load")
        .iter()
        .map(|outcome| outcome.to - outcome.from)
        .sum();
    let line = format!(
        "| false pages where models share the NPU's load | 0 in 40 apps | {} in {apps} apps | | |",
        shared.pages
    );
    lines.push((met(shared.pages == 0), line));
    let is_paged = |fault: &FaultOutcome| fault.paged_in.is_some();
    let is_told = |fault: &FaultOutcome| is_paged(fault) || fault.ticketed;
    let is_quick = |fault: &FaultOutcome| fault.paged_in.is_some_and(|window| window <= 2);
    let shows = |fault: &FaultOutcome| matches!(fault.view.as_str(), "Full" | "NodesOnly");
    let is_of = |fault: &FaultOutcome, kind: &str| fault.kind == kind;
    let worthy = |matches: Matches<'_>| -> Vec<&FaultOutcome> {
        let drawn = drawn_faults(outcomes);
        drawn
            .filter(|fault| fault.is_page_worthy && matches(fault))
            .collect()
    };
    let strong = |fault: &FaultOutcome| {
        is_of(fault, "intermittent runs") && fault.shape_known && fault.devices >= 20
    };
    let small = |outcome: &&Outcome| outcome.scenario.starts_with("total, ");
    let small = outcomes.iter().filter(small).flat_map(|of| &of.faults);
    let mut total = worthy(&|fault| is_of(fault, "total") && shows(fault));
    total.extend(small.filter(|fault| shows(fault) && fault.devices >= 5));
    let first_day = circumstance_name(Circumstance::FirstDay);
    let first_day = of_scenario(outcomes, &first_day);
    let first_day = first_day.iter().flat_map(|of| &of.faults);
    let first_day: Vec<&FaultOutcome> = first_day.filter(|fault| shows(fault)).collect();
    let among = of_scenario(outcomes, SESSIONS_AMONG_CHIPSETS);
    let among = among.iter().flat_map(|of| &of.faults);
    let among: Vec<&FaultOutcome> = among.filter(|fault| fault.is_page_worthy).collect();
    let rows: [(&str, f64, Vec<&FaultOutcome>, Matches<'_>); 9] = [
        (
            "total, 2x or more, 5 devices or more, with placements: paged",
            0.98,
            total,
            &is_paged,
        ),
        (
            "some devices: paged",
            0.98,
            worthy(&|fault| is_of(fault, "some devices")),
            &is_paged,
        ),
        (
            "intermittent runs: paged or a ticket",
            0.92,
            worthy(&|fault| is_of(fault, "intermittent runs")),
            &is_told,
        ),
        (
            "intermittent runs, 3x or more, 20 devices or more, shape known: paged",
            0.9,
            worthy(&|fault| strong(fault) && fault.factor >= 3.0),
            &is_paged,
        ),
        (
            "intermittent runs, 2x to 3x, 20 devices or more, shape known: paged",
            0.7,
            worthy(&|fault| strong(fault) && fault.factor < 3.0),
            &is_paged,
        ),
        (
            "intermittent sessions, on the only chipset: paged",
            0.95,
            worthy(&|fault| is_of(fault, "intermittent sessions")),
            &is_paged,
        ),
        (
            "intermittent sessions, on one of three chipsets: paged",
            0.95,
            among,
            &is_paged,
        ),
        (
            "a first version with all of its work on the CPU, with placements: paged or a ticket",
            1.0,
            first_day,
            &is_told,
        ),
        (
            "paged by the second window, of those paged",
            0.9,
            worthy(&is_paged),
            &is_quick,
        ),
    ];
    for (name, wanted, faults, reached) in rows {
        let n = faults.len() as u64;
        let hits = faults.iter().filter(|fault| reached(fault)).count() as u64;
        lines.push(share_line(name, wanted, hits, n));
    }
    let repairs = of_scenario(outcomes, &repaired_name(REPAIRED_RUNS[0]));
    let repairs = repairs.iter().flat_map(|outcome| &outcome.repairs);
    let repairs: Vec<&Repair> = repairs.filter(|repair| repair.fired).collect();
    let n = repairs.len() as u64;
    let ended = |repair: &&&Repair| repair.ended_after_h.is_some_and(|hours| hours <= 24);
    let hits = repairs.iter().filter(ended).count() as u64;
    let name = "repaired faults, 50 runs a day: ended within a day";
    lines.push(share_line(name, ENDED, hits, n));
    let again = repairs.iter().filter(|repair| repair.came_again).count();
    let reached = again as f64 / n.max(1) as f64;
    let line = format!(
        "| repaired faults, 50 runs a day: came again | {CAME_AGAIN} at most | {reached:.3} | {n} | |"
    );
    lines.push((CAME_AGAIN - reached, line));
    lines.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut text = "## Goals\n\nGoals that are missed by the largest margin come first. They are about faults worth a \
                    page, if nothing else is said.\n\n\
                    | goal | wanted | reached | of | 95 % bounds |\n|---|---|---|---|---|\n"
        .to_owned();
    for (_, line) in lines {
        text += &line;
        text.push('\n');
    }
    let sessions = worthy(&|fault| is_of(fault, "intermittent sessions") && !is_paged(fault));
    let is_blind = |fault: &&&FaultOutcome| !fault.shape_known && !shows(fault);
    let blind = sessions.iter().filter(is_blind).count();
    let missed = sessions.len();
    text += &format!(
        "\nOn the only chipset, {missed} faults of sessions were missed. Of these, {blind} send neither an input \
         shape nor a placement that shows them, so larger inputs would look the same.\n"
    );
    Some(text)
}

fn share_line(name: &str, wanted: f64, hits: u64, n: u64) -> (f64, String) {
    let reached = hits as f64 / n.max(1) as f64;
    let (low, high) = share_bounds(hits, n);
    let line = format!("| {name} | {wanted:.2} | {reached:.3} | {n} | {low:.3} to {high:.3} |");
    (reached - wanted, line)
}

fn healthy(outcomes: &[Outcome], scenario: &str) -> Healthy {
    let mut sum = Healthy::default();
    let of = of_scenario(outcomes, scenario);
    let all = of.iter().flat_map(|outcome| outcome.healthy.values());
    all.for_each(|one| sum.add(one));
    sum
}
