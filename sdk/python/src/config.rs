//! The configuration as `epwatch.start` passes it: a dict with all of these keys.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use epwatch_proto::unhex;
use epwatch_sdk::{
    SdkConfig, TrustedRoots,
    types::{Device, Runtime},
};
use pyo3::{FromPyObject, Py, PyAny, PyErr, PyResult, Python};

use crate::failure::{ConfigError, config_error};

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Config {
    app: String,
    endpoint: String,
    key: String,
    folder: PathBuf,
    consent: bool,
    app_version: String,
    app_build: String,
    environment: String,
    /// If empty, the SDK reads the chipset from Linux.
    chipset: String,
    /// Package, version, and version of QNN's SDK.
    ep: (String, String, String),
    rollout: Vec<(String, String)>,
    /// Id and public key, as 64 hexadecimal digits.
    directive_keys: Vec<(String, String)>,
    report_interval: Option<f64>,
    upload_interval: Option<f64>,
    metered_bytes_per_day: Option<u64>,
    unmetered_bytes_per_day: Option<u64>,
    /// PEM texts.
    root_certificates: Vec<String>,
    trusted_roots: String,
    client_certificate: Option<(PathBuf, PathBuf)>,
    thermal_zones: bool,
    allow_plaintext: bool,
    /// A function that takes the problem, or None.
    on_health: Option<Py<PyAny>>,
}

fn refused(text: String) -> PyErr {
    ConfigError::new_err(text)
}

fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    let parsed = Duration::try_from_secs_f64(value);
    parsed.map_err(|_| refused(format!("{name}: expected seconds, got {value}")))
}

impl Config {
    /// Checks the configuration. Once `is_ending` is set, the SDK no longer calls Python.
    pub(crate) fn build(self, is_ending: &Arc<AtomicBool>) -> PyResult<SdkConfig> {
        let (package, version, qnn_sdk_version) = self.ep;
        let runtime = Runtime::default()
            .with_ep_package(package)
            .with_ep_version(version)
            .with_qnn_sdk_version(qnn_sdk_version);
        let roots = match self.trusted_roots.as_str() {
            "bundled" => TrustedRoots::Bundled,
            "system" => TrustedRoots::System,
            "only" => TrustedRoots::Only,
            other => {
                let expected = "\"bundled\", \"system\" or \"only\"";
                return Err(refused(format!(
                    "trusted_roots: expected {expected}, got {other:?}"
                )));
            }
        };
        let mut config = SdkConfig::builder(self.app, self.endpoint, self.key, self.folder)
            .with_app_version(&self.app_version, &self.app_build)
            .with_environment(self.environment)
            .with_language("python")
            .with_runtime(runtime)
            .with_consent(self.consent)
            .with_thermal_zones(self.thermal_zones)
            .with_trusted_roots(roots)
            .with_plaintext_to_other_hosts(self.allow_plaintext);
        if !self.chipset.is_empty() {
            config = config.with_device(Device::default().with_chipset(self.chipset));
        }
        for (key, value) in &self.rollout {
            config = config.with_rollout_label(key, value);
        }
        for (id, key) in self.directive_keys {
            let bytes = unhex(&key).and_then(|bytes| bytes.try_into().ok());
            let wrong = || {
                refused(format!(
                    "directive_keys: the key of {id:?} is not 64 hex digits"
                ))
            };
            let key = bytes.ok_or_else(wrong)?;
            config = config.with_directive_key(id, key);
        }
        for pem in self.root_certificates {
            config = config.with_root_certificate(pem);
        }
        if let Some((certificate, key)) = self.client_certificate {
            config = config.with_client_certificate(certificate, key);
        }
        if let Some(interval) = self.report_interval {
            config = config.with_report_interval(seconds("report_interval", interval)?);
        }
        if let Some(interval) = self.upload_interval {
            config = config.with_upload_interval(seconds("upload_interval", interval)?);
        }
        if let Some(bytes) = self.metered_bytes_per_day {
            config = config.with_metered_bytes_per_day(bytes);
        }
        if let Some(bytes) = self.unmetered_bytes_per_day {
            config = config.with_unmetered_bytes_per_day(bytes);
        }
        if let Some(listener) = self.on_health {
            let is_ending = Arc::clone(is_ending);
            config = config.with_health_listener(move |problem| {
                if !is_ending.load(Relaxed) {
                    // The package's function raises nothing. If the interpreter is ending, the function is not called.
                    Python::try_attach(|py| {
                        let _ = listener.call1(py, (problem,));
                    });
                }
            });
        }
        config.build().map_err(|error| config_error(&error))
    }
}
