//! `trtexec --exportProfile` (times by layer) and `--exportTimes` (times by run): NVIDIA TensorRT,
//! samples/common/sampleReporting.cpp.

use serde::Deserialize;

use super::input::{ReadError, malformed, micros};
use crate::{
    mistakes::Mistake,
    run::{Run, RunNode, Unit},
};

const KIND: &str = "trtexec";

#[derive(Deserialize)]
struct TrtexecRow {
    name: Option<String>,
    #[serde(rename = "averageMs")]
    average_ms: Option<f64>,
    #[serde(rename = "latencyMs")]
    latency_ms: Option<f64>,
}

pub(super) fn read(text: &str) -> Result<Run, ReadError> {
    let expected = "the JSON of --exportProfile or --exportTimes";
    let rows: Vec<TrtexecRow> =
        serde_json::from_str(text).map_err(|error| malformed(KIND, error.to_string(), expected))?;
    let mut run = Run {
        source: "trtexec",
        ..Run::default()
    };
    let mut sum_us = 0.0;
    for (at, row) in rows.into_iter().enumerate() {
        if let Some(ms) = row.latency_ms {
            let wrong = || {
                malformed(
                    KIND,
                    format!("row {at}: latencyMs is {ms}"),
                    "milliseconds above 0",
                )
            };
            run.runs_us.push(micros(1_000.0 * ms).ok_or_else(wrong)?);
        } else if let Some((name, ms)) = row.name.zip(row.average_ms) {
            if ms < 0.0 {
                let what = format!("row {at}: averageMs is {ms}");
                return Err(malformed(KIND, what, "milliseconds from 0 on"));
            }
            sum_us += 1_000.0 * ms;
            run.nodes.push(RunNode {
                name,
                op_type: String::new(),
                unit: Unit::Gpu,
                events: 1,
                macs_by_shapes: None,
            });
        }
    }
    match (run.runs_us.is_empty(), run.nodes.is_empty()) {
        (true, true) => return Err(malformed(KIND, "no layer and no run", expected)),
        (true, false) => {
            run.time_us = micros(sum_us).map(|_| sum_us);
            run.mistakes.push(Mistake::sum_of_layers());
        }
        _ => {}
    }
    Ok(run)
}

#[cfg(test)]
mod tests {
    use crate::read::{ReadOptions, read, tests::only};

    #[test]
    fn layers_have_a_sum_and_runs_have_times() {
        let layers = only(
            r#"[ { "count" : 30 }
               , { "name" : "conv1 + relu1", "timeMs" : 30.0, "averageMs" : 1.0, "medianMs" : 0.9, "percentage" : 66.7 }
               , { "name" : "fc", "timeMs" : 15.0, "averageMs" : 0.5, "medianMs" : 0.5, "percentage" : 33.3 } ]"#,
        );
        assert_eq!((layers.time_us, layers.nodes.len()), (Some(1_500.0), 2));
        assert_eq!(layers.mistakes[0].id, "sum_of_layers");
        let runs = only(r#"[ { "startComputeMs": 1.0, "latencyMs" : 1.25, "computeMs" : 1.2 } ]"#);
        assert_eq!((runs.runs_us, runs.time_us), (vec![1_250], None));
        for text in [
            r#"[{"count": 3}]"#,
            r#"[{"count": 3}, {"name": "a", "averageMs": -1}]"#,
            r#"[{"count": 3}, {"latencyMs": 0}]"#,
        ] {
            assert!(read(text.as_bytes(), ReadOptions::default()).is_err());
        }
    }
}
