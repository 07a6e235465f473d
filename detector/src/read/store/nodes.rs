//! Nodes on the CPU behind fingerprints. Cohorts of one version ask for the same ones, so one evaluation
//! asks the store once for each.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cohort::ModelKey;
use crate::hash::{HashMap, HashSet};
use crate::verdict::CpuNodes;

use crate::read::rows::{NodesRow, unexpected};

/// A version of a model.
type Version = (ModelKey, String);

/// What was asked, and what the store had.
#[derive(Debug, Default)]
pub(super) struct NodesAsked(Mutex<HashMap<Version, OfVersion>>);

#[derive(Debug, Default)]
struct OfVersion {
    asked: HashSet<u64>,
    nodes: CpuNodes,
}

impl NodesAsked {
    /// Returns the fingerprints that nobody asked for yet.
    pub(super) fn unknown(&self, version: &Version, fingerprints: &[u64]) -> Vec<u64> {
        let all = self.lock();
        let asked = all.get(version).map(|known| &known.asked);
        let is_new = |one: &u64| !asked.is_some_and(|asked| asked.contains(one));
        let unknown = fingerprints.iter().copied();
        unknown.filter(is_new).collect()
    }

    /// Notes what the store had for some of them.
    pub(super) fn add(&self, version: &Version, fingerprints: &[u64], rows: Vec<NodesRow>) {
        let mut all = self.lock();
        let known = all.entry(version.clone()).or_default();
        known.asked.extend(fingerprints);
        for (id, nodes) in unexpected(rows) {
            known.nodes.entry(id).or_insert(nodes);
        }
    }

    /// Returns what is known of them.
    pub(super) fn of(&self, version: &Version, fingerprints: &[u64]) -> CpuNodes {
        let all = self.lock();
        let known = all.get(version).into_iter().flat_map(|known| &known.nodes);
        let wanted = known.filter(|((_, fingerprint), _)| fingerprints.contains(fingerprint));
        wanted.map(|(id, nodes)| (*id, nodes.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Version, OfVersion>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
