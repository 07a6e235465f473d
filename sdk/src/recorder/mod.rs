//! From runs to series: the work on the inference path, and the work of the sealer.
//!
//! A run costs a key comparison, a histogram increment and some arithmetic. It does no I/O, reads no clock, and
//! allocates only for the first run of a series. Series live in a few shards ([`shards`]), each behind a lock that a
//! run only *tries*, some hundred times at most. If all shards are locked, the sample is dropped and counted. The
//! sealer swaps a series' data for an empty buffer. So it holds a lock for well under a microsecond, and later runs
//! need no allocation.
//!
//! Two limits bound the number of keys. Input shapes and performance modes beyond their limit become `other`. Series
//! beyond [`policy::MAX_SERIES_PER_SESSION`] share one overflow series per phase. Both are counted. A series without a
//! run in an interval is removed.

pub(crate) mod conditions;
mod distinct;
pub(crate) mod interner;
mod key;
mod sampling;
mod series;
pub(crate) mod shards;
mod snapshot;
#[cfg(test)]
mod tests;

use std::{
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
        conditions::{CurrentConditions, PackedConditions},
        interner::{Interner, TextId},
    },
};
use distinct::DistinctKeys;
use key::{P95s, SeriesKey};
use sampling::Sampling;
use series::{Pace, Recorded, Sample, Series};
use shards::{Shards, Swapped, thread_number};

pub(crate) use snapshot::{Drained, SeriesSnapshot};

/// Number of ORT's status codes with a counter of their own. Larger codes share the last counter.
const N_STATUS_CODES: usize = 32;

/// Measures the runs of one session. Shared by running threads and the sealer.
#[derive(Debug)]
pub struct SessionRecorder {
    /// Changes only when the installation is forgotten.
    uid: AtomicU64,
    created: Duration,
    shards: Shards,
    /// Empty buffer that is swapped into one series after the other. It is locked during a seal, so that only one seal
    /// runs at a time.
    spare: Mutex<Option<Box<Recorded>>>,
    shapes: Interner,
    conditions: Arc<CurrentConditions>,
    baselines: RwLock<Arc<ShapeBaselines>>,
    /// Counts cold runs only, so that later runs do not contend for a cache line.
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
        conditions: Arc<CurrentConditions>,
    ) -> Self {
        Self {
            uid: AtomicU64::new(uid.get()),
            created,
            shards: Shards::default(),
            spare: Mutex::default(),
            shapes: Interner::new(policy::MAX_SHAPES_PER_SESSION, 128),
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

    /// Returns the session's id.
    pub fn uid(&self) -> SessionUid {
        SessionUid::new(self.uid.load(Relaxed)).expect("it was one when it was stored")
    }

    pub(crate) fn rename(&self, uid: SessionUid) {
        self.uid.store(uid.get(), Relaxed);
    }

    /// Records one run under the conditions of the process.
    ///
    /// `began` is on the clock of [`Now::mono`](crate::simulation::Now::mono). `shape_key` is `static` for a model with
    /// a fixed input shape, otherwise the inputs' shapes, for example `x:1x3x224x224`. It is empty if unknown and at
    /// most 128 bytes long. A session keeps 8 different keys; further keys become `other`.
    ///
    /// Never blocks. While the sealer swaps, it retries some hundred times at most; a run that finds every shard locked
    /// is dropped and counted. The first run of a stratum or shape allocates.
    pub fn record(&self, began: Duration, latency: Duration, shape_key: &str) {
        if !self.is_recording() {
            return;
        }
        let shape = self.shape(shape_key);
        self.keep(began, latency, shape, self.conditions.get());
    }

    /// Does the same as [`Self::record`], for a model with a fixed input shape.
    pub(crate) fn record_static(&self, began: Duration, latency: Duration) {
        if self.is_recording() {
            self.keep(began, latency, Some(TextId::STATIC), self.conditions.get());
        }
    }

    /// Does the same as [`Self::record`], under the given conditions.
    #[cfg(feature = "simulation")]
    pub fn record_under(
        &self,
        began: Duration,
        latency: Duration,
        shape_key: &str,
        conditions: &conditions::Conditions,
    ) {
        if !self.is_recording() {
            return;
        }
        let Some(mode) = self
            .conditions
            .modes()
            .try_intern(&conditions.performance_mode)
        else {
            self.contended.fetch_add(1, Relaxed);
            return;
        };
        let packed = conditions.packed(mode);
        self.keep(began, latency, self.shape(shape_key), packed);
    }

    /// Counts a run that failed with this status code of ORT.
    pub fn record_error(&self, ort_status_code: i32) {
        if !self.is_recording() {
            return;
        }
        let code = usize::try_from(ort_status_code).unwrap_or(N_STATUS_CODES);
        self.errors[code.min(N_STATUS_CODES - 1)].fetch_add(1, Relaxed);
    }

    /// Ends the session. Its runs are sealed once more, then it is forgotten. Nothing may be recorded after this.
    pub fn close(&self) {
        self.is_closed.store(true, Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Acquire)
    }

    /// `false` without consent, and while a directive turns recording off.
    #[inline]
    pub(crate) fn is_recording(&self) -> bool {
        self.conditions.is_recording() && !self.sampling.is_off()
    }

    #[inline]
    fn shape(&self, shape_key: &str) -> Option<TextId> {
        let shape = self.shapes.try_intern(shape_key)?;
        if shape == TextId::OTHER && shape_key != crate::recorder::interner::OTHER {
            self.overflowed.add_text(shape_key);
        }
        Some(shape)
    }

    #[inline]
    fn keep(
        &self,
        began: Duration,
        latency: Duration,
        shape: Option<TextId>,
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
            (None, false) => {
                self.sampling.passed_over.fetch_add(1, Relaxed);
            }
        }
    }

    /// Position of a run among the cold runs; any larger number for later runs.
    #[inline]
    fn next_run(&self) -> u64 {
        let seen = self.runs.load(Relaxed);
        if seen >= policy::COLD_RUNS {
            return seen;
        }
        self.runs.fetch_add(1, Relaxed)
    }

    /// Begins a series, or returns the overflow series if the session has too many.
    #[cold]
    fn begin_series(&self, live: &mut shards::Live, mut key: SeriesKey) -> usize {
        if live.series.len() >= MAX_PLAIN_SERIES && !key.is_overflow() {
            self.overflowed.add(key.number());
            key = key.overflow();
            if let Some(at) = live.position(key) {
                return at;
            }
        }
        // A series without a baseline counts no exceeding runs.
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

    /// Records one of this many runs from now on, except for the first runs.
    pub(crate) fn sample(&self, one_in: u32) {
        self.sampling.set(one_in);
    }

    /// Turns recording off, or on again.
    pub(crate) fn turn_off(&self, is_off: bool) {
        self.sampling.turn_off(is_off);
    }

    /// Sets the baselines. They apply to series without a run in this interval, and to later ones.
    pub(crate) fn set_baselines(&self, baselines: Arc<ShapeBaselines>) {
        let p95s = self.p95s(&baselines);
        let old = std::mem::replace(&mut *write(&self.baselines), baselines);
        // Frees the memory without the lock.
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
            let id = TextId(u8::try_from(id).unwrap_or(u8::MAX));
            baselines.first_p95_us(self.shapes.text(id))
        })
    }

    /// Takes everything recorded since the last call.
    pub(crate) fn drain(&self) -> Drained {
        let mut kept = lock(&self.spare);
        let mut spare = kept.take().unwrap_or_else(|| Box::new(Recorded::new(None)));
        let baselines = Arc::clone(&read(&self.baselines));
        // Both are read before the shards, so a run that begins in between counts in the next interval.
        let mut drained = Drained {
            is_closed: self.is_closed(),
            errors: self.take_errors(),
            ..Drained::default()
        };
        let p95s = self.p95s(&baselines);
        let mut merged = Vec::new();
        for shard in 0..self.shards.len() {
            let mut at = 0;
            loop {
                match self.shards.swap(shard, at, &mut spare, &p95s) {
                    Swapped::End => break,
                    // Frees the memory without the lock.
                    Swapped::Unused(series) => drained.passed_over += series.recorded.passed_over,
                    Swapped::Used(key) => {
                        self.add(&mut merged, key, &spare, &baselines);
                        spare.reset();
                        at += 1;
                    }
                }
            }
        }
        // An idle session needs no buffer.
        *kept = (!merged.is_empty()).then_some(spare);
        drained.overflowed_keys = self.overflowed.take();
        drained.contended = self.contended.swap(0, Relaxed);
        drained.passed_over += self.sampling.passed_over.swap(0, Relaxed);
        merged.sort_unstable_by_key(|(key, _)| *key);
        drained.series = merged.into_iter().map(|(_, series)| series).collect();
        for series in &mut drained.series {
            if series.stratum.phase == Phase::Warm {
                series.sampled_one_in = self.sampling.one_in();
            }
        }
        drained
    }

    /// Adds a shard's series. Each shard is within the limit, but all together may exceed it.
    fn add(
        &self,
        merged: &mut Vec<(SeriesKey, SeriesSnapshot)>,
        mut key: SeriesKey,
        recorded: &Recorded,
        baselines: &ShapeBaselines,
    ) {
        let is_full = merged.len() >= MAX_PLAIN_SERIES;
        if is_full && !key.is_overflow() && !merged.iter().any(|(of, _)| *of == key) {
            self.overflowed.add(key.number());
            key = key.overflow();
        }
        match merged.iter_mut().find(|(of, _)| *of == key) {
            Some((_, snapshot)) => snapshot.add(recorded),
            None => {
                let snapshot = SeriesSnapshot::of(recorded, self.stratum(key), baselines);
                merged.push((key, snapshot));
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
            performance_mode: self.conditions.modes().text(conditions.mode()).to_owned(),
            shape_key: self.shapes.text(key.shape()).to_owned(),
            session_age: key.age(),
        }
    }
}

/// Maximum number of ordinary series, which leaves one series for each phase's overflow.
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

/// `TextId::OTHER` must only mean a full table.
const _: () = assert!(policy::MAX_SHAPES_PER_SESSION + 2 < TextId::OTHER.0 as usize);
