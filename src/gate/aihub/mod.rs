//! `epwatch gate --aihub`: makes the launches on phones of Qualcomm's farm, with the user's own client.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, bail};
use epwatch_gate::{
    farm_job::{Blame, FailedJob},
    groups::UNNAMED,
    launches::JudgedLaunches,
    policy::Policy,
    verdict::{GatedFile, GatedModel, Target},
};
use epwatch_manifest::ModelOutline;
use epwatch_server::Period;
use serde::{Deserialize, Serialize};
use tokio::{io::AsyncWriteExt, process::Command};

use super::folder_lock;
use crate::{
    input_file::{self, FilePurpose},
    output::{self, WrongUse},
};

/// The script runs in the user's Python, which has qai-hub.
const SCRIPT: &str = include_str!("jobs.py");
const STATE: &str = "jobs.json";
const SCHEMA: &str = "epwatch.aihub/1";
/// Maximum number of jobs of a side on a device.
const MOST_JOBS: u32 = 20;

/// Options of the jobs at AI Hub.
#[derive(Debug, clap::Args)]
pub(super) struct AihubArgs {
    /// Measure on phones of Qualcomm AI Hub, by their names there: "Samsung Galaxy S24". The qai-hub client of --aihub-python
    /// makes the jobs on your account: MODEL and a model as --baseline are uploaded, compiled and profiled. `latency.launches` of
    /// the policy is the number of profile jobs [default: 1].
    #[arg(long, value_name = "DEVICE", num_args = 1.., requires = "jobs", conflicts_with_all = ["runs", "ep", "place"])]
    pub(super) aihub: Vec<String>,
    /// With --aihub: the folder that keeps ids and raw results of the jobs.
    #[arg(long, value_name = "DIR", requires = "aihub")]
    jobs: Option<PathBuf>,
    /// With --aihub: go on with the jobs in the folder, which Ctrl-C left at AI Hub.
    #[arg(long, requires = "aihub")]
    resume: bool,
    /// With --aihub: a Python that has qai-hub.
    #[arg(
        long,
        value_name = "PYTHON",
        requires = "aihub",
        default_value = "python3"
    )]
    aihub_python: PathBuf,
    /// With --aihub: options of the compile jobs.
    #[arg(
        long,
        value_name = "TEXT",
        requires = "aihub",
        allow_hyphen_values = true,
        default_value = "--target_runtime onnx"
    )]
    compile_options: String,
    /// With --aihub: options of the profile jobs.
    #[arg(
        long,
        value_name = "TEXT",
        requires = "aihub",
        allow_hyphen_values = true,
        default_value = ""
    )]
    profile_options: String,
    /// With --aihub: time between two looks at the jobs.
    #[arg(long, value_name = "TIME", requires = "aihub", default_value = "10s")]
    poll: Period,
}

/// The script's options that must not change when the jobs are resumed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct JobOptions {
    devices: Vec<String>,
    jobs: u32,
    compile_options: String,
    profile_options: String,
}

#[derive(Debug, Serialize)]
struct Plan {
    models: UploadedModels,
    #[serde(flatten)]
    options: JobOptions,
    folder: PathBuf,
    poll_seconds: f64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct UploadedModels {
    candidate: UploadedModel,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    baseline: Option<UploadedModel>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct UploadedModel {
    path: PathBuf,
    sha256: String,
    /// The model's file of tensors, which is uploaded with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<PathBuf>,
    /// SHA-256 of that file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data_sha256: Option<String>,
}

/// The file `jobs.json` that the script writes.
#[derive(Debug, Deserialize)]
struct JobsFile {
    schema: String,
    models: UploadedModels,
    plan: JobOptions,
    jobs: Vec<FarmJob>,
}

#[derive(Debug, Deserialize)]
struct FarmJob {
    arm: String,
    device: String,
    kind: String,
    file: String,
    /// `open`, `done`, `failed`, or `skipped` after a compile job for the phone failed.
    state: String,
    /// The job's id at AI Hub; `None` before the job is made, and after that failed.
    id: Option<String>,
    tries: Vec<FailedTry>,
}

#[derive(Debug, Deserialize)]
struct FailedTry {
    id: String,
    failure: i64,
    reason: String,
}

/// The launches on one phone of the farm.
#[derive(Debug)]
pub(super) struct OnDevice {
    model: GatedModel,
    pub(super) device: String,
    pub(super) candidate: Vec<PathBuf>,
    pub(super) baseline: Vec<PathBuf>,
    /// Jobs that failed for good, each with whether it is a job of the baseline.
    failed: Vec<(bool, FailedJob)>,
}

impl AihubArgs {
    /// Makes the jobs, or goes on with them, and waits for their end.
    pub(super) async fn measure(
        &self,
        model: &Path,
        baseline: Option<&Path>,
        policy: &Policy,
    ) -> anyhow::Result<Vec<OnDevice>> {
        let folder = self.jobs.as_deref().context("clap requires --jobs")?;
        let plan = self.plan(folder, model, baseline, policy)?;
        let _lock = folder_lock::locked(folder, "--jobs")?;
        self.check_begun(folder, &plan)?;
        output::remark(plan.in_words());
        let left = LeftJobs { folder };
        self.run_script(&plan).await?;
        drop(left);
        let judged = plan.models.candidate.judged(model);
        JobsFile::read(folder)?.by_device(folder, &judged)
    }

    fn plan(
        &self,
        folder: &Path,
        model: &Path,
        baseline: Option<&Path>,
        policy: &Policy,
    ) -> anyhow::Result<Plan> {
        let latency = &policy.latency;
        if latency.runs.is_some() || policy.outputs.golden.is_some() {
            let text = "latency.runs and outputs.golden of --policy are for launches on devices that you have here: give --local, or take \
                        them out";
            return Err(WrongUse(text.to_owned()).into());
        }
        let jobs = latency.launches.unwrap_or(1);
        if !(1..=MOST_JOBS).contains(&jobs) {
            let text = format!(
                "latency.launches of --policy is {jobs}: --aihub makes 1 to {MOST_JOBS} jobs of a model"
            );
            return Err(WrongUse(text).into());
        }
        let mut devices: Vec<String> = Vec::new();
        for device in &self.aihub {
            if !devices.contains(device) {
                devices.push(device.clone());
            }
        }
        let uploaded = |path: &Path| -> anyhow::Result<UploadedModel> {
            let wrong =
                |error: &dyn std::fmt::Display| WrongUse(format!("{}: {error}", path.display()));
            input_file::check(path, FilePurpose::Model).map_err(|error| wrong(&error))?;
            let hash = |path: &Path| {
                epwatch_manifest::sha256_of_file(path)
                    .map_err(|error| WrongUse(format!("{}: {error}", path.display())))
            };
            let data = data_of(path).map_err(|error| wrong(&error))?;
            Ok(UploadedModel {
                path: path.canonicalize().map_err(|error| wrong(&error))?,
                sha256: hash(path)?,
                data_sha256: data.as_deref().map(hash).transpose()?,
                data,
            })
        };
        Ok(Plan {
            models: UploadedModels {
                candidate: uploaded(model)?,
                baseline: baseline.map(uploaded).transpose()?,
            },
            folder: folder.to_owned(),
            options: JobOptions {
                devices,
                jobs,
                compile_options: self.compile_options.clone(),
                profile_options: self.profile_options.clone(),
            },
            poll_seconds: self.poll.0.as_secs_f64(),
        })
    }

    /// Refuses a folder that has jobs, unless they are the same jobs and the user asked to resume them.
    fn check_begun(&self, folder: &Path, plan: &Plan) -> anyhow::Result<()> {
        let shown = folder.display();
        let wrong = |text: String| Err(WrongUse(text).into());
        if !folder.join(STATE).exists() {
            return match self.resume {
                true => wrong(format!(
                    "--resume: {shown} has no jobs; leave it out to begin"
                )),
                false => Ok(()),
            };
        }
        if !self.resume {
            return wrong(format!(
                "{shown} has the jobs of an earlier call: give --resume to go on with them, or another --jobs"
            ));
        }
        let begun = JobsFile::read(folder)?;
        let same_models = begun.models.sha256() == plan.models.sha256();
        if !same_models || begun.plan != plan.options {
            return wrong(format!(
                "the jobs in {shown} are of another model, device or option: give another --jobs"
            ));
        }
        Ok(())
    }

    async fn run_script(&self, plan: &Plan) -> anyhow::Result<()> {
        let python = &self.aihub_python;
        let mut script = Command::new(python);
        script
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut script = script.spawn().map_err(|error| {
            WrongUse(format!(
                "--aihub-python {}: {error}; give a Python that has qai-hub",
                python.display()
            ))
        })?;
        let mut stdin = script.stdin.take().context("it was asked for")?;
        // If the script has ended, its own error is reported instead.
        let _ = stdin.write_all(&serde_json::to_vec(plan)?).await;
        drop(stdin);
        let ended = script.wait_with_output().await?;
        let said = String::from_utf8_lossy(&ended.stdout).trim().to_owned();
        match ended.status.code() {
            Some(0) => Ok(()),
            Some(2) => Err(WrongUse(said).into()),
            Some(3) => bail!("{said}; --resume goes on"),
            _ => bail!(
                "the script of --aihub ended with {}, see above; --resume goes on",
                ended.status
            ),
        }
    }
}

/// Returns the file with a model's external tensors; `None` if the model has all tensors itself. qai-hub accepts a
/// folder with the model and one such file, recognised by its extension.
fn data_of(model: &Path) -> Result<Option<PathBuf>, String> {
    let Ok(outline) = ModelOutline::of(model) else {
        // An unreadable model is left to the service, which reports the problem.
        return Ok(None);
    };
    if let Some(why) = outline.irregular_data() {
        return Err(why);
    }
    let files = Vec::from_iter(outline.data_files());
    let is_taken = |file: &Path| {
        let end = file.extension().and_then(OsStr::to_str);
        file.components().count() == 1 && matches!(end, Some("data" | "bin"))
    };
    match files.as_slice() {
        [] => Ok(None),
        [file] if is_taken(file) => {
            let path = model.parent().unwrap_or(Path::new("")).join(file);
            let found = path.canonicalize();
            found
                .map(Some)
                .map_err(|error| format!("its tensors are in {}: {error}", path.display()))
        }
        files => Err(format!(
            "its tensors are in {} files, the first one {}; AI Hub takes one next to the model, whose name ends in .data or .bin: \
             onnx.save_model(model, path, save_as_external_data=True, location=\"model.data\")",
            files.len(),
            files[0].display()
        )),
    }
}

impl UploadedModel {
    /// The model by its path on the command line.
    fn judged(&self, model: &Path) -> GatedModel {
        let path = |of: &Path| of.display().to_string();
        let outline = ModelOutline::of(model).ok();
        // At most one file is uploaded with a model.
        let files = outline.iter().flat_map(ModelOutline::data_files);
        let data = files
            .zip(&self.data_sha256)
            .map(|(file, sha256)| GatedFile {
                path: path(&model.with_file_name(file)),
                sha256: sha256.clone(),
            });
        GatedModel {
            path: path(model),
            sha256: self.sha256.clone(),
            data: data.collect(),
        }
    }
}

impl UploadedModels {
    /// Hashes of all files.
    fn sha256(&self) -> Vec<(&str, Option<&str>)> {
        let both = std::iter::once(&self.candidate).chain(&self.baseline);
        both.map(|of| (&*of.sha256, of.data_sha256.as_deref()))
            .collect()
    }
}

impl Plan {
    /// Returns a sentence about jobs and time, shown before any job is made.
    fn in_words(&self) -> String {
        let sides = 1 + usize::from(self.models.baseline.is_some());
        let devices = self.options.devices.len();
        let compiled = sides * devices;
        let profiled = compiled * self.options.jobs as usize;
        let plural = |n: usize, what: &str| match n {
            1 => format!("1 {what}"),
            n => format!("{n} {what}s"),
        };
        format!(
            "{} on your account at AI Hub, then {}. A job waits for a phone of its kind, and takes minutes then. epwatch does not \
             know what your account pays for it. {} keeps ids and results; --resume goes on after Ctrl-C.",
            plural(compiled, "compile job"),
            plural(profiled, "profile job"),
            self.folder.display()
        )
    }
}

impl JobsFile {
    fn read(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(STATE);
        let shown = path.display();
        let text = input_file::read_text(&path, FilePurpose::Document)
            .map_err(|error| WrongUse(format!("failed to read {shown}: {error}")))?;
        let read: Self = serde_json::from_str(&text).map_err(|error| {
            WrongUse(format!(
                "{shown} is not a file of --aihub: {error}; give another --jobs"
            ))
        })?;
        if read.schema != SCHEMA {
            let text = format!(
                "{shown} is of another version ({SCHEMA} is expected); give another --jobs"
            );
            return Err(WrongUse(text).into());
        }
        Ok(read)
    }

    /// The results by phone.
    ///
    /// # Errors
    /// AI Hub refused a job because of an argument of the command line.
    fn by_device(&self, folder: &Path, model: &GatedModel) -> anyhow::Result<Vec<OnDevice>> {
        let mut found = Vec::new();
        for device in &self.plan.devices {
            let mut on = OnDevice {
                model: model.clone(),
                device: device.clone(),
                candidate: Vec::new(),
                baseline: Vec::new(),
                failed: Vec::new(),
            };
            for job in self.jobs.iter().filter(|job| job.device == *device) {
                let is_baseline = job.arm == "baseline";
                if let Some(failed) = job.failed() {
                    if failed.blame() == Blame::Request {
                        return Err(WrongUse(failed.in_words()).into());
                    }
                    on.failed.push((is_baseline, failed));
                } else if job.kind == "inference" && job.state == "done" {
                    let side = if is_baseline {
                        &mut on.baseline
                    } else {
                        &mut on.candidate
                    };
                    side.push(folder.join(&job.file));
                }
            }
            found.push(on);
        }
        Ok(found)
    }
}

impl OnDevice {
    /// Judges the results of this phone. A failed job becomes a failed check of a target without launches.
    pub(super) fn judged(
        &self,
        judge: impl FnOnce() -> Result<JudgedLaunches, WrongUse>,
    ) -> Result<JudgedLaunches, WrongUse> {
        if self.failed.is_empty() {
            let mut judged = judge()?;
            for target in judged
                .targets
                .iter_mut()
                .filter(|target| target.chipset == UNNAMED)
            {
                target.chipset.clone_from(&self.device);
            }
            return Ok(judged);
        }
        let failed = self.failed.iter();
        let mut judged = JudgedLaunches::default();
        judged.targets.push(Target {
            chipset: self.device.clone(),
            model: Some(self.model.clone()),
            source: "aihub_result",
            device: Some(self.device.clone()),
            checks: failed
                .map(|(is_baseline, job)| job.check(*is_baseline))
                .collect(),
            ..Target::default()
        });
        Ok(judged)
    }
}

impl FarmJob {
    fn failed(&self) -> Option<FailedJob> {
        let last = self.tries.last().filter(|_| self.state == "failed")?;
        Some(FailedJob {
            id: last.id.clone(),
            kind: self.kind.clone(),
            failure: last.failure,
            reason: last.reason.clone(),
            tries: self.tries.len(),
        })
    }
}

/// Names the jobs that still run at AI Hub when the command ends early.
struct LeftJobs<'a> {
    folder: &'a Path,
}

impl Drop for LeftJobs<'_> {
    fn drop(&mut self) {
        let Ok(found) = JobsFile::read(self.folder) else {
            return;
        };
        let open = found.jobs.iter().filter(|job| job.state == "open");
        let ids: Vec<&str> = open.filter_map(|job| job.id.as_deref()).collect();
        if !ids.is_empty() {
            output::remark(format_args!(
                "jobs that go on at AI Hub: {}; the same command with --resume waits for them",
                ids.join(", ")
            ));
        }
    }
}
