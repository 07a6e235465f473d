//! All RPCs except Upload, from the device or the pipeline to every view.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use epwatch_collector::directives::store;
use epwatch_collector::{Client, Collector};
use epwatch_proto::v1::{self, Outcome};
use epwatch_proto::{
    CpuNode, Directive, DirectiveAction, DirectiveScope, EpShare, InstallationId, ModelHash,
    ModelManifest, Placement, ReasonCode, SignedDirective, hex, placement::CPU_EP, samples,
};
use epwatch_server::Period;
use prost::Message;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::http::post;
use crate::support::{
    OPEN, ROWS, Store, TIMEOUT, config, connect, report, request, send, start_with, store_all,
};

pub(crate) const SECRET: [u8; 32] = [42; 32];

/// A report of the installation to which [`SECRET`] belongs.
pub(crate) fn doomed(sequence: u64) -> v1::Report {
    let mut report = report(9, 1, sequence);
    let id = InstallationId::from_secret(&SECRET);
    report.key.as_mut().unwrap().installation_id = Bytes::copy_from_slice(id.as_bytes());
    report
}

/// Thirty nodes on the NPU, and two at the graph's edges on the CPU.
fn placement_with_edges() -> Placement {
    let edge = |i| CpuNode {
        name: format!("edge_{i}"),
        op_type: "QuantizeLinear".into(),
        domain: String::new(),
        benign: true,
        reason: ReasonCode::EdgeQuantization,
        reason_text: String::new(),
        macs_share: None,
    };
    let mut placement = samples::placement();
    placement.eps.push(EpShare {
        ep: CPU_EP.into(),
        n_nodes: 2,
        n_partitions: None,
        op_types: BTreeMap::from([("QuantizeLinear".into(), 2)]),
        macs_share: None,
    });
    placement.n_nodes += 2;
    placement.cpu_nodes = (0..2).map(edge).collect();
    placement
}

pub(crate) fn deletion() -> v1::DeleteInstallationRequest {
    v1::DeleteInstallationRequest {
        secret: Bytes::copy_from_slice(&SECRET),
    }
}

/// Checks the same as [`Store::check_views_show`], for installations with one report each.
pub(crate) async fn check_views_show(store: &Store, installations: u64) {
    store.check_views_show(installations).await;
    for view in ["device_buckets_v1", "device_placements_v1"] {
        let sql = format!("SELECT uniqExact(installation) AS n FROM {view}");
        assert_eq!(store.number(&sql).await, installations, "{view}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_installation_is_in_no_view_and_refused_everywhere() {
    let store = Store::start().await;
    let mut first = config(&store.dir.path().join("wal-1"));
    first.refresh = Period(Duration::from_millis(50));
    // This collector erases nothing; a later one in this test does.
    first.erase_period = Period(Duration::from_secs(3600));
    let mut second = first.clone();
    second.wal.dir = store.dir.path().join("wal-2");
    let (first_config, first) = (first.clone(), start_with(&store, first).await);
    let second = start_with(&store, second).await;
    let (mut to_first, mut to_second) = (connect(&first).await, connect(&second).await);
    // One installation is in the same slice as the deleted one, another is in a different slice.
    let slice = InstallationId::from_secret(&SECRET).as_bytes()[0] % 4;
    let reports = [doomed(1), report(4 + slice, 1, 1), report(5 + slice, 1, 1)];
    store_all(&mut to_first, &reports).await;
    store.eventually(ROWS, 3).await;
    store.eventually(OPEN, 0).await;
    check_views_show(&store, 3).await;

    let tombstoned = to_second.delete_installation(deletion()).await.unwrap();
    let tombstoned = tombstoned.into_inner();
    let tombstoned_at = tombstoned.tombstoned_at_unix_ms;
    // The acknowledgement names the deleted installation.
    let id = InstallationId::from_secret(&SECRET);
    assert_eq!(tombstoned.installation_id, id.as_bytes()[..]);
    let again = to_second.delete_installation(deletion()).await.unwrap();
    assert_eq!(again.into_inner().tombstoned_at_unix_ms, tombstoned_at);
    // The deletion holds at once on the collector that was called, and soon on the other.
    let refused = send(&mut to_second, &[doomed(2), report(1, 1, 1)]).await;
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].outcome(), Outcome::RefusedDeleted);
    assert!(!refused[0].retryable);
    let deadline = Instant::now() + TIMEOUT;
    while send(&mut to_first, &[doomed(1)]).await[0].outcome() != Outcome::RefusedDeleted {
        assert!(Instant::now() < deadline, "the first collector never heard");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let hidden = "SELECT count() AS n FROM deletions_v1 WHERE toYear(hidden_at) > 1970 \
                  AND requested_at <= hidden_at AND rebuilt_buckets = 1";
    store.eventually(hidden, 1).await;
    store.eventually(ROWS, 4).await;
    store.eventually(OPEN, 0).await;
    check_views_show(&store, 3).await;
    let shown = format!(
        "SELECT count() AS n FROM device_buckets_v1 WHERE installation = unhex('{}')",
        InstallationId::from_secret(&SECRET).to_hex()
    );
    assert_eq!(store.number(&shown).await, 0);
    first.stop().await;
    second.stop().await;

    // A restart forgets no deletion; the installation's rows are erased from the disk once they are due.
    let mut again = first_config;
    again.erase_period = Period(Duration::from_millis(50));
    let again = start_with(&store, again).await;
    store.eventually(ROWS, 3).await;
    let erased = "SELECT count() AS n FROM deletions_v1 \
                  WHERE toYear(erased_at) > 1970 AND erased_reports = 1";
    store.eventually(erased, 1).await;
    let mut device = connect(&again).await;
    let refused = send(&mut device, &[doomed(3)]).await;
    assert_eq!(refused[0].outcome(), Outcome::RefusedDeleted);
    again.stop().await;
    check_views_show(&store, 3).await;
    store.engine.stop().await;
}

/// The answer is a promise, so it outlives the process even if the store was away.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_is_kept_while_the_store_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let mut away = config(&dir.path().join("wal"));
    away.batch.drain_timeout = Period(Duration::from_millis(1));
    let nowhere = epwatch_store::client(&Store::target_in(&dir));
    let start = || Collector::start(away.clone(), nowhere.clone(), CancellationToken::new());
    let collector = start().await.unwrap();
    let mut device = connect(&collector).await;
    store_all(&mut device, &[doomed(1)]).await;
    device.delete_installation(deletion()).await.unwrap();
    for len in [0, 31, 33] {
        let secret = vec![1; len].into();
        let wrong = v1::DeleteInstallationRequest { secret };
        let status = device.delete_installation(wrong).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("32 bytes"), "{status}");
    }
    collector.stop().await;

    let collector = start().await.unwrap();
    let mut device = connect(&collector).await;
    let refused = send(&mut device, &[doomed(2)]).await;
    assert_eq!(refused[0].outcome(), Outcome::RefusedDeleted);
    let store = Store::start_in(dir).await;
    // The acknowledged report is stored, or already erased, and no view shows it.
    let stored_or_erased = "SELECT toUInt64(assumeNotNull((SELECT count() FROM reports)) \
                            + assumeNotNull((SELECT sum(erased_reports) FROM deletions_v1))) AS n";
    store.eventually(stored_or_erased, 1).await;
    // The deletion is logged once the installation is hidden and the summaries that counted it are built again.
    let logged = "SELECT toUInt64(count() > 0) AS n FROM deletion_log";
    store.eventually(logged, 1).await;
    check_views_show(&store, 0).await;
    store.end(collector).await;
}

/// The late rows stand for the backlog of a collector that was away during the erasure. They are erased from the disk
/// too.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_an_erased_installation_that_come_late_are_erased_too() {
    let store = Store::start().await;
    let mut config = config(&store.dir.path().join("wal"));
    config.erase_period = Period(Duration::from_millis(50));
    let collector = start_with(&store, config.clone()).await;
    let mut device = connect(&collector).await;
    store_all(&mut device, &[doomed(1)]).await;
    let rows = "SELECT toUInt64(assumeNotNull((SELECT count() FROM reports)) \
                + assumeNotNull((SELECT count() FROM report_copies))) AS n";
    store.eventually(rows, 2).await;
    for table in ["reports", "report_copies"] {
        store
            .run(&format!(
                "CREATE TABLE late_{table} ENGINE = Memory AS SELECT * FROM {table}"
            ))
            .await;
    }
    device.delete_installation(deletion()).await.unwrap();
    let erased = "SELECT toUInt64(sum(erased_reports)) AS n FROM deletions_v1 \
                  WHERE toYear(erased_at) > 1970";
    store.eventually(erased, 1).await;
    store.eventually(rows, 0).await;

    // No collector may erase meanwhile, because a row that arrives between the count and the deletion is erased without
    // being counted.
    collector.stop().await;
    for table in ["reports", "report_copies"] {
        store
            .run(&format!("INSERT INTO {table} SELECT * FROM late_{table}"))
            .await;
    }
    assert_eq!(store.number(rows).await, 2);
    let collector = start_with(&store, config).await;
    store.eventually(erased, 2).await;
    store.eventually(rows, 0).await;
    check_views_show(&store, 0).await;
    store.end(collector).await;
}

fn model(id: &str) -> Option<v1::Model> {
    Some(v1::Model {
        id: id.into(),
        version: "7".into(),
        sha256: vec![3; 32].into(),
        ..Default::default()
    })
}

/// A valid manifest of a model.
pub(crate) fn manifest(model_id: &str) -> v1::PutModelManifestRequest {
    let node = |name: &str, macs| v1::NodeMacs {
        name: name.into(),
        op_type: "Conv".into(),
        macs,
    };
    v1::PutModelManifestRequest {
        model: model(model_id),
        manifest: Some(v1::ModelManifest {
            algorithm: 1,
            total_macs: 100,
            nodes: vec![node("a", 60), node("b", 30)],
        }),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_and_certified_placements_are_stored_as_they_came() {
    let store = Store::start().await;
    let collector = start_with(&store, config(&store.dir.path().join("wal"))).await;
    let mut pipeline = connect(&collector).await;

    let put = manifest("detector");
    let parsed = ModelManifest::try_from(put.manifest.clone().unwrap()).unwrap();
    for _ in 0..2 {
        let answer = pipeline.put_model_manifest(put.clone()).await.unwrap();
        let sha256 = answer.into_inner().manifest_sha256;
        assert_eq!(sha256, parsed.sha256().as_bytes().as_slice());
    }
    let stored = "SELECT toUInt64(sum(arraySum(node_macs))) AS n FROM model_manifests_v1 \
                  WHERE model_id = 'detector' AND total_macs = 100 AND length(manifest_sha256) = 64";
    assert_eq!(store.number(stored).await, 90, "once, though it came twice");

    let placement = v1::Placement::from(&placement_with_edges());
    let put = v1::PutCertifiedPlacementRequest {
        model: model("detector"),
        chipset: "SM8650".into(),
        runtime: Some((&samples::runtime()).into()),
        placement: placement.encode_to_vec().into(),
        certified_by: "ci run 7".into(),
        latency: Some(v1::CertifiedLatency {
            launches: 6,
            runs: 162,
            p10_us: 8_000,
            p50_us: 8_200,
            p95_us: 9_500,
        }),
        replace: false,
        request_id: 7_000_000_011,
        firmware: "0123456789abcdef0123456789abcdef".into(),
    };
    let answer = post(
        collector.listen(),
        "PutCertifiedPlacement",
        &[],
        &put.encode_to_vec(),
    );
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = v1::PutCertifiedPlacementResponse::decode(answer.body.as_slice()).unwrap();
    assert!(answer.stored_at_unix_ms > 0);
    assert_eq!(answer.request_id, put.request_id);
    let sha256 = ModelHash::of(&put.placement);
    assert_eq!(answer.placement_sha256[..], sha256.as_bytes()[..]);
    let stored = "SELECT toUInt64(sum(npu_nodes * 100 + cpu_nodes * 10 + cpu_benign_nodes)) AS n \
                  FROM certified_placements_v1 WHERE chipset = 'SM8650' \
                  AND fingerprint_normalised = 12 AND certified_by = 'ci run 7' AND latency_launches = 6 \
                  AND latency_runs = 162 AND latency_p10_us = 8000 AND latency_p50_us = 8200 AND latency_p95_us = 9500 \
                  AND firmware = '0123456789abcdef0123456789abcdef'";
    assert_eq!(store.number(stored).await, 3_022);

    // Each firmware has a certificate of its own; of several for the same firmware the last one counts.
    for firmware in ["", "f".repeat(32).as_str(), ""] {
        let mut cell = put.clone();
        (cell.chipset, cell.firmware) = ("SM8550".into(), firmware.into());
        pipeline.put_certified_placement(cell).await.unwrap();
    }
    let cells =
        "SELECT toUInt64(count()) AS n FROM certified_placements_v1 WHERE chipset = 'SM8550'";
    assert_eq!(store.number(cells).await, 2);

    // Another file under the same version is refused, unless the request asks to replace the first. Then the new file
    // is the certified one.
    let with_file = |byte: u8, replace: bool| {
        let mut put = put.clone();
        put.chipset = "SM8635".into();
        let model = put.model.as_mut().unwrap();
        (model.version, model.sha256) = ("replaced".into(), vec![byte; 32].into());
        put.replace = replace;
        put
    };
    for (byte, replace, is_stored) in [
        (1, false, true),
        (1, false, true),
        (2, false, false),
        (2, true, true),
        (2, false, true),
        (1, false, false),
    ] {
        let put = with_file(byte, replace);
        let answer = pipeline.put_certified_placement(put).await;
        assert_eq!(answer.is_ok(), is_stored, "{byte} {replace}: {answer:?}");
        if let Err(status) = answer {
            assert_eq!(status.code(), Code::FailedPrecondition);
            assert!(status.message().contains("--replace"), "{status}");
        }
    }

    let mut wrong = put.clone();
    wrong.chipset = "QTI SM8650".into();
    let status = pipeline.put_certified_placement(wrong).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("chipset") && status.message().contains("SM8650"));
    let mut wrong = put.clone();
    wrong.firmware = "UP1A.231005.007".into();
    let status = pipeline.put_certified_placement(wrong).await.unwrap_err();
    assert!(status.message().contains("firmware"), "{status}");
    let mut wrong = put.clone();
    wrong.latency.as_mut().unwrap().p95_us = 8_100;
    let status = pipeline.put_certified_placement(wrong).await.unwrap_err();
    assert!(status.message().contains("latency.p10_us"), "{status}");
    let mut wrong = put;
    let mut too_few = placement;
    too_few.n_nodes = 7;
    wrong.placement = too_few.encode_to_vec().into();
    let status = pipeline
        .put_certified_placement(wrong.clone())
        .await
        .unwrap_err();
    assert!(status.message().contains("placement.n_nodes"), "{status}");
    // Empty nodes: each has two bytes, and over a hundred once decoded.
    wrong.placement = [4_u8 << 3 | 2, 0].repeat(1 << 20).into();
    let status = pipeline.put_certified_placement(wrong).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("placement") && status.message().contains("524288"));
    let mut wrong = manifest("detector");
    wrong.manifest.as_mut().unwrap().total_macs = 1;
    let status = pipeline.put_model_manifest(wrong).await.unwrap_err();
    assert!(status.message().contains("manifest.total_macs"), "{status}");

    // Without the store the call is not acknowledged.
    store.engine.stop().await;
    let status = pipeline
        .put_model_manifest(manifest("x"))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.metadata().get("grpc-retry-pushback-ms").is_some());
    collector.stop().await;
}

async fn publish(client: &Client, directive: &Directive) -> SignedDirective {
    let signed = SignedDirective {
        directive: directive.to_bytes().into(),
        key_id: "ops".into(),
        // Any signature will do, because the collector has no key to check it with.
        signature: [7; 64],
    };
    store::publish(client, &signed, 1_000).await.unwrap();
    signed
}

fn directive(id: &str, scope: DirectiveScope, action: DirectiveAction) -> Directive {
    let begin = now_unix_ms();
    Directive {
        id: id.to_owned(),
        scope,
        action,
        not_before_unix_ms: begin,
        expires_unix_ms: begin + 3_600_000,
    }
}

fn now_unix_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(now.unwrap().as_millis()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directive_reaches_those_it_is_for_byte_for_byte() {
    let store = Store::start().await;
    let mut config = config(&store.dir.path().join("wal"));
    config.refresh = Period(Duration::from_millis(20));
    let collector = start_with(&store, config).await;
    let mut device = connect(&collector).await;
    let mut sequence = 0;
    let mut upload = async |held: &[&str]| {
        sequence += 1;
        let mut message = request(&[report(1, 1, sequence)]);
        message.held_directive_ids = held.iter().map(|id| (*id).to_owned()).collect();
        device
            .upload(message)
            .await
            .unwrap()
            .into_inner()
            .directives
    };
    assert_eq!(upload(&[]).await, []);

    let scope = DirectiveScope {
        app_id: "com.example.camera".into(),
        model_id: "detector".into(),
        chipset: "SM8650".into(),
        ..DirectiveScope::default()
    };
    let off = directive("off", scope.clone(), DirectiveAction::NpuOff);
    let elsewhere = DirectiveScope {
        chipset: "SM8550".into(),
        ..scope.clone()
    };
    let other = directive("other", elsewhere, DirectiveAction::NpuOff);
    publish(&store.client, &other).await;
    let signed = publish(&store.client, &off).await;
    publish(&store.client, &off).await;
    let deadline = Instant::now() + TIMEOUT;
    let handed = loop {
        let handed = upload(&["unknown"]).await;
        if !handed.is_empty() {
            break handed;
        }
        assert!(Instant::now() < deadline, "never handed out");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(handed, [v1::SignedDirective::from(&signed)]);
    assert_eq!(upload(&["off"]).await, []);

    // An id can never be used again.
    let mut changed = off.clone();
    changed.action = DirectiveAction::Sampling(2);
    let forged = SignedDirective {
        directive: changed.to_bytes().into(),
        ..signed
    };
    let error = store::publish(&store.client, &forged, 1_000)
        .await
        .unwrap_err();
    assert!(
        matches!(error, store::DirectiveError::IdTaken { .. }),
        "{error}"
    );

    let revoke = directive("back", scope, DirectiveAction::Revoke("off".into()));
    publish(&store.client, &revoke).await;
    let ids = |handed: &[v1::SignedDirective]| -> Vec<String> {
        let parse = |signed: &v1::SignedDirective| Directive::parse(&signed.directive).unwrap().id;
        handed.iter().map(parse).collect()
    };
    while ids(&upload(&["off"]).await) != ["back"] {
        assert!(Instant::now() < deadline, "never revoked");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(ids(&upload(&[]).await), ["back"]);
    let listed = store::list(&store.client).await.unwrap();
    let revoked: Vec<(&str, bool)> = listed
        .iter()
        .map(|p| (p.directive.id.as_str(), p.is_revoked))
        .collect();
    assert!(revoked.contains(&("off", true)) && revoked.contains(&("other", false)));
    store.end(collector).await;
}

#[derive(Debug, clickhouse::Row, serde::Serialize)]
struct DirectiveRow {
    id: String,
    published_at: i64,
    directive_hex: String,
    signature_hex: String,
    expires: i64,
}

/// The row of a directive that was published in 1970.
fn row(directive: &Directive) -> DirectiveRow {
    DirectiveRow {
        id: directive.id.clone(),
        published_at: 0,
        directive_hex: hex(&directive.to_bytes()),
        signature_hex: hex(&[7; 64]),
        expires: directive.expires_unix_ms,
    }
}

/// A revocation must always be possible, because it stops harm. Afterwards its target no longer counts towards the
/// limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_directive_can_be_revoked_where_no_other_has_room() {
    let store = Store::start().await;
    let all = || DirectiveScope::default();
    // The other columns are only for people to read.
    let client = store.client.clone().with_validation(false);
    let insert = client.insert::<DirectiveRow>("directives").await;
    let mut insert = insert.unwrap();
    for n in 0..store::MAX_LIVE {
        let directive = directive(&format!("d{n}"), all(), DirectiveAction::NpuOff);
        insert.write(&row(&directive)).await.unwrap();
    }
    insert.end().await.unwrap();
    let try_publish = async |id: &str, action| {
        let signed = SignedDirective {
            directive: directive(id, all(), action).to_bytes().into(),
            key_id: "ops".into(),
            signature: [7; 64],
        };
        store::publish(&store.client, &signed, 1_000).await
    };
    let is_full = |published| matches!(published, Err(store::DirectiveError::TooMany));
    assert!(is_full(try_publish("new", DirectiveAction::NpuOff).await));

    let revoke = |of: &str| DirectiveAction::Revoke(of.into());
    try_publish("back", revoke("d0")).await.unwrap();
    try_publish("new", DirectiveAction::NpuOff).await.unwrap();
    assert!(is_full(try_publish("newer", DirectiveAction::NpuOff).await));

    let mut config = config(&store.dir.path().join("wal"));
    config.refresh = Period(Duration::from_millis(20));
    let collector = start_with(&store, config).await;
    let mut device = connect(&collector).await;
    let deadline = Instant::now() + TIMEOUT;
    for sequence in 1.. {
        let uploaded = device.upload(request(&[report(1, 1, sequence)])).await;
        let handed = uploaded.unwrap().into_inner().directives;
        if let Some(first) = handed.first() {
            let first = Directive::parse(&first.directive).unwrap();
            assert_eq!(first.id, "back");
            break;
        }
        assert!(Instant::now() < deadline, "never handed out");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    store.end(collector).await;
}
