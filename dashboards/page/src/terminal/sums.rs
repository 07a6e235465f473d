//! The loss ledger's sums as a table: of the ledger's own page, and of the app that the fleet's is about.

use super::table::{head, table};
use crate::read::ledger::LedgerDay;
use crate::text::name::visible;
use crate::text::number;

/// Returns the sums of apps as a table.
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
    table(&rows)
}
