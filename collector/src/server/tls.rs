//! The certificate of the device port, reloaded when its files change ([`super::reload`]).
//!
//! A handshake uses the current certificate; open connections stay. Files that do not match, as during a renewal,
//! change nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::certificate_expiry::{Validity, validity};

/// The config key of the unusable file, and why it is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to use {key}: {text}")]
pub(crate) struct TlsError {
    pub(crate) key: &'static str,
    pub(crate) text: String,
}

#[derive(Debug)]
pub(crate) struct Tls {
    cert_file: PathBuf,
    key_file: PathBuf,
    current: Arc<Current>,
    pub(crate) config: Arc<rustls::ServerConfig>,
}

#[derive(Debug)]
struct Current(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().clone())
    }
}

impl Tls {
    pub(crate) fn new(cert_file: &Path, key_file: &Path) -> Result<Self, TlsError> {
        let current = Arc::new(Current(RwLock::new(Arc::new(load(cert_file, key_file)?))));
        let versions = rustls::ServerConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError {
                key: "cert_file",
                text: error.to_string(),
            })?;
        let mut config = versions
            .with_no_client_auth()
            .with_cert_resolver(current.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            cert_file: cert_file.to_owned(),
            key_file: key_file.to_owned(),
            current,
            config: Arc::new(config),
        })
    }

    /// Returns when the certificate in use is valid; `None` if it cannot be read.
    pub(crate) fn validity(&self) -> Option<Validity> {
        let current = self.current.0.read();
        validity_of(&current)
    }

    /// Reloads the files. On an error the certificate stays.
    pub(crate) fn reload(&self) -> Result<(), TlsError> {
        let fresh = Arc::new(load(&self.cert_file, &self.key_file)?);
        *self.current.0.write() = fresh;
        Ok(())
    }
}

/// Returns when a loaded certificate is valid.
pub(crate) fn validity_of(certified: &CertifiedKey) -> Option<Validity> {
    certified.cert.first().and_then(|leaf| validity(leaf))
}

/// Reads certificate and key, and checks that they match.
pub(crate) fn load(cert_file: &Path, key_file: &Path) -> Result<CertifiedKey, TlsError> {
    let wrong = |key, path: &Path, what: &dyn std::fmt::Display| TlsError {
        key,
        text: format!("{}: {what}", path.display()),
    };
    let cert = |what: &dyn std::fmt::Display| wrong("cert_file", cert_file, what);
    let key = |what: &dyn std::fmt::Display| wrong("key_file", key_file, what);
    let chain = CertificateDer::pem_file_iter(cert_file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| cert(&e))?;
    if chain.is_empty() {
        return Err(cert(&"holds no PEM certificate"));
    }
    let private = PrivateKeyDer::from_pem_file(key_file).map_err(|e| key(&e))?;
    let signing = ring::sign::any_supported_type(&private).map_err(|e| key(&e))?;
    let certified = CertifiedKey::new(chain, signing);
    match certified.keys_match() {
        Ok(()) => Ok(certified),
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok(certified),
        Err(_) => Err(key(&format_args!(
            "is not the key of {}",
            cert_file.display()
        ))),
    }
}
