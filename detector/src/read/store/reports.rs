//! The reports of a window: each once, with its sessions, which say where a device ran, and its series,
//! which say how fast. Which of them count is decided here: to join and to filter arrays costs the store
//! more than to send them.

use clickhouse::error::Error;
use epwatch_store::native::decode::{Block, FixedBytes, List, Millis, columns};

use crate::placement::NodeCounts;
use crate::read::builders::Builders;
use crate::read::rows::{At, PlacementRow, Ran, VoteRow};

use super::queries::hist_scheme;

columns!(Heads of Head, is_array: false, "" {
    app_id: &'a str,
    environment: &'a str,
    chipset: &'a str,
    firmware: &'a str,
    device_model: &'a str,
    installation: FixedBytes<16>,
    ort_version: &'a str,
    ep_version: &'a str,
    is_late: bool,
    is_unproven: bool,
    received_at: Millis,
    stream_id: u64,
    sequence: u64,
});

columns!(Sessions of Session, is_array: true, "session_" {
    uid: u64,
    model_id: &'a str,
    model_version: &'a str,
    directive_id: &'a str,
    requests_npu: bool,
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
    reasons: List<'a, &'a str>,
});

columns!(ManySeries of Series, is_array: true, "series_" {
    session: u16,
    is_clean: bool,
    shape_key: &'a str,
    hist_scheme: &'a str,
    hist_bucket: List<'a, u16>,
    hist_count: List<'a, u64>,
    n: u64,
    sum_us: f64,
    m2_us2: f64,
    previous_version: &'a str,
    previous_n: u64,
    previous_p10_us: f64,
    previous_p50_us: f64,
    previous_p95_us: f64,
    previous_cv: f64,
    earlier_n: u64,
    earlier_p10_us: f64,
    earlier_p50_us: f64,
    earlier_p95_us: f64,
    earlier_cv: f64,
    baseline_absence: &'a str,
});

/// The question. Receive times say which partitions; buckets decide. Binds: apps, window, start of the
/// window, slices, slice.
pub(super) fn query() -> String {
    let names = [Heads::NAMES, Sessions::NAMES, ManySeries::NAMES].concat();
    format!(
        "SELECT {} FROM counted_reports_v1 WHERE (app_id, environment) IN ? \
         AND bucket >= toDateTime(?) AND bucket < toDateTime(?) AND received_at >= toDateTime(?) \
         AND sipHash64(installation) % ? = ?",
        names.join(", ")
    )
}

/// Gives what a block's reports say to the windows of their models.
pub(super) fn read(block: &Block, builders: &mut Builders) -> Result<(), Error> {
    let heads = Heads::of(block)?;
    let sessions = Sessions::of(block)?;
    let series = ManySeries::of(block)?;
    let mut of_report = Vec::new();
    let mut runtime = String::new();
    for report in 0..block.n_rows() {
        let head = heads.rows(report).next().ok_or(Error::NotEnoughData)??;
        let counts = !(head.is_late || head.is_unproven);
        runtime.clear();
        runtime.extend([head.ort_version, "/", head.ep_version]);
        of_report.clear();
        for one in series.rows(report) {
            let one = one?;
            if counts && one.counts() {
                of_report.push(one);
            }
        }
        of_report.sort_by_key(|one| one.session);
        // Series name their session by its place in the report, from 1.
        let mut rest = of_report.as_slice();
        for (session, nth) in sessions.rows(report).zip(1_usize..) {
            let session = session?;
            let of_session;
            rest = &rest[rest.partition_point(|one| usize::from(one.session) < nth)..];
            let n_series = rest.partition_point(|one| usize::from(one.session) == nth);
            (of_session, rest) = rest.split_at(n_series);
            if !session.takes_part() {
                continue;
            }
            let ran = session.ran(&head);
            let model = (head.app_id, head.environment, session.model_id);
            builders.add(model, |builder| {
                let key = builder.key_of(&ran);
                builder.add_placement(key, session.placement(ran, counts, &runtime))?;
                let votes = of_session.iter().filter(|_| session.votes());
                for one in votes {
                    let at = (
                        head.received_at.0,
                        head.stream_id,
                        head.sequence,
                        session.uid,
                    );
                    builder.add_vote(key, one.vote(ran, head.device_model, at))?;
                }
                Ok(())
            });
        }
    }
    Ok(())
}

impl<'a> Session<'a> {
    fn takes_part(&self) -> bool {
        self.requests_npu || !self.directive_id.is_empty()
    }

    fn votes(&self) -> bool {
        self.requests_npu && self.directive_id.is_empty()
    }

    fn ran(&self, head: &Head<'a>) -> Ran<'a> {
        Ran {
            model_version: self.model_version,
            chipset: head.chipset,
            firmware: head.firmware,
            installation: head.installation.0,
            graph_kind: self.graph_kind,
            placement_source: self.placement_source,
            fingerprint_algorithm: self.fingerprint_algorithm,
            fingerprint_normalised: self.fingerprint_normalised,
        }
    }

    fn placement<'b>(&self, ran: Ran<'a>, votes: bool, runtime: &'b str) -> PlacementRow<'b>
    where
        'a: 'b,
    {
        PlacementRow {
            ran,
            votes,
            directed: !self.directive_id.is_empty(),
            fingerprint_exact: self.fingerprint_exact,
            runtime,
            counts: NodeCounts {
                n_nodes: self.n_nodes,
                npu_nodes: self.npu_nodes,
                cpu_nodes: self.cpu_nodes,
                cpu_benign_nodes: self.cpu_benign_nodes,
                npu_macs_share: self.npu_macs_share,
                macs_attributed: self.macs_attributed,
            },
            reasons: self.reasons.collected(),
        }
    }
}

impl<'a> Series<'a> {
    fn counts(&self) -> bool {
        self.is_clean && self.hist_scheme == hist_scheme()
    }

    fn vote(&self, ran: Ran<'a>, device_model: &'a str, at: At) -> VoteRow<'a> {
        VoteRow {
            ran,
            device_model,
            shape_key: self.shape_key,
            hist_bucket: self.hist_bucket.collected(),
            hist_count: self.hist_count.collected(),
            n: self.n,
            sum_us: self.sum_us,
            m2_us2: self.m2_us2,
            previous: (
                self.previous_version,
                self.previous_n,
                self.previous_p10_us,
                self.previous_p50_us,
                self.previous_p95_us,
                self.previous_cv,
            ),
            earlier: (
                self.earlier_n,
                self.earlier_p10_us,
                self.earlier_p50_us,
                self.earlier_p95_us,
                self.earlier_cv,
            ),
            absence: self.baseline_absence,
            at,
        }
    }
}
