//! Address of a ClickHouse, and the client for it. A server by URL and a Unix socket share one code path.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clickhouse::{Client, Compression};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use percent_encoding::percent_decode_str;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::UnixStream;
use tower::service_fn;
use url::Url;

use crate::schema::CLUSTER_SETTINGS;

/// The reason why a store's address is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The address is neither a URL nor `unix:/path`.
    #[error(
        "store address {0:?} is not understood; expected http://host:8123, https://host:8443 or \
         unix:/path/to/store.sock"
    )]
    Address(String),
    /// The URL contains more than an address.
    #[error("store address must have no query and no fragment; database and user are settings")]
    Extra,
    /// The address is `unix:` with a relative path.
    #[error("store address unix:{0} needs an absolute path")]
    RelativePath(String),
    /// The text holds no certificates of an authority.
    #[error("expected certificates (PEM), got {0}")]
    Certificates(String),
}

/// Address, database, credentials and settings of a ClickHouse. The password is printed as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreTarget {
    address: Address,
    database: String,
    user: Option<String>,
    password: Option<String>,
    settings: BTreeMap<String, String>,
    /// Authorities that may sign the server's certificate; if it is empty, the bundled web roots are used.
    ca: Vec<CertificateDer<'static>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Address {
    Url(Url),
    Unix(PathBuf),
}

impl StoreTarget {
    /// Reads `http://host:port`, `https://host:port` or `unix:/path`. The URL may hold credentials. An empty
    /// `database` means none.
    ///
    /// # Errors
    /// The address has another form. The error's text never holds a password.
    pub fn parse(address: &str, database: &str) -> Result<StoreTarget, TargetError> {
        if let Some(path) = address.strip_prefix("unix:") {
            // unix:///path is as common as unix:/path.
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') {
                return Err(TargetError::RelativePath(path.to_owned()));
            }
            return Ok(StoreTarget::unix(Path::new(path), database));
        }
        let is_http = address.starts_with("http://") || address.starts_with("https://");
        let url = Url::parse(address).ok().filter(|_| is_http);
        // An address that cannot be read may still hold a password.
        let shown = || address.rsplit('@').next().unwrap_or_default().to_owned();
        let mut url = url.ok_or_else(|| TargetError::Address(shown()))?;
        if url.query().is_some() || url.fragment().is_some() {
            return Err(TargetError::Extra);
        }
        let user = Some(percent_decoded(url.username())).filter(|user| !user.is_empty());
        let password = url.password().map(percent_decoded);
        // Headers carry the credentials. The two calls fail only for URLs without a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        Ok(StoreTarget {
            user,
            password,
            ..Self::at(Address::Url(url), database)
        })
    }

    /// Returns the engine behind a Unix socket.
    pub fn unix(socket: &Path, database: &str) -> StoreTarget {
        Self::at(Address::Unix(socket.to_owned()), database)
    }

    fn at(address: Address, database: &str) -> StoreTarget {
        StoreTarget {
            address,
            database: database.to_owned(),
            user: None,
            password: None,
            settings: BTreeMap::new(),
            ca: Vec::new(),
        }
    }

    /// Replaces the database; an empty name means none.
    #[must_use]
    pub fn with_database(mut self, database: &str) -> StoreTarget {
        database.clone_into(&mut self.database);
        self
    }

    /// Replaces user and password.
    #[must_use]
    pub fn with_credentials(mut self, user: &str, password: Option<&str>) -> StoreTarget {
        self.user = Some(user.to_owned());
        self.password = password.map(str::to_owned);
        self
    }

    /// Adds a ClickHouse setting to every statement.
    #[must_use]
    pub fn with_setting(mut self, name: &str, value: &str) -> StoreTarget {
        self.settings.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Returns the settings of every statement.
    pub fn settings(&self) -> impl Iterator<Item = (&str, &str)> {
        let settings = self.settings.iter();
        settings.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Adds the settings that a cluster needs in every statement.
    #[must_use]
    pub fn of_cluster(self) -> StoreTarget {
        let add =
            |target: StoreTarget, (name, value): &(&str, &str)| target.with_setting(name, value);
        CLUSTER_SETTINGS.iter().fold(self, add)
    }

    /// Trusts only these authorities (PEM) for the certificate of `https`.
    ///
    /// # Errors
    /// The text holds no certificates, or damaged ones.
    pub fn with_ca(mut self, pem: &[u8]) -> Result<StoreTarget, TargetError> {
        let wrong = |error: &dyn fmt::Display| TargetError::Certificates(error.to_string());
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        self.ca = read.map_err(|error| wrong(&error))?;
        let mut roots = RootCertStore::empty();
        for certificate in &self.ca {
            let added = roots.add(certificate.clone());
            added.map_err(|error| wrong(&error))?;
        }
        if roots.is_empty() {
            return Err(wrong(&"none"));
        }
        Ok(self)
    }

    /// Returns whether the connection uses TLS.
    pub fn is_https(&self) -> bool {
        matches!(&self.address, Address::Url(url) if url.scheme() == "https")
    }

    /// Returns the database; empty if there is none.
    pub fn database(&self) -> &str {
        &self.database
    }
}

/// The address without credentials, in the form [`StoreTarget::parse`] reads.
impl fmt::Display for StoreTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Url(url) => f.write_str(url.as_str().trim_end_matches('/')),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl fmt::Debug for StoreTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreTarget")
            .field("address", &self.to_string())
            .field("database", &self.database)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("settings", &self.settings)
            .field("ca", &self.ca.len())
            .finish()
    }
}

/// Returns a client for a target. Cloning it shares its connections.
///
/// Inserts are synchronous (`async_insert=0`), so an acknowledged insert is stored. TLS uses ring, with the bundled web
/// roots or the target's authorities, so no process-wide provider is needed.
pub fn client(target: &StoreTarget) -> Client {
    let client = match &target.address {
        Address::Url(url) if target.ca.is_empty() => Client::default().with_url(url.as_str()),
        Address::Url(url) => trusting(&target.ca).with_url(url.as_str()),
        Address::Unix(path) => {
            let path: Arc<Path> = Arc::from(path.as_path());
            // Connects to the socket, whatever host the URL names.
            let connector = service_fn(move |_: hyper::Uri| {
                let path = path.clone();
                Box::pin(async move { UnixStream::connect(&path).await.map(TokioIo::new) })
            });
            let http = HyperClient::builder(TokioExecutor::new())
                .pool_idle_timeout(Duration::from_secs(30))
                .build(connector);
            // The host is never resolved. Compression would only cost time, because the bytes stay in memory.
            Client::with_http_client(http)
                .with_url("http://store")
                .with_compression(Compression::None)
        }
    };
    let mut client = client
        .with_product_info("epwatch", env!("CARGO_PKG_VERSION"))
        .with_setting("async_insert", "0");
    for (name, value) in &target.settings {
        client = client.with_setting(name, value);
    }
    if !target.database.is_empty() {
        client = client.with_database(&target.database);
    }
    if let Some(user) = &target.user {
        client = client.with_user(user);
    }
    if let Some(password) = &target.password {
        client = client.with_password(password);
    }
    client
}

/// Returns a client like the default one over TCP, but with these authorities.
fn trusting(ca: &[CertificateDer<'static>]) -> Client {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(ca.iter().cloned());
    let tls = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .expect("ring has the ciphers of TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut tcp = HttpConnector::new();
    tcp.set_keepalive(Some(Duration::from_secs(60)));
    tcp.enforce_http(false);
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp);
    // A server closes idle connections after 3 s by default.
    let http = HyperClient::builder(TokioExecutor::new())
        .pool_idle_timeout(Duration::from_secs(2))
        .build(connector);
    Client::with_http_client(http)
}

/// Decodes a URL's user or password.
fn percent_decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        for (address, shown) in [
            ("http://localhost:8123", "http://localhost:8123"),
            ("https://ch.example/", "https://ch.example"),
            ("unix:/run/store.sock", "unix:/run/store.sock"),
            ("unix:///run/store.sock", "unix:/run/store.sock"),
        ] {
            let target = StoreTarget::parse(address, "epwatch").unwrap();
            assert_eq!(target.to_string(), shown);
            assert_eq!(StoreTarget::parse(shown, "epwatch"), Ok(target));
        }
    }

    #[test]
    fn credentials_are_taken_and_never_shown() {
        let target = StoreTarget::parse("https://me:p%40ss+1%3D@host:8443", "d").unwrap();
        assert_eq!(target.user.as_deref(), Some("me"));
        assert_eq!(target.password.as_deref(), Some("p@ss+1="));
        let shown = format!("{target} {target:?}");
        assert!(
            !shown.contains("ss+1") && !shown.contains("p%40"),
            "{shown}"
        );
        assert!(shown.contains("***"), "{shown}");
    }

    #[test]
    fn what_is_no_certificate_is_refused() {
        let target = StoreTarget::parse("https://ch.example", "d").unwrap();
        let ca = include_bytes!("../../../tests/fixtures/tls/ca.pem");
        assert_ne!(target.clone().with_ca(ca), Ok(target.clone()));
        let damaged = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for wrong in [&b""[..], b"secret", damaged] {
            let error = target.clone().with_ca(wrong).unwrap_err();
            assert!(matches!(error, TargetError::Certificates(_)), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn other_addresses_are_refused_without_their_password() {
        for address in [
            "localhost:8123",
            "tcp://u:secret@host:9000",
            "",
            "/store.sock",
        ] {
            let error = StoreTarget::parse(address, "d").unwrap_err();
            assert!(
                matches!(error, TargetError::Address(_)),
                "{address}: {error}"
            );
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let relative = StoreTarget::parse("unix:store.sock", "d");
        assert_eq!(
            relative,
            Err(TargetError::RelativePath("store.sock".into()))
        );
        let extra = StoreTarget::parse("http://host/?database=x", "d");
        assert_eq!(extra, Err(TargetError::Extra));
    }
}
