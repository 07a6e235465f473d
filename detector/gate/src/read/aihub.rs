//! Results of Qualcomm AI Hub: the JSON of the client's `download_profile()`, and the message `JobResult` of its API, which
//! also has segments and tool versions. Field numbers come from qai-hub 0.56.0 (`public_api_pb2`).

use serde::Deserialize;
use serde_json::Value;

use super::{
    input::{ReadError, malformed, micros, run_times},
    protobuf::{FieldValue, fields, numbers},
};
use crate::{
    layers::Layers,
    mistakes::Mistake,
    run::{Run, RunNode, Unit},
};

const KIND: &str = "AI Hub result";
/// Maximum number of layers of a result.
const MOST_LAYERS: usize = 200_000;

#[derive(Deserialize)]
struct AihubProfile {
    execution_summary: AihubSummary,
    #[serde(default)]
    execution_detail: Vec<AihubLayer>,
}

#[derive(Deserialize)]
struct AihubSummary {
    estimated_inference_time: Option<u64>,
    first_load_time: Option<u64>,
    #[serde(default)]
    all_inference_times: Vec<u64>,
}

#[derive(Deserialize)]
struct AihubLayer {
    #[serde(default)]
    name: String,
    #[serde(default, rename = "type")]
    op_type: String,
    #[serde(default)]
    compute_unit: String,
}

/// Reads the JSON of `download_profile()`.
pub(super) fn profile(value: &Value) -> Result<Run, ReadError> {
    let AihubProfile {
        execution_summary: summary,
        execution_detail,
    } = AihubProfile::deserialize(value)
        .map_err(|error| malformed(KIND, error.to_string(), "the JSON of download_profile()"))?;
    let layers = execution_detail.into_iter().map(|layer| {
        let unit = Unit::parse(&layer.compute_unit);
        (layer.name, layer.op_type, unit)
    });
    let mut run = found(
        "aihub_profile",
        summary.all_inference_times,
        summary.estimated_inference_time,
        layers.collect(),
    )?;
    run.load_us = summary.first_load_time.and_then(load_us);
    Ok(run)
}

/// Whether bytes begin as a `JobResult` does: a result of profiling or inference in field 1 or 2, whose id comes first.
pub(super) fn is_job_result(head: &[u8]) -> bool {
    let [0x0a | 0x12, rest @ ..] = head else {
        return false;
    };
    // The result's length comes first, then the key of the id's field.
    let length = rest.iter().take(5).position(|byte| byte & 0x80 == 0);
    length.is_some_and(|last| rest.get(last + 1) == Some(&0x0a))
}

/// Reads a `JobResult`.
pub(super) fn job_result(bytes: &[u8]) -> Result<Run, ReadError> {
    let wrong =
        |what: &str| malformed(KIND, what, "the message JobResult of a profiled job, whole");
    let result = fields(bytes).ok_or_else(|| wrong("no message of protocol buffers"))?;
    // A job of profiling has its profile in field 2, a job of inference in field 3.
    let detail = result.into_iter().find_map(|(number, value)| {
        let at = match number {
            1 => 2,
            2 => 3,
            _ => return None,
        };
        let FieldValue::Bytes(job) = value else {
            return None;
        };
        message(job, at)
    });
    let detail = detail
        .ok_or_else(|| wrong("a job without a profile; was it submitted with profile=True?"))?;
    let detail = fields(detail).ok_or_else(|| wrong("a profile that is cut off"))?;
    let (mut runs, mut estimate, mut layers, mut tools) =
        (Vec::new(), None, Vec::new(), Vec::new());
    let (mut segments, mut first_load) = (0_u32, None);
    for (number, value) in detail {
        match (number, value) {
            (1, FieldValue::Varint(us)) => estimate = Some(us),
            (19, FieldValue::Varint(us)) => first_load = load_us(us),
            (33, value) => {
                runs.extend(numbers(value).ok_or_else(|| wrong("run times that are cut off"))?)
            }
            (4, FieldValue::Bytes(layer)) if layers.len() < MOST_LAYERS => {
                layers.push(layer_of(layer).ok_or_else(|| wrong("a layer that is cut off"))?);
            }
            (34, FieldValue::Bytes(segment)) => {
                let unit = fields(segment).ok_or_else(|| wrong("a segment that is cut off"))?;
                segments += u32::from(unit.contains(&(2, FieldValue::Varint(NPU))));
            }
            (36, FieldValue::Bytes(tool)) => tools.extend(tool_of(tool)),
            _ => {}
        }
    }
    let mut run = found("aihub_result", runs, estimate, layers)?;
    run.load_us = first_load;
    run.partitions = (segments > 0).then_some(segments);
    run.target.runtime = (!tools.is_empty()).then(|| tools.join(", "));
    Ok(run)
}

/// Returns a measured time; 0 stands for none.
fn load_us(us: u64) -> Option<f64> {
    let us = us as f64;
    micros(us).map(|_| us)
}

/// `COMPUTE_UNIT_NPU`.
const NPU: u64 = 3;

fn message(bytes: &[u8], at: u64) -> Option<&[u8]> {
    fields(bytes)?.into_iter().find_map(|field| match field {
        (number, FieldValue::Bytes(bytes)) if number == at => Some(bytes),
        _ => None,
    })
}

fn layer_of(bytes: &[u8]) -> Option<(String, String, Unit)> {
    let (mut name, mut op_type, mut unit) = (String::new(), String::new(), Unit::Unknown);
    for field in fields(bytes)? {
        match field {
            (1, FieldValue::Bytes(text)) => name = String::from_utf8_lossy(text).into_owned(),
            (3, FieldValue::Bytes(text)) => op_type = String::from_utf8_lossy(text).into_owned(),
            (2, FieldValue::Varint(1)) => unit = Unit::Cpu,
            (2, FieldValue::Varint(2)) => unit = Unit::Gpu,
            (2, FieldValue::Varint(NPU)) => unit = Unit::Npu,
            _ => {}
        }
    }
    Some((name, op_type, unit))
}

fn tool_of(bytes: &[u8]) -> Option<String> {
    let text = |at| message(bytes, at).map(|text| String::from_utf8_lossy(text).into_owned());
    Some(format!("{} {}", text(1)?, text(2)?))
}

fn found(
    source: &'static str,
    runs: Vec<u64>,
    estimate: Option<u64>,
    layers: Vec<(String, String, Unit)>,
) -> Result<Run, ReadError> {
    let runs = run_times(KIND, "runs", runs.into_iter().map(|us| us as f64))?;
    let time_us = estimate
        .map(|us| us as f64)
        .filter(|us| micros(*us).is_some());
    if runs.is_empty() && time_us.is_none() {
        return Err(malformed(KIND, "no run time", "a job that has succeeded"));
    }
    let count = |wanted| {
        let of_unit = layers.iter().filter(|(_, _, unit)| *unit == wanted);
        u32::try_from(of_unit.count()).unwrap_or(u32::MAX)
    };
    let counted = Layers {
        npu: count(Unit::Npu),
        gpu: count(Unit::Gpu),
        cpu: count(Unit::Cpu),
    };
    let has_context = layers.iter().any(|(_, op_type, _)| op_type == "EPContext");
    Ok(Run {
        source,
        runs_us: runs,
        warmup: Some(0),
        time_us,
        layers: Some(counted).filter(|layers| layers.npu_share().is_some()),
        mistakes: Vec::from_iter(has_context.then(Mistake::ep_context)),
        nodes: layers
            .into_iter()
            .map(|(name, op_type, unit)| RunNode {
                name,
                op_type,
                unit,
                events: 1,
                macs_by_shapes: None,
            })
            .collect(),
        ..Run::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::{ReadOptions, read};

    const RESULT: &[u8] = include_bytes!("../../tests/fixtures/aihub/result.pb");
    const PROFILE: &[u8] = include_bytes!("../../tests/fixtures/aihub/profile.json");

    fn only(bytes: &[u8]) -> Result<Run, ReadError> {
        read(bytes, ReadOptions::default()).map(|mut runs| runs.remove(0))
    }

    /// AI Hub's own library wrote both fixtures.
    #[test]
    fn the_message_and_the_json_of_it_are_the_same_launch() {
        let (message, json) = (only(RESULT).unwrap(), only(PROFILE).unwrap());
        assert_eq!(message.runs_us, json.runs_us);
        assert_eq!((message.runs_us.len(), message.runs_us[0]), (100, 8_190));
        assert_eq!(message.nodes, json.nodes);
        assert_eq!(
            (message.load_us, json.load_us),
            (Some(1_234_000.0), Some(1_234_000.0))
        );
        let layers = Layers {
            npu: 2,
            gpu: 0,
            cpu: 1,
        };
        assert_eq!((message.layers, json.layers), (Some(layers), Some(layers)));
        // The JSON does not have partitions and tool versions.
        assert_eq!((message.partitions, json.partitions), (Some(1), None));
        assert_eq!(
            message.target.runtime.as_deref(),
            Some("onnx_runtime 1.23.0")
        );
    }

    #[test]
    fn a_cut_message_and_a_job_without_a_profile_are_refused() {
        for at in 1..RESULT.len() {
            let error = job_result(&RESULT[..at]).unwrap_err().to_string();
            assert!(error.contains("AI Hub result"), "{at}: {error}");
        }
        let compiled = job_result(b"\x1a\x03\x0a\x01a").unwrap_err().to_string();
        assert!(compiled.contains("profile=True"), "{compiled}");
        let failed = only(br#"{"execution_summary": {}, "execution_detail": []}"#);
        assert!(failed.unwrap_err().to_string().contains("no run time"));
    }
}
