//! Measurements on real devices: base latencies, and differences between chipsets.
//!
//! The data are from Qualcomm AI Hub Models v0.46.1 (public repository quic/ai-hub-models, commit 52c080d2, the
//! `perf.yaml` files, BSD-3-Clause). They are rows of one model, precision and runtime that ran wholly on the NPU. The
//! same data show how much slower a model is after a fallback. For this they compare ONNX Runtime with layers on the
//! CPU against QNN itself on the same device. A model wholly on the CPU (117 rows) is 2.9 to 59 x slower, with a median
//! of 13 x. With a minority of its layers there (85 rows) it is 1.06 to 36 x between the quartiles' outer neighbours.
//! The median is 2.45 x. Each row is a single value, so the spread of runs and devices has to be modelled.

use epwatch_fleet::chance::Chance;

/// Milliseconds on a Galaxy S24's NPU, ONNX Runtime with QNN, 124 rows: 10, 25, 50, 75 and 90 % points.
const BASE_MS: [f64; 5] = [0.674, 1.222, 3.421, 10.04, 32.4];

/// Chipsets, and their latency relative to SM8650: 10 and 90 % points over models, from 159 to 300 rows each.
const CHIPSETS: [(&str, (f64, f64)); 6] = [
    ("SM8650", (0.98, 1.02)),
    ("SM8550", (1.29, 1.49)),
    ("SM8750", (0.71, 0.88)),
    ("SM8450", (1.72, 3.10)),
    ("SM8850", (0.56, 0.81)),
    ("SM7750", (1.48, 2.32)),
];

/// Number of chipsets with measurements.
pub(super) const MOST_CHIPSETS: usize = CHIPSETS.len();

pub(super) fn chipset(at: usize) -> &'static str {
    CHIPSETS[at % MOST_CHIPSETS].0
}

/// Draws a chipset's latency relative to SM8650 for a model.
pub(super) fn chipset_slowness(at: usize, chance: &mut Chance) -> f64 {
    chance.between(CHIPSETS[at % MOST_CHIPSETS].1)
}

/// Draws a model's latency on SM8650, in microseconds, between its 10 % and its 90 % point.
pub fn base_us(chance: &mut Chance) -> f64 {
    let points = [0.1, 0.25, 0.5, 0.75, 0.9];
    let at = chance.between((0.1, 0.9));
    let above = points.iter().skip(1).position(|point| at < *point);
    let below = above.unwrap_or(points.len() - 2);
    let share = (at - points[below]) / (points[below + 1] - points[below]);
    let (low, high) = (BASE_MS[below], BASE_MS[below + 1]);
    1_000.0 * low * (high / low).powf(share)
}
