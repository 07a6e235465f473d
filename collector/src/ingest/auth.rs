//! App keys and their scopes. A key ships inside an app, so it is public: it admits reports of its own app, and nothing
//! else. Only hashes are kept. The device port calls [`AppKeys::prove`] before it reads a body.
//!
//! A key is found by a few bits of its hash, and then its whole hash is compared in constant time. The timing of the
//! first step does not help against 256 random bits. The table is replaced during operation, so a revoked key ends with
//! the next call.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use epwatch_proto::Outcome;
use epwatch_server::Problems;
use hyper::header::{AUTHORIZATION, HeaderMap};
use parking_lot::RwLock;
use prometheus_client::metrics::counter::Counter;
use subtle::ConstantTimeEq;
use tonic::{Request, Status};

use crate::admission::Network;
use crate::config::{
    CollectorConfig, KeyEntry, KeyHash, KeyKind, NO_KEY_IN_FORCE, check_distinct, hash_of,
    inline_keys, read_keys_file,
};
use crate::ingest::refusal_warnings::RefusalWarnings;
use crate::metrics::KeyMetrics;

const ANY: &str = "*";
const UPLOAD: &str = "Upload";
/// Calls that need a key of kind `pipeline`, which no app contains.
const CERTIFYING: [&str; 2] = ["PutModelManifest", "PutCertifiedPlacement"];
const SCHEME: &str = "Bearer";
/// The metric's label for a known key whose client needs a certificate and has none.
const UNCERTIFIED: &str = "without_certificate";

/// Keys of the config and of `keys_file`, which a reload replaces while calls go on.
#[derive(Debug)]
pub(crate) struct AppKeys {
    /// Keys of the config, which only a restart changes.
    inline: Vec<KeyEntry>,
    file: Option<PathBuf>,
    /// Kinds of keys that need a client certificate.
    certified_kinds: Vec<KeyKind>,
    table: RwLock<Arc<KeyTable>>,
    metrics: KeyMetrics,
    warnings: RefusalWarnings,
}

#[derive(Debug, Default)]
struct KeyTable {
    /// True if no key is configured, which is allowed only on a loopback address.
    is_open: bool,
    /// Entries of the keys file.
    n_in_file: usize,
    n_valid: usize,
    by_prefix: HashMap<u32, Vec<Entry>>,
}

#[derive(Debug)]
struct Entry {
    hash: KeyHash,
    scope: Arc<Scope>,
    is_revoked: bool,
    /// Counts calls with a key of this name and state.
    requests: Counter,
}

/// Permissions of a key; `None` means any app or any environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    /// The configured name of the key.
    name: String,
    app: Option<String>,
    environment: Option<String>,
    /// The kind of the key; `None` if no key is configured.
    kind: Option<KeyKind>,
    /// True if keys of other apps are in force too.
    is_one_of_several: bool,
}

impl Scope {
    /// True if the key admits a report of this app and environment.
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

    /// The key's name in metrics and logs; empty without keys.
    #[must_use]
    pub(crate) fn key_name(&self) -> &str {
        &self.name
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

    /// True for a key of kind `app`.
    #[must_use]
    pub(crate) fn is_public(&self) -> bool {
        self.kind == Some(KeyKind::App)
    }

    /// The key's environment, or `*`.
    #[must_use]
    pub(crate) fn environment(&self) -> &str {
        self.environment.as_deref().unwrap_or(ANY)
    }

    /// True if the devices belong to the operator, so that their reports are trusted.
    #[must_use]
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.kind, None | Some(KeyKind::Own))
    }

    /// True if the collector serves other apps too.
    #[must_use]
    pub(crate) fn is_one_of_several(&self) -> bool {
        self.is_one_of_several
    }

    /// Refuses a call that keys of this kind may not make.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`.
    pub(crate) fn may_call(&self, call: &str) -> Result<(), Status> {
        let is_certifying = CERTIFYING.contains(&call);
        let text = match self.kind {
            Some(KeyKind::App | KeyKind::Own) if is_certifying => {
                "expected a key of `kind = \"pipeline\"`, which alone stores manifests and certified placements"
            }
            Some(KeyKind::Pipeline) if call == UPLOAD => {
                "a key of `kind = \"pipeline\"` uploads no reports; use one of kind `app` or `own`"
            }
            _ => return Ok(()),
        };
        Err(Status::permission_denied(text))
    }
}

/// The caller of an RPC, determined before the body is read.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// Scope of the proved app key.
    pub(crate) scope: Arc<Scope>,
    /// The sender's network; `None` if it is unknown, or if networks have no limit.
    pub(crate) network: Option<Network>,
    /// The private address of a peer: a proxy that the config does not name, or a device nearby.
    pub(crate) private_peer: Option<IpAddr>,
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
    /// Loads the keys of a valid config; `metrics` count their calls.
    ///
    /// # Errors
    /// The keys file changed since the validation and is invalid now.
    pub(crate) fn new(config: &CollectorConfig, metrics: KeyMetrics) -> Result<Self, Problems> {
        let keys = Self {
            inline: inline_keys(&config.keys),
            file: config.keys_file.clone(),
            certified_kinds: certified_kinds(config),
            table: RwLock::default(),
            metrics,
            warnings: RefusalWarnings::default(),
        };
        keys.reload()?;
        let table = keys.table.read().clone();
        if table.n_valid == 0 && !table.is_open {
            tracing::warn!(file = ?keys.file, "{NO_KEY_IN_FORCE}");
        }
        Ok(keys)
    }

    /// Reloads the keys file. On an error the loaded keys stay. An empty file is an error if it had keys before. An
    /// editor or a full disk may have emptied it, and its devices would be locked out.
    ///
    /// # Errors
    /// Every problem of the file.
    pub(crate) fn reload(&self) -> Result<(), Problems> {
        let of_file = match &self.file {
            Some(file) => {
                let of_file = read_keys_file(file)?;
                check_distinct(&self.inline, &of_file, file)?;
                of_file
            }
            None => Vec::new(),
        };
        let mut table = self.table.write();
        if let Some(file) = self.file.as_ref().filter(|_| of_file.is_empty())
            && table.n_in_file > 0
        {
            let text = "holds no key, and the keys before stay in force; to lock every device out, give each \
                        key `revoked = true`";
            let key = format!("keys_file {}", file.display());
            return Err(Problems::one(key, text));
        }
        let n_in_file = of_file.len();
        let mut entries = self.inline.clone();
        entries.extend(of_file);
        let is_open = self.inline.is_empty() && self.file.is_none();
        *table = Arc::new(KeyTable {
            is_open,
            n_in_file,
            ..KeyTable::new(entries, &self.metrics)
        });
        let n_valid = i64::try_from(table.n_valid).unwrap_or(i64::MAX);
        self.metrics.n_keys.set(n_valid);
        Ok(())
    }

    /// Returns the scope of the call's key. If no keys are configured, which only a loopback address allows, any call
    /// has the widest scope. `has_certificate` is true if the connection's client presented a certificate of
    /// `tls.client_ca`.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`, after which a device does not retry with this key for long.
    pub(crate) fn prove(
        &self,
        headers: &HeaderMap,
        has_certificate: bool,
    ) -> Result<Arc<Scope>, Status> {
        let table = self.table.read().clone();
        if table.is_open {
            if !has_certificate && self.certified_kinds.contains(&KeyKind::Own) {
                self.refuse(UNCERTIFIED);
                return Err(Status::unauthenticated(needs_certificate(KeyKind::Own)));
            }
            return Ok(Arc::default());
        }
        let Some(header) = headers.get(AUTHORIZATION) else {
            self.refuse("missing");
            return Err(Status::unauthenticated(
                "expected metadata `authorization: Bearer <app key>`",
            ));
        };
        let key = header.to_str().ok().and_then(bearer);
        let Some(key) = key else {
            self.refuse("missing");
            return Err(Status::unauthenticated(
                "expected `Bearer <app key>` in `authorization`",
            ));
        };
        match table.find(&hash_of(key)) {
            Some(entry) if entry.is_revoked => {
                entry.requests.inc();
                self.warnings.call(entry.scope.key_name(), "revoked");
                Err(Status::unauthenticated("app key was revoked"))
            }
            Some(entry) => match entry.scope.kind {
                Some(kind) if !has_certificate && self.certified_kinds.contains(&kind) => {
                    self.count_refused(entry.scope.key_name(), UNCERTIFIED);
                    Err(Status::unauthenticated(needs_certificate(kind)))
                }
                _ => {
                    entry.requests.inc();
                    Ok(entry.scope.clone())
                }
            },
            None => {
                self.refuse("unknown");
                Err(Status::unauthenticated("app key is not known here"))
            }
        }
    }

    /// Counts a call without a known key.
    fn refuse(&self, result: &'static str) {
        self.count_refused("", result);
    }

    fn count_refused(&self, key: &str, result: &'static str) {
        let labels = [("key", key.to_owned()), ("result", result.to_owned())];
        self.metrics.requests.get_or_create(&labels).inc();
        self.warnings.call(key, result);
    }
}

fn certified_kinds(config: &CollectorConfig) -> Vec<KeyKind> {
    let kinds = [KeyKind::App, KeyKind::Own, KeyKind::Pipeline];
    let needs = |kind: &KeyKind| {
        let tls = config.tls.as_ref();
        tls.is_some_and(|tls| tls.needs_client_certificate(*kind))
    };
    kinds.into_iter().filter(needs).collect()
}

fn needs_certificate(kind: KeyKind) -> String {
    let kind = kind.label();
    format!("a key of kind `{kind}` needs a client certificate here; the client presented none")
}

/// The scheme's name is not case-sensitive (RFC 9110, 11.1).
fn bearer(header: &str) -> Option<&str> {
    let (scheme, key) = header.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case(SCHEME)
        .then(|| key.trim_start_matches(' '))
}

impl KeyTable {
    fn new(entries: Vec<KeyEntry>, metrics: &KeyMetrics) -> Self {
        let restrict = |name: String| (name != ANY).then_some(name);
        let mut by_prefix: HashMap<u32, Vec<Entry>> = HashMap::with_capacity(entries.len());
        let mut n_valid = 0;
        let uploads =
            |entry: &&KeyEntry| !entry.config.revoked && entry.config.kind != KeyKind::Pipeline;
        let apps = entries.iter().filter(uploads);
        let apps: HashSet<&str> = apps.map(|entry| entry.config.app.as_str()).collect();
        let is_one_of_several = apps.len() > 1;
        for KeyEntry { config, hash } in entries {
            n_valid += usize::from(!config.revoked);
            // The counter is created here, so that an unused key shows zero.
            let result = if config.revoked {
                "revoked"
            } else {
                "accepted"
            };
            let labels = [("key", config.name.clone()), ("result", result.to_owned())];
            let requests = metrics.requests.get_or_create(&labels).clone();
            // This outcome shows the usual mistake, so it starts at zero; other outcomes appear with their first
            // report.
            let wrong_app = Outcome::RefusedWrongApp.label().to_owned();
            let labels = [("key", config.name.clone()), ("outcome", wrong_app)];
            drop(metrics.refused_reports.get_or_create(&labels));
            let environment = config.admitted_environment().to_owned();
            let entry = Entry {
                hash,
                scope: Arc::new(Scope {
                    name: config.name,
                    app: restrict(config.app),
                    environment: restrict(environment),
                    kind: Some(config.kind),
                    is_one_of_several,
                }),
                is_revoked: config.revoked,
                requests,
            };
            by_prefix.entry(prefix(&hash)).or_default().push(entry);
        }
        Self {
            n_valid,
            by_prefix,
            ..Self::default()
        }
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
        keys.prove(&headers, false)
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
        let keys = AppKeys::new(&config(), KeyMetrics::default()).unwrap();
        check(
            &keys,
            Some("Bearer abc"),
            Ok("com.example.camera/production"),
        );
        check(
            &keys,
            Some("bearer  abc"),
            Ok("com.example.camera/production"),
        );
        check(&keys, Some("Bearer abd"), Err("not known"));
        check(&keys, Some("Bearer "), Err("not known"));
        check(&keys, Some("abc"), Err("expected `Bearer"));
        check(&keys, None, Err("expected metadata"));
        let open = AppKeys::new(&CollectorConfig::default(), KeyMetrics::default()).unwrap();
        check(&open, None, Ok("*/*"));
    }

    #[test]
    fn a_scope_admits_its_own_app_only() {
        let keys = AppKeys::new(&config(), KeyMetrics::default()).unwrap();
        let scope = prove(&keys, Some("Bearer abc")).unwrap();
        assert!(scope.admits("com.example.camera", "production"));
        assert!(!scope.admits("com.example.camera", "made up"));
        assert!(!scope.admits("com.example.other", "production"));
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
        let metrics = KeyMetrics::default();
        let keys = AppKeys::new(&config, metrics.clone()).unwrap();
        let counted = |key: &str, result: &str| {
            let labels = [("key", key.to_owned()), ("result", result.to_owned())];
            metrics.requests.get_or_create(&labels).get()
        };
        let used = || counted("old", "accepted");
        assert_eq!(metrics.n_keys.get(), 1);
        assert_eq!(used(), 0);
        check(&keys, Some("Bearer abc"), Ok("a/production"));
        assert_eq!(used(), 1);

        write("[[keys]]\nsha256 = \"no\"\napp = \"a\"\n");
        assert_eq!(keys.reload().unwrap_err().0.len(), 1);
        check(&keys, Some("Bearer abc"), Ok("a/production"));
        assert_eq!(used(), 2, "a key that is read again counts on");

        write(&format!("{entry}revoked = true\n"));
        keys.reload().unwrap();
        check(&keys, Some("Bearer abc"), Err("revoked"));
        assert_eq!((used(), counted("old", "revoked")), (2, 1));
        assert_eq!(metrics.n_keys.get(), 0);

        write(&entry.replace(ABC, &ABC.replace('b', "c")));
        keys.reload().unwrap();
        check(&keys, Some("Bearer abc"), Err("not known"));
        check(&keys, None, Err("expected metadata"));
        assert_eq!((counted("", "unknown"), counted("", "missing")), (1, 1));
    }

    /// An editor, or a full disk, truncated the file.
    #[test]
    fn an_emptied_keys_file_takes_no_key_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        // A key in the config itself does not replace the file's keys.
        let of_config = AppKeyConfig {
            sha256: "0".repeat(64),
            app: "of.config".into(),
            ..AppKeyConfig::default()
        };
        for inline in [vec![], vec![of_config]] {
            std::fs::write(&path, "").unwrap();
            let n_inline = i64::try_from(inline.len()).unwrap();
            let config = CollectorConfig {
                keys: inline,
                keys_file: Some(path.clone()),
                ..CollectorConfig::default()
            };
            let metrics = KeyMetrics::default();
            let keys = AppKeys::new(&config, metrics.clone()).unwrap();
            let n_keys = || metrics.n_keys.get() - n_inline;
            assert_eq!(n_keys(), 0, "none from the start is not a change");
            let entry = format!("[[keys]]\nsha256 = \"{ABC}\"\napp = \"a\"\n");
            std::fs::write(&path, entry).unwrap();
            keys.reload().unwrap();
            for emptied in ["", "# keys = []\n", "keys = []\n"] {
                std::fs::write(&path, emptied).unwrap();
                let problems = keys.reload().unwrap_err().to_string();
                assert!(problems.contains("keys.toml: holds no key"), "{problems}");
                check(&keys, Some("Bearer abc"), Ok("a/production"));
                assert_eq!(n_keys(), 1);
            }
        }
    }

    #[test]
    fn a_reload_refuses_a_key_that_the_config_has_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        std::fs::write(&path, "").unwrap();
        let mut config = config();
        config.keys_file = Some(path.clone());
        let keys = AppKeys::new(&config, KeyMetrics::default()).unwrap();
        let scope = prove(&keys, Some("Bearer abc")).unwrap();
        std::fs::write(
            &path,
            format!("[[keys]]\nsha256 = \"{ABC}\"\napp = \"b\"\n"),
        )
        .unwrap();
        let problems = keys.reload().unwrap_err().to_string();
        assert!(problems.contains("is also in collector.keys"), "{problems}");
        assert_eq!(prove(&keys, Some("Bearer abc")).unwrap(), scope);
    }

    #[test]
    fn a_key_opens_the_calls_of_its_kind() {
        let mut config = config();
        let may = |config: &CollectorConfig| {
            let keys = AppKeys::new(config, KeyMetrics::default()).unwrap();
            prove(&keys, Some("Bearer abc")).unwrap()
        };
        for (kind, opened, is_own) in [
            (KeyKind::App, [true, true, false, false], false),
            (KeyKind::Own, [true, true, false, false], true),
            (KeyKind::Pipeline, [false, true, true, true], false),
        ] {
            config.keys[0].kind = kind;
            let scope = may(&config);
            let calls = [UPLOAD, "DeleteInstallation", CERTIFYING[0], CERTIFYING[1]];
            assert_eq!(
                calls.map(|call| scope.may_call(call).is_ok()),
                opened,
                "{kind:?}"
            );
            assert_eq!(scope.is_own(), is_own);
        }
        let open = AppKeys::new(&CollectorConfig::default(), KeyMetrics::default()).unwrap();
        let scope = prove(&open, None).unwrap();
        assert!(scope.is_own() && scope.may_call(CERTIFYING[0]).is_ok());
    }
}
