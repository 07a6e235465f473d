//! Rows that windows are made of, as the store and a recording give them.

use crate::cohort::Installation;
use crate::placement::{NodeCounts, Placement, PlacementMethod};

/// Receive time in milliseconds, stream, sequence and session: reports that were uploaded together have
/// one receive time.
pub(super) type At = (i64, u64, u64, u64);
/// Version, n, p10, p50, p95, CV.
pub(super) type PreviousTuple<'a> = (&'a str, u64, f64, f64, f64, f64);
/// n, p10, p50, p95, CV.
pub(super) type EarlierTuple = (u64, f64, f64, f64, f64);

/// Which device ran which version, and where: what votes of one input shape are told apart by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ran<'a> {
    pub(super) model_version: &'a str,
    pub(super) chipset: &'a str,
    pub(super) firmware: &'a str,
    pub(super) installation: Installation,
    pub(super) graph_kind: &'a str,
    pub(super) placement_source: &'a str,
    pub(super) fingerprint_algorithm: u32,
    pub(super) fingerprint_normalised: u64,
}

/// The clean runs of a series.
#[derive(Debug)]
pub(super) struct VoteRow<'a> {
    pub(super) ran: Ran<'a>,
    pub(super) device_model: &'a str,
    pub(super) shape_key: &'a str,
    pub(super) hist_bucket: Vec<u16>,
    pub(super) hist_count: Vec<u64>,
    pub(super) n: u64,
    pub(super) sum_us: f64,
    pub(super) m2_us2: f64,
    pub(super) previous: PreviousTuple<'a>,
    pub(super) earlier: EarlierTuple,
    pub(super) absence: &'a str,
    /// The latest says what the device was used to.
    pub(super) at: At,
}

/// Where a session ran.
#[derive(Debug)]
pub(super) struct PlacementRow<'a> {
    pub(super) ran: Ran<'a>,
    pub(super) votes: bool,
    pub(super) directed: bool,
    pub(super) fingerprint_exact: u64,
    pub(super) runtime: &'a str,
    pub(super) counts: NodeCounts,
    pub(super) reasons: Vec<&'a str>,
}

impl PlacementRow<'_> {
    pub(super) fn placement(&self) -> Placement {
        let mut reasons: Vec<String> = self.reasons.iter().copied().map(str::to_owned).collect();
        reasons.sort_unstable();
        reasons.dedup();
        let ran = &self.ran;
        let method = PlacementMethod {
            graph_kind: ran.graph_kind.to_owned(),
            source: ran.placement_source.to_owned(),
            fingerprint_algorithm: ran.fingerprint_algorithm,
        };
        let (fingerprint, runtime) = (ran.fingerprint_normalised, self.runtime.to_owned());
        Placement {
            reasons,
            ..self.counts.placement(method, fingerprint, runtime)
        }
    }
}
