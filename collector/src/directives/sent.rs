//! Counts the devices to which this process sent each directive. `keep_fresh` writes the totals to
//! `directive_deliveries`; the rows have no ids of installations.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use clickhouse::Row;
use parking_lot::Mutex;
use serde::Serialize;

use super::matching::InstallationBytes;
use crate::store::{Sink, SinkError};

/// Number of pairs of directive and installation that are remembered, which take some 4 MB. A full set is emptied, and
/// a device that does not keep a directive counts again.
const MAX_KNOWN: usize = 1 << 18;

#[derive(Debug, Default)]
pub(super) struct SentCounts {
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    hasher: RandomState,
    known: HashSet<u64>,
    by_directive: HashMap<String, Total>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Total {
    devices: u64,
    written: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Row, Serialize)]
struct DeliveryRow<'a> {
    directive_id: &'a str,
    collector_id: u64,
    started_at: i64,
    devices: u64,
}

/// The collector process that counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counter {
    pub(super) collector_id: u64,
    pub(super) started_at_ms: i64,
}

impl SentCounts {
    pub(super) fn note<'a>(
        &self,
        installations: &[InstallationBytes],
        ids: impl Iterator<Item = &'a str>,
    ) {
        let mut counts = self.counts.lock();
        for id in ids {
            for installation in installations {
                let print = counts.hasher.hash_one((id, installation));
                if counts.known.len() >= MAX_KNOWN {
                    counts.known.clear();
                }
                if !counts.known.insert(print) {
                    continue;
                }
                match counts.by_directive.get_mut(id) {
                    Some(total) => total.devices += 1,
                    None => {
                        let total = Total {
                            devices: 1,
                            written: 0,
                        };
                        counts.by_directive.insert(id.to_owned(), total);
                    }
                }
            }
        }
    }

    /// Forgets the written totals of directives that are no longer live, so that this map does not outgrow the table of
    /// directives.
    pub(super) fn keep(&self, is_live: impl Fn(&str) -> bool) {
        let mut counts = self.counts.lock();
        counts
            .by_directive
            .retain(|id, total| total.devices > total.written || is_live(id));
    }

    /// Writes the totals that grew. A repeated row replaces the earlier row, so a failed call may be repeated
    /// unchanged.
    pub(super) async fn write(&self, sink: &Sink, counter: Counter) -> Result<(), SinkError> {
        let grown = self.grown();
        let rows: Vec<DeliveryRow<'_>> = grown
            .iter()
            .map(|(id, devices)| DeliveryRow {
                directive_id: id,
                collector_id: counter.collector_id,
                started_at: counter.started_at_ms,
                devices: *devices,
            })
            .collect();
        sink.insert::<DeliveryRow<'static>>("directive_deliveries", &rows, None)
            .await?;
        let mut counts = self.counts.lock();
        for (id, devices) in grown {
            if let Some(total) = counts.by_directive.get_mut(&id) {
                total.written = devices;
            }
        }
        Ok(())
    }

    fn grown(&self) -> Vec<(String, u64)> {
        let counts = self.counts.lock();
        let grown = counts.by_directive.iter();
        grown
            .filter(|(_, total)| total.devices > total.written)
            .map(|(id, total)| (id.clone(), total.devices))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(sent: &SentCounts, expected: &[(&str, u64)]) {
        let mut grown = sent.grown();
        grown.sort();
        let grown: Vec<(&str, u64)> = grown.iter().map(|(id, n)| (id.as_str(), *n)).collect();
        assert_eq!(grown, expected);
    }

    #[test]
    fn a_device_counts_once_for_each_directive() {
        let sent = SentCounts::default();
        let note = |device: u8, ids: &[&str]| sent.note(&[[device; 16]], ids.iter().copied());
        note(1, &["off"]);
        note(1, &["off", "slow"]);
        note(2, &["off"]);
        sent.note(&[], ["off"].into_iter());
        check(&sent, &[("off", 2), ("slow", 1)]);
    }

    #[test]
    fn totals_stay_until_they_are_written_and_the_directive_is_over() {
        let sent = SentCounts::default();
        sent.note(&[[1; 16]], ["off"].into_iter());
        sent.keep(|_| false);
        check(&sent, &[("off", 1)]);
        let set = |written| {
            sent.counts
                .lock()
                .by_directive
                .get_mut("off")
                .unwrap()
                .written = written
        };
        set(1);
        sent.keep(|_| true);
        sent.note(&[[2; 16]], ["off"].into_iter());
        check(&sent, &[("off", 2)]);
        set(2);
        sent.keep(|_| false);
        assert!(sent.counts.lock().by_directive.is_empty());
    }
}
