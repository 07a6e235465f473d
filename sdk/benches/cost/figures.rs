//! All figures, as a table for people and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use crate::{
    Rounds, memory, model, time,
    wire::{self, WireRow},
};

/// The measured figures, in nanoseconds and bytes unless the name has another unit.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    clock_pair_ns: f64,
    record_ns: f64,
    record_two_threads_ns: f64,
    wrapped_minus_bare_ns: f64,
    real_model_bare_ns: f64,
    real_model_wrapped_minus_bare_ns: f64,
    allocations_per_run: f64,
    init_us: f64,
    #[serde(flatten)]
    memory: memory::Memory,
    #[serde(rename = "wire_bytes_of_1000_runs")]
    wire: Vec<WireRow>,
}

impl Figures {
    pub(crate) fn measure(rounds: Rounds) -> Self {
        let run = time::run(rounds);
        let model = model::paired(rounds);
        Self {
            clock_pair_ns: run.clock_pair_ns,
            record_ns: run.record_ns,
            record_two_threads_ns: time::record_two_threads(rounds),
            wrapped_minus_bare_ns: run.wrapped_minus_bare_ns,
            real_model_bare_ns: model.bare_ns,
            real_model_wrapped_minus_bare_ns: model.wrapped_minus_bare_ns,
            allocations_per_run: memory::allocations_per_run(rounds),
            init_us: time::init_us(rounds),
            memory: memory::of_series(),
            wire: wire::table(),
        }
    }

    /// One JSON object. A figure that could not be measured is null.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers serialise")
    }

    pub(crate) fn table(&self) -> String {
        let beyond_clock = self.wrapped_minus_bare_ns - self.clock_pair_ns;
        let lines = [
            ("a pair of clock reads", self.clock_pair_ns, "ns"),
            ("record, one thread, beyond it", self.record_ns, "ns"),
            (
                "record, two threads on one series, beyond it",
                self.record_two_threads_ns,
                "ns",
            ),
            (
                "a run that does nothing, wrapped minus bare",
                self.wrapped_minus_bare_ns,
                "ns",
            ),
            ("  of it beyond the clock reads", beyond_clock, "ns"),
            ("a real model (MLP), bare", self.real_model_bare_ns, "ns"),
            (
                "  wrapped minus bare, paired",
                self.real_model_wrapped_minus_bare_ns,
                "ns",
            ),
            ("allocations a run", self.allocations_per_run, ""),
            (
                "start of the SDK on the caller's thread",
                self.init_us,
                "us",
            ),
        ];
        let mut out = String::new();
        // Writing to a String cannot fail.
        for (what, value, unit) in lines {
            let _ = writeln!(out, "{what:<46} {value:>9.1} {unit}");
        }
        let memory = [
            ("memory of a series", self.memory.bytes_per_series),
            (
                "memory of 8 series, one thread",
                self.memory.bytes_of_8_series,
            ),
            (
                "memory of 8 series, two threads at once",
                self.memory.bytes_of_8_series_two_threads,
            ),
        ];
        for (what, bytes) in memory {
            let _ = writeln!(out, "{what:<46} {bytes:>9} B");
        }
        let _ = writeln!(
            out,
            "\nwire bytes of a series of 1,000 runs, everything but shared headers\n\
             (medians over latencies of 1 to 100 ms)\n\
             {:>6} {:>11} {:>8} {:>15} {:>23}",
            "CV", "histogram", "series", "least to most", "with a known baseline"
        );
        for row in &self.wire {
            let _ = writeln!(
                out,
                "{:>4} % {:>11} {:>8} {:>15} {:>23}",
                row.cv_percent,
                row.histogram,
                row.series,
                format!("{} to {}", row.least, row.most),
                row.with_baseline
            );
        }
        out
    }
}
