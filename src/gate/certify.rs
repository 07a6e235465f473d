//! Sends the model's MACs, and its placement on each chipset, to a collector after a gate passed. The detector then
//! compares the field with them.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use epwatch_engines::QnnVersion;
use epwatch_fleet::ClientTls;
use epwatch_manifest::{InputShape, manifest_of, sha256_of_file};
use epwatch_proto::{
    EpBackend, EpLinkage, ModelHash, ModelManifest, Runtime, unhex,
    v1::{self, collector_service_client::CollectorServiceClient},
};
use tonic::{Code, Request, Status, metadata::AsciiMetadataValue, transport::Channel};

use crate::{
    client_tls,
    collector_key::KeySource,
    engines,
    output::{self, No, WrongUse},
};

/// Longest wait for the collector's answer, which comes once the store has the row.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Hexadecimal digits of the evidence's SHA-256 in a certificate.
const EVIDENCE_DIGITS: usize = 16;

/// Maximum number of bytes of a package's version.
const MAX_VERSION_BYTES: usize = 64;

const KEY: KeySource = KeySource {
    option: "--certify-key",
    variable: "EPWATCH_CERTIFY_KEY",
    made_by: "epwatch collector key --kind pipeline",
};

/// The destination of a passed gate. It gets a certificate for each chipset of --soc, and for each chipset and firmware
/// of launches.
#[derive(Debug, clap::Args)]
pub(super) struct CertifyArgs {
    /// If the gate passes, store manifest and placements at this collector (http://host:4717): the detector
    /// compares the field with them.
    #[arg(long, value_name = "URL", requires_all = ["model_id", "model_version"])]
    pub(super) certify: Option<String>,
    /// The model's id, as the app gives it to the SDK.
    #[arg(long, value_name = "ID", requires = "certify")]
    model_id: Option<String>,
    /// The model's version, as the app gives it to the SDK.
    #[arg(long, value_name = "VERSION", requires = "certify")]
    model_version: Option<String>,
    /// Key of a release pipeline, as `epwatch collector key --kind pipeline` makes it. Without one, only a collector on
    /// this machine is asked, and only one without keys stores anything.
    #[arg(
        long,
        value_name = "KEY",
        env = "EPWATCH_CERTIFY_KEY",
        hide_env_values = true
    )]
    certify_key: Option<String>,
    /// The certifier, for example a CI run. The beginning of the SHA-256 of gate.dsse.json is added with --attest.
    #[arg(long, value_name = "TEXT", requires = "certify", default_value = concat!("epwatch gate ", env!("CARGO_PKG_VERSION")))]
    certified_by: String,
    /// With launches on a device: the version of the QNN plugin's package, as the app gives it to the SDK (2.7.0).
    #[arg(long, value_name = "VERSION", requires = "certify", value_parser = version)]
    pub(super) ep_version: Option<String>,
    /// Replace the certificate of another model file under the same id and version; else that is refused.
    #[arg(long, requires = "certify")]
    replace: bool,
    /// Certificate (PEM) that signed the collector's, where it is not a public one.
    #[arg(long, value_name = "FILE", requires = "certify")]
    ca: Option<PathBuf>,
    /// Certificate (PEM, with its chain) of this client, where the collector asks for one (`client_ca`).
    #[arg(long, value_name = "FILE", requires_all = ["client_key", "certify"])]
    client_cert: Option<PathBuf>,
    /// Key (PEM) of --client-cert.
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

/// Parses a package's version, for example 2.7.0 or 2.7.0.dev3. No device reports a text of another form.
fn version(text: &str) -> Result<String, String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+' | '_');
    let is_version = text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(is_part);
    match is_version && text.len() <= MAX_VERSION_BYTES {
        true => Ok(text.to_owned()),
        false => Err("expected the version of a package, such as 2.7.0".to_owned()),
    }
}

/// A placement that was judged.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) model: PathBuf,
    pub(super) chipset: String,
    /// Hash of the firmware, as devices report it; empty for an emulator.
    pub(super) firmware: String,
    /// The message `Placement`.
    pub(super) placement: Vec<u8>,
    pub(super) runtime: Runtime,
    pub(super) latency: Option<v1::CertifiedLatency>,
}

impl CertifyArgs {
    /// Refuses, before anything is measured or judged, each option that no collector would accept. Says what is sent if
    /// the collector may do without a key.
    pub(super) fn check(&self) -> Result<(), WrongUse> {
        let Some(url) = &self.certify else {
            return Ok(());
        };
        self.collector(url)?;
        let named = epwatch_proto::Model::try_from(self.named());
        named.map_err(|error| WrongUse(format!("--model-id and --model-version: {error}")))?;
        KEY.warn(url, self.certify_key.as_deref());
        Ok(())
    }

    fn collector<'a>(&self, url: &'a str) -> Result<Collector<'a>, WrongUse> {
        let (ca, certificate) = (self.ca.as_deref(), self.client_cert.as_deref());
        let tls = client_tls::read(url, ca, certificate, self.client_key.as_deref())?;
        let key = KEY.key(url, self.certify_key.as_deref())?;
        Collector::new(url, &key, &tls)
    }

    /// Sends placements that passed. Returns a line for each.
    pub(super) async fn send(
        &self,
        url: &str,
        passed: Vec<Judged>,
        evidence: Option<ModelHash>,
        shapes: &[InputShape],
    ) -> anyhow::Result<Vec<String>> {
        let certified_by = match evidence {
            Some(sha256) => {
                let sha256 = sha256.to_string();
                format!(
                    "{}, evidence {}",
                    self.certified_by,
                    &sha256[..EVIDENCE_DIGITS]
                )
            }
            None => self.certified_by.clone(),
        };
        let mut collector = self.collector(url)?;
        let mut lines = Vec::new();
        let mut sent: Vec<PathBuf> = Vec::new();
        for one in passed {
            let model = self.model(&one.model)?;
            let on = match &*one.firmware {
                "" => one.chipset.clone(),
                firmware => format!("{}, firmware {firmware}", one.chipset),
            };
            lines.push(format!("certified: {} {} on {on}", model.id, model.version));
            collector
                .placement(v1::PutCertifiedPlacementRequest {
                    model: Some(model.clone()),
                    chipset: one.chipset,
                    runtime: Some(v1::Runtime::from(&one.runtime)),
                    placement: one.placement.into(),
                    certified_by: certified_by.clone(),
                    latency: one.latency,
                    firmware: one.firmware,
                    replace: self.replace,
                    request_id: epwatch_sdk::simulation::random_u64(),
                })
                .await?;
            // The manifest is sent after the certificate. The collector refuses another model file under a certified
            // version, and then gets no manifest.
            if !sent.contains(&one.model) {
                collector.manifest(&model, &one.model, shapes).await?;
                sent.push(one.model);
            }
        }
        Ok(lines)
    }

    fn model(&self, file: &Path) -> anyhow::Result<v1::Model> {
        let sha256 = sha256_of_file(file)
            .with_context(|| format!("failed to read MODEL {}", file.display()))?;
        Ok(v1::Model {
            sha256: unhex(&sha256).unwrap_or_default().into(),
            ..self.named()
        })
    }

    /// The model by its id and version alone.
    fn named(&self) -> v1::Model {
        v1::Model {
            id: self.model_id.clone().unwrap_or_default(),
            version: self.model_version.clone().unwrap_or_default(),
            ..v1::Model::default()
        }
    }
}

/// Returns the versions of the runtimes that made the placements.
pub(super) async fn runtime(version: QnnVersion) -> anyhow::Result<Runtime> {
    let (ort, qnn) = engines::ensure_qnn(version).await?;
    Ok(Runtime {
        ort_version: ort.version().into(),
        ep_package: "onnxruntime-qnn".to_owned(),
        ep_version: qnn.version().into(),
        ep_linkage: EpLinkage::Plugin,
        backend: EpBackend::Htp,
        qnn_sdk_version: version.sdk().to_owned(),
        ..Runtime::default()
    })
}

/// The collector's device port.
struct Collector<'a> {
    url: &'a str,
    service: CollectorServiceClient<Channel>,
    authorization: AsciiMetadataValue,
}

impl<'a> Collector<'a> {
    fn new(url: &'a str, key: &str, tls: &ClientTls) -> Result<Self, WrongUse> {
        let wrong = |error: &dyn std::fmt::Display| WrongUse(format!("--certify: {error}"));
        let endpoint = epwatch_fleet::endpoint(url, tls, CALL_TIMEOUT);
        let endpoint = endpoint.map_err(|error| wrong(&epwatch_proto::error_chain(&error)))?;
        let authorization = format!("Bearer {key}").parse();
        Ok(Self {
            url,
            service: CollectorServiceClient::new(endpoint.connect_lazy()),
            authorization: authorization
                .map_err(|_| wrong(&"the key has other characters than visible ASCII"))?,
        })
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let authorization = self.authorization.clone();
        request
            .metadata_mut()
            .insert("authorization", authorization);
        request
    }

    /// Sends the model's MACs, if they can be counted: placements without shares are certified too.
    async fn manifest(
        &mut self,
        model: &v1::Model,
        file: &Path,
        shapes: &[InputShape],
    ) -> anyhow::Result<()> {
        let manifest = match manifest_of(file, shapes) {
            Ok(document) => ModelManifest::try_from(document.side_car)?,
            Err(error) => {
                output::remark(format_args!("certified without MACs: {error}"));
                return Ok(());
            }
        };
        let sha256 = manifest.sha256();
        let request = self.request(v1::PutModelManifestRequest {
            model: Some(model.clone()),
            manifest: Some(v1::ModelManifest::from(&manifest)),
        });
        let sent = self.service.put_model_manifest(request).await;
        let stored = sent.map_err(|status| self.refused("the manifest", &status))?;
        self.check(
            "the manifest",
            stored.get_ref().manifest_sha256[..] == sha256.as_bytes()[..],
        )
    }

    async fn placement(
        &mut self,
        placement: v1::PutCertifiedPlacementRequest,
    ) -> anyhow::Result<()> {
        let what = format!("the placement on {}", placement.chipset);
        let (request_id, sha256) = (placement.request_id, ModelHash::of(&placement.placement));
        let request = self.request(placement);
        let sent = self.service.put_certified_placement(request).await;
        let stored = sent.map_err(|status| self.refused(&what, &status))?;
        let stored = stored.get_ref();
        let is_named = stored.request_id == request_id
            && stored.placement_sha256[..] == sha256.as_bytes()[..]
            && stored.stored_at_unix_ms > 0;
        self.check(&what, is_named)
    }

    /// Status 0 alone does not prove that the collector stored anything, because a proxy may have answered.
    fn check(&self, what: &str, is_named: bool) -> anyhow::Result<()> {
        let url = self.url;
        anyhow::ensure!(
            is_named,
            "the gate passed, but the answer of {url} does not name {what}: does a proxy answer for the collector?"
        );
        Ok(())
    }

    fn refused(&self, what: &str, status: &Status) -> anyhow::Error {
        let hint = match status.code() {
            Code::Unauthenticated if status.message().contains("client certificate") => {
                "; --client-cert and --client-key name its files"
            }
            Code::Unauthenticated | Code::PermissionDenied => {
                "; EPWATCH_CERTIFY_KEY needs a key of `epwatch collector key --kind pipeline`"
            }
            Code::FailedPrecondition if status.message().contains("another model file") => {
                return No(format!(
                    "the gate passed, but {} did not store {what}: {}",
                    self.url,
                    status.message()
                ))
                .into();
            }
            _ => "",
        };
        let tls = epwatch_proto::tls_hint(self.url, status).map(|hint| format!("; {hint}"));
        let cause = std::error::Error::source(status).map(|cause| format!(" ({cause})"));
        anyhow::anyhow!(
            "the gate passed, but {} did not store {what}: {}{}{hint}{}",
            self.url,
            status.message(),
            cause.unwrap_or_default(),
            tls.unwrap_or_default()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn a_version_is_one_of_a_package() {
        for text in ["2.7.0", "1.18.0.dev20260101", "2.7.0-rc.1+build_7"] {
            assert_eq!(version(text).unwrap(), text);
        }
        for text in ["", "2.7 junk", "v2.7.0", "2.7.0\n", &"1".repeat(65)] {
            let error = version(text).unwrap_err();
            assert!(error.contains("such as 2.7.0"), "{text:?}: {error}");
        }
    }
}
