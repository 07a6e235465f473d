//! Rows of `placements`: the nodes of a fingerprint, written once for each placement that this process sees.

use std::collections::HashSet;
use std::hash::BuildHasher;

use epwatch_proto::{Session, placement::stored_share};
use epwatch_store::native::encode::{ColumnBuilder, ColumnDef, column};
use foldhash::quality::RandomState;

use super::column::{TIME, U32S, WORD, WORDS};
use super::stored::Stored;

/// A fleet has hundreds of placements. At this number the set is cleared, which costs repeated rows that the table
/// merges.
const MAX_KNOWN: usize = 100_000;

/// Hashes of written placements.
#[derive(Debug, Default)]
pub(super) struct KnownPlacements {
    hasher: RandomState,
    hashes: HashSet<u64>,
}

impl KnownPlacements {
    /// Adds a placement; true if it is new.
    fn insert(&mut self, stored: &Stored, session: &Session) -> bool {
        if self.hashes.len() >= MAX_KNOWN {
            self.hashes.clear();
        }
        let placement = &session.placement;
        let fingerprint = placement.exact.map(|exact| (exact.algorithm, exact.value));
        let model = (&session.model.id, &session.model.version);
        let hash = self
            .hasher
            .hash_one((&stored.app_id, &stored.environment, model, fingerprint));
        self.hashes.insert(hash)
    }
}

/// Returns the report's sessions whose placements are not in `known`.
pub(super) fn new_ones<'a>(
    stored: &'a Stored,
    known: &mut KnownPlacements,
) -> impl Iterator<Item = &'a Session> {
    let sessions = stored.report.sessions.iter();
    sessions
        .filter(|session| session.placement.exact.is_some())
        .filter(|session| known.insert(stored, session))
}

pub(super) type FillPlacement = fn(&mut ColumnBuilder, &Stored, &Session);

pub(super) static PLACEMENTS: [ColumnDef<FillPlacement>; 18] = [
    column("app_id", WORD, |c, r, _| c.word(&r.app_id)),
    column("environment", WORD, |c, r, _| c.word(&r.environment)),
    column("model_id", WORD, |c, _, s| c.word(&s.model.id)),
    column("model_version", WORD, |c, _, s| c.word(&s.model.version)),
    column("fingerprint_algorithm", "UInt32", |c, _, s| {
        c.put(s.placement.exact.map_or(0, |exact| exact.algorithm))
    }),
    column("fingerprint_exact", "UInt64", |c, _, s| {
        c.put(s.placement.exact.map_or(0, |exact| exact.value))
    }),
    column("fingerprint_normalised", "UInt64", |c, _, s| {
        c.put(s.placement.normalised.map_or(0, |print| print.value))
    }),
    column("first_seen", TIME, |c, r, _| c.put(r.received_ms)),
    column("ep", WORDS, |c, _, s| {
        c.list(&s.placement.eps, |c, ep| c.word(&ep.ep))
    }),
    column("ep_nodes", U32S, |c, _, s| {
        c.list(&s.placement.eps, |c, ep| c.put(ep.n_nodes))
    }),
    column("ep_partitions", U32S, |c, _, s| {
        c.list(&s.placement.eps, |c, ep| {
            c.put(ep.n_partitions.unwrap_or(0))
        })
    }),
    column("ep_macs_share", "Array(Nullable(Float32))", |c, _, s| {
        c.list(&s.placement.eps, |c, ep| {
            c.maybe(ep.macs_share.map(stored_share))
        })
    }),
    column("cpu_node_name", "Array(String)", |c, _, s| {
        c.list(&s.placement.cpu_nodes, |c, node| c.text(&node.name))
    }),
    column("cpu_node_op_type", WORDS, |c, _, s| {
        c.list(&s.placement.cpu_nodes, |c, node| c.word(&node.op_type))
    }),
    column("cpu_node_benign", "Array(Bool)", |c, _, s| {
        c.list(&s.placement.cpu_nodes, |c, node| c.put(node.benign))
    }),
    column("cpu_node_reason", WORDS, |c, _, s| {
        c.list(&s.placement.cpu_nodes, |c, node| {
            c.word(node.reason.as_str())
        })
    }),
    column(
        "cpu_node_macs_share",
        "Array(Nullable(Float32))",
        |c, _, s| {
            c.list(&s.placement.cpu_nodes, |c, node| {
                c.maybe(node.macs_share.map(stored_share))
            })
        },
    ),
    column("cpu_nodes_truncated", "Bool", |c, _, s| {
        c.put(s.placement.cpu_nodes_truncated)
    }),
];
