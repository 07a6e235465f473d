//! App keys and their scopes. A key ships inside an app, so it is public: it admits reports of its own app, and nothing
//! else. Only hashes are kept. The device port calls [`AppKeys::prove`] before it reads a body.
//!
//! A key is found by a few bits of its hash and then compared as a whole in constant time; timing of the first step is of
//! no use against 256 random bits. The table is replaced during operation, so a revoked key ends with the next call.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use epwatch_server::Problems;
use hyper::header::{AUTHORIZATION, HeaderMap};
use parking_lot::RwLock;
use prometheus_client::metrics::counter::Counter;
use subtle::ConstantTimeEq;
use tonic::{Request, Status};

use crate::admission::Network;
use crate::config::{CollectorConfig, KeyEntry, KeyHash, hash_of, inline_keys, read_keys_file};
use crate::metrics::KeyRequests;

const ANY: &str = "*";
const SCHEME: &str = "Bearer";

/// The accepted keys.
#[derive(Debug)]
pub(crate) struct AppKeys {
    /// Keys of the config, which only a restart changes.
    inline: Vec<KeyEntry>,
    file: Option<PathBuf>,
    table: RwLock<Arc<KeyTable>>,
    requests: KeyRequests,
}

#[derive(Debug, Default)]
struct KeyTable {
    /// No key is configured: a collector on a loopback address.
    is_open: bool,
    by_prefix: HashMap<u32, Vec<Entry>>,
}

#[derive(Debug)]
struct Entry {
    hash: KeyHash,
    scope: Arc<Scope>,
    is_revoked: bool,
    /// Calls with a key of this name.
    requests: Counter,
}

/// Permissions of a key; `None` is any app, any environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    app: Option<String>,
    environment: Option<String>,
    upload_only: bool,
}

impl Scope {
    /// True if a report of this app and environment may come with the key.
    #[must_use]
    pub(crate) fn admits(&self, app: &str, environment: &str) -> bool {
        let fits = |allowed: &Option<String>, found| allowed.as_ref().is_none_or(|a| a == found);
        fits(&self.app, app) && fits(&self.environment, environment)
    }

    /// App and environment, each empty if the key is for all of them.
    #[must_use]
    pub(crate) fn proven(&self) -> (&str, &str) {
        let (app, environment) = (self.app.as_deref(), self.environment.as_deref());
        (app.unwrap_or_default(), environment.unwrap_or_default())
    }

    /// App and environment, for error messages.
    #[must_use]
    pub(crate) fn describe(&self) -> String {
        format!("{}/{}", self.app(), self.environment())
    }

    /// The key's app, or `*`.
    #[must_use]
    pub(crate) fn app(&self) -> &str {
        self.app.as_deref().unwrap_or(ANY)
    }

    /// The key's environment, or `*`.
    #[must_use]
    pub(crate) fn environment(&self) -> &str {
        self.environment.as_deref().unwrap_or(ANY)
    }

    /// Refuses a key that only uploads.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`.
    pub(crate) fn may_certify(&self) -> Result<(), Status> {
        if self.upload_only {
            let text = "this app key uploads only; use one with `upload_only = false`, which no app \
                        carries";
            return Err(Status::permission_denied(text));
        }
        Ok(())
    }
}

/// The caller of an RPC, determined before the body is read.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// Scope of the proved app key.
    pub(crate) scope: Arc<Scope>,
    /// `None`: unknown, or no network has a limit.
    pub(crate) network: Option<Network>,
}

impl Caller {
    /// Takes the caller that the port added to the request.
    ///
    /// # Panics
    /// The port did not prove the call's key.
    pub(crate) fn of<M>(request: &mut Request<M>) -> Self {
        let caller = request.extensions_mut().remove();
        caller.expect("the port proves each call's key")
    }
}

impl AppKeys {
    /// Loads the keys of a valid config; `requests` counts their calls.
    ///
    /// # Errors
    /// The keys file changed since the validation and is invalid now.
    pub(crate) fn new(config: &CollectorConfig, requests: KeyRequests) -> Result<Self, Problems> {
        let keys = Self {
            inline: inline_keys(&config.keys),
            file: config.keys_file.clone(),
            table: RwLock::default(),
            requests,
        };
        keys.reload()?;
        Ok(keys)
    }

    /// Reloads the keys file. On an error the keys stay.
    ///
    /// # Errors
    /// Every problem of the file.
    pub(crate) fn reload(&self) -> Result<usize, Problems> {
        let mut entries = self.inline.clone();
        if let Some(file) = &self.file {
            entries.extend(read_keys_file(file)?);
        }
        let n_keys = entries.len();
        let is_open = self.inline.is_empty() && self.file.is_none();
        let table = Arc::new(KeyTable::new(is_open, entries, &self.requests));
        *self.table.write() = table;
        Ok(n_keys)
    }

    /// Returns the scope of the call's key. Without configured keys, which only a loopback address allows, any call has
    /// the widest scope.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`, after which a device does not retry with this key.
    pub(crate) fn prove(&self, headers: &HeaderMap) -> Result<Arc<Scope>, Status> {
        let table = self.table.read().clone();
        if table.is_open {
            return Ok(Arc::default());
        }
        let Some(header) = headers.get(AUTHORIZATION) else {
            return Err(Status::unauthenticated(
                "expected metadata `authorization: Bearer <app key>`",
            ));
        };
        let key = header.to_str().ok().and_then(bearer);
        let Some(key) = key else {
            return Err(Status::unauthenticated(
                "expected `Bearer <app key>` in `authorization`",
            ));
        };
        match table.find(&hash_of(key)) {
            Some(entry) if entry.is_revoked => Err(Status::unauthenticated("app key was revoked")),
            Some(entry) => {
                entry.requests.inc();
                Ok(entry.scope.clone())
            }
            None => Err(Status::unauthenticated("app key is not known here")),
        }
    }
}

/// The scheme's name is not case-sensitive (RFC 9110, 11.1).
fn bearer(header: &str) -> Option<&str> {
    let (scheme, key) = header.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case(SCHEME)
        .then(|| key.trim_start_matches(' '))
}

impl KeyTable {
    fn new(is_open: bool, entries: Vec<KeyEntry>, requests: &KeyRequests) -> Self {
        let restrict = |name: String| (name != ANY).then_some(name);
        let mut by_prefix: HashMap<u32, Vec<Entry>> = HashMap::with_capacity(entries.len());
        for KeyEntry { config, hash } in entries {
            // Created here, so that an unused key shows zero.
            let requests = requests.get_or_create(&[("key", config.name)]).clone();
            let entry = Entry {
                hash,
                scope: Arc::new(Scope {
                    app: restrict(config.app),
                    environment: restrict(config.environment),
                    upload_only: config.upload_only,
                }),
                is_revoked: config.revoked,
                requests,
            };
            by_prefix.entry(prefix(&hash)).or_default().push(entry);
        }
        Self { is_open, by_prefix }
    }

    /// A key in both config and file is revoked if either entry is.
    fn find(&self, hash: &KeyHash) -> Option<&Entry> {
        let some = self.by_prefix.get(&prefix(hash))?;
        let mut same = some.iter().filter(|e| bool::from(e.hash.ct_eq(hash)));
        let first = same.next()?;
        Some(same.find(|entry| entry.is_revoked).unwrap_or(first))
    }
}

fn prefix(hash: &KeyHash) -> u32 {
    u32::from_be_bytes(*hash.first_chunk().expect("32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AppKeyConfig;

    /// SHA-256 of `abc`, from FIPS 180-2.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn config() -> CollectorConfig {
        CollectorConfig {
            keys: vec![AppKeyConfig {
                sha256: ABC.to_uppercase(),
                app: "com.example.camera".into(),
                ..AppKeyConfig::default()
            }],
            ..CollectorConfig::default()
        }
    }

    fn prove(keys: &AppKeys, header: Option<&str>) -> Result<Arc<Scope>, Status> {
        let mut headers = HeaderMap::new();
        if let Some(header) = header {
            headers.insert(AUTHORIZATION, header.parse().unwrap());
        }
        keys.prove(&headers)
    }

    #[track_caller]
    fn check(keys: &AppKeys, header: Option<&str>, expected: Result<&str, &str>) {
        let proved = prove(keys, header)
            .map(|scope| scope.describe())
            .map_err(|e| e.message().to_owned());
        match (proved, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
            (found, _) => panic!("{header:?}: {found:?}"),
        }
    }

    #[test]
    fn a_known_key_proves_its_app_and_no_other_key_does() {
        let keys = AppKeys::new(&config(), KeyRequests::default()).unwrap();
        check(&keys, Some("Bearer abc"), Ok("com.example.camera/*"));
        check(&keys, Some("bearer  abc"), Ok("com.example.camera/*"));
        check(&keys, Some("Bearer abd"), Err("not known"));
        check(&keys, Some("Bearer "), Err("not known"));
        check(&keys, Some("abc"), Err("expected `Bearer"));
        check(&keys, None, Err("expected metadata"));
        let open = AppKeys::new(&CollectorConfig::default(), KeyRequests::default()).unwrap();
        check(&open, None, Ok("*/*"));
    }

    #[test]
    fn a_scope_admits_its_own_app_only() {
        let keys = AppKeys::new(&config(), KeyRequests::default()).unwrap();
        let scope = prove(&keys, Some("Bearer abc")).unwrap();
        assert!(scope.admits("com.example.camera", "staging"));
        assert!(!scope.admits("com.example.other", "staging"));
    }

    /// Old and new key are valid at once; then the old one is revoked, then forgotten.
    #[test]
    fn keys_rotate_and_end_without_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        let entry = format!("[[keys]]\nname = \"old\"\nsha256 = \"{ABC}\"\napp = \"a\"\n");
        write(&entry);
        let config = CollectorConfig {
            keys_file: Some(path.clone()),
            ..CollectorConfig::default()
        };
        let requests = KeyRequests::default();
        let keys = AppKeys::new(&config, requests.clone()).unwrap();
        let used = || requests.get_or_create(&[("key", "old".to_owned())]).get();
        assert_eq!(used(), 0);
        check(&keys, Some("Bearer abc"), Ok("a/*"));
        assert_eq!(used(), 1);

        write("[[keys]]\nsha256 = \"no\"\napp = \"a\"\n");
        assert_eq!(keys.reload().unwrap_err().0.len(), 1);
        check(&keys, Some("Bearer abc"), Ok("a/*"));
        assert_eq!(used(), 2, "a key that is read again counts on");

        write(&format!("{entry}revoked = true\n"));
        keys.reload().unwrap();
        check(&keys, Some("Bearer abc"), Err("revoked"));
        assert_eq!(used(), 2, "only what is taken counts");

        write("");
        keys.reload().unwrap();
        check(&keys, Some("Bearer abc"), Err("not known"));
        check(&keys, None, Err("expected metadata"));
    }

    #[test]
    fn a_key_certifies_nothing_unless_it_is_said_to() {
        let mut config = config();
        let may = |config: &CollectorConfig| {
            let keys = AppKeys::new(config, KeyRequests::default()).unwrap();
            prove(&keys, Some("Bearer abc")).unwrap().may_certify()
        };
        assert_eq!(
            may(&config).unwrap_err().code(),
            tonic::Code::PermissionDenied
        );
        config.keys[0].upload_only = false;
        may(&config).unwrap();
    }
}
