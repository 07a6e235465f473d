//! The figures as text.

use std::fmt::Write;

use crate::judged::Judged;

/// Upper 95 % bound of a Poisson count, one-sided to either side (Garwood's interval, by
/// Wilson and Hilferty's approximation of the chi-squared quantile).
fn upper_bound(count: u64) -> f64 {
    let df = 2.0 * (count as f64 + 1.0);
    let z = 1.959_964;
    let term = 1.0 - 2.0 / (9.0 * df) + z * (2.0 / (9.0 * df)).sqrt();
    df * term.powi(3) / 2.0
}

pub(crate) fn written(results: &[Judged]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "A false page is an incident of severity page that fires on a cohort without a fault. Bounds are \
         upper 95 % Poisson bounds.\n"
    );
    let _ = writeln!(
        text,
        "| healthy fleets | cohort windows | false pages | per 10,000 | 95 % bound | tickets |\n|---|---|---|---|---|---|"
    );
    let (mut rates, mut stories) = (0.0, 0.0);
    for result in results.iter().filter(|result| result.is_benign) {
        let bound =
            upper_bound(result.false_pages) * 10_000.0 / result.healthy_windows.max(1) as f64;
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.1} | {:.1} | {} |",
            result.name,
            result.healthy_windows,
            result.false_pages,
            result.per_10_000(),
            bound,
            result.tickets
        );
        rates += result.per_10_000();
        stories += 1.0;
    }
    let _ = writeln!(
        text,
        "\nConfounders weighted equally: {:.1} per 10,000.\n",
        rates / f64::max(stories, 1.0)
    );
    let _ = writeln!(
        text,
        "| fault | page-worthy | paged | recall | in the first window | verdicts of the pages |\n|---|---|---|---|---|---|"
    );
    for result in results.iter().filter(|result| !result.is_benign) {
        let classes: Vec<String> = result
            .classes
            .iter()
            .map(|(class, n)| format!("{n} {class}"))
            .collect();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.3} | {} | {} |",
            result.name,
            result.faults,
            result.paged,
            result.recall(),
            result.in_first_window,
            classes.join(", ")
        );
    }
    text
}
