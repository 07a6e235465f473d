//! Rows from which windows are built, from the store or a recording. Texts are stored as numbers of
//! [`Texts`](crate::read::interner::Texts), because there are few texts and many rows.

use epwatch_model::{Installation, PlacementMethod};

use crate::judge::placement::NodeCounts;
use crate::read::interner::{TextId, Texts};

use super::sum::SeriesHead;

/// App, environment, model.
pub(in crate::read) type ModelId = (TextId, TextId, TextId);

/// The version that a cohort's devices ran, and their placement. It distinguishes the votes of one device with one
/// input shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(in crate::read) struct CohortPlacement {
    pub(in crate::read) version: TextId,
    pub(in crate::read) chipset: TextId,
    pub(in crate::read) firmware: TextId,
    pub(in crate::read) graph_kind: TextId,
    pub(in crate::read) source: TextId,
    pub(in crate::read) fingerprint_algorithm: u32,
    /// Normalised.
    pub(in crate::read) fingerprint: u64,
}

impl CohortPlacement {
    pub(in crate::read) fn method(&self, texts: &Texts) -> PlacementMethod {
        PlacementMethod {
            graph_kind: texts.get(self.graph_kind).to_string(),
            source: texts.get(self.source).to_string(),
            fingerprint_algorithm: self.fingerprint_algorithm,
        }
    }
}

/// A session that requested an NPU, or would have without a directive.
#[derive(Debug, Clone)]
pub(in crate::read) struct SessionRow {
    pub(in crate::read) installation: Installation,
    pub(in crate::read) ran: CohortPlacement,
    pub(in crate::read) placed: PlacedSession,
    /// Time of its creation by the device's clock, in seconds since 1970.
    pub(in crate::read) created_s: i64,
    pub(in crate::read) is_late: bool,
    pub(in crate::read) is_unproven: bool,
    pub(in crate::read) is_directed: bool,
}

/// The parts of a session's placement that [`CohortPlacement`] does not have.
#[derive(Debug, Clone, PartialEq, Default)]
pub(in crate::read) struct PlacedSession {
    pub(in crate::read) runtime: TextId,
    pub(in crate::read) fingerprint_exact: u64,
    pub(in crate::read) counts: NodeCounts,
    pub(in crate::read) reasons: Vec<TextId>,
}

/// The clean runs of a series of a session that votes. The buckets of the runs are passed next to the row.
#[derive(Debug)]
pub(in crate::read) struct SeriesRow {
    pub(in crate::read) installation: Installation,
    pub(in crate::read) ran: CohortPlacement,
    pub(in crate::read) shape_key: TextId,
    /// Whether the thermal state of its runs is known.
    pub(in crate::read) reports_heat: bool,
    pub(in crate::read) head: SeriesHead,
    /// The device's earlier latency. The latest series counts.
    pub(in crate::read) earlier: DeviceBaseline,
}

/// A device's earlier latency, as a series reports it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::read) struct DeviceBaseline {
    /// Latency with the named previous version.
    pub(in crate::read) previous: Option<(TextId, SelfQuantiles)>,
    /// Latency with the same version on earlier firmware or runtime.
    pub(in crate::read) runtime: Option<SelfQuantiles>,
    /// The reason why there is neither; may be empty.
    pub(in crate::read) absence: TextId,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::read) struct SelfQuantiles {
    pub(in crate::read) n: u64,
    pub(in crate::read) p10_us: f64,
    pub(in crate::read) p50_us: f64,
    pub(in crate::read) p95_us: f64,
    pub(in crate::read) cv: f64,
}
