//! Pages of operators as text: the loss ledger, health, and the orders of people.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::fleet::facts;
use super::sums::sums;
use super::table::{head, table};
use crate::html::{Frame, health_facts};
use crate::read::health::HealthPage;
use crate::read::ledger::{LargestRow, LedgerDay, LedgerPage};
use crate::read::orders::OrdersPage;
use crate::read::progress::Progress;
use crate::text::name::{visible, visible_sentence};
use crate::text::number;
use crate::text::time::ago;
use crate::text::words;

/// Returns the sums by app and environment, and the answers of collectors.
pub(super) fn ledger(page: &LedgerPage) -> String {
    let days = number::of_them(u64::from(page.query.days), "day");
    let Some(total) = page.total() else {
        return format!("No report of {days}: a collector reads the ledger every minute.\n");
    };
    let closes = match page.by_app().iter().all(LedgerDay::closes) {
        true => "the sum closes",
        false => "the sum does not close",
    };
    let mut text = format!(
        "{} of {} reports of {days} are stored; {closes}\n\n",
        number::count(total.stored),
        number::count(total.recorded)
    );
    text.push_str(&sums(&page.by_app()));
    text.push_str(&largest(&page.largest));
    text.push_str(&answers(
        page.answers.iter().map(|of| (&*of.outcome, of.reports)),
    ));
    if let Some(installations) = &page.installations {
        _ = writeln!(
            text,
            "\ntoday {} report, {} of them without a vote",
            number::of_them(installations.installations, "installation"),
            number::count(installations.unproven)
        );
    }
    if let Some(deletions) = &page.deletions {
        _ = writeln!(
            text,
            "deletions: {} asked for, {} erased",
            number::count(deletions.requested),
            number::count(deletions.erased)
        );
    }
    text
}

/// Returns the installations with the largest part of each figure. `epwatch devices` accepts their ids.
fn largest(rows: &[LargestRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut lines = vec![head(&[
        "DAY",
        "APP",
        "FIGURE",
        "REPORTS",
        "MOST FROM",
        "OF IT",
    ])];
    lines.extend(rows.iter().map(|row| {
        vec![
            row.day.clone(),
            format!("{} {}", visible(&row.app), visible(&row.environment)),
            visible(&row.entry),
            number::count(row.reports),
            row.installation.clone(),
            number::count(row.of_installation),
        ]
    }));
    format!("\n{}", table(&lines))
}

/// Returns the answers of collectors other than a plain ack.
fn answers<'a>(answers: impl Iterator<Item = (&'a str, u64)>) -> String {
    let mut rows = vec![head(&["ANSWER", "TIMES", "THE DEVICE"])];
    rows.extend(answers.map(|(outcome, times)| {
        vec![
            visible(outcome),
            number::count(times),
            words::after_answer(outcome).to_owned(),
        ]
    }));
    match rows.len() {
        1 => String::new(),
        _ => format!("\n{}", table(&rows)),
    }
}

/// Returns a line for each part, and the verdicts of the last window.
pub(super) fn health(page: &HealthPage, progress: Progress, now: Timestamp) -> String {
    let mut frame = Frame::new(now, None);
    frame.progress = Some(progress);
    let (headline, parts) = health_facts(&frame, page);
    let mut text = format!("{headline}\n\n{}", facts(&parts));
    if !page.verdicts.is_empty() {
        let mut rows = vec![head(&["VERDICT", "COHORTS", "DEVICES"])];
        rows.extend(page.verdicts.iter().map(|of| {
            vec![
                words::verdict(&of.verdict).into_owned(),
                number::count(of.cohorts),
                number::count(of.devices),
            ]
        }));
        _ = write!(text, "\n{}", table(&rows));
    }
    text.push_str(&answers(
        page.outcomes.iter().map(|of| (&*of.outcome, of.reports)),
    ));
    text
}

/// Returns the audit trail.
pub(super) fn orders(page: &OrdersPage, now: Timestamp) -> String {
    if page.orders.is_empty() {
        return "No order was given; `epwatch incident ack ID` gives one.\n".to_owned();
    }
    let mut rows = vec![head(&[
        "ORDERED", "ORDER", "MODEL", "VERSION", "WHO", "WHY", "INCIDENT",
    ])];
    rows.extend(page.orders.iter().map(|of| {
        let until = of.until;
        let until = until.map_or_else(String::new, |at| format!(" until {at:.0}"));
        let second = if of.is_counted { "" } else { ", came second" };
        vec![
            of.ordered_at.map_or_else(String::new, |at| ago(at, now)),
            format!("{}{until}{second}", visible(&of.kind)),
            visible(&of.model),
            visible(&of.version),
            visible(&of.who),
            visible_sentence(&of.why),
            visible(&of.incident),
        ]
    }));
    table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installation_that_brings_most_of_a_figure_is_named() {
        let row = LargestRow {
            app: "com.example.camera".to_owned(),
            environment: "production".to_owned(),
            day: "2026-11-27".to_owned(),
            entry: "missing".to_owned(),
            installation: "0123456789abcdef0123456789abcdef".to_owned(),
            of_installation: 1_990,
            reports: 2_000,
        };
        let text = largest(std::slice::from_ref(&row));
        for part in [&*row.day, &row.app, "missing", &row.installation] {
            assert!(text.contains(part), "{part}: {text}");
        }
        for n in [row.reports, row.of_installation] {
            assert!(text.contains(&number::count(n)), "{n}: {text}");
        }
        assert_eq!(largest(&[]), "");
    }
}
