//! Nodes on the CPU that one evaluation read. Cohorts of one version need the same ones, so each fingerprint is
//! queried once.

use parking_lot::Mutex;

use crate::cohort::ModelKey;
use crate::hash::HashMap;
use crate::read::cpu_nodes::{NodesRow, unexpected};
use crate::verdict::CpuNodes;

/// A version of a model.
type Version = (ModelKey, String);

/// By version and fingerprint; empty where the store has none.
#[derive(Debug, Default)]
pub(super) struct HeldNodes(Mutex<HashMap<Version, HashMap<u64, CpuNodes>>>);

impl HeldNodes {
    /// Returns the fingerprints that were not read yet.
    pub(super) fn unknown(&self, version: &Version, fingerprints: &[u64]) -> Vec<u64> {
        let mut all = self.0.lock();
        let known = all.entry(version.clone()).or_default();
        let unknown = fingerprints.iter().copied();
        unknown.filter(|one| !known.contains_key(one)).collect()
    }

    /// Adds the nodes that the store has for some fingerprints.
    pub(super) fn add(&self, version: &Version, fingerprints: &[u64], rows: Vec<NodesRow>) {
        let mut all = self.0.lock();
        let known = all.entry(version.clone()).or_default();
        known.extend(fingerprints.iter().map(|one| (*one, CpuNodes::default())));
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
