//! Address and app key with which the demo's devices reach its collector.

use sha2::{Digest, Sha256};

/// The app key of the demo, which is valid as long as the demo runs.
#[derive(Clone)]
pub(super) struct AppKey(pub(super) String);

/// The collector's address and the app key.
#[derive(Debug, Clone)]
pub(super) struct CollectorAccess {
    pub(super) endpoint: String,
    pub(super) app_key: AppKey,
}

impl AppKey {
    pub(super) fn random() -> Self {
        let bits = [
            epwatch_sdk::simulation::random_u64(),
            epwatch_sdk::simulation::random_u64(),
        ];
        Self(format!("{:016x}{:016x}", bits[0], bits[1]))
    }

    pub(super) fn sha256(&self) -> String {
        epwatch_proto::hex(&Sha256::digest(&self.0))
    }
}

impl std::fmt::Debug for AppKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AppKey(***)")
    }
}
