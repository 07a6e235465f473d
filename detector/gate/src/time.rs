//! Estimates of time, as ranges: of a node on the CPU, and of tensors that cross between NPU and CPU.
//!
//! Called by `inspect`, whose document the gate judges. No limit depends on an estimate. `docs/gate-proof.md` has the sources.

use std::ops::Add;

use serde::{Deserialize, Serialize};

/// MACs a second of a phone's CPU, slow and fast. In 8 bits, AI Hub's release 0.46.1 has six models that ONNX Runtime
/// ran on the CPU alone, on three chipsets. They reach 109 to 411 G, and a detector of many small layers 72. In float,
/// models with 16-bit activations reach 3 to 28 G there, on mid-range phones. The upper end is the capacity of the
/// vector units of a flagship's two large cores.
const MACS_8BIT: [f64; 2] = [70e9, 420e9];
const MACS_FLOAT: [f64; 2] = [3e9, 100e9];
/// Bytes a second that a node reads and writes on the CPU. The values are assumed: one core that computes exp or erf,
/// and a plain copy.
const NODE_BYTES: [f64; 2] = [0.2e9, 10e9];
/// Bytes a second between CPU and NPU, with the maintenance of caches: assumed.
const CROSSING_BYTES: [f64; 2] = [1e9, 10e9];
/// Seconds of a further call of the NPU. The Hexagon SDK states a few hundred microseconds to several milliseconds if
/// CPU and DSP do not share a coherent cache. It states less if they do.
const CALL_SECONDS: [f64; 2] = [3e-3, 0.1e-3];

/// A range of milliseconds a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeRange {
    /// Time on a fast phone.
    pub low_ms: f64,
    /// Time on a slow phone.
    pub high_ms: f64,
}

/// Work of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeWork {
    /// Multiplications with an addition.
    pub macs: u64,
    /// Bytes of its inputs and outputs.
    pub bytes: u64,
    /// Whether its MACs are of 8 bits.
    pub is_8bit: bool,
}

impl TimeRange {
    /// Returns the time of a node that the CPU runs.
    pub fn of_node(work: NodeWork) -> Self {
        let macs = if work.is_8bit { MACS_8BIT } else { MACS_FLOAT };
        Self::of(work.macs, macs) + Self::of(work.bytes, NODE_BYTES)
    }

    /// Returns the time of tensors between CPU and NPU, and of `further_calls` calls of the NPU after the first.
    pub fn of_crossings(bytes: u64, further_calls: u32) -> Self {
        let [slow, fast] = CALL_SECONDS.map(|seconds| 1e3 * seconds * f64::from(further_calls));
        let calls = Self {
            low_ms: fast,
            high_ms: slow,
        };
        Self::of(bytes, CROSSING_BYTES) + calls
    }

    fn of(amount: u64, [slow, fast]: [f64; 2]) -> Self {
        Self {
            low_ms: 1e3 * amount as f64 / fast,
            high_ms: 1e3 * amount as f64 / slow,
        }
    }

    /// For example `0.3 to 12 ms`, with two digits; empty below a microsecond.
    pub(crate) fn in_words(self) -> Option<String> {
        (self.high_ms >= 1e-3)
            .then(|| format!("{} to {} ms", digits(self.low_ms), digits(self.high_ms)))
    }
}

/// Writes two digits, with at most three decimals.
fn digits(ms: f64) -> String {
    match ms {
        10.0.. => format!("{ms:.0}"),
        1.0.. => format!("{ms:.1}"),
        0.1.. => format!("{ms:.2}"),
        0.0005.. => format!("{ms:.3}"),
        _ => "0".to_owned(),
    }
}

impl Add for TimeRange {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            low_ms: self.low_ms + other.low_ms,
            high_ms: self.high_ms + other.high_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds of AI Hub's release 0.46.1 on the CPU alone (ONNX Runtime, w8a8): Snapdragon 7 Gen 4, Q-6690 and RB3
    /// Gen 2. G MACs come from the models' publications, at the same input.
    const WHOLE_MODELS: [(&str, f64, [f64; 3]); 6] = [
        ("googlenet", 1.50, [6.951, 9.08, 13.8]),
        ("inception_v3", 5.71, [13.886, 17.95, 24.544]),
        ("resnet18", 1.81, [8.586, 11.209, 13.761]),
        ("resnet50", 4.09, [17.351, 22.973, 32.258]),
        ("resnext101", 16.41, [67.614, 72.672, 112.485]),
        ("wideresnet50", 11.40, [58.11, 61.366, 79.763]),
    ];

    #[test]
    fn models_that_were_measured_on_the_cpu_lie_within_their_range() {
        for (model, giga_macs, measured) in WHOLE_MODELS {
            #[expect(clippy::cast_possible_truncation, reason = "of tests")]
            #[expect(clippy::cast_sign_loss, reason = "of tests")]
            let macs = (giga_macs * 1e9) as u64;
            let work = NodeWork {
                macs,
                bytes: 0,
                is_8bit: true,
            };
            let TimeRange { low_ms, high_ms } = TimeRange::of_node(work);
            for ms in measured {
                assert!(
                    (low_ms..=high_ms).contains(&ms),
                    "{model}: {low_ms} {high_ms}"
                );
            }
        }
    }

    #[test]
    fn a_range_has_two_digits() {
        let words = |low_ms, high_ms| TimeRange { low_ms, high_ms }.in_words();
        assert_eq!(words(0.34, 12.4).unwrap(), "0.34 to 12 ms");
        assert_eq!(words(0.0, 1.26).unwrap(), "0 to 1.3 ms");
        assert_eq!(words(0.012, 0.5).unwrap(), "0.012 to 0.50 ms");
        assert_eq!(words(0.0, 0.000_5), None);
    }

    #[test]
    fn crossings_cost_their_bytes_and_each_further_call() {
        let found = TimeRange::of_crossings(1_000_000, 2);
        assert!((found.low_ms - 0.3).abs() < 1e-9, "{found:?}");
        assert!((found.high_ms - 7.0).abs() < 1e-9, "{found:?}");
        assert_eq!(TimeRange::of_crossings(0, 0), TimeRange::default());
    }
}
