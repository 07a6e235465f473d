//! The content of a census, computed by plain SQL: a slower, independent way to the same numbers.

use std::collections::{BTreeMap, BTreeSet};

use clickhouse::{Client, Row};
use epwatch_detector::read::Span;
use epwatch_model::{Installation, ModelKey};
use serde::Deserialize;

/// Answers of the store.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Census {
    /// Model, cohorts and sessions of the window, in order.
    pub(crate) models: Vec<(ModelKey, u64, u64)>,
    /// By model, the placements that vote, with their numbers of devices.
    pub(crate) placements: BTreeMap<ModelKey, Vec<String>>,
    /// By model, its versions and the time when each was first received.
    pub(crate) versions: BTreeMap<ModelKey, BTreeMap<String, i64>>,
    /// New installations by app and environment.
    pub(crate) new: BTreeMap<(String, String), BTreeSet<Installation>>,
    /// By model, version and chipset, the votes of the window, and how many of them are from known installations.
    pub(crate) votes: BTreeMap<(ModelKey, String, String), (usize, usize)>,
}

/// The models with reports in the window. Binds: window, start of the window.
const MODELS: &str = "
    SELECT app_id, environment, model_id, count() AS cohorts, sum(n) AS sessions
    FROM (
        SELECT app_id, environment, model_id, model_version, chipset, count() AS n
        FROM counted_reports_v1
        ARRAY JOIN session_model_id AS model_id, session_model_version AS model_version
        WHERE bucket >= toDateTime(?) AND bucket < toDateTime(?) AND received_at >= toDateTime(?)
        GROUP BY app_id, environment, model_id, model_version, chipset
    )
    GROUP BY app_id, environment, model_id ORDER BY app_id, environment, model_id";

/// Number of devices with each placement, in the window and before it, and the time when it was first received. Devices
/// that do not vote only add to the first time. It groups first by the columns that the normalised fingerprint leaves
/// out, so that most rows are only counted. Binds: start of the window, look-back, its start.
const CENSUS: &str = "
    SELECT app_id, environment, model_id, model_version, chipset, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised, votes,
        argMin((p.runtime, p.n_nodes, p.npu_nodes, p.cpu_nodes, p.cpu_benign_nodes,
            p.npu_macs_share, p.macs_attributed), (p.runtime, p.fingerprint_exact)) AS numbers,
        uniqExactMerge(p.devices) AS devices, uniqExactMerge(p.devices_before) AS devices_before,
        toUnixTimestamp64Milli(min(p.first_seen)) AS first_seen_ms
    FROM (
        SELECT app_id, environment, model_id, model_version, chipset, graph_kind,
            placement_source, fingerprint_algorithm, fingerprint_exact, fingerprint_normalised,
            requests_npu AND NOT (is_late OR is_unproven) AND directive_id = '' AS votes,
            concat(ort_version, '/', ep_version) AS runtime,
            any(n_nodes) AS n_nodes, any(npu_nodes) AS npu_nodes, any(cpu_nodes) AS cpu_nodes,
            any(cpu_benign_nodes) AS cpu_benign_nodes, any(npu_macs_share) AS npu_macs_share,
            any(macs_attributed) AS macs_attributed,
            uniqExactState(installation) AS devices,
            uniqExactStateIf(installation, bucket < toDateTime(?)) AS devices_before,
            min(received_at) AS first_seen
        FROM counted_reports_v1
        ARRAY JOIN session_model_id AS model_id, session_model_version AS model_version,
            session_directive_id AS directive_id, session_requests_npu AS requests_npu,
            session_graph_kind AS graph_kind, session_placement_source AS placement_source,
            session_fingerprint_algorithm AS fingerprint_algorithm,
            session_fingerprint_exact AS fingerprint_exact,
            session_fingerprint_normalised AS fingerprint_normalised,
            session_n_nodes AS n_nodes, session_npu_nodes AS npu_nodes,
            session_cpu_nodes AS cpu_nodes, session_cpu_benign_nodes AS cpu_benign_nodes,
            session_npu_macs_share AS npu_macs_share, session_macs_attributed AS macs_attributed
        WHERE bucket >= toDateTime(?) AND bucket < toDateTime(?)
            AND received_at >= toDateTime(?)
        GROUP BY app_id, environment, model_id, model_version, chipset, graph_kind,
            placement_source, fingerprint_algorithm, fingerprint_exact, fingerprint_normalised,
            votes, ort_version, ep_version
    ) AS p
    GROUP BY app_id, environment, model_id, model_version, chipset, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised, votes";

/// How many votes each device has in the window. Binds: window, its start.
const VOTES: &str = "
    SELECT app_id, environment, model_id, model_version, chipset, installation,
        uniqExact(firmware, graph_kind, placement_source, algorithm, fingerprint) AS votes
    FROM counted_reports_v1
    ARRAY JOIN session_model_id AS model_id, session_model_version AS model_version,
        session_directive_id AS directive_id, session_requests_npu AS requests_npu,
        session_graph_kind AS graph_kind, session_placement_source AS placement_source,
        session_fingerprint_algorithm AS algorithm, session_fingerprint_normalised AS fingerprint
    WHERE requests_npu AND NOT (is_late OR is_unproven) AND directive_id = ''
        AND bucket >= toDateTime(?) AND bucket < toDateTime(?) AND received_at >= toDateTime(?)
    GROUP BY app_id, environment, model_id, model_version, chipset, installation";

/// When each installation was first admitted, and every receipt without admission. Binds: look-back, its start.
const RECEIPTS: &str = "
    SELECT app_id, environment, r.installation AS new, is_unproven,
        toInt64(toUnixTimestamp(min(r.bucket))) AS bucket_s
    FROM counted_reports_v1 AS r
    WHERE bucket >= toDateTime(?) AND bucket < toDateTime(?) AND received_at >= toDateTime(?)
    GROUP BY app_id, environment, new, is_unproven, if(is_unproven, bucket, toDateTime(0))";

#[derive(Row, Deserialize)]
struct ModelRow {
    app_id: String,
    environment: String,
    model_id: String,
    cohorts: u64,
    sessions: u64,
}

/// Runtime; numbers of nodes: all, on the NPU, on the CPU, benign on the CPU; shares of MACs: on the NPU, attributed.
type Numbers = (String, u32, u32, u32, u32, Option<f32>, Option<f32>);

#[derive(Row, Deserialize)]
struct CensusRow {
    app_id: String,
    environment: String,
    model_id: String,
    model_version: String,
    chipset: String,
    graph_kind: String,
    placement_source: String,
    fingerprint_algorithm: u32,
    fingerprint_normalised: u64,
    votes: bool,
    numbers: Numbers,
    devices: u64,
    devices_before: u64,
    first_seen_ms: i64,
}

#[derive(Row, Deserialize)]
struct VotesRow {
    app_id: String,
    environment: String,
    model_id: String,
    model_version: String,
    chipset: String,
    installation: Installation,
    votes: u64,
}

#[derive(Row, Deserialize)]
struct Receipt {
    app_id: String,
    environment: String,
    new: Installation,
    is_unproven: bool,
    bucket_s: i64,
}

fn model_key(app_id: String, environment: String, model_id: String) -> ModelKey {
    ModelKey {
        app_id,
        environment,
        model_id,
    }
}

pub(crate) async fn of(client: &Client, span: &Span) -> Census {
    let end_s = span.end.as_second();
    let start_s = end_s.strict_sub_unsigned(span.window.as_secs());
    let earliest_s = end_s.strict_sub_unsigned(span.lookback.as_secs());
    let mut census = Census::default();

    let query = client.query(MODELS).bind(start_s).bind(end_s).bind(start_s);
    for row in query.fetch_all::<ModelRow>().await.unwrap() {
        let model = model_key(row.app_id, row.environment, row.model_id);
        census.models.push((model, row.cohorts, row.sessions));
    }

    let query = client.query(CENSUS).bind(start_s);
    let query = query.bind(earliest_s).bind(end_s).bind(earliest_s);
    for row in query.fetch_all::<CensusRow>().await.unwrap() {
        let model = model_key(row.app_id, row.environment, row.model_id);
        let versions = census.versions.entry(model.clone()).or_default();
        let first = versions
            .entry(row.model_version.clone())
            .or_insert(row.first_seen_ms);
        *first = row.first_seen_ms.min(*first);
        if row.votes {
            let (runtime, nodes, npu, cpu, benign, macs, attributed) = row.numbers;
            let share = macs.filter(|_| attributed.is_some_and(|share| share > 0.949_99));
            let line = format!(
                "{} {} {} {} {} {} {runtime} {nodes} {npu} {} {:?} {} {}",
                row.model_version,
                row.chipset,
                row.graph_kind,
                row.placement_source,
                row.fingerprint_algorithm,
                row.fingerprint_normalised,
                cpu - benign,
                share.map(f64::from),
                row.devices,
                row.devices_before
            );
            census.placements.entry(model).or_default().push(line);
        }
    }
    census
        .placements
        .values_mut()
        .for_each(|lines| lines.sort());

    let query = client.query(RECEIPTS);
    let query = query.bind(earliest_s).bind(end_s).bind(earliest_s);
    let mut by_app: BTreeMap<(String, String), Vec<Receipt>> = BTreeMap::new();
    for row in query.fetch_all::<Receipt>().await.unwrap() {
        let app = (row.app_id.clone(), row.environment.clone());
        by_app.entry(app).or_default().push(row);
    }
    for (app, receipts) in by_app {
        census.new.insert(app, new_in(&receipts, span));
    }

    let query = client.query(VOTES).bind(start_s).bind(end_s).bind(start_s);
    for row in query.fetch_all::<VotesRow>().await.unwrap() {
        let newcomers = &census.new[&(row.app_id.clone(), row.environment.clone())];
        let model = model_key(row.app_id, row.environment, row.model_id);
        let cohort = (model, row.model_version, row.chipset);
        let (votes, proven) = census.votes.entry(cohort).or_default();
        let n = usize::try_from(row.votes).unwrap();
        *votes += n;
        *proven += usize::from(!newcomers.contains(&row.installation)) * n;
    }
    census
}

/// Installations that were admitted in the window, or in a recent one with a flood.
fn new_in(receipts: &[Receipt], span: &Span) -> BTreeSet<Installation> {
    let length = i64::try_from(span.window.as_secs()).unwrap();
    let lookback = i64::try_from(span.lookback.as_secs()).unwrap();
    let end_s = span.end.as_second();
    // 0 is the window itself.
    let ago = |receipt: &&Receipt| (end_s - 1 - receipt.bucket_s) / length;
    let (unproven, admitted): (Vec<_>, Vec<_>) = receipts.iter().partition(|r| r.is_unproven);
    let floods: BTreeSet<i64> = unproven.iter().map(ago).collect();
    let recent = (lookback - 1) / length / 2;
    let is_new = |receipt: &&&Receipt| match ago(receipt) {
        0 => true,
        ago => ago <= recent && floods.contains(&ago),
    };
    admitted.iter().filter(is_new).map(|r| r.new).collect()
}
