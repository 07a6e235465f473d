//! The figures as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::figures::{KINDS, bounds, drawn_faults, of_scenario, share_bounds};
use crate::goals::goals;
use crate::golden::{FALSE_FINDING, GoldenFleet, least_cosines_of_rounding};
use crate::jitter_table::jitter_table;
use crate::labelled::{Benign, Circumstance};
use crate::outcome::{FaultOutcome, Healthy, Outcome, Repair};
use crate::scenarios::{
    LASTING_DAYS, NEEDED_DEVICES, NEEDS, REPAIRED_RUNS, circumstance_name, golden_name,
    lasting_name, needed_name, repaired_name, story_name,
};
use crate::stories::Story;
use crate::textbook_rules::RULES;
use epwatch_proto::ROUNDING_COSINE;

/// One fleet's line.
pub(crate) fn line(outcome: &Outcome) -> String {
    let mut all = Healthy::default();
    outcome
        .healthy
        .values()
        .for_each(|healthy| all.add(healthy));
    let worthy = || outcome.faults.iter().filter(|fault| fault.is_page_worthy);
    format!(
        "{:<38} {:>5}..{:<5} healthy windows {:>6} false pages {:>2} tickets {:>3} | worthy {:>3} paged {:>3} | \
         {:>6} reports, drawn in {:.1} s, replayed in {:.1} s",
        outcome.scenario,
        outcome.from,
        outcome.to,
        all.windows,
        all.pages,
        all.tickets,
        worthy().count(),
        worthy().filter(|fault| fault.paged_in.is_some()).count(),
        outcome.reports,
        outcome.seconds_drawing,
        outcome.seconds_replaying,
    )
}

/// Returns the whole report. `arguments` are the program's (first seed, families), and `asked` is the number of fleets
/// that they request. `rules_of` names the commit of the detector.
#[must_use]
pub fn markdown(
    outcomes: &[Outcome],
    arguments: &str,
    asked: usize,
    rules_of: Option<&str>,
) -> String {
    let of_commit = rules_of.map_or(String::new(), |commit| {
        format!("The rules are from commit {commit}. ")
    });
    let mut text = format!(
        "# Detection, measured\n\nWritten by\n\n    just detection {arguments}\n\nfrom simulated fleets through \
         the code of `epwatch replay`: {} of {asked} fleets, {} reports of devices. The arguments are the first \
         seed and the number of families. Thresholds were tuned on seeds below 500000; see `tests/detection`. The \
         same arguments write the same figures. {of_commit}A run that was broken off continues from \
         `target/detection.jsonl`; remove that file after a change of the detector. No field data exists yet.\n\n",
        outcomes.len(),
        outcomes.iter().map(|outcome| outcome.reports).sum::<u64>(),
    );
    let parts = [
        goals(outcomes),
        hardness(outcomes),
        false_pages(outcomes),
        circumstances(outcomes),
        rules_and_cost(outcomes),
        recall(outcomes),
        strengths(outcomes),
        incident(outcomes),
        needed(outcomes),
        rules(outcomes),
        Some(LEFT_OUT.to_owned()),
        repairs(outcomes),
        stories(outcomes),
        jitter_table(outcomes),
        golden(outcomes),
        own_rates(outcomes),
        verdicts(outcomes),
    ];
    for part in parts.into_iter().flatten() {
        text += &part;
        text.push('\n');
    }
    text
}

/// Returns the stories of the field, and how many fleets of each were told correctly.
fn stories(outcomes: &[Outcome]) -> Option<String> {
    let mut text = String::from(
        "## Stories of the field\n\nFleets have one or two chipsets, and 15 or 50 runs a device and day. One story \
         has five devices, the others have 60 to 149 each. A fleet counts as told if all of the story is there, \
         and no other page.\n\n| story | fleets | told | 95 % bounds |\n\
         |---|---|---|---|\n",
    );
    let mut any = false;
    for story in Story::ALL {
        let of_story = of_scenario(outcomes, &story_name(story)).into_iter();
        let found: Vec<_> = of_story.flat_map(|outcome| &outcome.stories).collect();
        if found.is_empty() {
            continue;
        }
        any = true;
        let told = found.iter().filter(|one| one.wrong.is_none()).count() as u64;
        let n = found.len() as u64;
        let (low, high) = share_bounds(told, n);
        let _ = writeln!(
            text,
            "| {} | {n} | {told} | {low:.2} to {high:.2} |",
            story.text()
        );
    }
    any.then_some(text)
}

/// Returns the kinds of golden fleets, and how many fleets of each were recognised.
fn golden(outcomes: &[Outcome]) -> Option<String> {
    let mut text = format!(
        "## Golden outputs\n\nTwo to four chipsets with 12 to 40 devices each run a golden input on a network in 8 bits. It \
         has up to 32 layers with residual connections, or up to 8 without. Each chipset and firmware has one of four rounding modes. A \
         loss or a defect in one layer leaves a cosine of 0.97 or less. The limit of rounding is a cosine of \
         {ROUNDING_COSINE}. Figures are of `just detection FIRST_SEED 300 --only golden`.\n\n\
         | fleet | fleets | told | 95 % bounds |\n|---|---|---|---|\n",
    );
    let (mut of_faults, mut all, mut n_false) = ((0, 0), 0, 0);
    for fleet in GoldenFleet::ALL {
        let of_fleet = of_scenario(outcomes, &golden_name(fleet)).into_iter();
        let found: Vec<_> = of_fleet.flat_map(|outcome| &outcome.stories).collect();
        let wrong = || found.iter().filter_map(|one| one.wrong.as_ref());
        let (n, n_wrong) = (found.len() as u64, wrong().count() as u64);
        if n == 0 {
            continue;
        }
        all += n;
        n_false += wrong().filter(|why| why.starts_with(FALSE_FINDING)).count();
        if fleet != GoldenFleet::RoundingOnly {
            of_faults = (of_faults.0 + n - n_wrong, of_faults.1 + n);
        }
        let (low, high) = share_bounds(n - n_wrong, n);
        let (what, told) = (fleet.text(), n - n_wrong);
        let _ = writeln!(text, "| {what} | {n} | {told} | {low:.2} to {high:.2} |");
    }
    let (told, with_fault) = of_faults;
    let _ = writeln!(
        text,
        "\nOf {with_fault} fleets with a loss, {told} were told apart. Of {all} fleets, {n_false} have a finding where nothing \
         is wrong."
    );
    let cosines = least_cosines_of_rounding(1_000_000, ROUNDING_NETWORKS);
    let at = |share: u64| cosines[(share * ROUNDING_NETWORKS / 1_000) as usize];
    let _ = writeln!(
        text,
        "\nHere is the least cosine of any rounding mode with ONNX's over {ROUNDING_NETWORKS} such networks without a defect. \
         It is {:.4} at the median, {:.4} at one in a hundred, {:.4} at one in a thousand, and {:.4} at the least.",
        at(500),
        at(10),
        at(1),
        at(0)
    );
    (all > 0).then_some(text)
}

/// Number of networks whose rounding is measured.
const ROUNDING_NETWORKS: u64 = 2_000;

/// Scenarios with the usual spread of devices and runs.
fn usual(outcomes: &[Outcome]) -> impl Iterator<Item = &Outcome> {
    outcomes
        .iter()
        .filter(|outcome| !outcome.scenario.starts_with("wild"))
}

fn summed_rules<'a>(
    outcomes: impl Iterator<Item = &'a Outcome>,
    truth: impl Fn(&str) -> bool,
) -> BTreeMap<usize, (u64, u64)> {
    let mut sums: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
    for outcome in outcomes {
        let wanted = outcome.rules.iter().filter(|(name, _)| truth(name));
        for (rule, (asked, fired)) in wanted.flat_map(|(_, rules)| rules) {
            let slot = sums.entry(*rule).or_default();
            slot.0 += asked;
            slot.1 += fired;
        }
    }
    sums
}

fn hardness(outcomes: &[Outcome]) -> Option<String> {
    let plain = summed_rules(usual(outcomes), |truth| truth == "Plain");
    let asked = plain.get(&0)?.0;
    let percent = |rule: usize| {
        let (asked, fired) = plain.get(&rule).copied().unwrap_or_default();
        100.0 * fired as f64 / asked.max(1) as f64
    };
    Some(format!(
        "## How hard the fleets are\n\nThe clean runs of each cohort window are merged. Of {asked} plain healthy \
         windows, {:.1} % have CV > 15 % (45 to 80 % wanted), and {:.1} % Sarle > 0.555 (30 to 60 %). Dip p < 0.01 \
         holds in {:.1} %. Of {} windows on a new version, {:.1} % have KS p < 1e-3 against the previous one (20 \
         to 45 %), and {:.1} % Wasserstein-1 > 0.15.\n",
        percent(0),
        percent(2),
        percent(3),
        plain.get(&4).map_or(0, |(asked, _)| *asked),
        percent(4),
        percent(5),
    ))
}

fn per_10_000(count: f64, of: u64) -> f64 {
    count * 10_000.0 / of.max(1) as f64
}

fn healthy_row(name: &str, healthy: &Healthy, windows: u64) -> String {
    let (low, high) = bounds(healthy.pages);
    format!(
        "| {name} | {windows} | {} | {:.2} | {:.2} to {:.2} | {} |\n",
        healthy.pages,
        per_10_000(healthy.pages as f64, windows),
        per_10_000(low, windows),
        per_10_000(high, windows),
        healthy.tickets
    )
}

const HEALTHY_HEAD: &str = "| healthy fleets | cohort windows | false pages | per 10,000 | 95 % bounds | tickets |\n\
                            |---|---|---|---|---|---|\n";

fn false_pages(outcomes: &[Outcome]) -> Option<String> {
    let mut by_name: BTreeMap<&str, Healthy> = BTreeMap::new();
    for (name, healthy) in usual(outcomes).flat_map(|outcome| &outcome.healthy) {
        by_name.entry(name).or_default().add(healthy);
    }
    let mut text = "## False pages\n\nA false page is an incident of severity page that fires on a cohort without a \
                    fault; each of its cohorts counts. Windows of a confounder count from its first on; plain and \
                    operational ones all count. Bounds are 95 % bounds of a Poisson count.\n\n"
        .to_owned()
        + HEALTHY_HEAD;
    let mut operational = Healthy::default();
    for outcome in of_scenario(outcomes, "operational") {
        outcome
            .healthy
            .values()
            .for_each(|healthy| operational.add(healthy));
    }
    text += &healthy_row(
        "**operational mix**: 78 % plain, the rest confounders",
        &operational,
        operational.windows,
    );
    let (mut rates, mut uppers, mut lowers, mut n) = (0.0, 0.0, 0.0, 0.0);
    let others = Benign::OTHERS.iter().chain(&Benign::CIRCUMSTANCES);
    for benign in Benign::CONFOUNDERS.iter().chain(others) {
        let name = format!("{benign:?}");
        let Some(healthy) = by_name.get(name.as_str()) else {
            continue;
        };
        let is_plain = *benign == Benign::Plain;
        let windows = if is_plain {
            healthy.windows
        } else {
            healthy.windows_after
        };
        text += &healthy_row(&name, healthy, windows);
        if Benign::CONFOUNDERS.contains(benign) {
            let (low, high) = bounds(healthy.pages);
            let rate = per_10_000(healthy.pages as f64, windows);
            rates += rate;
            // Errors of independent rates add in quadrature.
            uppers += (per_10_000(high, windows) - rate).powi(2);
            lowers += (rate - per_10_000(low, windows)).powi(2);
            n += 1.0;
        }
    }
    if let Some(healthy) = by_name.get("beside a fault") {
        text += &healthy_row(
            "other cohorts of apps with a fault",
            healthy,
            healthy.windows,
        );
    }
    let mean = rates / f64::max(n, 1.0);
    let _ = writeln!(
        text,
        "\nThe {n:.0} confounders weighted equally: {mean:.2} per 10,000 ({:.2} to {:.2}).",
        (mean - lowers.sqrt() / f64::max(n, 1.0)).max(0.0),
        mean + uppers.sqrt() / f64::max(n, 1.0),
    );
    Some(text)
}

/// Returns the table of circumstances, the weakest first: by false pages, then by least recall.
fn circumstances(outcomes: &[Outcome]) -> Option<String> {
    let mut rows: Vec<(u64, f64, String)> = Vec::new();
    for circumstance in Circumstance::ALL {
        let of = of_scenario(outcomes, &circumstance_name(circumstance));
        let mut healthy = Healthy::default();
        let counted = of.iter().flat_map(|outcome| outcome.healthy.values());
        counted.for_each(|one| healthy.add(one));
        let faults: Vec<&FaultOutcome> = of.iter().flat_map(|outcome| &outcome.faults).collect();
        if of.is_empty() {
            continue;
        }
        let n = |matches: &dyn Fn(&FaultOutcome) -> bool| {
            faults.iter().filter(|fault| matches(fault)).count()
        };
        let paged = n(&|fault| fault.paged_in.is_some());
        let (_, upper) = bounds(healthy.pages);
        let row = format!(
            "| {} | {} | {} | {:.2} | {} | {} | {paged} | {} | {} |\n",
            circumstance.text(),
            healthy.windows,
            healthy.pages,
            per_10_000(upper, healthy.windows),
            healthy.tickets,
            faults.len(),
            n(&|fault| fault.paged_in <= Some(2) && fault.paged_in.is_some()),
            n(&|fault| fault.paged_in.is_none() && fault.ticketed),
        );
        rows.push((
            healthy.pages,
            paged as f64 / faults.len().max(1) as f64,
            row,
        ));
    }
    if rows.is_empty() {
        return None;
    }
    rows.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.total_cmp(&b.1)));
    let mut text = "## Circumstances of the field\n\nEach has fleets of healthy apps, and of apps whose new \
                    version is 3x slower on all devices of one of two chipsets. Weak spots come first. Faults \
                    count whatever their number of devices; other cohorts of their apps count as healthy. With \
                    nothing before the first day all of the work of such an app is on the CPU, which is a ticket \
                    by design.\n\n\
                    | circumstance | healthy cohort windows | false pages | at most per 10,000 (95 %) | tickets | \
                    faults | paged | by the second window | ticket alone |\n|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    rows.iter().for_each(|(_, _, row)| text += row);
    Some(text)
}

/// Rules that a circumstance of the field brought, each with the fleets that show its cost.
const RULES_OF_THE_FIELD: [(&str, &str); 18] = [
    (
        "Near slow runs: runs beyond 1.4 times a device's earlier p95 (and 1.6 times its median) are slow. Over \
         the cohort, runs from 1.2 times up to that limit must be at most 0.4 of them. The fleet must have its own \
         rates, and the shape must be known. \
         Faults of some runs at 2x to 2.4x had been missed, because twice the p95 is beyond most of their runs.",
        "Contention",
    ),
    (
        "A window with a finding is left out of the history of the signals that it shows in (chance up to 5 %). \
         Other signals keep it. A ticket that stayed had hidden a version that starts nowhere.",
        "Plain",
    ),
    (
        "A first version asks for the NPU and has under 5 % of the work there on 80 % of at least 5 devices. That \
         is total fallback: a ticket, or a page if the config names the model. It had been not enough data.",
        "FewDevices",
    ),
    (
        "Another model or version on the chipset that slowed down too vetoes a page on latency below 3x. Its share \
         must be above chance (1 %), and not surely under half of the cohort's share, both at 1.3x. Controls had \
         looked at the devices hit alone, then at the ratio that decides.",
        "SharedLoad",
    ),
    (
        "Until seven windows have taught a fleet its own rates, a device whose p10 is within its own earlier p95 \
         is not slow. Moved medians alone are a ticket then. Sessions on big and little cores had paged.",
        "TwoSpeeds",
    ),
    (
        "If a quarter of the devices stayed within 1.08x, the whole cohort has not moved, so slow devices are \
         counted from 1.6x. If almost none lie between 1.15x and 1.3x, they are counted from 1.3x, which is a \
         ticket below 1.6x. Half of 20 devices at \
         2x had been healthy.",
        "Governor",
    ),
    (
        "A placement got worse on every device of a cohort of 3 or more devices that were all known before. Each \
         device that has a past is at least 2x slower. That pages once a second window shows it. The past of a \
         device that reports none is read from the store. Fewer than 5 devices had not paged.",
        "FewDevices",
    ),
    (
        "Another model or version on the chipset may have devices as slow, but too few to be sure. If no other \
         control answers, latency below 3x is a ticket then. Two small cohorts under one load had paged.",
        "SharedLoad",
    ),
    (
        "Controls use the window's own runs, 8 of a device or more. Earlier runs that fill up a device's few ones \
         had hidden the load of another model, which most devices run rarely.",
        "SharedLoad",
    ),
    (
        "Latency below 3x is heat if 80 % of the devices hit report no thermal state. That must not be chance \
         among the devices compared (5 %). Heat waves had paged where devices cannot report them.",
        "UnseenHeat",
    ),
    (
        "A ratio below 1.6x decides only if none from 1.6x on is surprising enough by itself. It counts the same devices \
         and a few more, so that half of 200 devices at 2x had been a ticket in the first window.",
        "Governor",
    ),
    (
        "A fallback is intermittent if its sessions go back and forth on a quarter of the devices hit. They must \
         do so on half of the devices with sessions of both kinds, too. 30 % of sessions had read as total fallback.",
        "Plain",
    ),
    (
        "Slow runs or moved medians of unknown shape page if the version's other chipsets surely have less than \
         half of it (5 %). Larger inputs come with the app, to all chipsets. It had stayed a ticket.",
        "SizeShift",
    ),
    (
        "Moved medians alone page without a control where shapes are known, the fleet has its own rates, and its chance is 1e-8 \
         or less. It had stayed a ticket.",
        "SizeShift",
    ),
    (
        "Load that lasts for three windows that share no reports is a ticket. A whole cohort that moved by 1.15x \
         to 1.6x together with the devices' other models is a ticket, too. 2.2x on all models of all firmwares had \
         notified nobody, while 1.5x was a ticket at once.",
        "SharedLoad",
    ),
    (
        "Without another version, model or chipset in the window, latency below 2x is a ticket first, and a page once a second window shows it. A day of load with a roll-out had paged.",
        "Contention",
    ),
    (
        "A device that is as fast as in its own past is not slower than the devices that kept their placement. A \
         count of nodes or MACs that moved with a new runtime at the same speed is data quality. Small \
         groups of faster silicon, and recounts of MACs, had been findings.",
        "ChangedCounting",
    ),
    (
        "A name that may be one more name of the same chipset (`other:` and no vendor's code) is not another \
         chipset that shows the same. Names of one chipset had excused each other.",
        "Plain",
    ),
];

fn rules_and_cost(outcomes: &[Outcome]) -> Option<String> {
    let mut text = "## Rules from the field, and their cost\n\nReplays of other simulators showed that these rules \
                    are needed. Each row has the pages and tickets on the healthy fleets that the rule endangers \
                    most.\n\n| rule and reason | healthy \
                    fleets | cohort windows | false pages | tickets |\n|---|---|---|---|---|\n"
        .to_owned();
    for (rule, fleets) in RULES_OF_THE_FIELD {
        let mut sum = Healthy::default();
        let found = usual(outcomes).filter_map(|outcome| outcome.healthy.get(fleets));
        found.for_each(|healthy| sum.add(healthy));
        let (windows, pages, tickets) = (sum.windows, sum.pages, sum.tickets);
        let _ = writeln!(
            text,
            "| {rule} | {fleets} | {windows} | {pages} | {tickets} |"
        );
    }
    Some(text)
}

fn recall_row<'a>(name: &str, faults: impl Iterator<Item = &'a FaultOutcome>) -> String {
    let worthy: Vec<&FaultOutcome> = faults.filter(|fault| fault.is_page_worthy).collect();
    let paged: Vec<&&FaultOutcome> = worthy.iter().filter(|f| f.paged_in.is_some()).collect();
    let (n, hits) = (worthy.len() as u64, paged.len() as u64);
    let (low, high) = share_bounds(hits, n);
    let within = |windows| paged.iter().filter(|f| f.paged_in <= Some(windows)).count();
    let right = paged.iter().filter(|fault| fault.is_right()).count();
    format!(
        "| {name} | {n} | {hits} | {:.3} | {low:.3} to {high:.3} | {} | {} | {:.1} % |\n",
        hits as f64 / n.max(1) as f64,
        within(1),
        within(2),
        100.0 * right as f64 / hits.max(1) as f64,
    )
}

fn recall(outcomes: &[Outcome]) -> Option<String> {
    drawn_faults(outcomes).next()?;
    let mut text = "## Recall\n\nFaults worth a page: slow factor 2 or more, 10 devices hit in a window, 5 % of the \
                    devices, 5 % of their runs. Windows count from the first in which that holds. The right verdict \
                    is the one that names the fault as far as placements show it.\n\n\
                    | fault | worth a page | paged | recall | 95 % bounds | in the first window | by the second | \
                    right verdict |\n|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for kind in KINDS {
        text += &recall_row(
            kind,
            drawn_faults(outcomes).filter(|fault| fault.kind == kind),
        );
    }
    let strong = |fault: &&FaultOutcome| {
        fault.kind == "intermittent runs"
            && fault.runs_share >= 0.15
            && fault.factor >= 3.0
            && fault.devices >= 20
            && fault.shape_known
    };
    text += &recall_row(
        "intermittent runs, 15 % or more, 3x or more, 20 devices or more, shape known",
        drawn_faults(outcomes).filter(strong),
    );
    text += &recall_row("all", drawn_faults(outcomes));
    for view in ["Full", "NodesOnly", "Missing", "Lying"] {
        let name = format!("all, placements: {view}");
        text += &recall_row(
            &name,
            drawn_faults(outcomes).filter(|fault| fault.view == view),
        );
    }
    Some(text)
}

const FACTORS: [(f64, f64); 5] = [(1.3, 1.6), (1.6, 2.0), (2.0, 3.0), (3.0, 5.0), (5.0, 8.1)];
const SHARES: [(f64, f64); 6] = [
    (0.0, 0.02),
    (0.02, 0.05),
    (0.05, 0.15),
    (0.15, 0.3),
    (0.3, 0.6),
    (0.6, 1.01),
];

/// Returns the table of paged faults among all faults, whether worth a page or not.
fn strengths(outcomes: &[Outcome]) -> Option<String> {
    drawn_faults(outcomes).next()?;
    let mut text = "## Paged, by strength\n\nAll faults that hit 10 devices or more, including faults that are not \
                    worth a page. Cells are the paged faults of all, by slow factor. Rows are shares of the \
                    devices, runs or sessions hit.\n\n\
                    | fault | share | 1.3-1.6x | 1.6-2x | 2-3x | 3-5x | 5-8x |\n|---|---|---|---|---|---|---|\n"
        .to_owned();
    for kind in KINDS {
        for share in SHARES {
            let cells: Vec<String> = FACTORS
                .iter()
                .map(|factor| cell(outcomes, kind, share, *factor))
                .collect();
            if cells.iter().all(|cell| cell == "-") {
                continue;
            }
            let percent = |share: f64| (share * 100.0).min(100.0).round();
            let _ = writeln!(
                text,
                "| {kind} | {}-{} % | {} |",
                percent(share.0),
                percent(share.1),
                cells.join(" | ")
            );
        }
    }
    Some(text)
}

fn cell(outcomes: &[Outcome], kind: &str, share: (f64, f64), factor: (f64, f64)) -> String {
    let within = |value: f64, (low, high): (f64, f64)| value >= low && value < high;
    let faults: Vec<&FaultOutcome> = drawn_faults(outcomes)
        .filter(|fault| fault.kind == kind && within(fault.factor, factor))
        .filter(|fault| within(fault.devices_share.min(fault.runs_share), share))
        .filter(|fault| fault.devices as f64 * fault.devices_share * 0.8 >= 10.0)
        .collect();
    let paged = faults.iter().filter(|fault| fault.paged_in.is_some());
    if faults.is_empty() {
        "-".to_owned()
    } else {
        format!("{}/{}", paged.count(), faults.len())
    }
}

fn incident(outcomes: &[Outcome]) -> Option<String> {
    let of_incident: Vec<&Outcome> = outcomes
        .iter()
        .filter(|outcome| outcome.scenario.starts_with("the incident"))
        .collect();
    let names: std::collections::BTreeSet<&str> = of_incident
        .iter()
        .map(|outcome| outcome.scenario.as_str())
        .collect();
    if names.is_empty() {
        return None;
    }
    let mut text = "## The incident\n\n400 devices on four chipsets get a new version of a model. On one chipset \
                    one activation moves to the CPU, which is 18 % of the FLOPs, and p50 goes from 8.2 to 24 ms. \
                    There are 50 runs a device, and seven earlier windows.\n\n| placements | fleets | paged in \
                    the first window | verdicts | false pages |\n|---|---|---|---|---|\n"
        .to_owned();
    for name in names {
        let of = || {
            of_incident
                .iter()
                .filter(|outcome| outcome.scenario == name)
        };
        let faults: Vec<&FaultOutcome> = of().flat_map(|outcome| &outcome.faults).collect();
        let first = faults
            .iter()
            .filter(|fault| fault.paged_in == Some(1))
            .count();
        let mut classes: BTreeMap<&str, u64> = BTreeMap::new();
        for fault in &faults {
            *classes.entry(fault.class.as_str()).or_default() += 1;
        }
        let classes: Vec<String> = classes
            .iter()
            .map(|(class, n)| format!("{n} {class}"))
            .collect();
        let pages: u64 = of()
            .flat_map(|outcome| outcome.healthy.values())
            .map(|healthy| healthy.pages)
            .sum();
        let _ = writeln!(
            text,
            "| {} | {} | {first} | {} | {pages} |",
            name.trim_start_matches("the incident, "),
            faults.len(),
            classes.join(", ")
        );
    }
    Some(text)
}

fn needed(outcomes: &[Outcome]) -> Option<String> {
    let head: Vec<String> = NEEDED_DEVICES.iter().map(u32::to_string).collect();
    let mut text = format!(
        "## Devices needed\n\n50 runs a device in a window, seven earlier windows, MACs known. Share of fleets with a \
         verdict of severity page in the first window / paged within three windows.\n\n| fault | {} |\n|---{}|\n",
        head.join(" | "),
        "|---".repeat(head.len())
    );
    let mut any = false;
    for (_, name) in NEEDS {
        let cells: Vec<String> = NEEDED_DEVICES
            .iter()
            .map(|devices| {
                let found = of_scenario(outcomes, &needed_name(name, *devices));
                let faults: Vec<&FaultOutcome> = found.iter().flat_map(|o| &o.faults).collect();
                any |= !faults.is_empty();
                let share = |n: usize| n as f64 / faults.len().max(1) as f64;
                format!(
                    "{:.2} / {:.2}",
                    share(faults.iter().filter(|fault| fault.found_first).count()),
                    share(
                        faults
                            .iter()
                            .filter(|fault| fault.paged_in.is_some())
                            .count()
                    )
                )
            })
            .collect();
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    }
    any.then_some(text)
}

fn rules(outcomes: &[Outcome]) -> Option<String> {
    let operational = || {
        outcomes
            .iter()
            .filter(|outcome| outcome.scenario == "operational")
    };
    let healthy = summed_rules(operational(), |_| true);
    healthy.get(&RULES.len())?;
    let mut text = "## Textbook rules beside ours\n\nEach rule judges the merged clean runs of a cohort window. \
                    The first column is alarms per 10,000 healthy windows of the operational mix from the change \
                    on. The others are the share of windows with a fault worth a page in which the rule fires. Our \
                    row counts verdicts of severity page, before confirmation.\n\n\
                    | rule | healthy, per 10,000 | total | some devices | intermittent runs | intermittent sessions | \
                    drift |\n|---|---|---|---|---|---|---|\n"
        .to_owned();
    let faults: Vec<BTreeMap<usize, (u64, u64)>> = KINDS
        .iter()
        .map(|kind| {
            let of_faults = outcomes
                .iter()
                .filter(|outcome| KINDS.contains(&outcome.scenario.as_str()));
            summed_rules(of_faults, |truth| truth == *kind)
        })
        .collect();
    let names = RULES.iter().copied().chain(["**ours**"]);
    for (rule, name) in names.enumerate() {
        let (asked, fired) = healthy.get(&rule).copied().unwrap_or_default();
        let shares: Vec<String> = faults
            .iter()
            .map(|of| of.get(&rule).copied().unwrap_or_default())
            .map(|(asked, fired)| format!("{:.2}", fired as f64 / asked.max(1) as f64))
            .collect();
        let alarms = per_10_000(fired as f64, asked);
        let _ = writeln!(text, "| {name} | {alarms:.1} | {} |", shares.join(" | "));
    }
    Some(text)
}

/// Rules that cost more than they find.
const LEFT_OUT: &str = "\
## Rules that were measured and left out

Over fleets from seed 720000 on, 6 families: 12,541 healthy windows of cohorts, and 163 windows with a fault that nobody is
notified of. Of the operational mix alone there are 9,171 windows more.

- **p95 beyond twice its earlier one on 20 % of the devices, and no control half as high: a ticket.** It adds no ticket on the
  mix, and 3 windows where models share the NPU. It fires in 5 of those 163 windows, because the slow runs are counted already.
- **A deadline of twice the model's median, 30 % late runs or more, and ten times as many as each control: a ticket.** It fires
  in 57 windows of 26 healthy cohorts of the mix. So a deadline raises no severity.
- **Stricter limits for firmwares, because each is one more look.** In 13,827 windows of firmwares of the mix, none has a ticket
  or a page that its chipset lacks. In all fleets 5 of 18,710 healthy ones have one, and 4 of 752 with a fault.
";

fn repairs(outcomes: &[Outcome]) -> Option<String> {
    let mut text = "## Repaired faults\n\n30 devices report each hour, and are judged each hour. The fault is on \
                    all devices, half of them, 30 % of the runs or 40 % of the sessions. It is 2.5x to 6x, with \
                    and without placements, and is repaired on its third day. Only faults that somebody was \
                    notified of count.\n\n| runs a device and day | faults | ended \
                    within 24 h | median hours | longest | came again |\n|---|---|---|---|---|---|\n"
        .to_owned();
    let mut any = false;
    for runs in REPAIRED_RUNS {
        let of = of_scenario(outcomes, &repaired_name(runs));
        let all = of.iter().flat_map(|outcome| &outcome.repairs);
        let fired: Vec<&Repair> = all.filter(|repair| repair.fired).collect();
        let hours = fired.iter().map(|repair| repair.ended_after_h);
        let mut hours: Vec<i64> = hours.map(|after| after.unwrap_or(i64::MAX)).collect();
        hours.sort_unstable();
        let Some(longest) = hours.last() else {
            continue;
        };
        any = true;
        let told = |hours: i64| match hours {
            i64::MAX => "still open".to_owned(),
            hours => hours.to_string(),
        };
        let _ = writeln!(
            text,
            "| {runs} | {} | {} | {} | {} | {} |",
            fired.len(),
            hours.iter().filter(|after| **after <= 24).count(),
            told(hours[hours.len() / 2]),
            told(*longest),
            fired.iter().filter(|repair| repair.came_again).count(),
        );
    }
    for runs in REPAIRED_RUNS {
        let of = of_scenario(outcomes, &lasting_name(runs));
        let all = of.iter().flat_map(|outcome| &outcome.repairs);
        let fired: Vec<&Repair> = all.filter(|repair| repair.fired).collect();
        let ended = fired.iter().filter(|fault| fault.ended_after_h.is_some());
        let (n, ended) = (fired.len(), ended.count());
        let _ = write!(
            text,
            "\nOf {n} such faults that last, with {runs} runs a day, {ended} ended within their {LASTING_DAYS} days.\n"
        );
    }
    any.then_some(text)
}

fn own_rates(outcomes: &[Outcome]) -> Option<String> {
    let mut text = format!(
        "## A fleet's own rates\n\nHealthy fleets of all confounders have twice the usual spread of devices and \
         runs. They are judged with the built-in rates (three earlier windows) and with the fleet's own (14 \
         earlier windows). `epwatch detector calibrate` learns from these 14.\n\n{HEALTHY_HEAD}"
    );
    let mut any = false;
    for name in ["wild, built-in rates", "wild, its own rates"] {
        let mut sum = Healthy::default();
        for outcome in of_scenario(outcomes, name) {
            outcome
                .healthy
                .values()
                .for_each(|healthy| sum.add(healthy));
            any = true;
        }
        text += &healthy_row(name, &sum, sum.windows_after);
    }
    any.then_some(text)
}

fn verdicts(outcomes: &[Outcome]) -> Option<String> {
    let mut sums: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
    for (truth, classes) in usual(outcomes).flat_map(|outcome| &outcome.verdicts) {
        for (class, n) in classes {
            let slot = sums.entry(truth).or_default();
            *slot.entry(class).or_default() += n;
        }
    }
    let classes: std::collections::BTreeSet<&str> = sums
        .values()
        .flat_map(|classes| classes.keys().copied())
        .collect();
    if classes.is_empty() {
        return None;
    }
    let head: Vec<&str> = classes.iter().copied().collect();
    let mut text = format!(
        "## Verdicts\n\nCohort windows from the change on, by truth (faults: worth a page) and by verdict.\n\n| \
         truth | {} |\n|---{}|\n",
        head.join(" | "),
        "|---".repeat(head.len())
    );
    for (truth, of) in &sums {
        let cells: Vec<String> = head
            .iter()
            .map(|class| of.get(class).copied().unwrap_or(0).to_string())
            .collect();
        let _ = writeln!(text, "| {truth} | {} |", cells.join(" | "));
    }
    Some(text)
}
