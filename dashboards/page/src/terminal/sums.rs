//! The loss ledger's sums as a table, for the ledger page and for the fleet page's app.

use std::fmt::Write as _;

use super::table::{head, table};
use crate::read::ledger::LedgerDay;
use crate::text::name::visible;
use crate::text::number;
use crate::text::terms::term;

/// Returns the sums of apps as a table. A line explains missing and conflicting reports, if there are any.
pub(super) fn sums(all: &[LedgerDay]) -> String {
    let mut rows = vec![head(&[
        "APP",
        "ENVIRONMENT",
        "RECORDED",
        "STORED",
        "DROPPED",
        "REFUSED",
        "MISSING",
        "DUPLICATE",
        "CONFLICT",
    ])];
    rows.extend(all.iter().map(|of| {
        let names = [visible(&of.app), visible(&of.environment)];
        let counts = [
            of.recorded,
            of.stored,
            of.dropped,
            of.refused,
            of.missing,
            of.duplicate,
            of.conflict,
        ];
        names.into_iter().chain(counts.map(number::count)).collect()
    }));
    let mut text = table(&rows);
    for (id, is_there) in [
        ("missing", all.iter().any(|of| of.missing != 0)),
        ("conflict", all.iter().any(|of| of.conflict != 0)),
    ] {
        if let Some(term) = term(id).filter(|_| is_there) {
            _ = writeln!(text, "{}: {}", term.word, term.line);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_is_not_zero_is_explained() {
        let mut day = LedgerDay {
            app: "camera".to_owned(),
            environment: "production".to_owned(),
            day: String::new(),
            recorded: 9,
            stored: 9,
            dropped: 0,
            refused: 0,
            missing: 0,
            duplicate: 3,
            conflict: 0,
        };
        let lines = |day: &LedgerDay| sums(std::slice::from_ref(day)).lines().count();
        assert_eq!(lines(&day), 2);
        (day.conflict, day.missing) = (1, 2);
        let text = sums(&[day]);
        let expected = "conflict: two different reports with one key; the first one counts";
        assert!(text.lines().any(|line| line == expected), "{text}");
        assert!(text.contains("\nmissing: recorded on a device"), "{text}");
    }
}
