//! Real placements and side-cars, recorded by a Python script from the real runtimes.

use std::{collections::BTreeMap, fs, path::PathBuf};

use epwatch_proto::{
    fingerprint::fingerprint_normalised,
    placement::{CPU_EP, QNN_EP},
    *,
};
use serde_json::Value;

fn read(path: &str) -> Value {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    serde_json::from_slice(&fs::read(root.join(path)).unwrap()).unwrap()
}

struct Recorded(Vec<[String; 3]>);

impl Recorded {
    fn of(file: &str) -> Self {
        let text = |node: &Value, key: &str| node[key].as_str().unwrap().to_owned();
        let document = read(&format!("placements/{file}.json"));
        let nodes = document["nodes"].as_array().unwrap();
        Self(
            nodes
                .iter()
                .map(|n| ["name", "op_type", "ep"].map(|k| text(n, k)))
                .collect(),
        )
    }

    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|[name, _, ep]| (name.as_str(), ep.as_str()))
    }

    fn fingerprint(&self) -> Fingerprint {
        let nodes = self.0.iter();
        fingerprint_normalised(nodes.map(|[n, op, ep]| (n.as_str(), op.as_str(), ep.as_str())))
    }
}

fn manifest(model: &str) -> ModelManifest {
    let side_car: SideCar =
        serde_json::from_value(read(&format!("models/{model}.macs.json"))).unwrap();
    side_car.try_into().unwrap()
}

#[track_caller]
fn check_macs(file: &str, model: &str, cpu_share: f64) {
    let shares = manifest(model).attribute(Recorded::of(file).pairs());
    assert_eq!(shares.attributed, 1.0, "{file}");
    let on_cpu = shares.by_ep.get(CPU_EP).copied().unwrap_or(0.0);
    let on_npu = shares.by_ep.get(QNN_EP).copied().unwrap_or(0.0);
    assert!((on_cpu - cpu_share).abs() < 5e-4, "{file}: {on_cpu}");
    assert!((on_cpu + on_npu - 1.0).abs() < 1e-9, "{file}");
}

#[test]
fn all_macs_of_recorded_placements_are_attributed() {
    check_macs("mixed_v1.SM8635", "mixed_v1.int8", 0.0);
    check_macs("mixed_v1.SM8650", "mixed_v1.int8", 0.0);
    check_macs("mixed_v2.SM8650", "mixed_v2.head32", 0.0);
    check_macs("mixed_v2.SM8635", "mixed_v2.head32", 0.261);
}

#[test]
fn chipsets_that_place_alike_have_one_fingerprint_and_others_another() {
    let of = |chipset: &str| Recorded::of(&format!("mixed_v2.{chipset}")).fingerprint();
    assert_eq!(of("SM8650"), of("SM8550"));
    assert_eq!(of("SM8635"), of("SM7550"));
    assert_ne!(of("SM8650"), of("SM8635"));
}

#[test]
fn side_car_that_lies_is_refused() {
    let side_car = |sha: &str, total| SideCar {
        algorithm: 1,
        model_sha256: sha.to_owned(),
        total_macs: total,
        nodes: BTreeMap::from([("a".to_owned(), 5)]),
    };
    let check = |side_car: SideCar, field: &str| {
        assert_eq!(
            ModelManifest::try_from(side_car).unwrap_err().field(),
            field
        );
    };
    check(side_car("zz", 5), "model_sha256");
    check(side_car(&"0".repeat(64), 4), "total_macs");
    let mut newer = side_car(&"0".repeat(64), 5);
    newer.algorithm = 3;
    check(newer, "algorithm");
}

#[test]
fn macs_of_a_name_are_given_once() {
    let manifest = crate::samples::manifest();
    let nodes = [("conv_token_1", "A"), ("conv", "B"), ("conv/XFusion", "C")];
    let shares = manifest.attribute(nodes);
    assert_eq!(shares.by_node, [0.0, 0.75, 0.0]);
    assert_eq!(shares.attributed, 0.75);
    let shares = manifest.attribute([("conv/XFusion_token_2", "C")]);
    assert_eq!(shares.by_ep, BTreeMap::from([("C".to_owned(), 0.75)]));
}

#[test]
fn placement_answers_what_verdicts_ask() {
    let placement = crate::samples::placement();
    assert!(placement.requests_npu());
    assert_eq!((placement.n_npu_nodes(), placement.n_nodes), (1, 3));
    assert_eq!(placement.npu_macs_share(), Some(0.75));
    assert_eq!(placement.cpu_macs_share(), Some(0.25));
    assert_eq!(placement.cpu_ops(), ["Gemm"]);
    let unknown = Placement::unavailable(vec![], ReasonCode::AssignmentApiUnavailable);
    assert_eq!((unknown.n_npu_nodes(), unknown.n_nodes), (0, 0));
    assert_eq!(unknown.npu_macs_share(), None);
    let wire = v1::Placement::from(&unknown);
    assert_eq!(Placement::try_from(wire), Ok(unknown));
}
