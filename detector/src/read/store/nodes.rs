//! A cache of nodes on the CPU. The nodes of a fingerprint never change, and incidents last, so each fingerprint is
//! queried once.

use epwatch_model::ModelKey;
use parking_lot::Mutex;

use crate::judge::hash::HashMap;
use crate::judge::verdict::CpuNodes;
use crate::read::cpu_nodes::{NodesRow, unexpected};

/// Maximum number of versions in the cache, more than all incidents need. Beyond it, the cache is cleared and all are
/// read again.
const MAX_VERSIONS: usize = 1_000;

/// A version of a model.
type Version = (ModelKey, String);

/// Nodes by version and fingerprint. Fingerprints that the store does not have yet are left out.
#[derive(Debug, Default)]
pub(super) struct CachedNodes(Mutex<HashMap<Version, HashMap<u64, CpuNodes>>>);

impl CachedNodes {
    /// Begins an evaluation.
    pub(super) fn bound(&self) {
        let mut all = self.0.lock();
        if all.len() > MAX_VERSIONS {
            all.clear();
        }
    }

    /// Returns the fingerprints that were not read yet.
    pub(super) fn unknown(&self, version: &Version, fingerprints: &[u64]) -> Vec<u64> {
        let all = self.0.lock();
        let known = all.get(version);
        let is_unknown = |one: &u64| !known.is_some_and(|known| known.contains_key(one));
        fingerprints.iter().copied().filter(is_unknown).collect()
    }

    pub(super) fn add(&self, version: &Version, rows: Vec<NodesRow>) {
        let mut all = self.0.lock();
        let known = all.entry(version.clone()).or_default();
        for (id, nodes) in unexpected(rows) {
            known.entry(id.1).or_default().insert(id, nodes);
        }
    }

    /// Returns the nodes of some fingerprints.
    pub(super) fn of(&self, version: &Version, fingerprints: &[u64]) -> CpuNodes {
        let all = self.0.lock();
        let known = all.get(version);
        let nodes = fingerprints.iter().filter_map(|one| known?.get(one));
        let nodes = nodes.flatten();
        nodes.map(|(id, nodes)| (*id, nodes.clone())).collect()
    }
}
