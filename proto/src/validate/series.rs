//! Latency series.

use super::fields::{Once, each_field, known};
use crate::histogram::{HistScheme, SparseHistogram};
use crate::latency::{
    BaselineAbsence, BaselineKind, ExceedCounts, Extent, MAX_FIRST_RUNS, Moments, RunCounts,
    runs_seen,
};
use crate::stratum::{
    MAX_PERFORMANCE_MODE_BYTES, MAX_SHAPE_KEY_BYTES, Phase, PowerSave, SessionAge, Thermal,
};
use crate::v1;

/// What no two series of a report share.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Series<'a> {
    pub(super) session_uid: u64,
    stratum: Stratum<'a>,
}

/// The enums as the wire has them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Stratum<'a> {
    phase: i32,
    thermal: i32,
    power_save: i32,
    session_age: i32,
    performance_mode: &'a str,
    shape_key: &'a str,
}

pub(super) fn series(bytes: &[u8]) -> Option<Series<'_>> {
    let (mut session_uid, mut hist_scheme, mut absence) = (0, 0, 0);
    let (mut stratum, mut exceed) = (Once::NEVER, Once::NEVER);
    let mut histogram: &[u8] = &[];
    let mut moments = Moments::default();
    let mut counts = RunCounts::default();
    let (mut us, mut whole_ns) = (Extent::default(), Once::NEVER);
    let mut n_first_runs = 0;
    let (mut n_baselines, mut kinds) = (0, [0; 2]);
    each_field(bytes, |number, value| {
        match number {
            1 => session_uid = value.fixed64()?,
            2 => stratum.set(self::stratum(value.bytes()?))?,
            3 => hist_scheme = value.i32()?,
            4 => histogram = value.bytes()?,
            5 => moments.n = value.u64()?,
            6 => us.sum_us = value.finite()?,
            7 => moments.m2_us2 = value.finite()?,
            8 => us.min_us = value.finite()?,
            9 => us.max_us = value.finite()?,
            10 => counts.runs_seen = value.u64()?,
            11 => drop(value.u32()?),
            12 => counts.dropped_runs = value.u64()?,
            13 => value.each_number(|_| super::count(&mut n_first_runs, MAX_FIRST_RUNS))?,
            14 => counts.slow_fast_switches = Some(value.u64()?),
            15 => counts.longest_slow_streak = Some(value.u64()?),
            16 => exceed.set(self::exceed(value.bytes()?))?,
            17 => {
                *kinds.get_mut(n_baselines)? = baseline(value.bytes()?)?;
                n_baselines += 1;
            }
            18 => absence = value.i32()?,
            19 => whole_ns.set(self::whole_ns(value.bytes()?))?,
            _ => {}
        }
        Some(())
    })?;
    known!(HistScheme, hist_scheme)?;
    moments.total = SparseHistogram::total_of_v2(histogram).ok()?;
    let extent = us.or_whole_ns(whole_ns.get()).ok()?;
    moments.sum_us = extent.sum_us;
    moments.min_us = extent.min_us;
    moments.max_us = extent.max_us;
    moments.check().ok()?;
    let has_baseline = n_baselines > 0;
    counts.n = moments.n;
    counts.runs_seen = runs_seen(counts.runs_seen, counts.n, counts.dropped_runs);
    counts.exceed = exceed.get();
    counts.has_baseline = has_baseline;
    counts.check().ok()?;
    if has_baseline {
        (absence == 0 && (n_baselines == 1 || kinds[0] != kinds[1])).then_some(())?;
    } else {
        known!(BaselineAbsence, absence)?;
    }
    (session_uid != 0 && moments.n > 0).then_some(())?;
    Some(Series {
        session_uid,
        stratum: stratum.get()?,
    })
}

fn stratum(bytes: &[u8]) -> Option<Stratum<'_>> {
    let mut stratum = Stratum::default();
    each_field(bytes, |number, value| {
        match number {
            1 => stratum.phase = value.i32()?,
            2 => stratum.thermal = value.i32()?,
            3 => stratum.power_save = value.i32()?,
            4 => stratum.performance_mode = value.text(MAX_PERFORMANCE_MODE_BYTES)?,
            5 => stratum.shape_key = value.text(MAX_SHAPE_KEY_BYTES)?,
            6 => stratum.session_age = value.i32()?,
            _ => {}
        }
        Some(())
    })?;
    known!(Phase, stratum.phase)?;
    known!(Thermal, stratum.thermal)?;
    known!(PowerSave, stratum.power_save)?;
    known!(SessionAge, stratum.session_age)?;
    Some(stratum)
}

fn whole_ns(bytes: &[u8]) -> Option<v1::WholeNanoseconds> {
    let mut ns = v1::WholeNanoseconds::default();
    each_field(bytes, |number, value| {
        match number {
            1 => ns.sum = value.u64()?,
            2 => ns.min = value.u64()?,
            3 => ns.max = value.u64()?,
            _ => {}
        }
        Some(())
    })?;
    Some(ns)
}

fn exceed(bytes: &[u8]) -> Option<ExceedCounts> {
    let mut exceed = ExceedCounts::default();
    each_field(bytes, |number, value| {
        match number {
            1 => exceed.beyond_1_4x = value.u64()?,
            2 => exceed.beyond_2x = value.u64()?,
            3 => exceed.beyond_3x = value.u64()?,
            _ => {}
        }
        Some(())
    })?;
    Some(exceed)
}

/// Its kind.
fn baseline(bytes: &[u8]) -> Option<i32> {
    let (mut kind, mut n) = (0, 0);
    let mut model_version = "";
    let (mut p10_us, mut p50_us, mut p95_us) = (0.0, 0.0, 0.0);
    each_field(bytes, |number, value| {
        match number {
            1 => kind = value.i32()?,
            2 => model_version = value.text(64)?,
            3 => n = value.u64()?,
            4 => p10_us = value.finite()?,
            5 => p50_us = value.finite()?,
            6 => p95_us = value.finite()?,
            7 => drop(value.finite()?),
            8..=10 => value.is_text(32)?,
            _ => {}
        }
        Some(())
    })?;
    known!(BaselineKind, kind)?;
    let is_sound =
        !model_version.is_empty() && n > 0 && p10_us > 0.0 && p50_us >= p10_us && p95_us >= p50_us;
    is_sound.then_some(kind)
}
