//! Address and app key with which the demo's devices reach its collector.

use sha2::{Digest, Sha256};

/// The key that the demo's app has; it lives as long as the demo.
#[derive(Clone)]
pub(super) struct AppKey(pub(super) String);

/// Where the demo's devices send to, and the key they send with.
#[derive(Debug, Clone)]
pub(super) struct CollectorAccess {
    pub(super) endpoint: String,
    pub(super) app_key: AppKey,
}

impl AppKey {
    pub(super) fn random() -> Self {
        let bits = [epwatch_sdk::random_u64(), epwatch_sdk::random_u64()];
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
