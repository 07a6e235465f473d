//! Sessions of the census as the store sends them, and numbers for the places where they ran.

use std::collections::BTreeMap;

use clickhouse::error::Error;
use epwatch_proto::device::runtime_name;
use epwatch_store::native::decode::{Block, FixedBytes, Millis, columns};

use crate::hash::HashMap;
use crate::placement::NodeCounts;
use crate::read::census::{AppCensus, Census, CensusSession, PlaceId};
use crate::read::span::Bucket;

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

/// The copies that were read of a bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Copies {
    /// Which they are, in one number.
    pub(super) sum: u64,
    pub(super) reports: u64,
}

impl Copies {
    /// Adds a copy by its hash; 0 names one that was added.
    pub(super) fn add(&mut self, copy: u64) {
        self.sum = self.sum.wrapping_add(copy);
        self.reports += u64::from(copy != 0);
    }
}

/// Texts of a place: of app to placement source, as [`Session::texts`] lists them.
const TEXTS: usize = 9;

/// Numbers of places by all that makes them one: few places, many sessions.
#[derive(Debug, Default)]
pub(super) struct Places {
    texts: HashMap<String, u32>,
    /// Number of the app, and of the place in its census.
    places: HashMap<PlaceKey, (usize, PlaceId)>,
}

/// Numbers of its texts, algorithm, exact and normalised fingerprint, whether it votes.
type PlaceKey = ([u32; TEXTS], u32, u64, u64, bool);

/// Numbers of texts by where they lie: a block has each of its texts once. Not for another block.
struct Recent<'a>(Vec<[Option<(&'a str, u32)>; SLOTS]>);

const SLOTS: usize = 64;

impl<'a> Recent<'a> {
    fn new() -> Self {
        Self(vec![[None; SLOTS]; TEXTS])
    }

    fn number(&mut self, column: usize, text: &'a str, texts: &mut HashMap<String, u32>) -> u32 {
        let slot = &mut self.0[column][(text.as_ptr().addr() / 4) % SLOTS];
        if let Some((known, number)) = slot
            && std::ptr::eq(*known, text)
        {
            return *number;
        }
        let number = texts.get(text).copied().unwrap_or_else(|| {
            let next = u32::try_from(texts.len()).expect("memory ends before the numbers do");
            texts.insert(text.to_owned(), next);
            next
        });
        *slot = Some((text, number));
        number
    }
}

impl Places {
    /// Adds the sessions of a block to the census.
    pub(super) fn add(
        &mut self,
        block: &Block,
        census: &mut Census,
        copies: &mut BTreeMap<Bucket, Copies>,
    ) -> Result<(), Error> {
        let sessions = Sessions::of(block)?;
        let mut recent = Recent::new();
        for at in 0..block.n_rows() {
            let session = sessions.row(at).ok_or(Error::NotEnoughData)?;
            copies.entry(session.at_s).or_default().add(session.copy);
            let key = self.key(&session, &mut recent);
            let (app, place) = *self.places.entry(key).or_insert_with(|| {
                let app = census.number_of(session.app_id, session.environment);
                (app, session.place(census.app_mut(app)))
            });
            let (received_ms, device) = (session.received_at.0, session.installation.0);
            census
                .app_mut(app)
                .add(session.at_s, received_ms, place, device);
        }
        Ok(())
    }

    fn key<'a>(&mut self, session: &Session<'a>, recent: &mut Recent<'a>) -> PlaceKey {
        let mut texts = [0; TEXTS];
        for (column, (number, text)) in texts.iter_mut().zip(session.texts()).enumerate() {
            *number = recent.number(column, text, &mut self.texts);
        }
        (
            texts,
            session.fingerprint_algorithm,
            session.fingerprint_exact,
            session.fingerprint_normalised,
            session.votes,
        )
    }
}

impl<'a> Session<'a> {
    fn texts(&self) -> [&'a str; TEXTS] {
        [
            self.app_id,
            self.environment,
            self.chipset,
            self.ort_version,
            self.ep_version,
            self.model_id,
            self.model_version,
            self.graph_kind,
            self.placement_source,
        ]
    }

    fn place(&self, app: &mut AppCensus) -> PlaceId {
        app.place(&CensusSession {
            model_id: self.model_id,
            model_version: self.model_version,
            chipset: self.chipset,
            votes: self.votes,
            graph_kind: self.graph_kind,
            placement_source: self.placement_source,
            fingerprint_algorithm: self.fingerprint_algorithm,
            fingerprint_normalised: self.fingerprint_normalised,
            fingerprint_exact: self.fingerprint_exact,
            runtime: &runtime_name(self.ort_version, self.ep_version),
            counts: NodeCounts {
                n_nodes: self.n_nodes,
                npu_nodes: self.npu_nodes,
                cpu_nodes: self.cpu_nodes,
                cpu_benign_nodes: self.cpu_benign_nodes,
                npu_macs_share: self.npu_macs_share,
                macs_attributed: self.macs_attributed,
            },
        })
    }
}
