//! `epwatch gate --certify`: the store gets the placements that passed, and nothing else.

use std::{fs, net::SocketAddr, path::Path, process::Command};

use bytes::Bytes;
use epwatch_collector::schema;
use epwatch_fleet::{Chipset, Placed, PlacementFault, Placements, RecordedModel};
use epwatch_proto::{ModelHash, ModelManifest, device::vendor_fingerprint_hash, v1};
use epwatch_store::StoreTarget;
use epwatch_test_support::until;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{
    HeaderMap, Request, Response, body::Incoming, header::HeaderValue, server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::{
    fleet::{MODEL, PIPELINE_KEY, WatchedFleet, scenario},
    support::{Running, check_ends, check_fails, check_succeeds, epwatch, json, server},
};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");

/// Makes a key; appends its entry to the keys.
fn new_key(words: &str, keys: &mut String) -> String {
    let made = json(&mut epwatch(&format!(
        "collector key --app com.example.camera --environment production {words}"
    )));
    keys.push_str(&format!(
        "[[keys]]\nsha256 = {}\napp = {}\nkind = {}\n",
        made["sha256"], made["app"], made["kind"]
    ));
    made["key"].as_str().unwrap().to_owned()
}

fn start(data_dir: &Path, keys: &Path) -> (Running, Value) {
    let mut serve = server("serve", data_dir);
    serve
        .env("EPWATCH_COLLECTOR__KEYS_FILE", keys)
        .env("EPWATCH_LOG", "warn");
    Running::start(&mut serve)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passed_is_certified_by_a_pipeline_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut keys = String::new();
    let (pipeline, app) = (
        new_key("--kind pipeline", &mut keys),
        new_key("--kind app --name app", &mut keys),
    );
    let keys_file = dir.path().join("keys.toml");
    std::fs::write(&keys_file, keys).unwrap();
    let (_running, addresses) = start(&dir.path().join("data"), &keys_file);
    let url = format!("http://{}", addresses["collector"].as_str().unwrap());
    let target = StoreTarget::parse(addresses["store"].as_str().unwrap(), schema::DATABASE);
    let store = epwatch_store::client(&target.unwrap());
    let count = async |what: &str| -> u64 {
        let sql = format!("SELECT toUInt64(count()) FROM {what}");
        store.query(&sql).fetch_one().await.unwrap()
    };
    let gate = |model: &str, key: &str, words: &str| -> Command {
        let mut gate = epwatch(&format!("gate {MODELS}/{model}.onnx --soc SM8650,SM8635"));
        gate.env("EPWATCH_CERTIFY_KEY", key)
            .env("EPWATCH_LOG", "warn");
        gate.args(["--certify", &url, "--model-id", "scene"]);
        gate.args(words.split_whitespace());
        gate
    };
    let certified = "certified_placements_v1";

    check_fails(
        &mut gate("e_mixed.qu8", &app, "--model-version 3"),
        3,
        "epwatch collector key --kind pipeline",
    );
    check_fails(
        &mut gate("e_mixed.q8head32", &pipeline, "--model-version 3"),
        1,
        "npu_macs",
    );
    check_ends(&mut gate("e_mixed.qu8", &pipeline, ""), 2);
    let mut elsewhere = epwatch(&format!(
        "gate {MODELS}/e_mixed.qu8.onnx --soc SM8650 --certify http://collector.example:4717 --model-id scene --model-version 3"
    ));
    check_fails(
        elsewhere.env("EPWATCH_CERTIFY_KEY", ""),
        2,
        "http://collector.example:4717 needs a key: expected --certify-key or EPWATCH_CERTIFY_KEY",
    );
    // A server on this machine may be under trial and have no keys. This one has keys, and refuses the placeholder.
    check_fails(
        &mut gate("e_mixed.qu8", "", "--model-version 3"),
        3,
        "warning: neither --certify-key nor EPWATCH_CERTIFY_KEY is given, so that `demo-key` is sent",
    );
    check_fails(
        &mut gate("e_mixed.qu8", &pipeline, "--model-version 3 --ca /gone.pem"),
        2,
        "/gone.pem",
    );
    assert_eq!(
        (count(certified).await, count("model_manifests").await),
        (0, 0)
    );

    let mut passes = gate("e_mixed.qu8", &pipeline, "--model-version 3 --json");
    let (document, _) = check_ends(passes.args(["--certified-by", "CI run 812"]), 0);
    let document: Value = serde_json::from_str(&document).unwrap();
    let fingerprint = |at: usize| {
        let text = &document["targets"][at]["placement"]["fingerprint_normalised"];
        text.as_str()
            .unwrap()
            .rsplit(':')
            .next()
            .unwrap()
            .to_owned()
    };
    for (at, chipset) in ["SM8650", "SM8635"].into_iter().enumerate() {
        let as_judged = format!(
            "{certified} WHERE app_id = 'com.example.camera' AND model_id = 'scene' AND model_version = '3' \
             AND chipset = '{chipset}' AND certified_by = 'CI run 812' AND npu_macs_share = 1 AND ort_version != '' \
             AND lower(hex(fingerprint_normalised)) = lower('{}')",
            fingerprint(at)
        );
        assert_eq!(count(&as_judged).await, 1, "{as_judged}");
    }
    assert_eq!(count("model_manifests").await, 1);
    let (signer, out) = (dir.path().join("ops.pem"), dir.path().join("out"));
    check_succeeds(&mut epwatch(&format!(
        "gate keygen --out {}",
        signer.display()
    )));
    let attest = format!(
        "--model-version 4 --attest {} --out {}",
        signer.display(),
        out.display()
    );
    let (text, _) = check_ends(&mut gate("e_mixed.qu8", &pipeline, &attest), 0);
    assert!(text.contains("certified: scene 4 on SM8635"), "{text}");
    let evidence = ModelHash::of(&fs::read(out.join("gate.dsse.json")).unwrap()).to_string();
    let by_evidence = format!(
        "{certified} WHERE model_version = '4' AND endsWith(certified_by, ', evidence {}')",
        &evidence[..16]
    );
    assert_eq!(count(&by_evidence).await, 2);

    // Another model file under the same version is refused, unless it is to replace the first.
    let mut other = gate("a_cnn.qu8", &pipeline, "--model-version 3");
    check_fails(&mut other, 1, "--replace");
    let replaced = gate("a_cnn.qu8", &pipeline, "--model-version 3 --replace");
    check_ends(&mut { replaced }, 0);
    let mut back = gate("e_mixed.qu8", &pipeline, "--model-version 3");
    check_fails(&mut back, 1, "is certified with another model file");

    let long = "x".repeat(129);
    let mut too_long = gate("e_mixed.qu8", &pipeline, "--model-version 5");
    check_fails(too_long.args(["--certified-by", &long]), 3, "certified_by");
    let mut away = epwatch(&format!(
        "gate {MODELS}/e_mixed.qu8.onnx --soc SM8650 --certify http://127.0.0.1:9 --model-id a --model-version 1"
    ));
    check_fails(&mut away, 3, "the gate passed, but http://127.0.0.1:9");
}

/// Returns launches like those from two phones of one chipset, one of them with newer firmware.
fn launches_on_two_firmwares(folder: &Path) -> Vec<String> {
    let (policy, keep) = (folder.join("one.toml"), folder.join("launches"));
    fs::write(&policy, "[latency]\nlaunches = 1\nruns = 21\nwarmup = 1\n").unwrap();
    let (policy, shown) = (policy.display(), keep.display());
    let model = format!("{MODELS}/e_mixed.qu8.onnx");
    check_succeeds(&mut epwatch(&format!(
        "gate {model} --local --soc SM8650 --policy {policy} --keep {shown}"
    )));
    let launch = fs::read(keep.join("candidate-001.json")).unwrap();
    let launch: Value = serde_json::from_slice(&launch).unwrap();
    let each = ["vendor/build:1", "vendor/build:2"].into_iter().enumerate();
    let each = each.map(|(at, firmware)| {
        let mut own = launch.clone();
        let target = &mut own["target"];
        (target["os"], target["device"]) = ("Android 14 arm64-v8a".into(), "SM-S921B".into());
        target["firmware"] = firmware.into();
        // The launches must differ, because a copy of a launch is refused.
        own["runs_us"][5] = (2_000 + at).into();
        let path = folder.join(format!("phone-{at}.json"));
        fs::write(&path, own.to_string()).unwrap();
        path.display().to_string()
    });
    each.collect()
}

/// The emulator's placement has no firmware. A launch on a phone has its firmware and run times.
#[tokio::test(flavor = "multi_thread")]
async fn launches_are_certified_by_chipset_and_firmware() {
    let dir = tempfile::tempdir().unwrap();
    let mut keys = String::new();
    let pipeline = new_key("--kind pipeline", &mut keys);
    let keys_file = dir.path().join("keys.toml");
    fs::write(&keys_file, keys).unwrap();
    let (_running, addresses) = start(&dir.path().join("data"), &keys_file);
    let url = format!("http://{}", addresses["collector"].as_str().unwrap());
    let at_store = addresses["store"].as_str().unwrap();
    let target = StoreTarget::parse(at_store, schema::DATABASE);
    let store = epwatch_store::client(&target.unwrap());
    let runs = launches_on_two_firmwares(dir.path()).join(" ");
    let policy = dir.path().join("gate.toml");
    fs::write(&policy, "[latency]\nmedian_ms = 10000").unwrap();
    let gate = |words: &str| {
        let mut gate = epwatch(&format!(
            "gate {MODELS}/e_mixed.qu8.onnx --policy {} --certify {url} --model-id scene --ep-version 2.7.0 {words}",
            policy.display()
        ));
        gate.env("EPWATCH_CERTIFY_KEY", &pipeline)
            .env("EPWATCH_LOG", "warn");
        gate
    };
    let hashes = ["vendor/build:1", "vendor/build:2"].map(vendor_fingerprint_hash);
    let text = check_succeeds(&mut gate(&format!("--model-version 3 --runs {runs}")));
    for hash in &hashes {
        let line = format!("certified: scene 3 on SM8650, firmware {hash}");
        assert!(text.contains(&line), "{text}");
        let sql = format!(
            "SELECT toUInt64(count()) FROM certified_placements_v1 WHERE firmware = '{hash}' AND ort_version != '' \
             AND ep_version = '2.7.0' AND latency_launches = 1 AND latency_runs = 21 AND npu_macs_share = 1"
        );
        assert_eq!(store.query(&sql).fetch_one::<u64>().await.unwrap(), 1);
    }
    // With --soc the emulator's placement also gets a certificate, without run times.
    let words = format!("--model-version 4 --soc SM8650 --runs {runs}");
    check_succeeds(&mut gate(&words));
    for (cell, n) in [
        ("firmware = '' AND latency_launches = 0", 1),
        ("firmware != '' AND latency_launches = 1", 2),
        // The version is written as devices report it, so that both can be compared.
        ("ep_version != '2.7.0'", 0),
    ] {
        let sql = format!(
            "SELECT toUInt64(count()) FROM certified_placements_v1 WHERE model_version = '4' AND {cell}"
        );
        let found: u64 = store.query(&sql).fetch_one().await.unwrap();
        assert_eq!(found, n, "{cell}");
    }
    let listed = check_succeeds(&mut epwatch(&format!(
        "certificates --clickhouse {at_store}"
    )));
    assert!(
        listed.contains("FIRMWARE") && listed.contains(&hashes[0][..12]),
        "{listed}"
    );

    let mut without = epwatch(&format!(
        "gate {MODELS}/e_mixed.qu8.onnx --ssh board --certify {url} --model-id a --model-version 1"
    ));
    without.env("EPWATCH_CERTIFY_KEY", &pipeline);
    check_fails(&mut without, 2, "give --ep-version");
    // The stored placement must be the judged one.
    let path = runs.split(' ').next().unwrap();
    let mut forged: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    forged["placement"]["fingerprint_normalised"] = "1:0000000000000001".into();
    let file = dir.path().join("forged.json");
    fs::write(&file, forged.to_string()).unwrap();
    let words = format!("--model-version 6 --runs {}", file.display());
    check_fails(
        &mut gate(&words),
        3,
        "it is another placement than the one that was judged",
    );
    // Launches on the emulator, or without a placement, give no certificate.
    let emulated = dir.path().join("launches/candidate-001.json");
    let mut gate = gate(&format!("--model-version 5 --runs {}", emulated.display()));
    let (_, told) = check_ends(&mut gate, 3);
    assert!(!told.contains("certified: "), "{told}");
}

/// Answers one call of a pipeline.
async fn answer(
    request: Request<Incoming>,
    placement: Vec<u8>,
) -> hyper::Result<Response<BoxBody<Bytes, hyper::Error>>> {
    let is_manifest = request.uri().path().ends_with("/PutModelManifest");
    let body = request.into_body().collect().await?.to_bytes();
    let message = if is_manifest {
        // The message follows the head of the gRPC frame.
        let put = v1::PutModelManifestRequest::decode(&body[5..]).unwrap();
        let manifest = ModelManifest::try_from(put.manifest.unwrap()).unwrap();
        let manifest_sha256 = manifest.sha256().as_bytes().to_vec().into();
        v1::PutModelManifestResponse { manifest_sha256 }.encode_to_vec()
    } else {
        placement
    };
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let frame = [&[0][..], &length, &message].concat();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(Bytes::from(frame)).map_err(|never| match never {});
    let body = body.with_trailers(std::future::ready(Some(Ok(trailers))));
    let response = Response::builder().header("content-type", "application/grpc");
    Ok(response.body(body.boxed()).unwrap())
}

/// Starts a server that answers manifests like a collector, and placements with this message.
async fn answering(placement: v1::PutCertifiedPlacementResponse) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let placement = placement.encode_to_vec();
    let answer = move |request: Request<Incoming>| answer(request, placement.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let serving = http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service_fn(answer.clone()));
            tokio::spawn(serving);
        }
    });
    address
}

/// The answer of a proxy, or to another call, does not mean that anything was stored.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_does_not_name_the_placement_certifies_nothing() {
    let of_before = v1::PutCertifiedPlacementResponse {
        stored_at_unix_ms: 1_800_000_000_000,
        ..v1::PutCertifiedPlacementResponse::default()
    };
    let of_another = v1::PutCertifiedPlacementResponse {
        request_id: 1,
        placement_sha256: vec![1; 32].into(),
        ..of_before.clone()
    };
    for answer in [of_before, of_another] {
        let url = format!("http://{}", answering(answer).await);
        let mut gate = epwatch(&format!(
            "gate {MODELS}/e_mixed.qu8.onnx --soc SM8650 --certify {url} --model-id a --model-version 1"
        ));
        let gate = tokio::task::spawn_blocking(move || {
            check_fails(&mut gate, 3, "does not name the placement on SM8650");
        });
        gate.await.unwrap();
    }
}

/// A first version has no version before it. The gate saw it on the NPU of both chipsets. In the field SM8635 runs it
/// on the CPU, and every session reports success.
#[tokio::test(flavor = "multi_thread")]
async fn the_field_is_held_against_the_certificate() {
    let mut scenario = scenario();
    scenario.rollouts.clear();
    scenario.faults.push(PlacementFault {
        chipset: Chipset::Sm8635,
        version: "1".to_owned(),
        share: 1.0,
        placed: Placed::OnCpu,
    });
    let placements = Placements::recorded(&[("1", RecordedModel::INT8)]);
    let watched = WatchedFleet::of(scenario, placements, Vec::new()).await;
    let url = watched.collector();
    let mut gate = epwatch(&format!(
        "gate {MODELS}/mixed_v1.int8.onnx --soc SM8650,SM8635 --certify {url} --model-id {MODEL} --model-version 1"
    ));
    check_succeeds(gate.env("EPWATCH_CERTIFY_KEY", PIPELINE_KEY));

    let paging = "SELECT count() FROM incidents WHERE severity = 'page' AND verdict = 'total_fallback' \
                  AND chipsets = ['SM8635']";
    until("a page about the chipset that differs", async || {
        watched.store.count(paging).await > 0
    })
    .await;
    let store = watched.store.address();
    let at_shell = |words: &str| epwatch(&format!("{words} --clickhouse {store}"));
    let listed = json(&mut at_shell("incident"));
    let id = listed["incidents"][0]["incident"].as_str().unwrap();
    let text = check_succeeds(&mut at_shell(&format!("incident {id}")));
    assert!(text.contains("the certified placement"), "{text}");
    let text = check_succeeds(&mut at_shell("certificates"));
    assert!(
        text.contains("SM8635") && text.contains("epwatch gate"),
        "{text}"
    );
    let listed = json(&mut at_shell("certificates --app nobody"));
    assert_eq!(listed["certificates"].as_array().unwrap().len(), 0);
    let listed = json(&mut at_shell("certificates"));
    let first = &listed["certificates"][0];
    assert_eq!(
        (&first["version"], &first["is_replaced"]),
        (&"1".into(), &false.into())
    );
    assert_eq!(first["model_sha256"].as_str().unwrap().len(), 64);
    watched.stop().await;
}

/// The version before has the same fault, so only the certificate shows it. Only the certified launches show its cost.
#[tokio::test(flavor = "multi_thread")]
async fn a_fault_that_was_always_there_pages_by_the_certificate() {
    let mut scenario = scenario();
    scenario
        .faults
        .extend(["1", "2"].map(|version| PlacementFault {
            chipset: Chipset::Sm8635,
            version: version.to_owned(),
            share: 1.0,
            placed: Placed::OnCpu,
        }));
    let placements =
        Placements::recorded(&[("1", RecordedModel::INT8), ("2", RecordedModel::INT8)]);
    let watched = WatchedFleet::of(scenario, placements, Vec::new()).await;
    let dir = tempfile::tempdir().unwrap();
    let mut runs = String::new();
    for launch in 0..6 {
        let path = dir.path().join(format!("{launch}.json"));
        let times: Vec<u64> = (0..30).map(|run| 2_000 + run % 7 + launch).collect();
        fs::write(&path, serde_json::to_string(&times).unwrap()).unwrap();
        runs.push_str(&format!(" {}", path.display()));
    }
    let policy = dir.path().join("gate.toml");
    fs::write(&policy, "[latency]\nmedian_ms = 10").unwrap();
    let mut gate = epwatch(&format!(
        "gate {MODELS}/mixed_v1.int8.onnx --soc SM8635 --policy {} --certify {} --model-id {MODEL} --model-version 2 \
         --runs{runs}",
        policy.display(),
        watched.collector()
    ));
    gate.args(["--certified-by", "CI run 812"]);
    check_succeeds(gate.env("EPWATCH_CERTIFY_KEY", PIPELINE_KEY));
    let timed = "SELECT count() FROM certified_placements_v1 WHERE latency_launches = 6 AND latency_runs = 162 \
                 AND latency_p50_us BETWEEN 2000 AND 2020";
    assert_eq!(watched.store.count(timed).await, 1);

    let paging =
        "incidents WHERE severity = 'page' AND model_version = '2' AND chipsets = ['SM8635']";
    until(
        "a page about the version with the certificate",
        async || {
            watched
                .store
                .count(&format!("SELECT count() FROM {paging}"))
                .await
                > 0
        },
    )
    .await;
    let sql = format!("SELECT incident_id FROM {paging} LIMIT 1");
    let id: String = watched
        .store
        .client()
        .query(&sql)
        .fetch_one()
        .await
        .unwrap();
    let store = watched.store.address();
    let look = || check_succeeds(&mut epwatch(&format!("incident {id} --clickhouse {store}")));
    let says = "certified by CI run 812 with 100 % of the MACs on the NPU of this chipset";
    // The first windows may have sessions without the certificate's evidence, and no clean runs yet.
    until("the certificate of the version", async || {
        look().contains(says)
    })
    .await;
    until("what the fault costs against the certificate", async || {
        look().contains("the launches of its certificate")
    })
    .await;
    watched.stop().await;
}
