//! The certificate of the device port and the authorities of its clients, reloaded when their files change
//! ([`super::reload`]).
//!
//! A handshake uses the current files; open connections stay. Files that do not match, as during a renewal, change
//! nothing. A client without a certificate passes the handshake: its key decides later
//! ([`crate::ingest::auth::AppKeys::prove`]). A client with a certificate of another authority does not pass.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use epwatch_server::read_config_file;
use jiff::Timestamp;
use parking_lot::RwLock;
use rustls::client::verify_server_name;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};

use super::certificate_expiry::{Validity, is_version_1, validity};

/// The config key of the unusable file, and why it is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to use {key}: {text}")]
pub(crate) struct TlsError {
    pub(crate) key: &'static str,
    pub(crate) text: String,
}

/// Paths of PEM files: certificate, key, and authorities of clients.
#[derive(Debug, Clone)]
pub(crate) struct TlsFiles {
    pub(crate) cert_file: PathBuf,
    pub(crate) key_file: PathBuf,
    pub(crate) client_ca: Option<PathBuf>,
}

#[derive(Debug)]
pub(crate) struct Tls {
    files: TlsFiles,
    current: RwLock<LoadedFiles>,
}

/// Contents of the files.
#[derive(Debug)]
pub(crate) struct LoadedFiles {
    config: Arc<ServerConfig>,
    certificate: CertificateDer<'static>,
    pub(crate) validity: Option<Validity>,
    /// Of each authority in `client_ca`, in the order of the file.
    authorities: Vec<Option<Validity>>,
}

impl LoadedFiles {
    /// Returns which authorities of clients have ended or will soon, and what that means. The handshake reads only an
    /// authority's name and key (RFC 5280, 6.1.1), so it still accepts certificates that an ended authority signed.
    pub(crate) fn authority_problem(&self, now: Timestamp) -> Option<String> {
        let n = self.authorities.len();
        let of = |(at, validity): (usize, &Option<Validity>)| {
            let end = validity.as_ref()?.end_of_authority(now)?;
            Some(format!("authority {} of {n} {end}", at + 1))
        };
        let ends: Vec<String> = self.authorities.iter().enumerate().filter_map(of).collect();
        (!ends.is_empty()).then(|| {
            format!(
                "{}; clients with certificates that it signed connect until these end: give them certificates of \
                 another authority, then remove it from the file",
                ends.join(", ")
            )
        })
    }
}

impl Tls {
    pub(crate) fn new(files: TlsFiles) -> Result<Self, TlsError> {
        let current = RwLock::new(load(&files)?);
        Ok(Self { files, current })
    }

    /// The settings of a new connection's handshake. They start without TLS sessions, so that no client of an earlier
    /// authority can resume one.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.current.read().config.clone()
    }

    /// Returns the time in which the certificate in use and its chain are valid; `None` if it cannot be read.
    pub(crate) fn validity(&self) -> Option<Validity> {
        self.current.read().validity
    }

    /// Returns the earliest end of an authority of clients; `None` without one.
    pub(crate) fn first_end_of_authorities(&self) -> Option<Timestamp> {
        let current = self.current.read();
        let read = current.authorities.iter().flatten();
        read.map(|of| of.not_after).min()
    }

    /// As [`LoadedFiles::authority_problem`].
    pub(crate) fn authority_problem(&self, now: Timestamp) -> Option<String> {
        self.current.read().authority_problem(now)
    }

    /// Whether a client that asks for this name accepts the certificate's names.
    pub(crate) fn is_for(&self, name: &str) -> bool {
        let current = self.current.read();
        let parsed = ParsedCertificate::try_from(&current.certificate);
        let name = ServerName::try_from(name);
        parsed
            .ok()
            .zip(name.ok())
            .is_some_and(|(parsed, name)| verify_server_name(&parsed, &name).is_ok())
    }

    /// Reloads the files. On an error everything stays.
    pub(crate) fn reload(&self) -> Result<(), TlsError> {
        let fresh = load(&self.files)?;
        *self.current.write() = fresh;
        Ok(())
    }

    /// Returns the files that are reloaded when they change.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let TlsFiles {
            cert_file,
            key_file,
            client_ca,
        } = &self.files;
        let pair = [cert_file, key_file].into_iter();
        pair.chain(client_ca).cloned().collect()
    }
}

/// Reads all files.
pub(crate) fn load(files: &TlsFiles) -> Result<LoadedFiles, TlsError> {
    let wrong = |key, error: rustls::Error| TlsError {
        key,
        text: error.to_string(),
    };
    let certified = load_pair(&files.cert_file, &files.key_file)?;
    let authorities = match &files.client_ca {
        Some(file) => load_certificates("client_ca", file)?,
        None => Vec::new(),
    };
    let chain = certified.cert.iter().map(|der| validity(der));
    let in_chain = chain.reduce(|one, other| Some(one?.overlap(other?)));
    let of_authorities = authorities.iter().map(|der| validity(der)).collect();
    let certificate = certified.cert.first().cloned();
    let certificate = certificate.ok_or_else(|| TlsError {
        key: "cert_file",
        text: "holds no PEM certificate".to_owned(),
    })?;
    let provider = Arc::new(ring::default_provider());
    let versions = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong("cert_file", error))?;
    let builder = match &files.client_ca {
        None => versions.with_no_client_auth(),
        Some(file) => {
            let unusable = |error: &dyn std::fmt::Display| TlsError {
                key: "client_ca",
                text: format!("{}: {error}", file.display()),
            };
            let mut roots = RootCertStore::empty();
            for authority in authorities {
                roots.add(authority).map_err(|error| unusable(&error))?;
            }
            // A phone has no client certificate. The key decides later whether a certificate is needed.
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|error| unusable(&error))?;
            versions.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(LoadedFiles {
        config: Arc::new(config),
        certificate,
        validity: in_chain.flatten(),
        authorities: of_authorities,
    })
}

fn load_certificates(
    key: &'static str,
    file: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |what: &dyn std::fmt::Display| TlsError {
        key,
        text: format!("{}: {what}", file.display()),
    };
    let pem = read_config_file(file).map_err(|error| wrong(&error))?;
    let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| wrong(&error))?;
    match certificates.is_empty() {
        true => Err(wrong(&"holds no PEM certificate")),
        false => Ok(certificates),
    }
}

/// Reads certificate and key, and checks that they match.
fn load_pair(cert_file: &Path, key_file: &Path) -> Result<CertifiedKey, TlsError> {
    let key = |what: &dyn std::fmt::Display| TlsError {
        key: "key_file",
        text: format!("{}: {what}", key_file.display()),
    };
    let certificate = |what: &dyn std::fmt::Display| TlsError {
        key: "cert_file",
        text: format!("{}: {what}", cert_file.display()),
    };
    let chain = load_certificates("cert_file", cert_file)?;
    if chain.first().is_some_and(|der| is_version_1(der)) {
        return Err(certificate(
            &"is an X.509 certificate of version 1, which TLS clients refuse; expected version 3: make it again with \
              an extension, as `openssl req -x509 -addext subjectAltName=DNS:collector.example.com`",
        ));
    }
    let pem = read_config_file(key_file).map_err(|e| key(&e))?;
    let private = PrivateKeyDer::from_pem_slice(&pem).map_err(|e| key(&e))?;
    let signing = ring::sign::any_supported_type(&private).map_err(|e| key(&e))?;
    let certified = CertifiedKey::new(chain, signing);
    match certified.keys_match() {
        Ok(()) => Ok(certified),
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok(certified),
        Err(rustls::Error::InconsistentKeys(_)) => Err(key(&format_args!(
            "is not the key of {}",
            cert_file.display()
        ))),
        Err(error) => Err(certificate(&error)),
    }
}
