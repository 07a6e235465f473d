//! What launches of each kind have in common: the head of the document, and the times of runs.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use epwatch_gate::run_document::{MeasuredModel, MeasuredRuntime, SCHEMA};
use epwatch_sdk::{placement, self_test::GoldenInput};
use ort::session::{Session, SessionInputValue};

use crate::{document::RunDocument, job::Job};

/// A document with the fields that every launch has, made in a process that has loaded ONNX Runtime.
pub(crate) fn begun(job: &Job) -> RunDocument {
    let mut document = document_of(job);
    document.runtime.ort = placement::ort_version();
    document
}

/// The same without the version of ONNX Runtime.
pub(crate) fn document_of(job: &Job) -> RunDocument {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    RunDocument {
        schema: SCHEMA.to_owned(),
        warmup: Some(0),
        model: MeasuredModel {
            sha256: Some(job.sha256.clone()),
            data: job.data.clone(),
            name: Some(job.name.clone()),
        },
        target: job.target.clone(),
        runtime: MeasuredRuntime {
            ep: Some(job.ep.name().to_owned()),
            options: job.options(),
            ..MeasuredRuntime::default()
        },
        source: Some(format!("epwatch-run {}", env!("CARGO_PKG_VERSION"))),
        settings: job.settings.clone(),
        arm: Some(job.arm),
        started_unix_ms: i64::try_from(since.as_millis()).ok(),
        ..RunDocument::default()
    }
}

/// Run times in microseconds, the first one first. Inputs are made once, so that only the model is timed.
pub(crate) fn times(
    session: &mut Session,
    golden: &GoldenInput,
    runs: u32,
) -> anyhow::Result<Vec<u64>> {
    let mut values = Vec::new();
    for (name, tensor) in golden.inputs() {
        values.push((name.to_owned(), tensor.to_value()?));
    }
    let mut times = Vec::new();
    for _ in 0..runs {
        let each = values
            .iter()
            .map(|(name, value)| (name.as_str(), value.into()));
        let inputs: Vec<(&str, SessionInputValue<'_>)> = each.collect();
        let began = Instant::now();
        let outputs = session.run(inputs)?;
        let took = began.elapsed();
        drop(outputs);
        times.push(micros(took));
    }
    Ok(times)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}

/// Whole microseconds, at least one, in the form of a document.
pub(crate) fn load_us(took: Duration) -> Option<f64> {
    Some(micros(took) as f64)
}
