//! A vote while its rows are coming: what makes it one, and what its device says of its past.

use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_proto::{ParseError, SparseHistogram as Counted};
use epwatch_stats::{Moments, SparseHistogram};

use crate::interner::{TextId, Texts};
use crate::placement::PlacementMethod;
use crate::read::rows::{At, VoteRow};
use crate::window::{AgainstSelf, BaselineAbsence, Installation, SelfBaseline, SelfBaselineKind};

/// What makes a vote one, by the numbers of its texts: few texts, many votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::read) struct VoteKey {
    pub(super) version: TextId,
    pub(super) chipset: TextId,
    pub(super) installation: Installation,
    pub(super) firmware: TextId,
    pub(super) shape_key: TextId,
    pub(super) method: Method,
    pub(super) fingerprint: u64,
}

impl VoteKey {
    /// The same of another device.
    pub(in crate::read) fn of(self, installation: Installation) -> Self {
        Self {
            installation,
            ..self
        }
    }
}

/// A vote with too few runs, until earlier windows are added.
pub(super) struct Unfinished {
    pub(super) histogram: SparseHistogram,
    pub(super) moments: Moments,
    pub(super) earlier_self: Result<SelfBaseline, BaselineAbsence>,
    /// The window's own runs held against that.
    pub(super) own_against_self: Option<Box<AgainstSelf>>,
}

/// A vote whose rows are still coming.
pub(super) struct Adding {
    pub(super) histogram: Counted,
    /// Of the only series: most devices report once in a window.
    pub(super) moments: Moments,
    /// Of each, where there are several: sums of fractions depend on the order, and blocks come in any.
    pub(super) of_each: Vec<(At, Moments)>,
    pub(super) told: Told,
}

impl Adding {
    /// Adds what another series says, before [`Self::told`] is its.
    pub(super) fn add_moments(&mut self, at: At, moments: Moments) {
        if self.of_each.is_empty() {
            self.of_each.push((self.told.at, self.moments));
        }
        self.of_each.push((at, moments));
    }

    /// Merges the moments in the order of their series; those of one session are in the order of its
    /// report.
    pub(super) fn moments(&mut self) -> Moments {
        if self.of_each.is_empty() {
            return self.moments;
        }
        self.of_each.sort_by_key(|(at, _)| *at);
        let parts = self.of_each.iter();
        parts.fold(Moments::default(), |sum, (_, part)| sum.merged(part))
    }
}

/// What the latest series of a vote says of its device.
pub(super) struct Told {
    pub(super) at: At,
    pub(super) device_model: Arc<str>,
    pub(super) earlier_self: Result<SelfBaseline, BaselineAbsence>,
}

impl Told {
    pub(super) fn of(row: &VoteRow<'_>, texts: &mut Texts) -> Told {
        Told {
            at: row.at,
            device_model: texts.shared(row.device_model),
            earlier_self: earlier_self(row, texts),
        }
    }
}

/// How a placement was read, by the numbers of its texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Method {
    pub(super) graph_kind: TextId,
    pub(super) source: TextId,
    pub(super) algorithm: u32,
}

impl Method {
    /// Returns what its numbers stand for.
    pub(super) fn named(self, texts: &Texts) -> PlacementMethod {
        PlacementMethod {
            graph_kind: texts.get(self.graph_kind).to_string(),
            source: texts.get(self.source).to_string(),
            fingerprint_algorithm: self.algorithm,
        }
    }
}

/// Buckets as a row holds them; in any order, since only the collector's rows are known to be sorted.
pub(super) fn added_up(buckets: Vec<u16>, counts: Vec<u64>) -> Result<Counted, ParseError> {
    if buckets.is_sorted_by(|a, b| a < b) && !counts.contains(&0) {
        return Counted::from_parts(buckets, counts);
    }
    let mut sums: BTreeMap<u16, u64> = BTreeMap::new();
    for (bucket, count) in buckets.into_iter().zip(counts).filter(|(_, n)| *n > 0) {
        let slot = sums.entry(bucket).or_default();
        *slot = slot.saturating_add(count);
    }
    let (buckets, counts) = sums.into_iter().unzip();
    Counted::from_parts(buckets, counts)
}

/// The baseline that says what a change of version did; within a version, of runtime.
fn earlier_self(row: &VoteRow<'_>, texts: &mut Texts) -> Result<SelfBaseline, BaselineAbsence> {
    let (previous_version, n, p10_us, p50_us, p95_us, cv) = &row.previous;
    let of_version = *n > 0 && *previous_version != row.ran.model_version;
    let (kind, n, p10_us, p50_us, p95_us, cv) = if of_version {
        let kind = SelfBaselineKind::PreviousVersion(texts.shared(previous_version));
        (kind, n, p10_us, p50_us, p95_us, cv)
    } else {
        let (n, p10_us, p50_us, p95_us, cv) = &row.earlier;
        let kind = SelfBaselineKind::EarlierRuntime;
        (kind, n, p10_us, p50_us, p95_us, cv)
    };
    if *n == 0 {
        return Err(match row.absence {
            "" | "unspecified" => BaselineAbsence::Unknown,
            told => BaselineAbsence::Told(texts.shared(told)),
        });
    }
    SelfBaseline {
        kind,
        n: *n,
        p10_us: *p10_us,
        p50_us: *p50_us,
        p95_us: *p95_us,
        cv: *cv,
    }
    .checked()
}
