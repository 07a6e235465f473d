//! Configuration of the SDK inside an app.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use epwatch_proto::clipped;

use super::{
    core::{CoreConfig, add_directive_key},
    endpoint::{check_endpoint, check_root_certificate},
    error::{ConfigError, text},
    health::HealthListener,
};
use crate::{
    host::thermal_zones,
    policy,
    types::{Device, Runtime},
    upload::budget::ByteBudget,
};

/// Roots that may sign the collector's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TrustedRoots {
    /// Mozilla's list at the time of the SDK's build. It is the same on every device.
    #[default]
    Bundled,
    /// The device's own list, with additions by its owner or operator. Read when the first connection is made.
    System,
    /// Only certificates given by [`SdkConfigBuilder::with_root_certificate`].
    Only,
}

/// PEM files of a client certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientCertificate {
    pub(crate) cert_file: PathBuf,
    pub(crate) key_file: PathBuf,
}

/// Configuration of the SDK inside an app. Made by [`SdkConfig::builder`].
#[derive(Clone)]
pub struct SdkConfig {
    pub(crate) core: CoreConfig,
    /// Whether the host described the device. Otherwise the SDK's thread reads the description.
    pub(crate) is_device_given: bool,
    pub(crate) endpoint: String,
    pub(crate) app_key: String,
    pub(crate) dir: PathBuf,
    pub(crate) report_interval: Duration,
    pub(crate) upload_interval: Duration,
    pub(crate) roots: TrustedRoots,
    /// PEM text.
    pub(crate) root_certificates: Vec<String>,
    pub(crate) client_certificate: Option<ClientCertificate>,
    pub(crate) budget: ByteBudget,
    pub(crate) has_consent: bool,
    /// Folder of Linux's thermal zones, if they are read.
    pub(crate) thermal_zones: Option<PathBuf>,
    pub(crate) sends_itself: bool,
    pub(crate) health_listener: Option<HealthListener>,
    plaintext_allowed: bool,
}

/// Hides the app key, which is a secret.
impl std::fmt::Debug for SdkConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SdkConfig")
            .field("core", &self.core)
            .field("endpoint", &self.endpoint)
            .field("app_key", &"***")
            .field("dir", &self.dir)
            .field("report_interval", &self.report_interval)
            .field("upload_interval", &self.upload_interval)
            .field("roots", &self.roots)
            .field("client_certificate", &self.client_certificate)
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
    /// Begins a configuration.
    ///
    /// `app_id` is the app's id at the collector (1 to 128 bytes). `endpoint` is the collector's gRPC address
    /// (`https://host:4717`), and `app_key` is the key that authenticates the app. `dir` is a private folder of the app
    /// that the SDK creates if necessary. Processes of one app share it.
    pub fn builder(
        app_id: impl Into<String>,
        endpoint: impl Into<String>,
        app_key: impl Into<String>,
        dir: impl Into<PathBuf>,
    ) -> SdkConfigBuilder {
        let core = CoreConfig::new("unset", Device::default().into());
        SdkConfigBuilder {
            config: Self {
                core: core.expect("the placeholder is a fine id"),
                is_device_given: false,
                endpoint: endpoint.into(),
                app_key: app_key.into(),
                dir: dir.into(),
                report_interval: policy::REPORT_INTERVAL,
                upload_interval: policy::UPLOAD_INTERVAL,
                roots: TrustedRoots::default(),
                root_certificates: Vec::new(),
                client_certificate: None,
                budget: ByteBudget::default(),
                has_consent: false,
                thermal_zones: None,
                sends_itself: true,
                health_listener: None,
                plaintext_allowed: false,
            },
            app_id: app_id.into(),
            directive_keys: Vec::new(),
        }
    }

    /// Returns the address that reports go to.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

impl SdkConfigBuilder {
    /// Sets the app's version and build, as its users see them. At most 64 bytes each.
    pub fn with_app_version(mut self, version: &str, build: &str) -> Self {
        self.config.core.app.version = clipped(version, 64);
        self.config.core.app.build = clipped(build, 64);
        self
    }

    /// Sets the environment, for example `staging`; the default is `production`. Checked by [`Self::build`].
    pub fn with_environment(mut self, environment: impl Into<String>) -> Self {
        self.config.core.app.environment = environment.into();
        self
    }

    /// Adds a roll-out group of this installation. The first eight count.
    pub fn with_rollout_label(mut self, key: &str, value: &str) -> Self {
        let labels = &mut self.config.core.app.rollout_labels;
        let key = clipped(key, 32);
        if labels.len() < 8 && !key.is_empty() && labels.iter().all(|(k, _)| *k != key) {
            labels.push((key, clipped(value, 64)));
        }
        self
    }

    /// Describes the device. Without this call the SDK reads the description from Linux.
    ///
    /// Every field may stay empty. Texts are clipped to the lengths of a report, and the chipset is derived from the raw
    /// text (Android: `Build.SOC_MODEL`). No field may identify one device: no serial, account or advertising id.
    pub fn with_device(mut self, device: Device) -> Self {
        self.config.core.device = device.into();
        self.config.is_device_given = true;
        self
    }

    /// Sets the EP's package and version, and the version of QAIRT. ORT's version is read from the library.
    pub fn with_runtime(mut self, runtime: Runtime) -> Self {
        self.config.core.runtime = epwatch_proto::Runtime::from(runtime).normalised();
        self
    }

    /// Sets the language of the host's binding; the default is `rust`.
    pub fn with_language(mut self, language: &str) -> Self {
        self.config.core.sdk.language = clipped(language, 16);
        self
    }

    /// Sets how often a report is sealed; the default is 15 minutes.
    pub fn with_report_interval(mut self, interval: Duration) -> Self {
        self.config.report_interval = interval;
        self
    }

    /// Sets how often reports are sent, unless the collector asks for another interval; the default is 15 minutes.
    pub fn with_upload_interval(mut self, interval: Duration) -> Self {
        self.config.upload_interval = interval;
        self
    }

    /// Sets which roots are trusted; the default is [`TrustedRoots::Bundled`].
    pub fn with_trusted_roots(mut self, roots: TrustedRoots) -> Self {
        self.config.roots = roots;
        self
    }

    /// Trusts one more root certificate, given as PEM text: for collectors with a private CA. Checked by
    /// [`Self::build`].
    pub fn with_root_certificate(mut self, pem: impl Into<String>) -> Self {
        self.config.root_certificates.push(pem.into());
        self
    }

    /// Presents a client certificate to the collector (mTLS). This is for your own robots and devices, if the collector
    /// asks for a certificate (`client_ca`).
    ///
    /// Both are PEM files; the first has the certificate, then its chain. They are read before each upload, so a
    /// renewed pair needs no restart. While the two do not match, as during a renewal, the earlier pair stays in use.
    /// The endpoint must be `https://`. A host that sends by itself presents its own certificate.
    pub fn with_client_certificate(
        mut self,
        cert_file: impl Into<PathBuf>,
        key_file: impl Into<PathBuf>,
    ) -> Self {
        self.config.client_certificate = Some(ClientCertificate {
            cert_file: cert_file.into(),
            key_file: key_file.into(),
        });
        self
    }

    /// Limits the bytes sent per day over unmetered networks, and over networks of unknown cost; the default is 64 MiB.
    /// A day is a UTC day by the collector's clock, or 24 hours in which the device was on. The device's own clock
    /// never begins a new day.
    pub fn with_unmetered_bytes_per_day(mut self, bytes: u64) -> Self {
        self.config.budget.unmetered_per_day = bytes;
        self
    }

    /// Allows uploads over metered networks, up to this many bytes per day. Without this call uploads wait for another
    /// network. [`policy::METERED_BYTES_PER_DAY`] is a reasonable amount. The host reports the network with
    /// [`Watch::set_network`](crate::Watch::set_network).
    pub fn with_metered_bytes_per_day(mut self, bytes: u64) -> Self {
        self.config.budget.metered_per_day = Some(bytes);
        self
    }

    /// Reads the thermal status from Linux's thermal zones (`/sys/class/thermal`); the default is `false`. For robots
    /// and other devices without a platform API.
    ///
    /// The SDK's thread reads the zones every ten seconds, or later while an upload waits for its network. The worst
    /// zone counts. The status is none below the `passive` trip point. It is light from that point on, until the zone
    /// has cooled by the trip's hysteresis. It is moderate half way to the next `hot` or `critical` trip, and severe
    /// and critical at these. Without a readable zone that has a `passive` trip, the status stays unknown; Android's
    /// apps may read none.
    ///
    /// The thermal status given to [`Watch::set_conditions`](crate::Watch::set_conditions) is then ignored; power
    /// save and performance mode are not.
    pub fn with_thermal_zones(mut self, is_read: bool) -> Self {
        let zones = || Path::new("/").join(thermal_zones::DIR);
        self.config.thermal_zones = is_read.then(zones);
        self
    }

    /// Sets whether the user has consented at the start; the default is `false`, as in every language. Without consent
    /// nothing is recorded, written or sent until [`Watch::set_consent`](crate::Watch::set_consent) gives it. `false`
    /// withdraws nothing: data of an earlier process stays until `set_consent(false)` wipes it.
    pub fn with_consent(mut self, is_given: bool) -> Self {
        self.config.has_consent = is_given;
        self
    }

    /// Leaves sending to the host, which gets requests from [`Watch::next_upload`](crate::Watch::next_upload). The SDK
    /// then opens no connection. Without the feature `grpc` the host always sends.
    pub fn with_uploads_by_host(mut self) -> Self {
        self.config.sends_itself = false;
        self
    }

    /// Calls a function with the SDK's problem when a problem begins or changes, and with `None` when it is over.
    /// Problems are a folder that cannot be used, a refused key, a dead endpoint, consent that another process
    /// withdrew. The problem is [`Explanation::last_problem`](crate::Explanation::last_problem), without polling.
    ///
    /// The SDK's thread calls the function, and does nothing else meanwhile. The function may call
    /// [`Watch`](crate::Watch), but not `flush` or `stop`, which wait for that thread.
    pub fn with_health_listener(
        mut self,
        listener: impl Fn(Option<&str>) + Send + Sync + 'static,
    ) -> Self {
        self.config.health_listener = Some(HealthListener::new(listener));
        self
    }

    /// Sets the number of clean runs after which a version's latency counts as known; the default is 20.
    pub fn with_settled_runs(mut self, runs: u64) -> Self {
        self.config.core.settled_runs = runs;
        self
    }

    /// Accepts directives signed with this Ed25519 public key, under the id by which they name it (1 to 64 bytes). At
    /// most eight keys, so that they can be rotated; without a key every directive is refused. The private key stays
    /// with the operator, never with the collector. Checked by [`Self::build`].
    pub fn with_directive_key(mut self, key_id: impl Into<String>, public_key: [u8; 32]) -> Self {
        self.directive_keys.push((key_id.into(), public_key));
        self
    }

    /// Allows `http://` to other hosts than this one. App key and reports can then be read on the way: only
    /// for test networks.
    pub fn with_plaintext_to_other_hosts(mut self, allowed: bool) -> Self {
        self.config.plaintext_allowed = allowed;
        self
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// Returns the first problem, and how to correct it.
    pub fn build(self) -> Result<SdkConfig, ConfigError> {
        let mut config = self.config;
        config.core.app.id = text("app id", self.app_id, 128)?;
        let environment = std::mem::take(&mut config.core.app.environment);
        config.core.app.environment = text("environment", environment, 32)?;
        config.app_key = text("app key", config.app_key, 512)?;
        check_endpoint(&config.endpoint, config.plaintext_allowed)?;
        if config.client_certificate.is_some() && !config.endpoint.starts_with("https://") {
            return Err(ConfigError::ClientCertificate);
        }
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
    use crate::ModelInfo;

    fn build(endpoint: &str) -> Result<SdkConfig, ConfigError> {
        SdkConfig::builder("app", endpoint, "key", "dir").build()
    }

    #[test]
    fn plaintext_to_other_hosts_needs_permission() {
        for fine in [
            "http://127.0.0.1:4717",
            "http://localhost:1",
            "http://[::1]:4717",
            "https://collector.example",
            "https://collector.example:4717/",
            "https://10.0.0.1:65535",
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
            assert!(error.to_string().contains("allow plaintext"));
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
            // Uploads would go to another port, or the rest would be ignored.
            "https://127.0.0.1:99999",
            "https://collector.example:0",
            "https://collector.example:",
            "https://collector.example:47x",
            "https://collector.example:+443",
            "https://[::1]4717",
            "https://[::1:4717",
            "https://::1",
            "https://collector.example:4717/path?q",
            "http://127.0.0.1:47170/sub/path?q=1",
            "http://127.0.0.1:47170?q=1",
            "https://collector.example#x",
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
    fn root_certificates_are_checked() {
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
