use std::thread;

use epwatch_proto::{
    Baselines, LatencySeries, PowerSave, SparseHistogram, Thermal, histogram::HIGHEST_US,
};
use proptest::prelude::*;

use super::*;
use crate::recorder::conditions::Conditions;

fn recorder() -> SessionRecorder {
    SessionRecorder::new(
        crate::random_session_uid(),
        Duration::ZERO,
        Arc::new(CurrentConditions::new()),
    )
}

const LATER: Duration = Duration::from_secs(1);

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

fn warm_up(recorder: &SessionRecorder) {
    for _ in 0..policy::COLD_RUNS {
        recorder.record(LATER, us(50_000), "static");
    }
}

fn series(recorder: &SessionRecorder) -> Vec<LatencySeries> {
    let drained = recorder.drain().series.into_iter();
    drained.map(|s| s.into_series(recorder.uid())).collect()
}

/// The series as a collector parses it.
fn check_wire(series: &LatencySeries) {
    let wire = epwatch_proto::v1::LatencySeries::from(series);
    assert_eq!(LatencySeries::try_from(wire).as_ref(), Ok(series));
}

#[test]
fn first_runs_are_apart_and_cold() {
    let recorder = recorder();
    for ms in [90, 20, 11, 10, 10] {
        recorder.record(LATER, Duration::from_millis(ms), "static");
    }
    let series = series(&recorder);
    assert_eq!(series.len(), 2);
    assert_eq!(series[0].stratum.phase, Phase::Cold);
    assert_eq!(series[0].first_runs_us, [90_000, 20_000, 11_000]);
    assert_eq!((series[1].stratum.phase, series[1].n), (Phase::Warm, 2));
    assert!(series[1].first_runs_us.is_empty());
    assert_eq!(series[1].stratum.thermal, Thermal::Unknown);
    series.iter().for_each(check_wire);
}

#[test]
fn conditions_and_age_make_strata() {
    let recorder = recorder();
    warm_up(&recorder);
    let hot = Conditions::unknown()
        .with_thermal(Thermal::Severe.into())
        .with_power_save(PowerSave::On.into())
        .with_performance_mode("burst");
    recorder.record_under(LATER, us(5), "x:1x3", &hot);
    recorder.record(Duration::from_secs(61), us(5), "static");
    recorder.record(Duration::from_secs(601), us(5), "static");
    let strata: Vec<_> = series(&recorder).into_iter().map(|s| s.stratum).collect();
    assert_eq!(strata.len(), 4);
    let hot = strata
        .iter()
        .find(|s| s.thermal == Thermal::Severe)
        .unwrap();
    assert_eq!(hot.performance_mode, "burst");
    assert_eq!(hot.shape_key, "x:1x3");
    let ages = [SessionAge::From1To10Min, SessionAge::Over10Min];
    assert!(
        ages.iter()
            .all(|age| strata.iter().any(|s| s.session_age == *age))
    );
}

#[test]
fn strata_beyond_the_cap_overflow_and_are_counted() {
    let recorder = recorder();
    warm_up(&recorder);
    for mode in 0..policy::MAX_PERFORMANCE_MODES {
        for thermal in [Thermal::None, Thermal::Light] {
            let conditions = Conditions::unknown()
                .with_thermal(thermal.into())
                .with_performance_mode(format!("mode {mode}"));
            recorder.record_under(LATER, us(10), "static", &conditions);
        }
    }
    let drained = recorder.drain();
    assert!(drained.series.len() <= policy::MAX_SERIES_PER_SESSION);
    assert!(drained.overflowed_keys > 0);
    let total: u64 = drained.series.iter().map(SeriesSnapshot::n).sum();
    assert_eq!(
        total,
        policy::COLD_RUNS + 2 * policy::MAX_PERFORMANCE_MODES as u64
    );
    let other = |s: &&SeriesSnapshot| s.stratum.shape_key == "other";
    let overflow: Vec<_> = drained.series.iter().filter(other).collect();
    assert_eq!(overflow.len(), 1);
    assert_eq!(overflow[0].n(), drained.overflowed_keys);
}

#[test]
fn a_run_beyond_the_histogram_is_clipped_and_counted() {
    let recorder = recorder();
    warm_up(&recorder);
    recorder.record(LATER, Duration::from_secs(3600), "static");
    recorder.record(LATER, Duration::ZERO, "static");
    let drained = recorder.drain();
    assert_eq!(drained.series[1].clipped, 1);
    let warm = drained.series[1].clone().into_series(recorder.uid());
    assert_eq!((warm.n, warm.max_us), (2, HIGHEST_US as f64));
    check_wire(&warm);
}

#[test]
fn order_is_reported_only_while_one_thread_records() {
    let recorder = recorder();
    warm_up(&recorder);
    recorder.record(LATER, us(10), "static");
    let one = &series(&recorder)[0];
    assert!(one.slow_fast_switches.is_some());

    recorder.record(LATER, us(10), "static");
    thread::scope(|s| {
        s.spawn(|| recorder.record(LATER, us(10), "static"))
            .join()
            .unwrap()
    });
    let mixed = &series(&recorder)[0];
    assert_eq!(mixed.n, 2);
    assert_eq!(
        (mixed.slow_fast_switches, mixed.longest_slow_streak),
        (None, None)
    );
}

#[test]
fn switches_and_streaks_are_counted() {
    let recorder = recorder();
    warm_up(&recorder);
    for ms in [10, 10, 30, 30, 10, 30, 30, 30, 10] {
        recorder.record(LATER, Duration::from_millis(ms), "static");
    }
    let warm = &series(&recorder)[1];
    assert_eq!(warm.slow_fast_switches, Some(4));
    assert_eq!(warm.longest_slow_streak, Some(3));
}

#[test]
fn runs_far_beyond_the_own_past_are_counted() {
    let recorder = recorder();
    let mut baselines = crate::baselines::BaselineSet::new(20);
    let session = crate::baselines::tests::update("1", 10_000, 30);
    baselines.apply(&session);
    recorder.set_baselines(baselines.for_session(
        &session.key.model,
        &session.key.requested_eps,
        &crate::baselines::tests::on("2"),
    ));
    warm_up(&recorder);
    for ms in [10, 15, 25, 35] {
        recorder.record(LATER, Duration::from_millis(ms), "static");
    }
    let warm = &series(&recorder)[1];
    let exceed = warm.exceed.unwrap();
    let counts = (exceed.beyond_1_4x, exceed.beyond_2x, exceed.beyond_3x);
    assert_eq!(counts, (3, 2, 1));
    assert!(matches!(&warm.baselines, Baselines::Known(b) if b[0].model_version == "1"));
    check_wire(warm);
}

#[test]
fn a_run_that_finds_every_shard_held_is_dropped_and_counted() {
    let recorder = recorder();
    warm_up(&recorder);
    let mut held = Vec::new();
    let n_shards = recorder.shards.len();
    assert!(n_shards >= policy::MIN_SHARDS && n_shards.is_power_of_two());
    for _ in 0..n_shards {
        held.push(recorder.shards.hold());
        // The recording thread moves to another shard, if one is free.
        recorder.record(LATER, us(10), "static");
    }
    drop(held);
    recorder.record(LATER, us(10), "static");
    let drained = recorder.drain();
    assert_eq!(drained.contended, 1);
    let total: u64 = drained.series.iter().map(SeriesSnapshot::n).sum();
    assert_eq!(total, policy::COLD_RUNS + n_shards as u64);
}

/// No run is lost to contention, because two threads and a sealer never lock all shards.
#[test]
fn two_threads_and_a_sealer_lose_nothing() {
    const RUNS: u64 = 1_000_000;
    let recorder = recorder();
    let mut recorded = 0;
    let mut dropped = 0;
    let mut sums = crate::moments::Sums::default();
    let mut take = |recorder: &SessionRecorder| {
        let drained = recorder.drain();
        dropped += drained.contended;
        for series in &drained.series {
            assert_eq!(series.histogram.total(), series.n());
            recorded += series.n();
            sums.merge(&series.sums);
        }
    };
    thread::scope(|s| {
        let threads: Vec<_> = (0..2)
            .map(|_| {
                s.spawn(|| {
                    for run in 1..=RUNS {
                        recorder.record(LATER, Duration::from_nanos(run), "static");
                    }
                })
            })
            .collect();
        while threads.iter().any(|t| !t.is_finished()) {
            take(&recorder);
        }
    });
    take(&recorder);
    assert_eq!((recorded, dropped), (2 * RUNS, 0));
    let once = crate::moments::tests::sums(1..=RUNS);
    let mut twice = once;
    twice.merge(&once);
    assert_eq!(sums, twice);
}

/// A pool of threads that take turns needs the memory of only one thread.
#[test]
fn threads_that_take_turns_share_a_shard() {
    let recorder = recorder();
    for _ in 0..8 {
        thread::scope(|s| {
            s.spawn(|| recorder.record(LATER, us(10), "static"))
                .join()
                .unwrap()
        });
    }
    let mut fill = Vec::new();
    recorder
        .shards
        .with_each(|live| fill.push(live.series.len()));
    // Cold and warm.
    assert_eq!(fill, [2, 0, 0, 0]);
}

#[test]
fn a_stratum_that_an_interval_did_not_see_gives_its_place_back() {
    let recorder = recorder();
    warm_up(&recorder);
    let count = |recorder: &SessionRecorder| {
        let mut n = 0;
        recorder.shards.with_each(|live| n += live.series.len());
        n
    };
    recorder.record(LATER, us(10), "static");
    recorder.drain();
    assert_eq!(count(&recorder), 2);
    recorder.record(LATER, us(10), "static");
    recorder.drain();
    assert_eq!(count(&recorder), 1);
    recorder.drain();
    assert_eq!(count(&recorder), 0);
    assert!(recorder.spare.lock().unwrap().is_none());
}

/// Each shard is within the limit, together they are not.
#[test]
fn shards_together_keep_the_cap_on_series() {
    let recorder = recorder();
    warm_up(&recorder);
    recorder.drain();
    let record = |thermal: &[Thermal]| {
        for mode in 0..policy::MAX_PERFORMANCE_MODES / 2 {
            for &thermal in thermal {
                let conditions = Conditions::unknown()
                    .with_thermal(thermal.into())
                    .with_performance_mode(format!("mode {mode}"));
                recorder.record_under(LATER, us(10), "static", &conditions);
            }
        }
    };
    record(&[Thermal::None, Thermal::Light]);
    let held = recorder.shards.hold();
    record(&[Thermal::Moderate, Thermal::Severe]);
    drop(held);
    let drained = recorder.drain();
    assert!(drained.series.len() <= policy::MAX_SERIES_PER_SESSION);
    assert_eq!(
        drained.series.iter().map(SeriesSnapshot::n).sum::<u64>(),
        32
    );
    assert_eq!(drained.overflowed_keys, 32 - MAX_PLAIN_SERIES as u64);
    for series in drained.series {
        check_wire(&series.into_series(recorder.uid()));
    }
}

#[test]
fn input_shapes_beyond_the_cap_are_other_and_counted_once_each() {
    let recorder = recorder();
    warm_up(&recorder);
    for _ in 0..2 {
        for side in 0..policy::MAX_SHAPES_PER_SESSION + 5 {
            recorder.record(LATER, us(10), &format!("x:1x{side}"));
        }
    }
    let drained = recorder.drain();
    assert_eq!(drained.overflowed_keys, 5);
    let other = drained
        .series
        .iter()
        .find(|s| s.stratum.shape_key == "other");
    assert_eq!(other.unwrap().n(), 10);
    assert_eq!(recorder.drain().overflowed_keys, 0);
}

#[test]
fn a_slow_spell_that_a_seal_cuts_is_no_switch() {
    let recorder = recorder();
    warm_up(&recorder);
    let record = |all: &[u64]| {
        for ms in all {
            recorder.record(LATER, Duration::from_millis(*ms), "static");
        }
        let warm = series(&recorder).pop().unwrap();
        (warm.slow_fast_switches, warm.longest_slow_streak)
    };
    assert_eq!(record(&[10, 30, 30]), (Some(1), Some(2)));
    assert_eq!(record(&[30, 30, 30]), (Some(0), Some(3)));
    assert_eq!(record(&[30, 10]), (Some(1), Some(1)));
}

#[test]
fn first_runs_of_all_threads_keep_their_order() {
    let recorder = recorder();
    let held = recorder.shards.hold();
    recorder.record(LATER, us(90_000), "static");
    drop(held);
    thread::scope(|s| {
        s.spawn(|| recorder.record(LATER, us(20_000), "static"))
            .join()
            .unwrap()
    });
    recorder.record(LATER, us(10_000), "static");
    let cold = series(&recorder).remove(0);
    assert_eq!(cold.first_runs_us, [90_000, 20_000, 10_000]);
    assert_eq!(cold.slow_fast_switches, None);
}

/// Runs must be counted against the p95 that is sent.
#[test]
fn a_baseline_that_changes_within_an_interval_ends_its_exceed_counts() {
    let recorder = recorder();
    let knows = |us| {
        let mut baselines = crate::baselines::BaselineSet::new(20);
        let update = crate::baselines::tests::update("1", us, 30);
        baselines.apply(&update);
        let (model, eps) = (&update.key.model, &update.key.requested_eps);
        baselines.for_session(model, eps, &crate::baselines::tests::on("2"))
    };
    warm_up(&recorder);
    recorder.drain();
    recorder.set_baselines(knows(10_000));
    recorder.record(LATER, us(30_000), "static");
    assert_eq!(series(&recorder)[0].exceed.unwrap().beyond_2x, 1);

    recorder.record(LATER, us(30_000), "static");
    recorder.set_baselines(knows(5_000));
    recorder.record(LATER, us(30_000), "static");
    let changed = series(&recorder).remove(0);
    assert_eq!(changed.exceed, None);
    assert_eq!(changed.baselines.known().len(), 1);
    check_wire(&changed);

    // The baseline applies from the next interval on, even if it was set between two runs.
    recorder.set_baselines(knows(20_000));
    recorder.record(LATER, us(30_000), "static");
    let exceed = series(&recorder)[0].exceed.unwrap();
    assert_eq!((exceed.beyond_1_4x, exceed.beyond_2x), (1, 0));
}

/// Records the data sets of NIST StRD from several threads in several intervals, and checks the reported moments.
#[test]
fn certified_moments_come_out_of_reports() {
    for set in crate::moments::nist::certified() {
        let recorder = &recorder();
        let mut merged = crate::moments::Moments::default();
        for part in set.values.chunks(97) {
            thread::scope(|s| {
                for of_thread in part.chunks(40) {
                    s.spawn(move || {
                        for value in of_thread {
                            recorder.record(LATER, Duration::from_nanos(*value), "static");
                        }
                    });
                }
            });
            for series in series(recorder) {
                let unit = 1000.0 / set.unit;
                let (sum, m2) = (series.sum_us * unit, series.m2_us2 * unit * unit);
                merged.merge(&crate::moments::Moments::from_parts(series.n, sum, m2));
            }
        }
        crate::moments::tests::check_certified(&set, &merged, 1e-8);
    }
}

/// The host's clock may step back.
#[test]
fn a_run_from_before_the_session_is_young() {
    let late = SessionRecorder::new(
        crate::random_session_uid(),
        Duration::from_secs(1_000_000),
        Arc::new(CurrentConditions::new()),
    );
    for began in [Duration::ZERO, Duration::MAX] {
        late.record(began, Duration::MAX, "static");
    }
    let series = series(&late);
    assert_eq!(series[0].stratum.session_age, SessionAge::Under1Min);
    assert_eq!(series[1].stratum.session_age, SessionAge::Over10Min);
    series.iter().for_each(check_wire);
}

#[test]
fn errors_are_counted_by_code() {
    let recorder = recorder();
    for code in [11, 11, -3, 1_000_000] {
        recorder.record_error(code);
    }
    assert_eq!(recorder.drain().errors, [(11, 2), (31, 2)]);
    assert!(recorder.drain().errors.is_empty());
}

proptest! {
    #[test]
    fn any_way_over_shards_and_intervals_equals_recording_everything_at_once(
        runs in prop::collection::vec((1_u64..80_000_000_000, any::<bool>()), 1..200),
        seal_every in 1_usize..50,
    ) {
        let recorder = recorder();
        let mut merged = SparseHistogram::default();
        let mut sums = crate::moments::Sums::default();
        let mut take = || {
            let series = recorder.drain().series;
            // The series are merged backwards, because the order must not matter.
            for series in series.iter().rev() {
                merged.merge(&series.histogram);
                sums.merge(&series.sums);
            }
        };
        for (at, (ns, is_home_held)) in runs.iter().enumerate() {
            let held = is_home_held.then(|| recorder.shards.hold());
            recorder.record(LATER, Duration::from_nanos(*ns), "static");
            drop(held);
            if at % seal_every == 0 {
                take();
            }
        }
        take();
        let clipped = runs.iter().map(|(ns, _)| (*ns).min(1000 * HIGHEST_US));
        let mut whole = SparseHistogram::default();
        for ns in clipped.clone() {
            whole.record_n(ns / 1000, 1);
        }
        prop_assert_eq!(merged, whole);
        prop_assert_eq!(sums, crate::moments::tests::sums(clipped));
    }
}
