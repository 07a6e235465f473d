//! From runs to series: what happens on the inference path, and what the sealer takes from it.
//!
//! A run costs a key comparison, a histogram increment and some arithmetic: no allocation once its
//! series exists, no I/O, no clock (times are passed in), and no waiting. Series live in a few
//! shards, each behind a lock that a run only ever *tries*: its thread's own first, then the
//! others; where all are held the sample is dropped and counted. The sealer swaps a shard's series
//! for empty ones with the same keys, so it holds a lock for nanoseconds and later runs need no
//! allocation either.

mod series;
mod snapshot;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use epwatch_proto::{Phase, SessionAge, SessionUid};

use crate::{
    baseline::ShapeBaselines,
    conditions::{Conditions, CurrentConditions, PackedConditions},
    names::{NameId, Names},
    policy,
};
use series::{Sample, Series, SeriesKey};

pub(crate) use snapshot::{Drained, SeriesSnapshot};

/// ORT status codes that run errors are told apart by; larger ones count as the last.
const N_STATUS_CODES: usize = 32;

/// Series of one shard. `spare` waits, emptied, to be swapped in.
#[derive(Debug, Default)]
struct Shard {
    live: Mutex<Live>,
    spare: Mutex<Vec<Series>>,
}

#[derive(Debug, Default)]
struct Live {
    series: Vec<Series>,
    overflowed_keys: u64,
}

/// Counts and measures the runs of one session. Shared by those who run and the one who seals.
#[derive(Debug)]
pub struct SessionRecorder {
    /// Changes only when the installation is forgotten.
    uid: AtomicU64,
    created: Duration,
    shards: [Shard; policy::SHARDS],
    shapes: Names,
    modes: Arc<Names>,
    conditions: Arc<CurrentConditions>,
    baselines: Mutex<Arc<ShapeBaselines>>,
    runs_seen: AtomicU64,
    contended: AtomicU64,
    errors: [AtomicU64; N_STATUS_CODES],
    is_closed: AtomicBool,
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
            shards: Default::default(),
            shapes: Names::new(policy::MAX_SHAPES_PER_SESSION, 128),
            modes,
            conditions,
            baselines: Mutex::default(),
            runs_seen: AtomicU64::new(0),
            contended: AtomicU64::new(0),
            errors: Default::default(),
            is_closed: AtomicBool::new(false),
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
    /// Never waits: a run that finds every shard held is dropped and counted.
    pub fn record(&self, began: Duration, latency: Duration, shape_key: &str) {
        if !self.conditions.is_recording() {
            return;
        }
        let run = self.runs_seen.fetch_add(1, Relaxed);
        self.keep(run, began, latency, shape_key, self.conditions.get());
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
        let run = self.runs_seen.fetch_add(1, Relaxed);
        let Some(mode) = self.modes.try_id(&conditions.performance_mode) else {
            self.contended.fetch_add(1, Relaxed);
            return;
        };
        let packed = PackedConditions {
            thermal: conditions.thermal,
            power_save: conditions.power_save,
            mode,
        };
        self.keep(run, began, latency, shape_key, packed);
    }

    /// Counts a run that failed with this ORT status code; it has no latency.
    pub fn record_error(&self, ort_status_code: i32) {
        if !self.conditions.is_recording() {
            return;
        }
        let code = usize::try_from(ort_status_code).unwrap_or(N_STATUS_CODES);
        self.errors[code.min(N_STATUS_CODES - 1)].fetch_add(1, Relaxed);
    }

    /// The session is gone: what it recorded is sealed once more, and then forgotten.
    pub fn close(&self) {
        self.is_closed.store(true, Relaxed);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    fn keep(
        &self,
        run: u64,
        began: Duration,
        latency: Duration,
        shape_key: &str,
        conditions: PackedConditions,
    ) {
        let thread = thread_number();
        let kept = self.shapes.try_id(shape_key).and_then(|shape| {
            let key = SeriesKey {
                phase: phase_of(run),
                conditions,
                shape,
                age: age_of(began.saturating_sub(self.created)),
            };
            let sample = Sample {
                latency,
                run,
                thread,
            };
            let mut live = self.free_shard(thread)?;
            self.series(&mut live, key)?.record(&sample);
            Some(())
        });
        if kept.is_none() {
            self.contended.fetch_add(1, Relaxed);
        }
    }

    /// A shard that nobody holds, the thread's own first.
    fn free_shard(&self, thread: u32) -> Option<MutexGuard<'_, Live>> {
        let own = thread as usize;
        (0..policy::SHARDS).find_map(|step| {
            let shard = &self.shards[(own + step) % policy::SHARDS];
            shard.live.try_lock().ok()
        })
    }

    fn series<'a>(&self, live: &'a mut Live, key: SeriesKey) -> Option<&'a mut Series> {
        if let Some(at) = live.series.iter().position(|s| s.key == key) {
            return live.series.get_mut(at);
        }
        let mut key = key;
        // One place is kept for each phase's overflow.
        if live.series.len() >= policy::MAX_SERIES_PER_SESSION - 2 && !key.is_overflow() {
            key = key.overflow();
            live.overflowed_keys += 1;
            if let Some(at) = live.series.iter().position(|s| s.key == key) {
                return live.series.get_mut(at);
            }
        }
        let p95 = {
            let baselines = self.baselines.try_lock().ok()?;
            baselines.first_p95_us(&self.shapes.text(key.shape))
        };
        live.series.push(Series::new(key, p95));
        live.series.last_mut()
    }

    /// What this device was used to, from the next series on.
    pub(crate) fn set_baselines(&self, baselines: Arc<ShapeBaselines>) {
        *lock(&self.baselines) = baselines;
    }

    /// Takes what was recorded since the last time.
    pub(crate) fn drain(&self) -> Drained {
        let baselines = Arc::clone(&lock(&self.baselines));
        // Read before the shards: a run that begins in between counts in the next interval.
        let mut drained = Drained {
            is_closed: self.is_closed.load(Relaxed),
            errors: self.take_errors(),
            ..Drained::default()
        };
        let mut merged: BTreeMap<SeriesKey, SeriesSnapshot> = BTreeMap::new();
        for shard in &self.shards {
            let mut spare = std::mem::take(&mut *lock(&shard.spare));
            let overflowed = {
                let mut live = lock(&shard.live);
                std::mem::swap(&mut live.series, &mut spare);
                std::mem::take(&mut live.overflowed_keys)
            };
            drained.overflowed_keys += overflowed;
            // A stratum that a whole interval did not see gives its memory back.
            spare.retain(|series| series.moments.n > 0);
            for series in &mut spare {
                match merged.entry(series.key) {
                    std::collections::btree_map::Entry::Vacant(place) => {
                        let stratum = self.stratum(series.key);
                        place.insert(SeriesSnapshot::of(series, stratum, &baselines));
                    }
                    std::collections::btree_map::Entry::Occupied(mut place) => {
                        place.get_mut().add(series);
                    }
                }
                let shape = self.shapes.text(series.key.shape);
                series.reset(baselines.first_p95_us(&shape));
            }
            *lock(&shard.spare) = spare;
        }
        drained.contended = self.contended.swap(0, Relaxed);
        drained.series = merged.into_values().collect();
        drained
    }

    fn take_errors(&self) -> Vec<(i32, u64)> {
        let taken = self.errors.iter().map(|count| count.swap(0, Relaxed));
        (0..).zip(taken).filter(|(_, count)| *count > 0).collect()
    }

    fn stratum(&self, key: SeriesKey) -> epwatch_proto::Stratum {
        epwatch_proto::Stratum {
            phase: key.phase,
            thermal: key.conditions.thermal,
            power_save: key.conditions.power_save,
            performance_mode: self.modes.text(key.conditions.mode),
            shape_key: self.shapes.text(key.shape),
            session_age: key.age,
        }
    }
}

fn phase_of(run: u64) -> Phase {
    if run < policy::COLD_RUNS {
        Phase::Cold
    } else {
        Phase::Warm
    }
}

fn age_of(age: Duration) -> SessionAge {
    match age.as_secs() {
        0..60 => SessionAge::Under1Min,
        60..600 => SessionAge::From1To10Min,
        _ => SessionAge::Over10Min,
    }
}

/// A small number of this thread's own.
fn thread_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local! {
        static OWN: u32 = NEXT.fetch_add(1, Relaxed);
    }
    // While a thread ends its locals may be gone already; any shard will do then.
    OWN.try_with(|own| *own).unwrap_or(u32::MAX)
}

/// Nothing here panics while it holds a lock; were it otherwise, numbers are still numbers.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Overflow is by name too: `NameId::OTHER` is only ever given by a full table.
const _: () = assert!(policy::MAX_SHAPES_PER_SESSION + 2 < NameId::OTHER.0 as usize);
