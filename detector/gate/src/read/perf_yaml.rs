//! `perf.yaml` of qai-hub-models: a row for each precision, component, device and runtime. Only this form of YAML is
//! read: nested maps with one scalar on each line, as the tool writes them.

use std::{collections::BTreeMap, io::BufRead};

use super::input::{ReadError, lines, malformed, micros};
use crate::{
    layers::Layers,
    mistakes::Mistake,
    run::{Run, RunTarget},
};

const KIND: &str = "perf.yaml";
/// Maximum number of rows of a table.
const MOST_ROWS: usize = 50_000;
/// Maximum number of tools of a row.
const MOST_TOOLS: usize = 16;
/// Deepest nesting of the table.
const MOST_DEPTH: usize = 32;
/// The key of tables of language models.
const TOKENS: &str = "tokens_per_second:";

/// One row: precisions / P / components / C / performance_metrics / DEVICE / RUNTIME.
#[derive(Default)]
struct PerfRow {
    ms: Option<f64>,
    layers: [u32; 3],
    /// Tools with their versions.
    tools: Vec<String>,
}

type RowKey = [String; 4];

pub(super) fn read(input: impl BufRead) -> Result<Vec<Run>, ReadError> {
    let mut rows: BTreeMap<RowKey, PerfRow> = BTreeMap::new();
    let mut path: Vec<(usize, String)> = Vec::new();
    let mut has_tokens = false;
    lines(KIND, input, |at, line| {
        let text = line.trim_start();
        has_tokens |= text.trim_start_matches("- ").starts_with(TOKENS);
        if text.is_empty() || text.starts_with(['#', '-']) {
            return Ok(());
        }
        let indent = line.len() - text.len();
        path.retain(|(above, _)| *above < indent);
        let wrong = |what: &str| {
            malformed(
                KIND,
                format!("line {at}: {what}"),
                "`key: value`, as qai-hub-models writes it",
            )
        };
        let (key, value) = text
            .split_once(": ")
            .or_else(|| Some((text.strip_suffix(':')?, "")))
            .ok_or_else(|| wrong("no key"))?;
        path.push((indent, key.trim_matches(['"', '\'']).to_owned()));
        if path.len() > MOST_DEPTH {
            return Err(wrong("nested too deep"));
        }
        let names: Vec<&str> = path.iter().map(|(_, key)| key.as_str()).collect();
        let [
            "precisions",
            precision,
            "components",
            component,
            "performance_metrics",
            device,
            runtime,
            field @ ..,
        ] = &names[..]
        else {
            return Ok(());
        };
        let key = [precision, component, device, runtime].map(|name| (*name).to_owned());
        if rows.len() >= MOST_ROWS && !rows.contains_key(&key) {
            return Err(wrong("more than 50,000 rows"));
        }
        let row = rows.entry(key).or_default();
        let value = value.trim().trim_matches(['"', '\'']);
        match field {
            ["inference_time_milliseconds"] => {
                let ms = value
                    .parse()
                    .ok()
                    .filter(|ms: &f64| micros(1_000.0 * ms).is_some());
                row.ms = Some(ms.ok_or_else(|| wrong("no milliseconds"))?);
            }
            ["layer_counts", unit] => {
                let at = ["npu", "gpu", "cpu"].iter().position(|name| name == unit);
                if let Some(at) = at {
                    row.layers[at] = value.parse().map_err(|_| wrong("no count"))?;
                }
            }
            ["tool_versions", tool] if row.tools.len() < MOST_TOOLS => {
                row.tools.push(format!("{tool} {value}"));
            }
            _ => {}
        }
        Ok(())
    })?;
    let runs: Vec<Run> = rows
        .into_iter()
        .filter_map(|(key, row)| row.run(&key))
        .collect();
    match runs.is_empty() {
        true if has_tokens => Err(malformed(
            KIND,
            "tokens a second of a language model, and no time of a run",
            "a table with inference_time_milliseconds; profile the parts of the model (prompt, token) in jobs of their own, and \
             give those results",
        )),
        true => Err(malformed(
            KIND,
            "no inference time",
            "precisions / components / performance_metrics, as of qai-hub-models 0.40 and later",
        )),
        false => Ok(runs),
    }
}

impl PerfRow {
    fn run(self, [precision, component, device, runtime]: &RowKey) -> Option<Run> {
        let [npu, gpu, cpu] = self.layers;
        let mut mistakes = vec![Mistake::only_minimum()];
        mistakes.extend(device.contains("(Proxy)").then(|| Mistake::proxy(device)));
        Some(Run {
            source: "perf_yaml",
            target: RunTarget {
                row: format!("{precision} {component}, {runtime}"),
                device: Some(device.clone()),
                runtime: (!self.tools.is_empty()).then(|| self.tools.join(", ")),
                ..RunTarget::default()
            },
            time_us: Some(1_000.0 * self.ms?),
            layers: Some(Layers { npu, gpu, cpu }).filter(|layers| layers.npu_share().is_some()),
            mistakes,
            ..Run::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::{ReadOptions, read as read_any};

    const TEXT: &str = "supported_devices:\n- Samsung Galaxy S24\nprecisions:\n  float:\n    components:\n      MobileNet-v2:\n        \
        performance_metrics:\n          QCS8550 (Proxy):\n            onnx:\n              job_status: Passed\n              \
        inference_time_milliseconds: 0.832\n              layer_counts:\n                total: 104\n                npu: 103\n                cpu: 1\n          \
        Samsung Galaxy S24:\n            tflite:\n              job_status: Failed\n            onnx:\n              \
        inference_time_milliseconds: 0.528\n              tool_versions:\n                onnx_runtime: 1.23.0\n";

    #[test]
    fn rows_with_a_time_are_runs() {
        let runs = read_any(TEXT.as_bytes(), ReadOptions::default()).unwrap();
        let [proxy, phone] = &runs[..] else {
            panic!("{runs:?}")
        };
        let ids: Vec<&str> = proxy.mistakes.iter().map(|mistake| mistake.id).collect();
        assert_eq!(ids, ["only_minimum", "proxy_device"]);
        let layers = Layers {
            npu: 103,
            gpu: 0,
            cpu: 1,
        };
        assert_eq!((proxy.time_us, proxy.layers), (Some(832.0), Some(layers)));
        assert_eq!(phone.target.device.as_deref(), Some("Samsung Galaxy S24"));
        assert_eq!(phone.target.row, "float MobileNet-v2, onnx");
        assert_eq!((phone.time_us, phone.layers), (Some(528.0), None));
        let runtime = phone.target.runtime.as_deref();
        assert_eq!(runtime, Some("onnx_runtime 1.23.0"));
    }

    /// A table of a language model, in the format of qai-hub-models.
    const LLM: &str = "supported_devices:\n  - Snapdragon 8 Elite QRD\nprecisions:\n  w4a16:\n    components:\n      Llama:\n        \
        performance_metrics:\n          Snapdragon 8 Elite QRD:\n            genie:\n              llm_metrics:\n                \
        - context_length: 4096\n                  tokens_per_second: 23.4718\n";

    #[test]
    fn other_tables_are_refused_with_their_line() {
        for (text, says) in [
            ("precisions:\n  float: {}\n", "no inference time"),
            ("precisions:\n  x\n", "line 2"),
            (LLM, "tokens a second of a language model"),
            (&TEXT.replace("0.832", "fast"), "line 11: no milliseconds"),
            (&TEXT.replace("npu: 103", "npu: -1"), "line 14: no count"),
        ] {
            let error = read_any(text.as_bytes(), ReadOptions::default())
                .unwrap_err()
                .to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
