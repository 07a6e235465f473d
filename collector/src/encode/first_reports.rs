//! The first report of each app, model, version and chipset since the start, for the log. The encoder finds them after
//! names above the limits were replaced, so that a made-up name is not logged.

use std::collections::HashSet;
use std::hash::BuildHasher;

use foldhash::quality::RandomState;

use super::cardinality::OTHER;
use super::stored::Stored;

/// After this many combinations, further first reports are not found.
const MAX_KNOWN: usize = 100_000;

/// Names of a first report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FirstReport {
    pub(crate) app_id: String,
    pub(crate) environment: String,
    pub(crate) model_id: String,
    pub(crate) model_version: String,
    pub(crate) chipset: String,
}

#[derive(Debug, Default)]
pub(super) struct FirstReports {
    hasher: RandomState,
    known: HashSet<u64>,
    /// First reports that were found and not taken yet.
    found: Vec<FirstReport>,
}

impl FirstReports {
    pub(super) fn add(&mut self, stored: &Stored) {
        let report = &stored.report;
        let sessions = report.sessions.iter().map(|session| &session.model);
        let failures = report.start_failures.iter().map(|failure| &failure.model);
        for model in sessions.chain(failures) {
            let names = [
                &stored.app_id,
                &stored.environment,
                &model.id,
                &model.version,
                &stored.chipset,
            ];
            let hash = self.hasher.hash_one(names);
            if self.known.len() >= MAX_KNOWN || !self.known.insert(hash) {
                continue;
            }
            if !names.iter().any(|name| *name == OTHER) {
                let [app_id, environment, model_id, model_version, chipset] =
                    names.map(Clone::clone);
                self.found.push(FirstReport {
                    app_id,
                    environment,
                    model_id,
                    model_version,
                    chipset,
                });
            }
        }
    }

    pub(super) fn take(&mut self) -> Vec<FirstReport> {
        std::mem::take(&mut self.found)
    }
}
