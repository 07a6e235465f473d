//! Earlier latency of this device: a baseline per model, requested EPs and input shape.
//!
//! Kept on the device and sent with every series; the detector divides by it. The rules:
//!
//! - Only clean warm runs count: phase warm, thermal none, light or unknown, power save off or unknown. A device
//!   without these sensors is still its own reference. Runs of the overflow shape, and of sessions that a directive
//!   changed, do not.
//! - A version is *settled* after 20 clean runs ([`policy::SETTLED_RUNS`]). After 10,000 runs it takes no more, so that
//!   a later fault does not become the baseline.
//! - When another version begins, the current one becomes the baseline *previous version*. Its present state is used if
//!   it is settled, otherwise its state on its earlier runtime. If neither is settled, it is forgotten, and the version
//!   before it stays the baseline.
//! - When firmware, ORT or EP change under the same version, the current one becomes the baseline *earlier runtime*
//!   if it is settled. Otherwise it is forgotten.
//! - A baseline never changes again, even if its version runs again (side by side, or after a roll-back). The version
//!   that began last is the current one.
//! - Versions are ordered by their beginning on this device, not by name or clock. A downgrade is another version,
//!   and a clock that jumps changes nothing.
//! - 64 models and shapes are kept ([`policy::MAX_BASELINES`]). Beyond this number, the entry updated longest ago is
//!   evicted. Its age is counted in updates, not in wall time.
//! - Processes of an app share the file, a [`message_file`]. Each adds its updates under the folder's lock, and reads
//!   the other processes' updates at start.
//! - Everything is reset with the installation, or if the file is unreadable or invalid. After any loss the reason
//!   for a missing baseline is `lost`, because "no earlier version" would no longer be certain.

use std::sync::Arc;

use epwatch_proto::{
    BaselineAbsence, BaselineKind, Baselines, SelfBaseline, SparseHistogram, Stratum,
};
use prost::Message;

use crate::{
    folder::message_file::{self, Magic},
    moments::Moments,
    policy,
    recorder::interner,
};

const MAGIC: &Magic = b"epwbas1\n";

/// Identity of a baseline.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct BaselineKey {
    #[prost(string, tag = "1")]
    pub(crate) model: String,
    /// Part of the key, so that a CPU session of a model is not a reference for its NPU session.
    #[prost(string, repeated, tag = "2")]
    pub(crate) requested_eps: Vec<String>,
    #[prost(string, tag = "3")]
    pub(crate) shape: String,
}

/// Software that the latency was measured on.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct BaselineSoftware {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    #[prost(string, tag = "2")]
    pub(crate) firmware: String,
    #[prost(string, tag = "3")]
    pub(crate) ort: String,
    #[prost(string, tag = "4")]
    pub(crate) ep: String,
}

impl BaselineSoftware {
    /// Whether a collector accepts these texts. It would refuse a report with other texts.
    fn is_valid(&self) -> bool {
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

/// Clean runs of one interval.
#[derive(Debug, Clone)]
pub(crate) struct BaselineUpdate {
    pub(crate) key: BaselineKey,
    pub(crate) on: BaselineSoftware,
    pub(crate) histogram: SparseHistogram,
    pub(crate) moments: Moments,
}

/// The version that runs now.
#[derive(Clone, PartialEq, Message)]
struct CurrentVersion {
    #[prost(message, required, tag = "1")]
    on: BaselineSoftware,
    /// Below 2^16.
    #[prost(uint32, repeated, tag = "2")]
    indices: Vec<u32>,
    #[prost(uint64, repeated, tag = "3")]
    counts: Vec<u64>,
    #[prost(uint64, tag = "4")]
    n: u64,
    #[prost(double, tag = "5")]
    sum_us: f64,
    #[prost(double, tag = "6")]
    m2_us2: f64,
}

/// Summary of an earlier version that was settled.
#[derive(Clone, PartialEq, Message)]
struct SettledVersion {
    #[prost(message, required, tag = "1")]
    on: BaselineSoftware,
    #[prost(uint64, tag = "2")]
    n: u64,
    #[prost(double, tag = "3")]
    p10_us: f64,
    #[prost(double, tag = "4")]
    p50_us: f64,
    #[prost(double, tag = "5")]
    p95_us: f64,
    #[prost(double, tag = "6")]
    cv: f64,
}

#[derive(Clone, PartialEq, Message)]
struct BaselineHistory {
    #[prost(message, required, tag = "1")]
    current: CurrentVersion,
    #[prost(message, optional, tag = "2")]
    previous_version: Option<SettledVersion>,
    #[prost(message, optional, tag = "3")]
    earlier_runtime: Option<SettledVersion>,
    /// Whether another version ran before, settled or not.
    #[prost(bool, tag = "4")]
    had_others: bool,
    /// Number of the update that changed it last.
    #[prost(uint64, tag = "5")]
    learnt_at: u64,
}

/// Content of the file.
#[derive(Clone, PartialEq, Message)]
struct StoredBaselines {
    #[prost(bool, tag = "1")]
    is_lost: bool,
    #[prost(message, repeated, tag = "2")]
    entries: Vec<StoredBaseline>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredBaseline {
    #[prost(message, required, tag = "1")]
    key: BaselineKey,
    #[prost(message, required, tag = "2")]
    history: BaselineHistory,
}

/// All baselines of an installation.
#[derive(Debug, Clone)]
pub(crate) struct BaselineSet {
    /// Entries, each key once. They are so few that a linear search is quick.
    entries: Vec<StoredBaseline>,
    /// Whether any baseline was lost or evicted.
    is_lost: bool,
    settled_runs: u64,
}

/// Baselines of one session, by input shape.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShapeBaselines {
    /// Each shape once.
    by_shape: Vec<(String, Baselines)>,
    otherwise: Option<BaselineAbsence>,
}

impl ShapeBaselines {
    pub(crate) fn of_shape(&self, shape: &str) -> Baselines {
        let absent = self.otherwise.unwrap_or(BaselineAbsence::NotKept);
        let known = self.known(shape).cloned();
        known.unwrap_or(Baselines::Absent(absent))
    }

    /// The p95 of the first baseline, which runs are compared with.
    pub(crate) fn first_p95_us(&self, shape: &str) -> Option<f64> {
        self.known(shape)?.known().first().map(|b| b.p95_us)
    }

    fn known(&self, shape: &str) -> Option<&Baselines> {
        let found = self.by_shape.iter().find(|(of, _)| of == shape);
        found.map(|(_, baselines)| baselines)
    }
}

/// Whether runs of this stratum update baselines.
pub(crate) fn is_clean(stratum: &Stratum) -> bool {
    stratum.is_clean() && stratum.shape_key != interner::OTHER
}

impl BaselineSet {
    pub(crate) fn new(settled_runs: u64) -> Self {
        Self {
            entries: Vec::new(),
            is_lost: false,
            settled_runs: settled_runs.max(1),
        }
    }

    /// An empty set after a loss.
    pub(crate) fn lost(settled_runs: u64) -> Self {
        Self {
            is_lost: true,
            ..Self::new(settled_runs)
        }
    }

    /// Reads the file; anything else counts as a loss.
    pub(crate) fn parse(bytes: &[u8], settled_runs: u64) -> Self {
        match message_file::parse::<StoredBaselines>(MAGIC, bytes) {
            Some(stored) if stored.entries.iter().all(|e| e.history.is_valid()) => {
                let mut baselines = Self::new(settled_runs);
                baselines.is_lost = stored.is_lost;
                for entry in stored.entries {
                    // If a file holds a key twice, the later entry counts.
                    baselines.entries.retain(|e| e.key != entry.key);
                    baselines.entries.push(entry);
                }
                baselines.evict_oldest();
                baselines
            }
            _ => Self::lost(settled_runs),
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let stored = StoredBaselines {
            is_lost: self.is_lost,
            entries: self.entries.clone(),
        };
        message_file::to_bytes(MAGIC, &stored)
    }

    /// Adds runs by the rules above.
    pub(crate) fn apply(&mut self, update: &BaselineUpdate) {
        if update.moments.n == 0 {
            return;
        }
        let last = self.entries.iter().map(|e| e.history.learnt_at).max();
        let learnt_at = last.map_or(1, |last| last.saturating_add(1));
        match self.entries.iter_mut().find(|e| e.key == update.key) {
            Some(StoredBaseline { history, .. }) => {
                history.learnt_at = learnt_at;
                history.apply(update, self.settled_runs);
            }
            None => {
                let history = BaselineHistory {
                    current: CurrentVersion::of(update),
                    previous_version: None,
                    earlier_runtime: None,
                    had_others: false,
                    learnt_at,
                };
                let key = update.key.clone();
                self.entries.push(StoredBaseline { key, history });
                self.evict_oldest();
            }
        }
    }

    /// Baselines for a session of this model, request and software.
    pub(crate) fn for_session(
        &self,
        model: &str,
        requested_eps: &[String],
        on: &BaselineSoftware,
    ) -> Arc<ShapeBaselines> {
        let mut by_shape = Vec::new();
        let mut knows_other_version = false;
        for StoredBaseline { key, history } in &self.entries {
            if key.model != model || key.requested_eps != requested_eps {
                continue;
            }
            knows_other_version |= history.current.on.version != on.version;
            by_shape.push((key.shape.clone(), history.baselines(on, self.settled_runs)));
        }
        let otherwise = match (self.is_lost, knows_other_version) {
            (true, _) => BaselineAbsence::Lost,
            (_, true) => BaselineAbsence::NewShape,
            _ => BaselineAbsence::FirstVersion,
        };
        if self.is_lost {
            for (_, baselines) in &mut by_shape {
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

    fn evict_oldest(&mut self) {
        while self.entries.len() > policy::MAX_BASELINES {
            let all = self.entries.iter().enumerate();
            let oldest = all.min_by_key(|(_, e)| e.history.learnt_at);
            let Some((at, _)) = oldest else {
                return;
            };
            self.entries.remove(at);
            self.is_lost = true;
        }
    }
}

impl BaselineHistory {
    fn apply(&mut self, update: &BaselineUpdate, settled_runs: u64) {
        if self.current.on == update.on {
            self.current.add(update);
            return;
        }
        let is_frozen = |s: &Option<SettledVersion>| s.as_ref().is_some_and(|s| s.on == update.on);
        let previous = self.previous_version.as_ref();
        let is_old_version = previous.is_some_and(|p| p.on.version == update.on.version);
        if is_old_version || is_frozen(&self.earlier_runtime) {
            return;
        }
        let ended = std::mem::replace(&mut self.current, CurrentVersion::of(update));
        let is_settled = ended.n >= settled_runs;
        if update.on.is_other_runtime_of(&ended.on) {
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

    /// Baselines for the version `on`, which may begin only now or may have ended.
    fn baselines(&self, on: &BaselineSoftware, settled_runs: u64) -> Baselines {
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

    /// Whether the content is valid, because a file may hold anything.
    fn is_valid(&self) -> bool {
        let c = &self.current;
        let settled = [&self.previous_version, &self.earlier_runtime];
        c.parsed().is_some_and(|h| h.total() == c.n)
            && c.on.is_valid()
            && c.sum_us.is_finite()
            && c.m2_us2.is_finite()
            && settled.into_iter().flatten().all(SettledVersion::is_valid)
    }
}

impl CurrentVersion {
    fn of(update: &BaselineUpdate) -> Self {
        let mut current = Self {
            on: update.on.clone(),
            indices: Vec::new(),
            counts: Vec::new(),
            n: 0,
            sum_us: 0.0,
            m2_us2: 0.0,
        };
        current.add(update);
        current
    }

    /// `None` if the file holds values that no histogram can have.
    fn parsed(&self) -> Option<SparseHistogram> {
        let indices = self.indices.iter().map(|index| u16::try_from(*index).ok());
        SparseHistogram::from_parts(indices.collect::<Option<_>>()?, self.counts.clone()).ok()
    }

    fn histogram(&self) -> SparseHistogram {
        self.parsed().unwrap_or_default()
    }

    fn add(&mut self, update: &BaselineUpdate) {
        if self.n >= policy::MAX_BASELINE_RUNS {
            return;
        }
        let mut histogram = self.histogram();
        histogram.merge(&update.histogram);
        let mut moments = Moments::from_parts(self.n, self.sum_us, self.m2_us2);
        moments.merge(&update.moments);
        self.indices = histogram.indices().iter().copied().map(u32::from).collect();
        self.counts = histogram.counts().to_vec();
        self.n = histogram.total();
        self.sum_us = moments.sum;
        self.m2_us2 = moments.m2;
    }

    /// `None` if a quantile is not above zero, because ratios to it would be undefined.
    fn settle(self) -> Option<SettledVersion> {
        let histogram = self.histogram();
        let quantile = |q| histogram.quantile_us(q);
        let settled = SettledVersion {
            n: self.n,
            p10_us: quantile(0.10)?,
            p50_us: quantile(0.50)?,
            p95_us: quantile(0.95)?,
            cv: Moments::from_parts(self.n, self.sum_us, self.m2_us2).coefficient_of_variation(),
            on: self.on,
        };
        settled.is_valid().then_some(settled)
    }
}

impl SettledVersion {
    fn is_valid(&self) -> bool {
        self.p10_us > 0.0
            && self.p10_us <= self.p50_us
            && self.p50_us <= self.p95_us
            && self.p95_us.is_finite()
            && self.cv.is_finite()
            && self.cv >= 0.0
            && self.n > 0
            && self.on.is_valid()
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
