//! Sessions of the census as the store sends them.

use std::collections::BTreeMap;

use clickhouse::error::Error;
use epwatch_store::native::decode::{Block, FixedBytes, Millis, columns};

use crate::judge::placement::NodeCounts;
use crate::read::assemble::CohortPlacement;
use crate::read::census::{Census, CensusSession, SessionGroup};
use crate::read::interner::{TextId, Texts};
use crate::read::span::Bucket;

use super::text_cache::TextCache;

columns!(Sessions of Session, is_array: false, "" {
    app_id: &'a str,
    environment: &'a str,
    chipset: &'a str,
    ort_version: &'a str,
    ep_version: &'a str,
    installation: FixedBytes<16>,
    at_s: u32,
    received_at: Millis,
    copy: u64,
    votes: bool,
    is_unproven: bool,
    is_own: bool,
    model_id: &'a str,
    model_version: &'a str,
    graph_kind: &'a str,
    placement_source: &'a str,
    fingerprint_algorithm: u32,
    fingerprint_exact: u64,
    fingerprint_normalised: u64,
    n_nodes: u32,
    npu_nodes: u32,
    cpu_nodes: u32,
    cpu_benign_nodes: u32,
    npu_macs_share: Option<f32>,
    macs_attributed: Option<f32>,
});

/// The copies of a bucket that were read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Copies {
    /// One number that identifies these copies.
    pub(super) sum: u64,
    pub(super) reports: u64,
}

impl Copies {
    /// Adds a copy by its hash; 0 stands for a copy that was already added.
    pub(super) fn add(&mut self, copy: u64) {
        self.sum = self.sum.wrapping_add(copy);
        self.reports += u64::from(copy != 0);
    }
}

/// Number of texts of a session's group.
const TEXTS: usize = 9;

/// Adds the sessions of a block to the census.
pub(super) fn add(
    block: &Block,
    census: &mut Census,
    copies: &mut BTreeMap<Bucket, Copies>,
) -> Result<(), Error> {
    let sessions = Sessions::of(block)?;
    let mut cache = TextCache::of_columns(TEXTS);
    for at in 0..block.n_rows() {
        let session = sessions.row(at).ok_or(Error::NotEnoughData)?;
        copies.entry(session.at_s).or_default().add(session.copy);
        let row = session.row(&mut cache, &mut census.texts);
        census.add(session.at_s, &row);
    }
    Ok(())
}

impl<'a> Session<'a> {
    fn row(&self, cache: &mut TextCache<'a>, texts: &mut Texts) -> CensusSession {
        let row: [&'a str; TEXTS] = [
            self.app_id,
            self.environment,
            self.chipset,
            self.ort_version,
            self.ep_version,
            self.model_id,
            self.model_version,
            self.graph_kind,
            self.placement_source,
        ];
        let [
            app,
            environment,
            chipset,
            ort,
            ep,
            model,
            version,
            graph_kind,
            source,
        ] = cache.ids(0, row, texts);
        CensusSession {
            received_ms: self.received_at.0,
            device: self.installation.0,
            group: SessionGroup {
                model: (app, environment, model),
                ran: CohortPlacement {
                    version,
                    chipset,
                    firmware: TextId::EMPTY,
                    graph_kind,
                    source,
                    fingerprint_algorithm: self.fingerprint_algorithm,
                    fingerprint: self.fingerprint_normalised,
                },
                runtime: texts.runtime(ort, ep),
                fingerprint_exact: self.fingerprint_exact,
                votes: self.votes,
                is_unproven: self.is_unproven,
                is_own: self.is_own,
            },
            counts: NodeCounts {
                n_nodes: self.n_nodes,
                npu_nodes: self.npu_nodes,
                cpu_nodes: self.cpu_nodes,
                cpu_benign_nodes: self.cpu_benign_nodes,
                npu_macs_share: self.npu_macs_share,
                macs_attributed: self.macs_attributed,
            },
        }
    }
}
