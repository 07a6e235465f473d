//! 2,209 models measured in two releases of a stack, each read forwards and backwards.

use epwatch_gate::{Judged, layers::Layers, unpaired::judge_jobs};

const PAIRS: &str = include_str!("../fixtures/aihub_pairs.csv");

/// A ratio that users notice, and one that they do not.
const HARMFUL: f64 = 1.5;
const HARMLESS: f64 = 1.2;

#[derive(Clone, Copy)]
struct Measured {
    layers: Layers,
    ms: f64,
}

/// Changes between the two releases, in both directions.
fn changes(runtime: Option<&str>) -> Vec<(Measured, Measured)> {
    let rows = PAIRS
        .lines()
        .skip(1)
        .map(|line| line.split(',').collect::<Vec<_>>());
    let rows = rows.filter(|row| runtime.is_none_or(|runtime| row[4] == runtime));
    let both_ways = rows.flat_map(|row| {
        let side = |at: usize| Measured {
            layers: Layers {
                npu: row[at].parse().unwrap(),
                gpu: row[at + 1].parse().unwrap(),
                cpu: row[at + 2].parse().unwrap(),
            },
            ms: row[at + 3].parse().expect("milliseconds"),
        };
        let (a, b) = (side(5), side(9));
        [(a, b), (b, a)]
    });
    both_ways.collect()
}

/// Number of harmful and of harmless changes that the rule calls red.
fn red(changes: &[(Measured, Measured)], rule: impl Fn(Measured, Measured) -> bool) -> [usize; 2] {
    let count = |is_meant: fn(f64) -> bool| {
        let meant = changes.iter().filter(|(a, b)| is_meant(b.ms / a.ms));
        meant.filter(|(a, b)| rule(*a, *b)).count()
    };
    [
        count(|ratio| ratio >= HARMFUL),
        count(|ratio| ratio < HARMLESS),
    ]
}

fn share(measured: Measured) -> f64 {
    measured.layers.npu_share().expect("each row has layers")
}

#[test]
fn placement_alone_costs_and_placement_with_latency_does_not() {
    for (runtime, all, below, fell, worse) in [
        (None, [409, 3676], [164, 35], [161, 8], [162, 0]),
        (Some("onnx"), [221, 905], [140, 9], [140, 6], [142, 0]),
    ] {
        let changes = changes(runtime);
        assert_eq!(red(&changes, |_, _| true), all);
        assert_eq!(red(&changes, |_, b| share(b) < 0.98), below);
        assert_eq!(red(&changes, |a, b| share(a) - share(b) > 0.02), fell);
        let both =
            |a: Measured, b: Measured| b.layers.is_worse_than(&a.layers) && b.ms / a.ms > 1.25;
        assert_eq!(red(&changes, both), worse);
        let latency = |a: Measured, b: Measured| judge_jobs(&[a.ms], &[b.ms]) == Judged::Fail;
        assert_eq!(red(&changes, latency), [all[0], 0]);
    }
}

/// Models that get slower with new layers on the CPU fail by latency and by placement.
#[test]
fn new_cpu_layers_that_are_slower_are_all_red() {
    let mut found = 0;
    for (a, b) in changes(None) {
        if a.layers.cpu == 0 && b.layers.cpu > 0 && b.ms / a.ms >= HARMFUL {
            found += 1;
            assert!(b.layers.is_worse_than(&a.layers));
            assert_eq!(judge_jobs(&[a.ms], &[b.ms]), Judged::Fail);
        }
    }
    assert_eq!(found, 146);
}

/// At equal layer counts two releases differ by this much: the noise that the limits of a single job allow for.
#[test]
fn jobs_of_two_releases_differ_by_less_than_the_limit() {
    for (runtime, n, middle, late) in [(None, 577, 1.06, 1.47), (Some("onnx"), 232, 1.17, 1.5)] {
        let forwards = changes(runtime).into_iter().step_by(2);
        let equal = forwards.filter(|(a, b)| a.layers == b.layers);
        let mut ratios: Vec<f64> = equal.map(|(a, b)| (b.ms / a.ms).max(a.ms / b.ms)).collect();
        ratios.sort_by(f64::total_cmp);
        assert_eq!(ratios.len(), n);
        assert!((ratios[n / 2] - middle).abs() < 0.01, "{}", ratios[n / 2]);
        assert!(
            (ratios[n * 95 / 100] - late).abs() < 0.04,
            "{}",
            ratios[n * 95 / 100]
        );
    }
}
