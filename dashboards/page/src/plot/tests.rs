//! Snapshots of each plot: `tests/snapshots/NAME.svg`. `EPWATCH_BLESS=1` writes them again.

use std::path::Path;

use super::bars::{self, Part, PlacementBar};
use super::density::{self, DensityComparison, DensityRow, Side};
use super::golden::{self, GoldenDistances};
use super::ratios::{self, RatioRow};
use super::scale::LogScale;
use super::svg::{Drawing, Svg};
use super::timeline::{self, Lane, Moment, OverTime, TimelineLabel};
use super::{spark, strip};
use crate::histogram::{Density, Quantiles, SmallMode};
use crate::read::evidence::Ratios;
use crate::read::windows::Slower;
use crate::text::words::Tone;

#[track_caller]
fn check(name: &str, drawing: &Drawing) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    let path = folder.join(format!("{name}.svg"));
    let got = drawing.to_string().replace("><", ">\n<") + "\n";
    if std::env::var_os("EPWATCH_BLESS").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(&path, &got).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(got, expected, "{name}: EPWATCH_BLESS=1 writes it again");
    assert!(!got.contains("NaN") && !got.contains("\"inf"), "{got}");
    assert!(!got.contains("style="), "{got}");
}

fn hump(at_us: f64) -> Density {
    #[expect(clippy::cast_possible_truncation, reason = "a small number")]
    let first = (at_us.log2() * 12.0).floor() as i32 - 2;
    Density {
        bins_per_octave: 12.0,
        first,
        shares: vec![0.1, 0.2, 0.4, 0.2, 0.1],
    }
}

#[test]
fn one_cohort_now_and_before() {
    let (mut now, before) = (hump(60_500.0), hump(15_000.0));
    now.shares.extend([0.0; 15]);
    now.shares.extend([0.005, 0.01, 0.005]);
    let comparison = DensityComparison {
        now: Side {
            density: &now,
            label: "version 2, now",
            median_us: 60_500.0,
        },
        before: Some(Side {
            density: &before,
            label: "version <1>, before",
            median_us: 15_000.0,
        }),
        is_bad: true,
        ratio: Some(4.0),
        small: Some(SmallMode {
            at_us: 181_000.0,
            share: 0.02,
        }),
        words: "Version 2 is slower.",
    };
    let [wide, narrow] = density::comparison("d", &comparison).unwrap();
    check("comparison_wide", &wide);
    check("comparison_narrow", &narrow);
    let row = DensityRow {
        title: "SM8635",
        subtitle: "8s Gen 3",
        comparison,
    };
    let [wide, narrow] = density::multiples("m", &[row], "SM8635 is slower.").unwrap();
    check("multiples", &wide);
    check("multiples_narrow", &narrow);
}

/// Labels of similar medians are drawn side by side and not cut.
#[test]
fn labels_at_the_edge_are_not_cut() {
    let (now, before) = (hump(9_320.0), hump(9_330.0));
    let side = |density, label, median_us| Side {
        density,
        label,
        median_us,
    };
    let mut far = hump(120_000.0);
    far.first -= 1;
    let comparison = DensityComparison {
        now: side(&now, "version 2, now", 9_320.0),
        before: Some(side(&before, "version 1, before", 9_330.0)),
        is_bad: false,
        ratio: None,
        small: None,
        words: "As before.",
    };
    let [wide, _] = density::comparison("d", &comparison).unwrap();
    check("comparison_alike", &wide);
    let at_the_edge = DensityComparison {
        before: Some(side(&far, "version 1, before", 120_000.0)),
        ..comparison
    };
    let [_, narrow] = density::comparison("d", &at_the_edge).unwrap();
    check("comparison_edge_narrow", &narrow);
}

#[test]
fn a_row_of_the_fleet() {
    let q = |p50_us: f64| Quantiles {
        p10_us: p50_us * 0.9,
        p50_us,
        p90_us: p50_us * 1.2,
    };
    let axis = strip::axis_of([q(60_500.0), q(9_000.0)]).unwrap();
    check("strip_head", &strip::head(axis));
    check(
        "strip_row",
        &strip::row(
            axis,
            q(60_500.0),
            Some(q(15_000.0)),
            true,
            "median \"60\" ms",
        ),
    );
    let now = [(0.2, 60_000.0), (1.0, 61_000.0)];
    check(
        "spark",
        &spark::medians(
            &now,
            &[(0.0, 15_000.0), (1.0, 15_100.0)],
            &[],
            true,
            "median",
        )
        .unwrap(),
    );
    assert!(spark::medians(&[(0.5, 1.0)], &[], &[], false, "").is_none());
    check("npu", &bars::npu(Some(0.739), str::to_owned).unwrap());
    check(
        "npu_none_left",
        &bars::npu(Some(-0.0), str::to_owned).unwrap(),
    );
}

#[test]
fn placements_and_parts() {
    let placed = |title: &str, share, on_cpu| PlacementBar {
        title: title.to_owned(),
        subtitle: "25 of 31 nodes on the NPU".to_owned(),
        note: "1 belongs on the CPU".to_owned(),
        share,
        benign: (1.0 - share) / 10.0,
        on_cpu,
    };
    let all = [
        placed("Version 2, now", 0.739, "Gemm head_fc1"),
        placed("Version 1, before", 1.0, ""),
    ];
    let [wide, narrow] = bars::placements("p", &all, "Version 2 has less.", "NPU");
    check("placements_wide", &wide);
    check("placements_narrow", &narrow);
    let part = |class, label, n| Part { class, label, n };
    let all = [
        part("npu", "stored", 11_920),
        part("benign", "dropped", 0),
        part("w-ticket", "missing or on the way", 70),
        part("w-info", "refused", -3),
    ];
    let [wide, narrow] = bars::parts("l", &all, "70 are missing.").unwrap();
    check("parts", &wide);
    check("parts_narrow", &narrow);
    assert!(bars::parts("l", &[part("npu", "stored", 0)], "").is_none());
}

#[test]
fn windows_over_time() {
    let moment = |at, p50_us, tone| Moment { at, p50_us, tone };
    let now = [
        moment(0.1, None, Tone::Quiet),
        moment(0.4, Some(60_000.0), Tone::Page),
        moment(1.0, Some(61_000.0), Tone::Page),
    ];
    let before = [
        moment(0.0, Some(15_000.0), Tone::Fine),
        moment(1.0, Some(15_000.0), Tone::Info),
    ];
    let lane = |label: &str, moments, is_now| Lane {
        label: label.to_owned(),
        moments,
        is_now,
    };
    let lanes = [
        lane("version 2", &now[..], true),
        lane("version 1", &before[..], false),
    ];
    let mark = TimelineLabel {
        at: 0.4,
        label: "fired 13:12:54".to_owned(),
    };
    let labels = [(0.0, "13:12:40".to_owned()), (1.0, "13:15:00".to_owned())];
    let [wide, narrow] =
        timeline::windows("t", &lanes, on(&labels, &[]), Some(&mark), "Two pages.").unwrap();
    check("windows", &wide);
    check("windows_narrow", &narrow);
    // Equal medians, and a name that is longer than the space for it.
    let now = [moment(1.0, Some(15_000.0), Tone::Fine)];
    let lanes = [
        lane("version 2026.11.25-rc1", &now[..], true),
        lane("version 1", &before[..], false),
    ];
    // Five dates do not fit on a phone.
    let days = [0.0, 0.25, 0.5, 0.75, 1.0].map(|at| (at, "2026-11-25 13:12".to_owned()));
    let [wide, narrow] = timeline::windows("t", &lanes, on(&days, &[]), None, "None.").unwrap();
    check("windows_alike", &wide);
    check("windows_alike_narrow", &narrow);
    assert_eq!(wide.to_string().matches("13:12</text>").count(), 5);
    assert_eq!(narrow.to_string().matches("13:12</text>").count(), 2);
    let points = [
        (0.0, 0, Tone::Quiet),
        (0.3, 30, Tone::Ticket),
        (0.5, 134, Tone::Page),
        (1.0, 134, Tone::Page),
    ];
    let [wide, narrow] =
        timeline::devices_hit("g", &points, on(&labels, &[]), "At most 134.").unwrap();
    check("devices_hit", &wide);
    check("devices_hit_narrow", &narrow);
    assert!(timeline::windows("t", &[], on(&[], &[]), None, "").is_none());
}

fn on<'a>(labels: &'a [(f64, String)], gaps: &'a [(f64, f64)]) -> OverTime<'a> {
    OverTime {
        gaps,
        changes: &[],
        labels,
    }
}

/// Changes are drawn in a row below the plot, each at its time on the plot's axis.
#[test]
fn changes_lie_on_the_axis_of_the_plot() {
    let labels = [(0.0, "10:00".to_owned()), (1.0, "18:00".to_owned())];
    let over = OverTime {
        changes: &[-0.5, 0.25, 0.252, 0.5, 1.0],
        ..on(&labels, &[])
    };
    let points = [
        (0.0, 0, Tone::Quiet),
        (0.5, 30, Tone::Page),
        (1.0, 30, Tone::Page),
    ];
    let [wide, narrow] = timeline::devices_hit("c", &points, over, "Words.").unwrap();
    check("devices_hit_changes", &wide);
    check("devices_hit_changes_narrow", &narrow);
    let text = wide.to_string();
    assert_eq!(text.matches("class=\"chg-l\"").count(), 5, "{text}");
    assert!(text.contains(">2\u{2013}3<"), "{text}");
    let moments = [0.0, 0.5, 1.0].map(|at| Moment {
        at,
        p50_us: Some(15_000.0),
        tone: Tone::Fine,
    });
    let lanes = [Lane {
        label: "version 1".to_owned(),
        moments: &moments,
        is_now: true,
    }];
    let [wide, narrow] = timeline::windows("d", &lanes, over, None, "Words.").unwrap();
    check("windows_changes", &wide);
    check("windows_changes_narrow", &narrow);
}

/// Missing windows are a labelled grey area without a line across it.
#[test]
fn missing_windows_are_a_gap() {
    let gaps = [(0.25, 0.5), (0.75, 0.76)];
    let moment = |at| Moment {
        at,
        p50_us: Some(15_000.0),
        tone: Tone::Fine,
    };
    let moments = [0.0, 0.125, 0.25, 0.5, 0.625, 0.75, 0.76, 1.0].map(moment);
    let lanes = [Lane {
        label: "version 1".to_owned(),
        moments: &moments,
        is_now: true,
    }];
    let labels = [(0.0, "10:00".to_owned()), (1.0, "18:00".to_owned())];
    let [wide, _] = timeline::windows("m", &lanes, on(&labels, &gaps), None, "Words.").unwrap();
    check("windows_missing", &wide);
    let text = wide.to_string();
    assert_eq!(text.matches("class=\"w-gap\"").count(), 2, "{text}");
    assert_eq!(text.matches("class=\"fine-l\"").count(), 3, "{text}");
    assert_eq!(text.matches(">missing<").count(), 1, "{text}");
    let points = moments.map(|moment| (moment.at, 30, Tone::Page));
    let [wide, _] = timeline::devices_hit("h", &points, on(&labels, &gaps), "Words.").unwrap();
    let text = wide.to_string();
    assert_eq!(text.matches("class=\"now-l\"").count(), 3, "{text}");
    let points = moments.map(|moment| (moment.at, 15_000.0));
    let small = spark::medians(&points, &[], &gaps, false, "median").unwrap();
    let text = small.to_string();
    assert_eq!(text.matches("class=\"fine-l\"").count(), 3, "{text}");
}

/// A value that is not a number draws nothing, whatever the plot.
#[test]
fn what_is_no_number_is_not_drawn() {
    let mut svg = Svg::new(10.0, 10.0);
    svg.rect("a", (f64::NAN, 0.0), (1.0, 1.0));
    svg.rect("a", (0.0, 0.0), (-1.0, 1.0));
    svg.circle("a", (f64::INFINITY, 0.0), 1.0);
    svg.text("a", (0.0, 1e300), "x");
    svg.line("b", [(0.0, 0.0), (f64::NAN, 1.0), (2.0, 2.0)]);
    let drawn = svg.decoration().to_string();
    assert_eq!(drawn.matches("class=\"a\"").count(), 0, "{drawn}");
    assert!(drawn.contains("d=\"M0.0 0.0M2.0 2.0\""), "{drawn}");
    assert_eq!(LogScale::over([f64::NAN, -1.0, 0.0], 0.0, 1.0), None);
    assert!(bars::npu(Some(f64::NAN), str::to_owned).is_none());
}

#[test]
fn ticks_are_round_and_few() {
    let axis = LogScale::over([5.0, 300.0], 0.0, 100.0).unwrap();
    assert_eq!(axis.ticks(6), [5.0, 10.0, 20.0, 50.0, 100.0, 200.0]);
    assert!(axis.ticks(14).len() <= 14);
    let axis = LogScale::round([7.6, 63.0], 0.0, 100.0).unwrap();
    assert_eq!(axis.ticks(5), [5.0, 10.0, 20.0, 50.0, 100.0]);
    let whole = |high| super::scale::whole_ticks(high, 4);
    assert_eq!(whole(134.0), [0.0, 50.0, 100.0]);
    assert_eq!(whole(89.0), [0.0, 20.0, 40.0, 60.0, 80.0]);
    assert_eq!(whole(1.0), [0.0, 1.0]);
    assert_eq!(whole(f64::NAN), [0.0]);
}

#[test]
fn devices_by_ratio() {
    let ratios = |first, on_npu: &[u32], on_cpu: &[u32]| Ratios {
        bins_per_octave: 8.0,
        first,
        on_npu: on_npu.to_vec(),
        on_cpu: on_cpu.to_vec(),
        without_past: 3,
    };
    let (hit, fine) = (
        ratios(0, &[4, 1, 0, 2], &[0, 0, 0, 30]),
        ratios(-1, &[12, 20], &[0, 0]),
    );
    let nobody = ratios(0, &[], &[]);
    let row = |title, ratios| RatioRow {
        title,
        subtitle: "8 Gen 3",
        ratios,
        slower: Slower::of(36, 37),
    };
    let rows = [row("SM<1>", &hit), row("SM2", &fine), row("SM3", &nobody)];
    let [wide, narrow] = ratios::devices("r", &rows, "Slower.").unwrap();
    check("ratios", &wide);
    check("ratios_narrow", &narrow);
    let many = ratios(-1, &[12, 4_000], &[0, 1_000]);
    let many = [row("SM2", &many), row("SM1", &hit)];
    let [wide, narrow] = ratios::devices("r", &many, "As before.").unwrap();
    check("ratios_many", &wide);
    check("ratios_many_narrow", &narrow);
    assert_eq!(ratios::devices("r", &rows[2..], ""), None);
}

/// The outputs of one chipset differ by more than rounding, of one by less, and of one not at all.
#[test]
fn outputs_by_chipset() {
    let row = |title, median, worst| GoldenDistances {
        title,
        subtitle: "8 Gen 3",
        median,
        worst,
    };
    let rows = [
        row("SM8635", 0.09, 0.13),
        row("SM8550", 0.0007, 0.004),
        row("SM8350", 0.0, 0.0),
    ];
    let [wide, narrow] = golden::distances("g", &rows, "SM8635 is off.").unwrap();
    check("golden_wide", &wide);
    check("golden_narrow", &narrow);
    assert!(golden::distances("g", &[], "").is_none());
}
