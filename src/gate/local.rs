//! `epwatch gate --local`: makes the launches on this machine, by the runner of `epwatch run`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, bail};
use epwatch_engines::{Engine, QnnVersion};
use epwatch_gate::policy::Policy;
use epwatch_manifest::{FreeDim, GraphFacts, InputShape, graph_facts, manifest_of};
use epwatch_proto::placement::QNN_EP;
use serde_json::Value;
use tempfile::{NamedTempFile, TempDir};
use tokio::process::Command;

use crate::{
    engines,
    inspect::{EpOption, Placed, SocModel},
    manifest,
    output::WrongUse,
};

/// How launches are made on this machine.
#[derive(Debug, clap::Args)]
pub(super) struct LocalArgs {
    /// Measure on this machine: launches of MODEL, in turn with launches of a model as --baseline. Each is a process of its
    /// own. With --soc it is QNN's emulator, which shows placement and outputs, and whose run times keep no limit.
    #[arg(long, conflicts_with_all = ["runs", "ep"])]
    pub(super) local: bool,
    /// With --local: the app's QNN plugin, on a board with an NPU.
    #[arg(long, value_name = "LIB", requires_all = ["local", "qnn_backend"])]
    qnn_provider: Option<PathBuf>,
    /// With --local: the app's libQnnHtp.so.
    #[arg(long, value_name = "LIB", requires = "qnn_provider")]
    qnn_backend: Option<PathBuf>,
    /// With --local: what the model computes: noise, zeros, ones, ramp, or a folder with input_0.pb, input_1.pb and so on
    /// [default: the policy's outputs.golden, or noise].
    #[arg(long, value_name = "KIND|FOLDER", requires = "local")]
    inputs: Option<String>,
    /// With --local: the folder that keeps the launches. The same command goes on where it was broken off, and `--runs`
    /// judges the files again [default: a temporary one].
    #[arg(long, value_name = "DIR", requires = "local")]
    keep: Option<PathBuf>,
}

/// What the launches are of.
#[derive(Debug)]
pub(super) struct Measured<'a> {
    pub(super) model: &'a Path,
    /// libonnxruntime of the app; `None` for a fetched one.
    pub(super) ort: Option<&'a Path>,
    pub(super) baseline: Option<&'a Path>,
    /// The chipset that QNN's emulator stands for; `None` for the CPU or the app's own libraries.
    pub(super) soc: Option<&'a SocModel>,
    pub(super) qnn_version: QnnVersion,
    pub(super) ep_options: &'a [EpOption],
    pub(super) dims: &'a [FreeDim],
    pub(super) shapes: &'a [InputShape],
    pub(super) policy: &'a Policy,
}

/// Files of the launches that were made.
#[derive(Debug, Default)]
pub(super) struct LaunchFiles {
    pub(super) candidate: Vec<PathBuf>,
    pub(super) baseline: Vec<PathBuf>,
    /// Removed with them, if nobody keeps them.
    _folder: Option<TempDir>,
}

impl LocalArgs {
    /// Makes the launches, and adds to their files what only the model's graph says.
    pub(super) async fn measure(&self, of: &Measured<'_>) -> anyhow::Result<LaunchFiles> {
        let mut temporary = None;
        let folder = match &self.keep {
            Some(folder) => folder.clone(),
            None => {
                let made = tempfile::Builder::new().prefix("epwatch-run-").tempdir()?;
                temporary.insert(made).path().to_owned()
            }
        };
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("run")
            .arg(of.model)
            .arg("--out")
            .arg(&folder)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        self.add_runtime(&mut command, of).await?;
        self.add_policy(&mut command, of.policy);
        // Until the runner has ended.
        let _macs = macs(of.model, of.shapes)?.inspect(|file| {
            command.arg("--manifest").arg(file.path());
        });
        if let Some(old) = of.baseline {
            command.arg("--against").arg(old);
        }
        let _old_macs = match of.baseline {
            Some(old) => macs(old, of.shapes)?.inspect(|file| {
                command.arg("--against-manifest").arg(file.path());
            }),
            None => None,
        };
        for dim in of.dims {
            command.arg(format!("--dim={dim}"));
        }
        let ended = command
            .status()
            .await
            .context("failed to start `epwatch run`")?;
        match ended.code() {
            Some(0) => {}
            Some(2) => {
                return Err(
                    WrongUse("the runner cannot measure this, see above".to_owned()).into(),
                );
            }
            _ => bail!(
                "the runner ended with {ended}, see above; --keep DIR goes on with the launches that it made"
            ),
        }
        let mut files = LaunchFiles {
            candidate: documents(&folder, "candidate-")?,
            baseline: documents(&folder, "baseline-")?,
            _folder: temporary,
        };
        for (paths, model) in [
            (&mut files.candidate, Some(of.model)),
            (&mut files.baseline, of.baseline),
        ] {
            let facts = model.and_then(|model| graph_facts(model, of.shapes).ok());
            for path in paths.iter().filter(|_| facts.is_some()) {
                let shown = || format!("failed to complete {}", path.display());
                complete(path, facts.as_ref()).with_context(shown)?;
            }
        }
        Ok(files)
    }

    async fn add_runtime(&self, command: &mut Command, of: &Measured<'_>) -> anyhow::Result<()> {
        let given = self.qnn_provider.as_ref().zip(self.qnn_backend.as_ref());
        let mut fetched = None;
        if given.is_none() && of.soc.is_some() {
            let ensured = engines::ensure_qnn(of.qnn_version).await;
            fetched =
                Some(ensured.context("without QNN's emulator there is no chipset to run on")?);
        }
        let ort = match (of.ort, &fetched) {
            (Some(path), _) => path.to_owned(),
            (None, Some((ort, _))) => ort.ort_library(),
            (None, None) => engines::ensure(Engine::OnnxRuntime).await?.ort_library(),
        };
        command.arg("--ort").arg(ort);
        let qnn = match (given, &fetched) {
            (Some((provider, backend)), _) => Some((provider.clone(), backend.clone())),
            (None, Some((_, qnn))) => Some((qnn.qnn_provider_library(), qnn.qnn_htp_library())),
            (None, None) => None,
        };
        if let Some((provider, backend)) = qnn {
            command.arg("--qnn-provider").arg(provider);
            command.arg("--qnn-backend").arg(backend);
            for option in of.ep_options {
                command.arg(format!("--ep-option={option}"));
            }
        }
        if let Some(soc) = of.soc {
            command.args(["--chipset", &soc.chipset()]);
            if let Some(id) = soc.qnn_id.filter(|_| given.is_none()) {
                command.args(["--soc-model", &id.to_string()]);
            }
        }
        Ok(())
    }

    fn add_policy(&self, command: &mut Command, policy: &Policy) {
        let latency = &policy.latency;
        for (option, number) in [
            ("--launches", latency.launches),
            ("--runs", latency.runs),
            (
                "--warmup",
                latency.warmup.and_then(|n| u32::try_from(n).ok()),
            ),
        ] {
            if let Some(number) = number {
                command.args([option, &number.to_string()]);
            }
        }
        let golden = policy
            .outputs
            .golden
            .as_ref()
            .map(|path| path.display().to_string());
        if let Some(inputs) = self.inputs.clone().or(golden) {
            command.args(["--inputs", &inputs]);
        }
    }
}

/// A file of a model's MACs; `None` if they cannot be counted.
fn macs(model: &Path, shapes: &[InputShape]) -> anyhow::Result<Option<NamedTempFile>> {
    let counted = manifest_of(model, shapes).ok();
    counted.as_ref().map(manifest::temporary).transpose()
}

/// Documents of one side, in the order of their numbers.
fn documents(folder: &Path, side: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?
    {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let number = name
            .strip_prefix(side)
            .and_then(|rest| rest.strip_suffix(".json"));
        if number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit())) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Adds to a launch's placement where its CPU nodes stand in the graph, and the tensors that cross.
fn complete(path: &Path, facts: Option<&GraphFacts>) -> anyhow::Result<()> {
    let Some(facts) = facts else {
        return Ok(());
    };
    let mut document: Value = serde_json::from_slice(&fs::read(path)?)?;
    let Some(placement) = document.get_mut("placement").and_then(Value::as_object_mut) else {
        return Ok(());
    };
    let names = placement.remove("npu_nodes");
    let npu_nodes: Vec<String> = names
        .map(serde_json::from_value)
        .transpose()?
        .unwrap_or_default();
    let mut placed: Placed = serde_json::from_value(Value::Object(placement.clone()))?;
    placed.locate(facts, QNN_EP, &npu_nodes);
    if let Value::Object(located) = serde_json::to_value(&placed)? {
        placement.extend(located);
    }
    fs::write(path, serde_json::to_vec(&document)?)?;
    Ok(())
}
