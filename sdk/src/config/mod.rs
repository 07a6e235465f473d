//! What the host decides, checked when it is built.

mod endpoint;
mod error;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use epwatch_proto::{App, EpBackend, EpLinkage, Model, ModelHash, Runtime, Sdk, clipped};

use crate::{
    config::endpoint::{check_endpoint, check_root_certificate},
    directives,
    host::{device::DeviceFacts, thermal_zones},
    policy,
    spool::Limits,
    upload::budget::ByteBudget,
};

pub use error::ConfigError;
use error::text;

/// A model as the app calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    pub(crate) model: Model,
}

impl ModelInfo {
    /// A model of this id (1 to 128 bytes) and version (1 to 64 bytes).
    ///
    /// # Errors
    /// Names the text that is empty, too long, or holds control characters.
    pub fn new(id: impl Into<String>, version: impl Into<String>) -> Result<Self, ConfigError> {
        Ok(Self {
            model: Model {
                id: text("model id", id.into(), 128)?,
                version: text("model version", version.into(), 64)?,
                sha256: None,
                source_sha256: None,
                ep_compatibility: String::new(),
            },
        })
    }

    /// With the hash of the model file, where the app knows it; otherwise the SDK's own thread
    /// takes it from the file.
    #[must_use]
    pub fn with_sha256(mut self, sha256: ModelHash) -> Self {
        self.model.sha256 = Some(sha256);
        self
    }
}

impl From<ModelInfo> for Model {
    fn from(info: ModelInfo) -> Self {
        info.model
    }
}

/// What a [`Core`](crate::Core) is made from.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CoreConfig {
    /// The app.
    pub app: App,
    /// The device.
    pub device: DeviceFacts,
    /// The inference runtime; ORT's own version is read when a session is made.
    pub runtime: Runtime,
    /// The SDK, `rust` unless a binding says otherwise.
    pub sdk: Sdk,
    /// Id of this boot; empty: not known.
    pub boot_id: String,
    /// Clean runs after which a version's latency counts as known.
    pub settled_runs: u64,
    /// Public keys whose directives are obeyed, by id.
    pub(crate) directive_keys: Vec<(String, [u8; 32])>,
}

impl CoreConfig {
    /// An app of this id (1 to 128 bytes) in environment `production`.
    ///
    /// # Errors
    /// If the id is empty, too long, or holds control characters.
    pub fn new(app_id: impl Into<String>, device: DeviceFacts) -> Result<Self, ConfigError> {
        Ok(Self {
            app: App {
                id: text("app id", app_id.into(), 128)?,
                version: String::new(),
                build: String::new(),
                environment: "production".to_owned(),
                rollout_labels: Vec::new(),
            },
            device,
            runtime: unknown_runtime(),
            sdk: Sdk {
                name: "epwatch-sdk".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                language: "rust".to_owned(),
            },
            boot_id: String::new(),
            settled_runs: policy::SETTLED_RUNS,
            directive_keys: Vec::new(),
        })
    }

    /// Obeys directives that are signed with this key; see
    /// [`SdkConfigBuilder::with_directive_key`].
    ///
    /// # Errors
    /// If the id is empty, longer than 64 bytes or given before, if the key is none, or if there
    /// are eight already.
    pub fn with_directive_key(
        mut self,
        key_id: impl Into<String>,
        public_key: [u8; 32],
    ) -> Result<Self, ConfigError> {
        add_directive_key(&mut self.directive_keys, key_id.into(), public_key)?;
        Ok(self)
    }
}

fn add_directive_key(
    keys: &mut Vec<(String, [u8; 32])>,
    key_id: String,
    public_key: [u8; 32],
) -> Result<(), ConfigError> {
    let key_id = text("directive key id", key_id, 64)?;
    let wrong = |problem| ConfigError::DirectiveKey {
        key_id: key_id.clone(),
        problem,
    };
    if !directives::is_sound(&public_key) {
        return Err(wrong(
            "the 32 bytes of an Ed25519 public key, not a placeholder",
        ));
    }
    if keys.iter().any(|(id, _)| *id == key_id) {
        return Err(wrong("each id once"));
    }
    if keys.len() >= directives::MAX_KEYS {
        return Err(wrong("at most 8 keys"));
    }
    keys.push((key_id, public_key));
    Ok(())
}

/// A runtime of which nothing is known yet.
pub(crate) fn unknown_runtime() -> Runtime {
    Runtime {
        ort_version: String::new(),
        ep_package: String::new(),
        ep_version: String::new(),
        ep_linkage: EpLinkage::Unknown,
        backend: EpBackend::Unknown,
        qnn_sdk_version: String::new(),
        backend_build_id: String::new(),
    }
}

/// Whose certificates the collector's may be signed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TrustedRoots {
    /// Mozilla's list, as of when the SDK was built. The same on every device.
    #[default]
    Bundled,
    /// The device's own list, with what its owner or operator added; read when a connection is
    /// first made.
    System,
    /// None but those given by [`SdkConfigBuilder::with_root_certificate`].
    Only,
}

/// How the SDK works inside an app. Made by [`SdkConfig::builder`].
#[derive(Clone)]
pub struct SdkConfig {
    pub(crate) core: CoreConfig,
    /// Whether the host gave the device's facts; otherwise they are read on the SDK's thread.
    pub(crate) is_device_given: bool,
    pub(crate) endpoint: String,
    pub(crate) app_key: String,
    pub(crate) dir: PathBuf,
    pub(crate) report_interval: Duration,
    pub(crate) upload_interval: Duration,
    pub(crate) upload_deadline: Duration,
    pub(crate) limits: Limits,
    pub(crate) roots: TrustedRoots,
    /// PEM.
    pub(crate) root_certificates: Vec<String>,
    pub(crate) budget: ByteBudget,
    pub(crate) has_consent: bool,
    /// Linux's thermal zones, where heat is read from them.
    pub(crate) thermal_zones: Option<PathBuf>,
    pub(crate) sends_itself: bool,
    plaintext_allowed: bool,
}

/// The key is a secret.
impl std::fmt::Debug for SdkConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SdkConfig")
            .field("core", &self.core)
            .field("endpoint", &self.endpoint)
            .field("app_key", &"***")
            .field("dir", &self.dir)
            .field("report_interval", &self.report_interval)
            .field("upload_interval", &self.upload_interval)
            .field("limits", &self.limits)
            .field("roots", &self.roots)
            .field("budget", &self.budget)
            .field("has_consent", &self.has_consent)
            .field("thermal_zones", &self.thermal_zones)
            .finish_non_exhaustive()
    }
}

/// Builds an [`SdkConfig`].
#[derive(Debug)]
#[must_use = "nothing happens until build() is called"]
pub struct SdkConfigBuilder {
    config: SdkConfig,
    app_id: String,
    directive_keys: Vec<(String, [u8; 32])>,
}

impl SdkConfig {
    /// An app's configuration.
    ///
    /// `app_id` is what the collector knows the app by (1 to 128 bytes), `endpoint` the
    /// collector's gRPC address (`https://host:4717`), `app_key` the key that proves the app, and
    /// `dir` a private folder of the app that the SDK may create and fill; processes of one app
    /// share it.
    pub fn builder(
        app_id: impl Into<String>,
        endpoint: impl Into<String>,
        app_key: impl Into<String>,
        dir: impl Into<PathBuf>,
    ) -> SdkConfigBuilder {
        let core = CoreConfig::new("unset", DeviceFacts::default());
        SdkConfigBuilder {
            config: Self {
                core: core.expect("the placeholder is a fine id"),
                is_device_given: false,
                endpoint: endpoint.into(),
                app_key: app_key.into(),
                dir: dir.into(),
                report_interval: policy::REPORT_INTERVAL,
                upload_interval: policy::UPLOAD_INTERVAL,
                upload_deadline: policy::UPLOAD_DEADLINE,
                limits: Limits::default(),
                roots: TrustedRoots::default(),
                root_certificates: Vec::new(),
                budget: ByteBudget::default(),
                has_consent: true,
                thermal_zones: None,
                sends_itself: true,
                plaintext_allowed: false,
            },
            app_id: app_id.into(),
            directive_keys: Vec::new(),
        }
    }

    /// Where reports go.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

impl SdkConfigBuilder {
    /// What the app's users see as its version, and its build. At most 64 bytes each.
    pub fn with_app_version(mut self, version: &str, build: &str) -> Self {
        self.config.core.app.version = clipped(version, 64);
        self.config.core.app.build = clipped(build, 64);
        self
    }

    /// For example `staging`; the default is `production`. Checked by [`Self::build`].
    pub fn with_environment(mut self, environment: impl Into<String>) -> Self {
        self.config.core.app.environment = environment.into();
        self
    }

    /// A roll-out group of this installation; the first eight count.
    pub fn with_rollout_label(mut self, key: &str, value: &str) -> Self {
        let labels = &mut self.config.core.app.rollout_labels;
        let key = clipped(key, 32);
        if labels.len() < 8 && !key.is_empty() && labels.iter().all(|(k, _)| *k != key) {
            labels.push((key, clipped(value, 64)));
        }
        self
    }

    /// Facts of the device, where the host knows them better than the SDK could read them.
    pub fn with_device(mut self, device: DeviceFacts) -> Self {
        self.config.core.device = device;
        self.config.is_device_given = true;
        self
    }

    /// The EP's package, version and back end. ORT's version is read from the library.
    pub fn with_runtime(mut self, runtime: Runtime) -> Self {
        self.config.core.runtime = crate::host::device::clipped_runtime(runtime);
        self
    }

    /// Language of the binding that the host uses; the default is `rust`.
    pub fn with_language(mut self, language: &str) -> Self {
        self.config.core.sdk.language = clipped(language, 16);
        self
    }

    /// How often a report is sealed; the default is 15 minutes.
    pub fn with_report_interval(mut self, interval: Duration) -> Self {
        self.config.report_interval = interval;
        self
    }

    /// How often something is sent, unless the collector asks for another pace; the default is
    /// 15 minutes.
    pub fn with_upload_interval(mut self, interval: Duration) -> Self {
        self.config.upload_interval = interval;
        self
    }

    /// How long one upload may take; the default is 30 seconds.
    pub fn with_upload_deadline(mut self, deadline: Duration) -> Self {
        self.config.upload_deadline = deadline;
        self
    }

    /// What the spool of this process may take; others that share the folder have their own.
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.config.limits = limits;
        self
    }

    /// Whose certificates are trusted; the default is [`TrustedRoots::Bundled`].
    pub fn with_trusted_roots(mut self, roots: TrustedRoots) -> Self {
        self.config.roots = roots;
        self
    }

    /// One more root certificate that is trusted, as PEM text: for collectors with a private CA.
    /// Checked by [`Self::build`].
    pub fn with_root_certificate(mut self, pem: impl Into<String>) -> Self {
        self.config.root_certificates.push(pem.into());
        self
    }

    /// Most bytes that are sent on a UTC day over networks that cost nothing, or of which the host
    /// does not say what they cost; the default is 64 MiB.
    pub fn with_unmetered_bytes_per_day(mut self, bytes: u64) -> Self {
        self.config.budget.unmetered_per_day = bytes;
        self
    }

    /// Allows uploads over metered networks, up to so many bytes on a UTC day. Without this they
    /// wait for another network. [`policy::METERED_BYTES_PER_DAY`] is a fair amount. The host says
    /// which network there is with [`Watch::set_network`](crate::Watch::set_network).
    pub fn with_metered_bytes_per_day(mut self, bytes: u64) -> Self {
        self.config.budget.metered_per_day = Some(bytes);
        self
    }

    /// Whether the SDK reads heat from Linux's thermal zones (`/sys/class/thermal`), for robots and
    /// others without a platform that tells it; the default is `false`.
    ///
    /// The SDK's own thread reads them every ten seconds, later while an upload waits for its
    /// network. The worst zone counts: none below its `passive` trip point, light from there on
    /// and until it has cooled by the trip's hysteresis, moderate half way to the next `hot` or
    /// `critical` one, severe and critical at these. Where no zone has a `passive` trip, or none
    /// can be read (Android's apps may not), it stays unknown. The thermal status given to
    /// [`Watch::set_conditions`](crate::Watch::set_conditions) does not count then; power save and
    /// performance mode are the host's as ever.
    pub fn with_thermal_zones(mut self, is_read: bool) -> Self {
        let zones = || Path::new("/").join(thermal_zones::DIR);
        self.config.thermal_zones = is_read.then(zones);
        self
    }

    /// Whether the user's consent is there from the start; the default is `true`. With `false`
    /// nothing is recorded, written or sent until
    /// [`Watch::set_consent`](crate::Watch::set_consent) gives it. That is no withdrawal: what an
    /// earlier process kept stays for when it is given, and is wiped by `set_consent(false)`.
    pub fn with_consent(mut self, is_given: bool) -> Self {
        self.config.has_consent = is_given;
        self
    }

    /// Leaves sending to the host, which asks for requests with
    /// [`Watch::next_upload`](crate::Watch::next_upload): the SDK opens no connection. So it is
    /// anyway without the feature `grpc`.
    pub fn with_uploads_by_host(mut self) -> Self {
        self.config.sends_itself = false;
        self
    }

    /// Clean runs after which a version's latency counts as known; the default is 20.
    pub fn with_settled_runs(mut self, runs: u64) -> Self {
        self.config.core.settled_runs = runs;
        self
    }

    /// Obeys directives that are signed with this Ed25519 public key, under the id that they name
    /// it by (1 to 64 bytes). At most eight, so that keys can be changed; without any, no
    /// directive is obeyed. The private key stays with the operator, never with the collector.
    /// Checked by [`Self::build`].
    pub fn with_directive_key(mut self, key_id: impl Into<String>, public_key: [u8; 32]) -> Self {
        self.directive_keys.push((key_id.into(), public_key));
        self
    }

    /// Allows `http://` to a host that is not this one. Key and reports can then be read on the
    /// way: for test networks only.
    pub fn with_plaintext_to_other_hosts(mut self, allowed: bool) -> Self {
        self.config.plaintext_allowed = allowed;
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// The first thing that is wrong, and the way out.
    pub fn build(self) -> Result<SdkConfig, ConfigError> {
        let mut config = self.config;
        config.core.app.id = text("app id", self.app_id, 128)?;
        let environment = std::mem::take(&mut config.core.app.environment);
        config.core.app.environment = text("environment", environment, 32)?;
        config.app_key = text("app key", config.app_key, 512)?;
        check_endpoint(&config.endpoint, config.plaintext_allowed)?;
        for (key_id, public_key) in self.directive_keys {
            add_directive_key(&mut config.core.directive_keys, key_id, public_key)?;
        }
        for pem in &config.root_certificates {
            check_root_certificate(pem)?;
        }
        if config.roots == TrustedRoots::Only && config.root_certificates.is_empty() {
            return Err(ConfigError::NoRoots);
        }
        let positive = [
            ("report interval", config.report_interval.is_zero()),
            ("upload interval", config.upload_interval.is_zero()),
            ("upload deadline", config.upload_deadline.is_zero()),
            ("spool size", config.limits.max_spool_bytes == 0),
            ("spool age", config.limits.max_spool_age.is_zero()),
            ("segment size", config.limits.segment_bytes == 0),
        ];
        match positive.iter().find(|(_, is_zero)| *is_zero) {
            Some((what, _)) => Err(ConfigError::Zero(what)),
            None => Ok(config),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(endpoint: &str) -> Result<SdkConfig, ConfigError> {
        SdkConfig::builder("app", endpoint, "key", "dir").build()
    }

    #[test]
    fn plaintext_leaves_the_device_only_when_it_is_said() {
        for fine in [
            "http://127.0.0.1:4717",
            "http://localhost:1",
            "http://[::1]:4717",
            "https://collector.example",
        ] {
            assert!(build(fine).is_ok(), "{fine}");
        }
        for refused in [
            "http://collector.example:4717",
            "http://10.0.0.1",
            "http://127.0.0.1.example.com",
            "http://localhost.example.com",
        ] {
            let error = build(refused).unwrap_err();
            assert_eq!(error, ConfigError::Plaintext(refused.to_owned()));
            assert!(error.to_string().contains("with_plaintext_to_other_hosts"));
        }
        let allowed = SdkConfig::builder("app", "http://10.0.0.1", "key", "dir")
            .with_plaintext_to_other_hosts(true);
        assert!(allowed.build().is_ok());
    }

    #[test]
    fn wrong_use_names_the_way_out() {
        for endpoint in [
            "",
            "collector",
            "ftp://x",
            "https://",
            "http://user@127.0.0.1",
        ] {
            let error = build(endpoint).unwrap_err();
            assert!(matches!(error, ConfigError::Endpoint(_)), "{endpoint}");
        }
        let no_id = SdkConfig::builder("", "http://[::1]", "key", "dir").build();
        assert!(matches!(
            no_id,
            Err(ConfigError::Text {
                field: "app id",
                ..
            })
        ));
        let no_time = SdkConfig::builder("a", "http://[::1]", "key", "dir")
            .with_report_interval(Duration::ZERO)
            .build();
        assert_eq!(no_time.unwrap_err(), ConfigError::Zero("report interval"));
        assert!(ModelInfo::new("a\nb", "1").is_err());
    }

    #[test]
    fn what_is_trusted_is_said_and_can_be_read() {
        let with = |pem: &str| {
            let builder = SdkConfig::builder("a", "https://collector.example", "key", "dir");
            builder.with_root_certificate(pem).build()
        };
        for wrong in ["", "ca.pem", "-----BEGIN PRIVATE KEY-----"] {
            assert_eq!(with(wrong).unwrap_err(), ConfigError::RootCertificate);
        }
        assert!(with("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----").is_ok());
        let nobody = SdkConfig::builder("a", "https://collector.example", "key", "dir")
            .with_trusted_roots(TrustedRoots::Only);
        assert_eq!(nobody.build().unwrap_err(), ConfigError::NoRoots);
    }

    #[test]
    fn debug_output_hides_the_key() {
        let config = build("http://[::1]").unwrap();
        assert!(!format!("{config:?}").contains("\"key\""));
    }
}
