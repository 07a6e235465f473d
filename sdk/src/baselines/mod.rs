//! What this device was used to: its own earlier latency, per model, request and input shape.
//!
//! Kept on the device, sent with every series: the detector divides. The rules:
//!  - learnt from clean warm runs only: phase warm, thermal none, light or unknown, power save off
//!    or unknown (a device that cannot tell is its own reference all the same); never from the
//!    overflow shape, never from a session that a directive changed;
//!  - a version is *settled* after 20 clean runs ([`policy::SETTLED_RUNS`]), and learns no more
//!    after 10,000: what comes later must not become what the device is used to;
//!  - when another version begins, the current one becomes the baseline *previous version*: as it
//!    is now if that is settled, else as it was on its earlier runtime; if neither is, it is
//!    forgotten and the one before it stays;
//!  - when firmware, ORT or EP change under the same version, the current one becomes the baseline
//!    *earlier runtime* if it is settled, else it is forgotten;
//!  - what has become a baseline learns no more, even if its version runs again (side by side, or
//!    after a roll-back): the version that began last is the current one;
//!  - the order of versions is that in which they began here, whatever their names and the clocks
//!    say: a downgrade is another version, and a clock that jumps changes nothing;
//!  - 64 models and shapes are kept ([`policy::MAX_BASELINES`]); beyond, the one that learnt longest
//!    ago is forgotten, in learning steps, not in wall time;
//!  - processes of an app share the file: each adds its lessons under the folder's lock, and knows
//!    what others learnt when it starts;
//!  - all is reset when the file is unreadable or holds what cannot be, and with the installation.
//!    Where something was lost or forgotten, "no earlier version" would be a claim about a past
//!    that is gone: the reason is `lost` from then on.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use epwatch_proto::{
    BaselineAbsence, BaselineKind, Baselines, SelfBaseline, SparseHistogram, Stratum,
};
use serde::{Deserialize, Serialize};

use crate::{moments::Moments, policy, recorder::interner};

/// What a baseline belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct BaselineKey {
    pub(crate) model: String,
    /// EPs asked for, so that a CPU session of a model is no reference for its NPU session.
    pub(crate) requested_eps: Vec<String>,
    pub(crate) shape: String,
}

/// What latency was learnt on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LearntOn {
    pub(crate) version: String,
    pub(crate) firmware: String,
    pub(crate) ort: String,
    pub(crate) ep: String,
}

impl LearntOn {
    /// Whether a collector would take it: a report with it must not be refused.
    fn is_possible(&self) -> bool {
        let is_text = |text: &str, max| text.len() <= max && !text.chars().any(char::is_control);
        !self.version.is_empty()
            && is_text(&self.version, 64)
            && [&self.firmware, &self.ort, &self.ep]
                .iter()
                .all(|text| is_text(text, 32))
    }

    fn is_other_runtime_of(&self, other: &Self) -> bool {
        self.version == other.version && self != other
    }
}

/// Clean runs of one interval: what a process adds to the book.
#[derive(Debug, Clone)]
pub(crate) struct Lesson {
    pub(crate) key: BaselineKey,
    pub(crate) on: LearntOn,
    pub(crate) histogram: SparseHistogram,
    pub(crate) moments: Moments,
}

/// The version that is learnt now.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Current {
    on: LearntOn,
    indices: Vec<u16>,
    counts: Vec<u64>,
    n: u64,
    sum_us: f64,
    m2_us2: f64,
}

/// A settled one.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Settled {
    on: LearntOn,
    n: u64,
    p10_us: f64,
    p50_us: f64,
    p95_us: f64,
    cv: f64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    current: Current,
    previous_version: Option<Settled>,
    earlier_runtime: Option<Settled>,
    /// Whether another version ran here before, settled or not.
    had_others: bool,
    /// The book's step at which it learnt last.
    learnt_at: u64,
}

/// What the file holds.
#[derive(Serialize, Deserialize)]
struct Written<E> {
    is_lost: bool,
    entries: E,
}

/// All baselines of an installation.
#[derive(Debug, Clone)]
pub(crate) struct BaselineBook {
    entries: BTreeMap<BaselineKey, Entry>,
    /// Whether something that was learnt is gone.
    is_lost: bool,
    settled_runs: u64,
}

/// The baselines of one session, by input shape.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShapeBaselines {
    by_shape: HashMap<String, Baselines>,
    otherwise: Option<BaselineAbsence>,
}

impl ShapeBaselines {
    pub(crate) fn of_shape(&self, shape: &str) -> Baselines {
        let absent = self.otherwise.unwrap_or(BaselineAbsence::NotKept);
        let known = self.by_shape.get(shape).cloned();
        known.unwrap_or(Baselines::Absent(absent))
    }

    /// p95 that exceeding runs are counted against.
    pub(crate) fn first_p95_us(&self, shape: &str) -> Option<f64> {
        let baselines = self.by_shape.get(shape)?;
        baselines.known().first().map(|b| b.p95_us)
    }
}

/// Whether runs of this stratum teach what the device is used to.
pub(crate) fn is_clean(stratum: &Stratum) -> bool {
    stratum.is_clean() && stratum.shape_key != interner::OTHER
}

impl BaselineBook {
    pub(crate) fn new(settled_runs: u64) -> Self {
        Self {
            entries: BTreeMap::new(),
            is_lost: false,
            settled_runs: settled_runs.max(1),
        }
    }

    /// An empty book whose absences say that something was learnt once.
    pub(crate) fn lost(settled_runs: u64) -> Self {
        Self {
            is_lost: true,
            ..Self::new(settled_runs)
        }
    }

    /// The book of a file. What is no book is lost, and said to be.
    pub(crate) fn from_json(json: &[u8], settled_runs: u64) -> Self {
        match serde_json::from_slice::<Written<Vec<(BaselineKey, Entry)>>>(json) {
            Ok(written) if written.entries.iter().all(|(_, e)| e.is_possible()) => {
                let mut book = Self::new(settled_runs);
                book.is_lost = written.is_lost;
                book.entries = written.entries.into_iter().collect();
                book.forget_oldest();
                book
            }
            _ => Self::lost(settled_runs),
        }
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let written = Written {
            is_lost: self.is_lost,
            entries: self.entries.iter().collect::<Vec<_>>(),
        };
        serde_json::to_vec(&written).unwrap_or_default()
    }

    /// Learns; rules in the module's doc.
    pub(crate) fn absorb(&mut self, lesson: &Lesson) {
        if lesson.moments.n == 0 {
            return;
        }
        let last = self.entries.values().map(|e| e.learnt_at).max();
        let learnt_at = last.map_or(1, |last| last.saturating_add(1));
        match self.entries.get_mut(&lesson.key) {
            Some(entry) => {
                entry.learnt_at = learnt_at;
                entry.absorb(lesson, self.settled_runs);
            }
            None => {
                let entry = Entry {
                    current: Current::of(lesson),
                    previous_version: None,
                    earlier_runtime: None,
                    had_others: false,
                    learnt_at,
                };
                self.entries.insert(lesson.key.clone(), entry);
                self.forget_oldest();
            }
        }
    }

    /// What a session of this model, request and version is compared with.
    pub(crate) fn of_session(
        &self,
        model: &str,
        requested_eps: &[String],
        on: &LearntOn,
    ) -> Arc<ShapeBaselines> {
        let mut by_shape = HashMap::new();
        let mut knows_other_version = false;
        for (key, entry) in &self.entries {
            if key.model != model || key.requested_eps != requested_eps {
                continue;
            }
            knows_other_version |= entry.current.on.version != on.version;
            by_shape.insert(key.shape.clone(), entry.baselines(on, self.settled_runs));
        }
        let otherwise = match (self.is_lost, knows_other_version) {
            (true, _) => BaselineAbsence::Lost,
            (_, true) => BaselineAbsence::NewShape,
            _ => BaselineAbsence::FirstVersion,
        };
        if self.is_lost {
            for baselines in by_shape.values_mut() {
                if baselines.absence() == Some(BaselineAbsence::FirstVersion) {
                    *baselines = Baselines::Absent(BaselineAbsence::Lost);
                }
            }
        }
        Arc::new(ShapeBaselines {
            by_shape,
            otherwise: Some(otherwise),
        })
    }

    fn forget_oldest(&mut self) {
        while self.entries.len() > policy::MAX_BASELINES {
            let oldest = self.entries.iter().min_by_key(|(_, e)| e.learnt_at);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else {
                return;
            };
            self.entries.remove(&key);
            self.is_lost = true;
        }
    }
}

impl Entry {
    fn absorb(&mut self, lesson: &Lesson, settled_runs: u64) {
        if self.current.on == lesson.on {
            self.current.add(lesson);
            return;
        }
        let is_frozen = |s: &Option<Settled>| s.as_ref().is_some_and(|s| s.on == lesson.on);
        let previous = self.previous_version.as_ref();
        let is_old_version = previous.is_some_and(|p| p.on.version == lesson.on.version);
        if is_old_version || is_frozen(&self.earlier_runtime) {
            return;
        }
        let ended = std::mem::replace(&mut self.current, Current::of(lesson));
        let is_settled = ended.n >= settled_runs;
        if lesson.on.is_other_runtime_of(&ended.on) {
            if is_settled {
                self.earlier_runtime = ended.settle();
            }
            return;
        }
        self.had_others = true;
        let settled = if is_settled { ended.settle() } else { None };
        let settled = settled.or(self.earlier_runtime.take());
        if settled.is_some() {
            self.previous_version = settled;
        }
    }

    /// What `on` is compared with; it may begin only now, or have ended.
    fn baselines(&self, on: &LearntOn, settled_runs: u64) -> Baselines {
        let current_as_baseline = || {
            let current = self.current.clone();
            (current.n >= settled_runs).then(|| current.settle())?
        };
        let (previous, earlier) = if self.current.on == *on {
            (self.previous_version.clone(), self.earlier_runtime.clone())
        } else if self.current.on.version == on.version {
            (self.previous_version.clone(), current_as_baseline())
        } else {
            let previous = current_as_baseline()
                .or_else(|| self.earlier_runtime.clone())
                .or_else(|| self.previous_version.clone());
            (previous, None)
        };
        let previous = previous.filter(|p| p.on.version != on.version);
        let known: Vec<_> = [
            previous.map(|p| p.into_baseline(BaselineKind::PreviousVersion)),
            earlier.map(|e| e.into_baseline(BaselineKind::EarlierRuntime)),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !known.is_empty() {
            return Baselines::Known(known);
        }
        let has_other = self.had_others || self.current.on.version != on.version;
        Baselines::Absent(match has_other {
            true => BaselineAbsence::TooFewRuns,
            false => BaselineAbsence::FirstVersion,
        })
    }

    /// A file may hold anything.
    fn is_possible(&self) -> bool {
        let c = &self.current;
        let sparse = SparseHistogram::from_parts(c.indices.clone(), c.counts.clone());
        let settled = [&self.previous_version, &self.earlier_runtime];
        sparse.is_ok_and(|h| h.total() == c.n)
            && c.on.is_possible()
            && c.sum_us.is_finite()
            && c.m2_us2.is_finite()
            && settled.into_iter().flatten().all(Settled::is_possible)
    }
}

impl Current {
    fn of(lesson: &Lesson) -> Self {
        let mut current = Self {
            on: lesson.on.clone(),
            indices: Vec::new(),
            counts: Vec::new(),
            n: 0,
            sum_us: 0.0,
            m2_us2: 0.0,
        };
        current.add(lesson);
        current
    }

    fn histogram(&self) -> SparseHistogram {
        SparseHistogram::from_parts(self.indices.clone(), self.counts.clone()).unwrap_or_default()
    }

    fn add(&mut self, lesson: &Lesson) {
        if self.n >= policy::MAX_BASELINE_RUNS {
            return;
        }
        let mut histogram = self.histogram();
        histogram.merge(&lesson.histogram);
        let mut moments = Moments::from_parts(self.n, self.sum_us, self.m2_us2);
        moments.merge(&lesson.moments);
        self.indices = histogram.indices().to_vec();
        self.counts = histogram.counts().to_vec();
        self.n = histogram.total();
        self.sum_us = moments.sum;
        self.m2_us2 = moments.m2;
    }

    /// `None` where the quantiles are not above zero: no ratio could be taken.
    fn settle(self) -> Option<Settled> {
        let histogram = self.histogram();
        let quantile = |q| histogram.quantile_us(q);
        let settled = Settled {
            n: self.n,
            p10_us: quantile(0.10)?,
            p50_us: quantile(0.50)?,
            p95_us: quantile(0.95)?,
            cv: Moments::from_parts(self.n, self.sum_us, self.m2_us2).coefficient_of_variation(),
            on: self.on,
        };
        settled.is_possible().then_some(settled)
    }
}

impl Settled {
    fn is_possible(&self) -> bool {
        self.p10_us > 0.0
            && self.p10_us <= self.p50_us
            && self.p50_us <= self.p95_us
            && self.p95_us.is_finite()
            && self.cv.is_finite()
            && self.cv >= 0.0
            && self.n > 0
            && self.on.is_possible()
    }

    fn into_baseline(self, kind: BaselineKind) -> SelfBaseline {
        SelfBaseline {
            kind,
            model_version: self.on.version,
            n: self.n,
            p10_us: self.p10_us,
            p50_us: self.p50_us,
            p95_us: self.p95_us,
            cv: self.cv,
            vendor_fingerprint_hash: self.on.firmware,
            ort_version: self.on.ort,
            ep_version: self.on.ep,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
