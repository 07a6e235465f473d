//! From runs to series: what happens on the inference path, and what the sealer takes from it.
//!
//! A run costs a key comparison, a histogram increment and some arithmetic: no allocation once its
//! series exists, no I/O, no clock (times are passed in), and no waiting but for the sealer, some
//! hundred turns at most. Series live in a few shards ([`shards`]), each behind a lock that a run
//! only ever *tries*; where all are held the sample is dropped and counted. The sealer swaps what a series recorded for something empty, so
//! it holds a lock for well under a microsecond and later runs need no allocation either.
//!
//! Keys are bounded twice: input shapes and performance modes beyond their cap are `other`, and
//! series beyond [`policy::MAX_SERIES_PER_SESSION`] go into one overflow stratum for each phase.
//! Both are counted. A stratum that a whole interval did not see gives its place back.

pub(crate) mod conditions;
mod distinct;
pub(crate) mod interner;
mod key;
mod sampling;
mod series;
mod shards;
mod snapshot;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

use epwatch_proto::{Phase, SessionAge, SessionUid, Stratum};

use crate::{
    baselines::ShapeBaselines,
    lock::{lock, read, write},
    policy,
    recorder::{
        conditions::{Conditions, CurrentConditions, PackedConditions},
        interner::{NameId, Names},
    },
};
use distinct::DistinctKeys;
use key::{P95s, SeriesKey};
use sampling::Sampling;
use series::{Pace, Recorded, Sample, Series};
use shards::{Shards, Swapped, thread_number};

pub(crate) use snapshot::{Drained, SeriesSnapshot};

/// ORT status codes that run errors are told apart by; larger ones count as the last.
const N_STATUS_CODES: usize = 32;

/// Counts and measures the runs of one session. Shared by those who run and the one who seals.
#[derive(Debug)]
pub struct SessionRecorder {
    /// Changes only when the installation is forgotten.
    uid: AtomicU64,
    created: Duration,
    shards: Shards,
    /// Empty, to be swapped in for one series after the other. Held for the length of a seal, so
    /// that there is one at a time.
    spare: Mutex<Option<Box<Recorded>>>,
    shapes: Names,
    modes: Arc<Names>,
    conditions: Arc<CurrentConditions>,
    baselines: RwLock<Arc<ShapeBaselines>>,
    /// Counts the cold runs only: later ones would share a cache line for nothing.
    runs: AtomicU64,
    contended: AtomicU64,
    overflowed: DistinctKeys,
    errors: [AtomicU64; N_STATUS_CODES],
    is_closed: AtomicBool,
    sampling: Sampling,
}

impl SessionRecorder {
    pub(crate) fn new(
        uid: SessionUid,
        created: Duration,
        modes: Arc<Names>,
        conditions: Arc<CurrentConditions>,
    ) -> Self {
        Self {
            uid: AtomicU64::new(uid.get()),
            created,
            shards: Shards::default(),
            spare: Mutex::default(),
            shapes: Names::new(policy::MAX_SHAPES_PER_SESSION, 128),
            modes,
            conditions,
            baselines: RwLock::default(),
            runs: AtomicU64::new(0),
            contended: AtomicU64::new(0),
            overflowed: DistinctKeys::new(),
            errors: Default::default(),
            is_closed: AtomicBool::new(false),
            sampling: Sampling::all(),
        }
    }

    /// The session's id.
    pub fn uid(&self) -> SessionUid {
        SessionUid::new(self.uid.load(Relaxed)).expect("it was one when it was stored")
    }

    pub(crate) fn rename(&self, uid: SessionUid) {
        self.uid.store(uid.get(), Relaxed);
    }

    /// Records one run under the conditions that the host set for the process.
    ///
    /// `began` is on the clock of [`Now::mono`](crate::Now::mono). `shape_key` is `static` where
    /// the model admits one shape only, otherwise the inputs' shapes, for example
    /// `x:1x3x224x224`; empty: unknown; at most 128 bytes, and 8 different ones a session, more
    /// are `other`.
    ///
    /// Never blocks: it tries some hundred times at most while the sealer swaps, and a run that finds
    /// every shard held is dropped and counted. The first run of a stratum or shape allocates.
    pub fn record(&self, began: Duration, latency: Duration, shape_key: &str) {
        if !self.conditions.is_recording() {
            return;
        }
        let shape = self.shape(shape_key);
        self.keep(began, latency, shape, self.conditions.get());
    }

    /// As [`Self::record`], of a model that admits one shape only.
    pub(crate) fn record_static(&self, began: Duration, latency: Duration) {
        if self.conditions.is_recording() {
            self.keep(began, latency, Some(NameId::STATIC), self.conditions.get());
        }
    }

    /// As [`Self::record`], under conditions of this run's own.
    pub fn record_under(
        &self,
        began: Duration,
        latency: Duration,
        shape_key: &str,
        conditions: &Conditions,
    ) {
        if !self.conditions.is_recording() {
            return;
        }
        let Some(mode) = self.modes.try_id(&conditions.performance_mode) else {
            self.contended.fetch_add(1, Relaxed);
            return;
        };
        let packed = PackedConditions::new(conditions.thermal, conditions.power_save, mode);
        self.keep(began, latency, self.shape(shape_key), packed);
    }

    /// Counts a run that failed with this ORT status code; it has no latency.
    pub fn record_error(&self, ort_status_code: i32) {
        if !self.conditions.is_recording() {
            return;
        }
        let code = usize::try_from(ort_status_code).unwrap_or(N_STATUS_CODES);
        self.errors[code.min(N_STATUS_CODES - 1)].fetch_add(1, Relaxed);
    }

    /// The session is gone: what it recorded is sealed once more, and then forgotten. Nothing may
    /// be recorded after this.
    pub fn close(&self) {
        self.is_closed.store(true, Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Acquire)
    }

    #[inline]
    fn shape(&self, shape_key: &str) -> Option<NameId> {
        let shape = self.shapes.try_id(shape_key)?;
        if shape == NameId::OTHER && shape_key != crate::recorder::interner::OTHER {
            self.overflowed.add_text(shape_key);
        }
        Some(shape)
    }

    #[inline]
    fn keep(
        &self,
        began: Duration,
        latency: Duration,
        shape: Option<NameId>,
        conditions: PackedConditions,
    ) {
        let thread = thread_number();
        let is_cold = self.runs.load(Relaxed) < policy::COLD_RUNS;
        let is_sampled = is_cold || self.sampling.takes();
        let recorded = shape.and_then(|shape| {
            self.shards.with_free(|live| {
                let run = self.next_run();
                let age = age_of(began.saturating_sub(self.created));
                let key = SeriesKey::new(phase_of(run), conditions, shape, age);
                let at = match live.position(key) {
                    Some(at) => at,
                    None => self.begin_series(live, key),
                };
                let series = &mut live.series[at];
                if !is_sampled {
                    series.recorded.passed_over += 1;
                    return;
                }
                series.record(&Sample {
                    latency,
                    run,
                    thread,
                });
            })
        });
        match (recorded, is_sampled) {
            (Some(()), _) => {}
            (None, true) => {
                self.contended.fetch_add(1, Relaxed);
            }
            (None, false) => self.sampling.pass_over(),
        }
    }

    /// Position of a run, as long as that says whether it is cold.
    #[inline]
    fn next_run(&self) -> u64 {
        let seen = self.runs.load(Relaxed);
        if seen >= policy::COLD_RUNS {
            return seen;
        }
        self.runs.fetch_add(1, Relaxed)
    }

    /// The position of a new series, or of the overflow where the session has too many.
    #[cold]
    fn begin_series(&self, live: &mut shards::Live, mut key: SeriesKey) -> usize {
        if live.series.len() >= MAX_PLAIN_SERIES && !key.is_overflow() {
            self.overflowed.add(key.number());
            key = key.overflow();
            if let Some(at) = live.position(key) {
                return at;
            }
        }
        // Without its baseline a series is still one; it only counts nothing beyond it.
        let p95 = match self.baselines.try_read() {
            Ok(baselines) => baselines.first_p95_us(self.shapes.text(key.shape())),
            Err(_) => None,
        };
        live.begin(Series {
            key,
            pace: Pace::default(),
            recorded: Box::new(Recorded::new(p95)),
        })
    }

    /// Records one run in this many from now on, the first runs aside.
    pub(crate) fn sample(&self, one_in: u32) {
        self.sampling.set(one_in);
    }

    /// What this device was used to: from now on, where nothing was recorded yet in this interval.
    pub(crate) fn set_baselines(&self, baselines: Arc<ShapeBaselines>) {
        let p95s = self.p95s(&baselines);
        let old = std::mem::replace(&mut *write(&self.baselines), baselines);
        // Freed without the lock.
        drop(old);
        self.shards.with_each(|live| {
            for series in live.series.iter_mut().filter(|s| s.recorded.sums.n() == 0) {
                let p95 = p95s[usize::from(series.key.shape().0)];
                series.recorded.compare_with(p95);
            }
        });
    }

    fn p95s(&self, baselines: &ShapeBaselines) -> P95s {
        std::array::from_fn(|id| {
            let id = NameId(u8::try_from(id).unwrap_or(u8::MAX));
            baselines.first_p95_us(self.shapes.text(id))
        })
    }

    /// Takes what was recorded since the last time.
    pub(crate) fn drain(&self) -> Drained {
        let mut kept = lock(&self.spare);
        let mut spare = kept.take().unwrap_or_else(|| Box::new(Recorded::new(None)));
        let baselines = Arc::clone(&read(&self.baselines));
        // Read before the shards: a run that begins in between counts in the next interval.
        let mut drained = Drained {
            is_closed: self.is_closed(),
            errors: self.take_errors(),
            ..Drained::default()
        };
        let p95s = self.p95s(&baselines);
        let mut merged: BTreeMap<SeriesKey, SeriesSnapshot> = BTreeMap::new();
        for shard in 0..policy::SHARDS {
            let mut at = 0;
            loop {
                match self.shards.swap(shard, at, &mut spare, &p95s) {
                    Swapped::End => break,
                    // Its memory goes back here, without the lock.
                    Swapped::Unused(series) => drained.passed_over += series.recorded.passed_over,
                    Swapped::Used(key) => {
                        self.add(&mut merged, key, &spare, &baselines);
                        spare.reset();
                        at += 1;
                    }
                }
            }
        }
        // A session that rests needs none.
        *kept = (!merged.is_empty()).then_some(spare);
        drained.overflowed_keys = self.overflowed.take();
        drained.contended = self.contended.swap(0, Relaxed);
        drained.passed_over += self.sampling.take_passed_over();
        drained.series = merged.into_values().collect();
        for series in &mut drained.series {
            if series.stratum.phase == Phase::Warm {
                series.sampled_one_in = self.sampling.one_in();
            }
        }
        drained
    }

    /// Adds a shard's series. Shards are capped one by one, so several may have too many together.
    fn add(
        &self,
        merged: &mut BTreeMap<SeriesKey, SeriesSnapshot>,
        mut key: SeriesKey,
        recorded: &Recorded,
        baselines: &ShapeBaselines,
    ) {
        let is_full = |m: &BTreeMap<_, _>| m.len() >= MAX_PLAIN_SERIES;
        if !merged.contains_key(&key) && is_full(merged) && !key.is_overflow() {
            self.overflowed.add(key.number());
            key = key.overflow();
        }
        match merged.get_mut(&key) {
            Some(snapshot) => snapshot.add(recorded),
            None => {
                let snapshot = SeriesSnapshot::of(recorded, self.stratum(key), baselines);
                merged.insert(key, snapshot);
            }
        }
    }

    fn take_errors(&self) -> Vec<(i32, u64)> {
        let taken = self.errors.iter().map(|count| count.swap(0, Relaxed));
        (0..).zip(taken).filter(|(_, count)| *count > 0).collect()
    }

    fn stratum(&self, key: SeriesKey) -> Stratum {
        let conditions = key.conditions();
        Stratum {
            phase: key.phase(),
            thermal: conditions.thermal(),
            power_save: conditions.power_save(),
            performance_mode: self.modes.text(conditions.mode()).to_owned(),
            shape_key: self.shapes.text(key.shape()).to_owned(),
            session_age: key.age(),
        }
    }
}

/// One place is kept for each phase's overflow.
const MAX_PLAIN_SERIES: usize = policy::MAX_SERIES_PER_SESSION - 2;

#[inline]
fn phase_of(run: u64) -> Phase {
    if run < policy::COLD_RUNS {
        Phase::Cold
    } else {
        Phase::Warm
    }
}

#[inline]
fn age_of(age: Duration) -> SessionAge {
    match age.as_secs() {
        0..60 => SessionAge::Under1Min,
        60..600 => SessionAge::From1To10Min,
        _ => SessionAge::Over10Min,
    }
}

/// Overflow is by name too: `NameId::OTHER` is only ever given by a full table.
const _: () = assert!(policy::MAX_SHAPES_PER_SESSION + 2 < NameId::OTHER.0 as usize);
