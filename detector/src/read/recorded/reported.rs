//! Self-tests and failed starts as recorded reports hold them, answering as the store's views do.

use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_proto::placement::is_npu_ep;
use epwatch_proto::{SelfTest, StartFailure, hex};

use crate::cohort::ModelKey;
use crate::window::Installation;

use super::super::Span;
use super::super::reported::{StartRow, TestRow};
use super::{Recording, between};

/// Whose device told it, and when.
#[derive(Debug, Clone)]
pub(super) struct Teller {
    pub(super) bucket: i64,
    /// Receive time, stream, sequence: the latest test speaks.
    pub(super) order: (i64, u64, u64),
    pub(super) device: u32,
    pub(super) model_version: Arc<str>,
    pub(super) chipset: Arc<str>,
    pub(super) firmware: Arc<str>,
}

/// A self-test in a report.
#[derive(Debug)]
pub(super) struct TestSeen {
    teller: Teller,
    test: SelfTest,
}

/// A failed start in a report.
#[derive(Debug)]
pub(super) struct StartSeen {
    teller: Teller,
    reason: &'static str,
    count: u64,
}

/// Both, of one model, in the order of their buckets.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) tests: Vec<TestSeen>,
    pub(super) starts: Vec<StartSeen>,
}

impl Told {
    pub(super) fn add_test(&mut self, teller: Teller, test: &SelfTest) {
        let test = test.clone();
        self.tests.push(TestSeen { teller, test });
    }

    pub(super) fn add_start(&mut self, teller: Teller, failure: &StartFailure) {
        self.starts.push(StartSeen {
            teller,
            reason: failure.reason.as_str(),
            count: failure.count,
        });
    }

    pub(super) fn append(&mut self, other: Told) {
        self.tests.extend(other.tests);
        self.starts.extend(other.starts);
    }

    fn starts_between(&self, span: &Span) -> &[StartSeen] {
        let bucket = |seen: &StartSeen| seen.teller.bucket;
        between(&self.starts, bucket, span.start_s(), span.end_s())
    }
}

/// Whether a session that could not be made was to run on an NPU; where it is unknown, it was.
pub(super) fn asked_for_npu(failure: &StartFailure) -> bool {
    let eps = &failure.requested_eps;
    eps.is_empty() || eps.iter().any(|ep| is_npu_ep(ep))
}

impl Recording {
    pub(in super::super) fn reported(&self, span: &Span) -> (Vec<TestRow>, Vec<StartRow>) {
        let (mut tests, mut starts) = (Vec::new(), Vec::new());
        for (model, record) in &self.models {
            tests.extend(self.tests_of(model, &record.told, span));
            starts.extend(self.starts_of(model, &record.told, span));
        }
        (tests, starts)
    }

    fn tests_of(&self, model: &ModelKey, told: &Told, span: &Span) -> Vec<TestRow> {
        type Key<'a> = (&'a str, &'a str, Installation, &'a str);
        let mut latest: BTreeMap<Key<'_>, &TestSeen> = BTreeMap::new();
        let bucket = |seen: &TestSeen| seen.teller.bucket;
        for seen in between(&told.tests, bucket, span.earliest_s(), span.end_s()) {
            let teller = &seen.teller;
            let key = (
                &*teller.model_version,
                &*teller.chipset,
                self.devices[teller.device as usize],
                seen.test.input_id.as_str(),
            );
            let slot = latest.entry(key).or_insert(seen);
            if teller.order > slot.teller.order {
                *slot = seen;
            }
        }
        let rows = latest.into_iter().map(|(key, seen)| {
            let (version, chipset, installation, input_id) = key;
            let test = &seen.test;
            TestRow {
                app_id: model.app_id.clone(),
                environment: model.environment.clone(),
                model_id: model.model_id.clone(),
                model_version: version.to_owned(),
                chipset: chipset.to_owned(),
                installation,
                input_id: input_id.to_owned(),
                told: (
                    seen.teller.firmware.to_string(),
                    hex(test.npu_output_hash.as_slice().as_flattened()),
                    test.tolerance,
                    test.max_abs,
                    test.cosine,
                    test.top1_equal,
                    test.error_code,
                ),
            }
        });
        rows.collect()
    }

    fn starts_of(&self, model: &ModelKey, told: &Told, span: &Span) -> Vec<StartRow> {
        type Key<'a> = (&'a str, &'a str, Installation, &'a str, &'static str);
        let mut counts: BTreeMap<Key<'_>, u64> = BTreeMap::new();
        for seen in told.starts_between(span) {
            let teller = &seen.teller;
            let key = (
                &*teller.model_version,
                &*teller.chipset,
                self.devices[teller.device as usize],
                &*teller.firmware,
                seen.reason,
            );
            let slot = counts.entry(key).or_default();
            *slot = slot.saturating_add(seen.count);
        }
        let rows = counts.into_iter().map(|(key, n)| {
            let (version, chipset, installation, firmware, reason) = key;
            StartRow {
                app_id: model.app_id.clone(),
                environment: model.environment.clone(),
                model_id: model.model_id.clone(),
                model_version: version.to_owned(),
                chipset: chipset.to_owned(),
                installation,
                firmware: firmware.to_owned(),
                reason: reason.to_owned(),
                n,
            }
        });
        rows.collect()
    }
}
