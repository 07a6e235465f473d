use std::thread;

use epwatch_proto::{
    Baselines, LatencySeries, PowerSave, SparseHistogram, Thermal, histogram::HIGHEST_US,
};
use proptest::prelude::*;

use super::*;

fn recorder() -> SessionRecorder {
    SessionRecorder::new(
        crate::random_session_uid(),
        Duration::ZERO,
        Arc::new(Names::new(policy::MAX_PERFORMANCE_MODES, 32)),
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

/// What a collector would say of it.
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
        .with_thermal(Thermal::Severe)
        .with_power_save(PowerSave::On)
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
                .with_thermal(thermal)
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
fn order_is_told_while_one_thread_records_and_absent_otherwise() {
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
    let mut book = crate::baseline::BaselineBook::new(20);
    let session = crate::baseline::tests::lesson("1", 10_000, 30);
    book.absorb(&session);
    recorder.set_baselines(book.of_session(
        &session.key.model,
        &session.key.requested_eps,
        &crate::baseline::tests::on("2"),
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
    let held: Vec<_> = (0..policy::SHARDS)
        .map(|_| recorder.shards.free().unwrap())
        .collect();
    recorder.record(LATER, us(10), "static");
    drop(held);
    recorder.record(LATER, us(10), "static");
    let drained = recorder.drain();
    assert_eq!(drained.contended, 1);
    let total: u64 = drained.series.iter().map(SeriesSnapshot::n).sum();
    assert_eq!(total, policy::COLD_RUNS + 1);
}

#[test]
fn two_threads_and_a_sealer_lose_nothing() {
    const RUNS: u64 = 20_000;
    let recorder = recorder();
    let mut total = 0;
    thread::scope(|s| {
        let threads: Vec<_> = (0..2)
            .map(|_| {
                s.spawn(|| {
                    for run in 0..RUNS {
                        recorder.record(LATER, us(run), "static");
                    }
                })
            })
            .collect();
        while threads.iter().any(|t| !t.is_finished()) {
            let drained = recorder.drain();
            total += drained.contended;
            total += drained.series.iter().map(SeriesSnapshot::n).sum::<u64>();
        }
    });
    let drained = recorder.drain();
    total += drained.contended + drained.series.iter().map(SeriesSnapshot::n).sum::<u64>();
    assert_eq!(total, 2 * RUNS);
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
    fn merging_intervals_equals_recording_everything_at_once(
        latencies in prop::collection::vec(1_u64..80_000_000, 1..200),
        seal_every in 1_usize..50,
    ) {
        let recorder = recorder();
        let mut merged = SparseHistogram::default();
        let mut moments = crate::moments::Moments::default();
        let mut take = || {
            for series in recorder.drain().series {
                merged.merge(&series.histogram);
                moments.merge(&series.moments());
            }
        };
        for (at, latency) in latencies.iter().enumerate() {
            recorder.record(LATER, us(*latency), "static");
            if at % seal_every == 0 {
                take();
            }
        }
        take();
        let mut whole = SparseHistogram::default();
        for latency in &latencies {
            whole.record_n((*latency).min(HIGHEST_US), 1);
        }
        prop_assert_eq!(merged, whole);
        prop_assert_eq!(moments.n, latencies.len() as u64);
    }
}
