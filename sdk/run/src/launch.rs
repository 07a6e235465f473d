//! One launch, in a process of its own: makes the session, runs the model, writes the document.

use std::time::{Duration, Instant};

use anyhow::Context;
use epwatch_gate::run::{NotFinite, RunOutputs};
use epwatch_manifest::{CompiledElsewhere, ModelOutline};
use epwatch_proto::{Placement, hex};
use epwatch_sdk::{
    placement::{self, Inspection, inspect_file, record_assignment, summarise},
    self_test::{self, GoldenInput, code},
    types::SelfTest,
};
use ort::{session::Session, sys::OrtErrorCode};

use crate::{
    broken::broken,
    conditions::{battery_c, cpu_khz, probe_us, steady_probe_us, thermal_status},
    document::{self, Placed, RunDocument},
    inputs::InputKind,
    job::{Job, Task},
    measured::{begun, load_us, times},
    session::{Builder, LoadedRuntime, lacks_custom_ops, manifest, needs_custom_ops},
    untimed,
    wrong_use::WrongUse,
};

/// Makes the launch, and writes its document.
pub(crate) fn launch(job: &Job) -> anyhow::Result<()> {
    let runtime = LoadedRuntime::load(job)?;
    let document = match job.task {
        Task::Look => look(job, &runtime)?,
        Task::Profile => untimed::profile(job, &runtime)?,
        Task::Compile => untimed::compile(job, &runtime)?,
        Task::Warm => untimed::warm(job, &runtime)?,
        Task::Time(n) => timed(job, &runtime, n)?,
    };
    document::write(&document, &job.out)
        .with_context(|| format!("failed to write {}", job.out.display()))
}

/// The placement with its reasons, and the distance of the outputs from the outputs of the CPU.
fn look(job: &Job, runtime: &LoadedRuntime) -> anyhow::Result<RunDocument> {
    let mut document = begun(job);
    let manifest = manifest(job)?;
    let made = runtime.builder(job)?;
    let soc_model = job.ep.soc_model();
    let input = made.input(soc_model, manifest.as_ref());
    let inspection = inspect_file(made.builder.clone(), &job.model, input);
    let placed = match inspection {
        Inspection::Placed {
            placement,
            npu_partitions,
            npu_nodes,
        } => compiled_elsewhere(job).unwrap_or_else(|| {
            Placed::of(
                job.chipset(),
                soc_model,
                &placement,
                npu_partitions,
                npu_nodes,
            )
        }),
        Inspection::Failed { error, reason, .. } => match missing_ops(job, &error) {
            Some(ops) if job.custom_ops.is_empty() => Placed::unproven(job, needs_custom_ops(&ops)),
            Some(ops) => return Err(WrongUse(lacks_custom_ops(&ops)).into()),
            None => match broken(job, runtime) {
                Some(why) => Placed::broken(job, why),
                None => Placed::failed(job, error, Some(reason.into())),
            },
        },
        _ => anyhow::bail!("the SDK gave an answer that this program does not know"),
    };
    let is_ok = placed.is_ok();
    document.placement = Some(placed);
    if is_ok {
        let mut session = made.builder.clone().commit_from_file(&job.model)?;
        let golden = match job.inputs.of(&session) {
            // No launch of this model can be made, so the session shows nothing that the gate may judge.
            Err(error) if !error.is::<WrongUse>() => {
                let why = format!("{error:#}");
                document.placement = Some(Placed::unproven(job, why));
                return Ok(document);
            }
            made => made?,
        };
        check_by_run(job, &mut session, &golden)?;
        let test = self_test::compared(&mut session, &golden, || -> anyhow::Result<Session> {
            Ok(runtime.cpu_builder(job)?.commit_from_file(&job.model)?)
        });
        document.outputs = outputs(&test);
        if let Some(outputs) = &mut document.outputs {
            add_not_finite(outputs, test.error_code, &mut session, &golden, || {
                Ok(runtime.cpu_builder(job)?.commit_from_file(&job.model)?)
            })?;
        }
    }
    Ok(document)
}

/// The answer for a graph that was compiled for another chipset than the emulated one. A device needs none, because its
/// own QNN accepts or refuses the graph.
fn compiled_elsewhere(job: &Job) -> Option<Placed> {
    let soc_model = job.ep.soc_model();
    let compiled = ModelOutline::of(&job.model).ok()?.precompiled()?;
    Some(match compiled.elsewhere(soc_model.parse().ok()?)? {
        CompiledElsewhere::ForAnother { error, way_out } => {
            Placed::failed(job, error, None).with_way_out(way_out)
        }
        CompiledElsewhere::Unnamed { error } => Placed::unproven(job, error.to_owned()),
    })
}

/// Runs the model once with the inputs of a folder, because only a run compares their shapes and types with it.
fn check_by_run(job: &Job, session: &mut Session, golden: &GoldenInput) -> Result<(), WrongUse> {
    let InputKind::Folder(folder) = &job.inputs else {
        return Ok(());
    };
    let Err(error) = times(session, golden, 1) else {
        return Ok(());
    };
    let of_ort = error.downcast_ref::<ort::Error>();
    match of_ort.map(|error| OrtErrorCode::from(error.code())) {
        Some(OrtErrorCode::ORT_INVALID_ARGUMENT) => Err(WrongUse(format!(
            "inputs of {} do not fit the model: {error}",
            folder.display()
        ))),
        // A run that fails for another reason fails in each launch.
        _ => Ok(()),
    }
}

/// The ops that the error is about because no library provides them.
fn missing_ops(job: &Job, error: &str) -> Option<String> {
    ModelOutline::of(&job.model).ok()?.missing_ops(error)
}

/// `None` if the outputs could not be compared.
fn outputs(test: &SelfTest) -> Option<RunOutputs> {
    let hash = test.npu_output_hash?;
    [0, code::NOT_FINITE]
        .contains(&test.error_code)
        .then(|| RunOutputs {
            hash: Some(hex(&hash)),
            max_abs: test.max_abs,
            cosine: test.cosine,
            top1: test.top1_equal.map(|equal| f64::from(u8::from(equal))),
            first_off: Some(test.first_off_output.clone()).filter(|first| !first.is_empty()),
            not_finite: None,
            wrong: None,
        })
}

/// Names the first output with a NaN or an infinity. A cosine is without such elements, so an output that has nothing else
/// has none.
fn add_not_finite(
    outputs: &mut RunOutputs,
    error_code: i32,
    session: &mut Session,
    golden: &GoldenInput,
    cpu_session: impl FnOnce() -> anyhow::Result<Session>,
) -> anyhow::Result<()> {
    let of = |session: &mut Session| {
        let found = self_test::not_finite(session, golden);
        found.map_err(|code| anyhow::anyhow!("the outputs could not be read again (error {code})"))
    };
    let here = of(session)?;
    let differs = error_code == code::NOT_FINITE;
    let on_cpu = match differs {
        true => of(&mut cpu_session()?)?,
        false => here.clone(),
    };
    if here.iter().any(|one| one.elements == one.of) {
        outputs.cosine = None;
        outputs.top1 = None;
    }
    let mut each: Vec<NotFinite> = Vec::new();
    for one in here.iter().chain(&on_cpu) {
        let elements = |outputs: &[self_test::NotFinite]| {
            let of_one = outputs.iter().find(|other| other.output == one.output);
            of_one.map_or(0, |one| one.elements)
        };
        each.push(NotFinite {
            output: one.output.clone(),
            elements: elements(&here),
            expected: elements(&on_cpu),
            of: one.of,
            differs,
        });
    }
    // The first that has more of them than on the CPU, then the first that has fewer. If each has as many, they are at other
    // places.
    let more = each.iter().find(|one| one.elements > one.expected);
    let other = more.or_else(|| each.iter().find(|one| one.elements < one.expected));
    outputs.not_finite = other.or(each.first()).cloned();
    Ok(())
}

fn timed(job: &Job, runtime: &LoadedRuntime, n: u32) -> anyhow::Result<RunDocument> {
    let mut document = begun(job);
    document.launch = Some(n.into());
    document.warmup = Some(job.warmup as usize);
    document.thermal_before = thermal_status();
    document.battery_c = battery_c();
    document.probe_us = Some(steady_probe_us(Duration::from_secs(job.steady_seconds)));
    document.cpu_khz = cpu_khz();
    let made = runtime.builder(job)?;
    let manifest = manifest(job)?;
    let mut builder = record_assignment(made.builder.clone());
    let began = Instant::now();
    let session = builder.commit_from_file(&job.model);
    let took = began.elapsed();
    let mut session = match session {
        Ok(session) => session,
        Err(error) => {
            let error = error.message().to_owned();
            let failed = Placed::failed(job, error, None);
            document.placement = Some(failed);
            return Ok(document);
        }
    };
    document.load_us = load_us(took);
    document.placement = placed(&session, &made, job, manifest.as_ref());
    let golden = job.inputs.of(&session)?;
    document.runs_us = times(&mut session, &golden, job.warmup + job.runs)?;
    document.cpu_after_khz = cpu_khz();
    document.probe_after_us = Some(probe_us());
    document.thermal_after = thermal_status();
    document.battery_after_c = battery_c();
    Ok(document)
}

/// The placement without reasons, which only a log has; `None` for a runtime that does not report it.
fn placed(
    session: &Session,
    made: &Builder,
    job: &Job,
    manifest: Option<&epwatch_proto::ModelManifest>,
) -> Option<Placed> {
    let assignment = placement::read(session).ok()?;
    let soc_model = job.ep.soc_model();
    let placement: Placement = summarise(&assignment, made.input(soc_model, manifest));
    Some(Placed::of(
        job.chipset(),
        soc_model,
        &placement,
        Vec::new(),
        Vec::new(),
    ))
}

#[cfg(test)]
mod tests {
    use epwatch_proto::SessionUid;
    use serde_json::json;

    use super::*;

    fn written(first_off: &str) -> serde_json::Value {
        let test = epwatch_proto::SelfTest {
            session_uid: SessionUid::new(1).unwrap(),
            input_id: "noise".to_owned(),
            tolerance: None,
            npu_output_hash: Some([0xab; 16]),
            cpu_output_hash: Some([0xcd; 16]),
            max_abs: Some(0.5),
            cosine: Some(0.75),
            top1_equal: Some(true),
            error_code: 0,
            first_off_output: first_off.to_owned(),
        };
        serde_json::to_value(outputs(&test.into())).unwrap()
    }

    /// The gate reads this form.
    #[test]
    fn the_first_output_that_is_off_is_written_with_its_distances() {
        let hash = "ab".repeat(16);
        let off = json!({"hash": hash, "max_abs": 0.5, "cosine": 0.75, "top1": 1.0, "first_off": "relu_3"});
        assert_eq!(written("relu_3"), off);
        assert!(written("").get("first_off").is_none());
    }
}
