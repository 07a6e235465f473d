//! The JSON of `winml perf -f json`, as <https://github.com/microsoft/winml-cli> documents it.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use super::input::{ReadError, malformed, run_times};
use crate::{
    mistakes::Mistake,
    run::{Run, RunTarget},
};

const KIND: &str = "winml perf";

#[derive(Deserialize)]
struct WinmlDocument {
    benchmark_info: WinmlInfo,
    #[serde(default)]
    raw_samples_ms: Vec<f64>,
}

#[derive(Deserialize)]
struct WinmlInfo {
    #[serde(default)]
    device: String,
    #[serde(default)]
    ep: String,
}

pub(super) fn read(value: &Value) -> Result<Run, ReadError> {
    let expected = "the document of `winml perf -f json` with raw_samples_ms";
    let WinmlDocument {
        benchmark_info: WinmlInfo { device, ep },
        raw_samples_ms,
    } = WinmlDocument::deserialize(value)
        .map_err(|error| malformed(KIND, error.to_string(), expected))?;
    if raw_samples_ms.is_empty() {
        return Err(malformed(
            KIND,
            "raw_samples_ms is missing or empty",
            expected,
        ));
    }
    let each_us = raw_samples_ms.iter().map(|ms| 1_000.0 * ms);
    let is_off_npu = matches!(&*device, "cpu" | "gpu");
    Ok(Run {
        source: "winml_perf",
        runs_us: run_times(KIND, "raw_samples_ms", each_us)?,
        warmup: Some(0),
        eps: Some(BTreeSet::from([ep])),
        target: RunTarget {
            device: Some(device.clone()).filter(|device| !device.is_empty()),
            ..RunTarget::default()
        },
        mistakes: Vec::from_iter(
            is_off_npu.then(|| Mistake::cpu_latency(&format!("device {device}"))),
        ),
        ..Run::default()
    })
}

#[cfg(test)]
mod tests {
    use crate::read::{ReadOptions, read, tests::only};

    #[test]
    fn samples_are_runs_without_warm_up() {
        let run = only(
            r#"{"benchmark_info": {"device": "cpu", "ep": "CPUExecutionProvider", "iterations": 2, "warmup": 5},
                "latency_ms": {"avg": 5.53}, "raw_samples_ms": [5.12, 5.40]}"#,
        );
        assert_eq!((run.runs_us, run.warmup), (vec![5_120, 5_400], Some(0)));
        assert_eq!(run.mistakes[0].id, "cpu_latency");
        for text in [
            r#"{"benchmark_info": {}, "latency_ms": {"avg": 5.53}}"#,
            r#"{"benchmark_info": {}, "raw_samples_ms": [-1]}"#,
            r#"{"raw_samples_ms": [1]}"#,
        ] {
            let error = read(text.as_bytes(), ReadOptions::default()).unwrap_err();
            assert!(error.to_string().contains("winml perf"), "{error}");
        }
    }
}
