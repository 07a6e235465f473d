//! The SDK of a process: start, consent, conditions, plans, observed sessions, explanations, end.

use std::{
    mem,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use epwatch_proto::{placement::MAX_NODES, unhex};
use epwatch_sdk::{
    AttachRequest, Conditions, HostAssignment, ModelInfo, NetworkKind, SessionPlan,
    placement::{AssignedDevice, AssignedNode, Assignment, Compatibility, Subgraph},
    preflight::{Check, PreflightFacts},
    types::{DeviceType, PowerSave, ReasonCode, SelectionPolicy, SessionOptions, Thermal},
};
use pyo3::{
    FromPyObject, Py, PyErr, PyResult, Python, exceptions::PyValueError, pyclass, pymethods,
    types::PyString,
};

use crate::{
    config::Config,
    failure::{ConfigError, chain, flush_error, guarded},
    session::Session,
    side_car::SideCar,
};

/// The SDK of a process.
#[pyclass(frozen, module = "epwatch._native")]
#[derive(Debug)]
pub(crate) struct Watch {
    /// `None` once `drop` has taken it.
    watch: Option<epwatch_sdk::Watch>,
    /// Once set, the SDK's thread no longer calls Python.
    is_ending: Arc<AtomicBool>,
    pid: u32,
}

/// The changes that the operator's directives ask of a model's next session.
#[pyclass(frozen, module = "epwatch._native")]
#[derive(Debug)]
pub(crate) struct Plan(SessionPlan);

/// A session that was made, or could not be made, as the package passes it: a dict with all of these keys.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Described {
    model: String,
    version: String,
    sha256: String,
    model_file: Option<PathBuf>,
    requested: Vec<String>,
    performance_mode: String,
    soc_model: String,
    htp_arch: String,
    /// Empty: none.
    selection_policy: String,
    /// Empty: not known.
    device_type: String,
    /// Codes.
    reasons: Vec<String>,
    plan: Option<Py<Plan>>,
    variant: Option<String>,
    after_run_error: bool,
    side_car: Option<Py<SideCar>>,
}

/// A subgraph: its EP, and its nodes by name, op type and domain.
type Listed = (String, Vec<(String, String, String)>);

/// The package's own data about a session's placement: a dict with all of these keys.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Read {
    runtime: String,
    subgraphs: Option<Vec<Listed>>,
    /// EP, type and vendor of the device of each input.
    devices: Vec<(String, String, String)>,
    ep_compatibility: String,
    creation_ns: u64,
    /// The names of the model's inputs, if dimensions are free.
    free_inputs: Option<Vec<Py<PyString>>>,
}

impl Read {
    fn assignment(&mut self) -> PyResult<Option<Assignment>> {
        let Some(listed) = self.subgraphs.take() else {
            return Ok(None);
        };
        let n_nodes: usize = listed.iter().map(|(_, nodes)| nodes.len()).sum();
        if n_nodes > MAX_NODES as usize {
            let text = format!("{n_nodes} nodes are more than {MAX_NODES}");
            return Err(PyValueError::new_err(text));
        }
        let node = |(name, op_type, domain)| AssignedNode {
            name,
            op_type,
            domain,
        };
        let subgraph = |(ep, nodes): Listed| Subgraph {
            ep,
            nodes: nodes.into_iter().map(node).collect(),
        };
        let subgraphs = listed.into_iter().map(subgraph).collect();
        Ok(Some(Assignment { subgraphs }))
    }
}

fn device_of((ep, device_type, vendor): (String, String, String)) -> AssignedDevice {
    AssignedDevice {
        ep,
        device_type: DeviceType::of_text(&device_type).unwrap_or(DeviceType::Unknown),
        vendor,
    }
}

fn model_of(id: &str, version: &str) -> PyResult<ModelInfo> {
    let info = ModelInfo::new(id, version);
    info.map_err(|error| ConfigError::new_err(chain(&error)))
}

fn timeout(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

impl Watch {
    fn inner(&self) -> PyResult<&epwatch_sdk::Watch> {
        let stopped = || -> PyErr { PyValueError::new_err("the SDK is stopped") };
        self.watch.as_ref().ok_or_else(stopped)
    }

    fn request(&self, described: &Described) -> PyResult<AttachRequest> {
        let mut model = model_of(&described.model, &described.version)?;
        if !described.sha256.is_empty() {
            let hash = unhex(&described.sha256).and_then(|bytes| bytes.try_into().ok());
            let wrong = || PyValueError::new_err("sha256: expected 64 hexadecimal digits");
            model = model.with_sha256(hash.ok_or_else(wrong)?);
        }
        let options = SessionOptions::default()
            .with_performance_mode(&described.performance_mode)
            .with_soc_model(&described.soc_model)
            .with_htp_arch(&described.htp_arch)
            .with_selection_policy(SelectionPolicy::of_text(&described.selection_policy))
            .with_device_type(DeviceType::of_text(&described.device_type));
        let reason = |name: &String| {
            let unknown = || PyValueError::new_err(format!("{name:?} is not a code of a reason"));
            ReasonCode::from_name(name).ok_or_else(unknown)
        };
        let reasons = described.reasons.iter().map(reason);
        let mut request = self
            .inner()?
            .attach(model, None)
            .requesting(&described.requested)
            .with_options(options)
            .with_reasons(reasons.collect::<PyResult<Vec<_>>>()?);
        if let Some(path) = &described.model_file {
            request = request.with_model_file(path);
        }
        if let Some(plan) = &described.plan {
            request = request.with_plan(&plan.get().0);
        }
        if let Some(variant) = &described.variant {
            request = request.with_variant(variant);
        }
        if described.after_run_error {
            request = request.after_run_error();
        }
        if let Some(side_car) = &described.side_car {
            request = request.with_manifest(side_car.get().manifest().clone());
        }
        Ok(request)
    }
}

/// The child of a fork does not end its parent's SDK, as for a session.
impl Drop for Watch {
    fn drop(&mut self) {
        if std::process::id() != self.pid {
            mem::forget(self.watch.take());
        }
    }
}

#[pymethods]
impl Watch {
    #[new]
    fn new(config: Config) -> PyResult<Self> {
        guarded(|| {
            let is_ending = Arc::default();
            let config = config.build(&is_ending)?;
            let started = epwatch_sdk::Watch::start(config);
            let watch = started.map_err(|error| ConfigError::new_err(chain(&error)))?;
            Ok(Self {
                watch: Some(watch),
                is_ending,
                pid: std::process::id(),
            })
        })
    }

    /// Returns the plan that the directives ask for; waits at most `seconds` until they are read.
    fn plan(&self, py: Python<'_>, model: &str, version: &str, seconds: f64) -> PyResult<Plan> {
        let model = model_of(model, version)?;
        let watch = self.inner()?;
        guarded(|| {
            Ok(Plan(
                py.detach(|| watch.plan_within(&model, timeout(seconds))),
            ))
        })
    }

    /// Observes a session whose placement the package has read.
    fn observe(&self, py: Python<'_>, described: Described, read: Read) -> PyResult<Session> {
        guarded(|| {
            let mut read = read;
            let assignment = read.assignment()?;
            let inputs = read.free_inputs.take();
            let read_by_host = HostAssignment {
                runtime: read.runtime,
                assignment,
                devices: read.devices.into_iter().map(device_of).collect(),
                ep_compatibility: read.ep_compatibility,
            };
            let creation = (read.creation_ns > 0).then(|| Duration::from_nanos(read.creation_ns));
            // A large model takes tenths of a second. Other threads run meanwhile.
            let attached = py.detach(|| -> PyResult<_> {
                let request = self.request(&described)?;
                Ok(request.observe_assignment(read_by_host, creation))
            });
            Ok(Session::new(attached?, self.inner()?.clone(), inputs))
        })
    }

    /// Returns whether the compiled model in `model_file` is for this device; `None` if nothing speaks against it.
    fn compatibility(
        &self,
        py: Python<'_>,
        model_file: PathBuf,
        requested: Vec<String>,
        soc_model: String,
    ) -> PyResult<Option<&'static str>> {
        let watch = self.inner()?;
        guarded(|| {
            // The answer does not depend on the model's name.
            let model = model_of("model", "0")?;
            let options = SessionOptions::default().with_soc_model(soc_model);
            let told = py.detach(|| {
                let request = watch.attach(model, None).requesting(requested);
                let request = request.with_options(options);
                request.with_model_file(model_file).compatibility()
            });
            Ok(match told {
                Some(Compatibility::Optimal) => Some("optimal"),
                Some(Compatibility::PreferRecompilation) => Some("prefer_recompilation"),
                Some(Compatibility::Unsupported) => Some("unsupported"),
                _ => None,
            })
        })
    }

    /// Finds what keeps the NPU from starting: code, value, meaning and fix of each cause.
    fn preflight(
        &self,
        py: Python<'_>,
        backend_path: PathBuf,
        soc_model: String,
        model_qairt: String,
        runtime_qairt: String,
    ) -> PyResult<Vec<(&'static str, String, &'static str, &'static str)>> {
        let watch = self.inner()?;
        guarded(|| {
            let mut facts = PreflightFacts::default();
            facts.backend_path = backend_path;
            facts.soc_model = soc_model;
            facts.model_qairt = model_qairt;
            facts.runtime_qairt = runtime_qairt;
            let found = py.detach(|| watch.preflight(&facts)).into_iter();
            let texts = |check: Check| {
                let (meaning, fix) = (check.meaning(), check.fix());
                (check.reason.as_str(), check.seen, meaning, fix)
            };
            Ok(found.map(texts).collect())
        })
    }

    /// Counts a session that could not be made.
    fn start_failed(
        &self,
        described: Described,
        ort_error_code: i32,
        message: &str,
    ) -> PyResult<()> {
        guarded(|| {
            self.request(&described)?.failed(ort_error_code, message);
            Ok(())
        })
    }

    fn set_consent(&self, is_given: bool) -> PyResult<()> {
        guarded(|| {
            self.inner()?.set_consent(is_given);
            Ok(())
        })
    }

    /// Sets the network: "unmetered", "metered", "offline" or "unknown".
    fn set_network(&self, network: &str) -> PyResult<()> {
        let network = match network {
            "unmetered" => NetworkKind::Unmetered,
            "metered" => NetworkKind::Metered,
            "offline" => NetworkKind::Offline,
            "unknown" => NetworkKind::Unknown,
            other => {
                let expected = "\"unmetered\", \"metered\", \"offline\" or \"unknown\"";
                let text = format!("network: expected {expected}, got {other:?}");
                return Err(PyValueError::new_err(text));
            }
        };
        guarded(|| {
            self.inner()?.set_network(network);
            Ok(())
        })
    }

    /// Sets the conditions of runs from now on. `thermal` is Android's status, 0 to 6.
    fn set_conditions(
        &self,
        thermal: Option<usize>,
        power_save: Option<bool>,
        performance_mode: &str,
    ) -> PyResult<()> {
        // The first is "unknown"; the others are in Android's order.
        let thermal = match thermal.map(|status| Thermal::ALL.get(status.saturating_add(1))) {
            None => Thermal::Unknown,
            Some(Some(thermal)) => *thermal,
            Some(None) => return Err(PyValueError::new_err("thermal: expected 0 to 6, or None")),
        };
        let power_save = match power_save {
            None => PowerSave::Unknown,
            Some(true) => PowerSave::On,
            Some(false) => PowerSave::Off,
        };
        let conditions = Conditions::unknown()
            .with_thermal(thermal)
            .with_power_save(power_save)
            .with_performance_mode(performance_mode);
        guarded(|| {
            self.inner()?.set_conditions(&conditions);
            Ok(())
        })
    }

    /// Seals recorded runs. Touches the disk.
    fn seal(&self, py: Python<'_>) -> PyResult<()> {
        let watch = self.inner()?;
        guarded(|| {
            let sealed = py.detach(|| watch.seal());
            sealed.map_err(|error| flush_error(&error))
        })
    }

    /// Seals and sends everything. Blocks at most the given time.
    fn flush(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let watch = self.inner()?;
        guarded(|| {
            let flushed = py.detach(|| watch.flush(timeout(seconds)));
            flushed.map_err(|error| flush_error(&error))
        })
    }

    /// Seals recorded runs and ends the thread.
    fn stop(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let watch = self.inner()?;
        self.is_ending.store(true, Relaxed);
        guarded(|| {
            let stopped = py.detach(|| watch.stop(timeout(seconds)));
            stopped.map_err(|error| flush_error(&error))
        })
    }

    /// Returns the snapshot as JSON and as text. May wait for the disk.
    fn explain(&self, py: Python<'_>) -> PyResult<(String, String)> {
        let watch = self.inner()?;
        guarded(|| {
            let explained = py.detach(|| watch.explain());
            Ok((explained.to_json(), explained.to_string()))
        })
    }
}

#[pymethods]
impl Plan {
    /// Whether the session may use the NPU.
    #[getter]
    fn use_npu(&self) -> bool {
        self.0.use_npu()
    }

    /// The variant of the model to load if the app has it.
    #[getter]
    fn variant(&self) -> Option<&str> {
        self.0.preferred_variant()
    }

    fn __repr__(&self) -> String {
        let npu = if self.use_npu() { "True" } else { "False" };
        format!(
            "Plan(use_npu={npu}, variant={:?})",
            self.variant().unwrap_or_default()
        )
    }
}
