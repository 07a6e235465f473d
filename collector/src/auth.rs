//! What an app key proves. A key ships inside an app, so it is public: it lets its holder report
//! for its own app, and nothing else. Only hashes are kept, and comparing hashes of secrets by a
//! table look-up tells an attacker nothing about a key.

use std::collections::HashMap;

use sha2::{Digest, Sha256};
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::config::AppKeyConfig;

const ANY: &str = "*";
const HEADER: &str = "authorization";
const SCHEME: &str = "Bearer ";

/// The keys that are accepted.
#[derive(Debug, Default)]
pub(crate) struct AppKeys {
    scopes: HashMap<[u8; 32], Scope>,
}

/// The app and environment that a key may report for; `None` is any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    app: Option<String>,
    environment: Option<String>,
}

impl Scope {
    /// True if a report of this app and environment may come with the key.
    #[must_use]
    pub(crate) fn admits(&self, app: &str, environment: &str) -> bool {
        let fits = |allowed: &Option<String>, found| allowed.as_ref().is_none_or(|a| a == found);
        fits(&self.app, app) && fits(&self.environment, environment)
    }

    /// What the key proves, for telling a developer what is wrong.
    #[must_use]
    pub(crate) fn describe(&self) -> String {
        let name = |allowed: &Option<String>| allowed.as_deref().unwrap_or(ANY).to_owned();
        format!("{}/{}", name(&self.app), name(&self.environment))
    }
}

impl AppKeys {
    /// Takes keys that [`crate::config::CollectorConfig::validate`] has passed; others are left
    /// out and so never match.
    #[must_use]
    pub(crate) fn new(keys: &[AppKeyConfig]) -> Self {
        let restrict = |name: &str| (name != ANY).then(|| name.to_owned());
        let scopes = keys.iter().filter_map(|key| {
            let scope = Scope {
                app: restrict(&key.app),
                environment: restrict(&key.environment),
            };
            Some((parse_sha256(&key.sha256)?, scope))
        });
        Self {
            scopes: scopes.collect(),
        }
    }

    /// Returns what the call's key proves. Without configured keys everything is admitted, which
    /// only a collector on a loopback address is.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`, for a device the end of trying with this key.
    pub(crate) fn prove(&self, metadata: &MetadataMap) -> Result<Scope, Status> {
        if self.scopes.is_empty() {
            return Ok(Scope::default());
        }
        let Some(header) = metadata.get(HEADER) else {
            return Err(Status::unauthenticated(
                "expected metadata `authorization: Bearer <app key>`",
            ));
        };
        let key = header
            .to_str()
            .ok()
            .and_then(|text| text.strip_prefix(SCHEME));
        let Some(key) = key else {
            return Err(Status::unauthenticated(
                "expected `Bearer <app key>` in `authorization`",
            ));
        };
        let hash: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let scope = self.scopes.get(&hash).cloned();
        scope.ok_or_else(|| Status::unauthenticated("app key is not known here"))
    }
}

fn parse_sha256(digits: &str) -> Option<[u8; 32]> {
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, at) in hash.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of `abc`, from FIPS 180-2.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn keys() -> AppKeys {
        AppKeys::new(&[AppKeyConfig {
            sha256: ABC.to_uppercase(),
            app: "com.example.camera".into(),
            environment: ANY.into(),
        }])
    }

    #[track_caller]
    fn check(keys: &AppKeys, header: Option<&str>, expected: Result<&str, &str>) {
        let mut metadata = MetadataMap::new();
        if let Some(header) = header {
            metadata.insert(HEADER, header.parse().unwrap());
        }
        let proved = keys.prove(&metadata);
        let proved = proved
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
        check(&keys(), Some("Bearer abc"), Ok("com.example.camera/*"));
        check(&keys(), Some("Bearer abd"), Err("not known"));
        check(&keys(), Some("Bearer "), Err("not known"));
        check(&keys(), Some("abc"), Err("expected `Bearer"));
        check(&keys(), None, Err("expected metadata"));
        check(&AppKeys::default(), None, Ok("*/*"));
    }

    #[test]
    fn a_scope_admits_its_own_app_only() {
        let mut metadata = MetadataMap::new();
        metadata.insert(HEADER, "Bearer abc".parse().unwrap());
        let scope = keys().prove(&metadata).unwrap();
        assert!(scope.admits("com.example.camera", "staging"));
        assert!(!scope.admits("com.example.other", "staging"));
    }
}
