//! `epwatch gate trend`: results of real sessions over time.

use std::fs;

use serde_json::{Value, json};

use crate::support::{check_ends, check_fails, epwatch, json as document_of};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");

#[test]
fn a_trend_is_in_the_order_of_the_documents() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, model: &str, words: &str, code: i32, made_at: &str| {
        let folder = dir.path().join(name);
        let words = format!(
            "gate {} --soc SM8650,SM8635 {words} --out {}",
            format_args!("{MODELS}/{model}.onnx"),
            folder.display()
        );
        check_ends(&mut epwatch(&words), code);
        let path = folder.join("gate.json");
        let mut found: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        found["made_at"] = made_at.into();
        for target in found["targets"].as_array_mut().unwrap() {
            target["model"]["path"] = "scene.onnx".into();
        }
        fs::write(path, found.to_string()).unwrap();
    };
    write("b", "e_mixed.qu8", "", 0, "2026-10-01T08:00:00Z");
    write("a", "e_mixed.q8head32", "", 1, "2026-11-01T08:00:00Z");
    let folder = dir.path().display().to_string();
    let svg = dir.path().join("trend.svg");
    let (table, _) = check_ends(
        &mut epwatch(&format!("gate trend {folder} --svg {}", svg.display())),
        0,
    );
    let line = "  2026-11-01 08:00  FAIL       72.6 %      1        5       4096  -27.4 points, +5 CPU ops, +4096 bytes";
    assert!(table.contains(line), "{table}");
    let svg = fs::read_to_string(svg).unwrap();
    assert!(
        svg.starts_with("<!-- epwatch gate trend -->\n<svg ")
            && svg.contains("Partitions on the NPU")
            && svg.contains("SM8635: 2026-11-01 08:00 73 %, fail"),
        "{svg}"
    );
    let found = document_of(&mut epwatch(&format!("gate trend {folder}")));
    assert_eq!(found["schema"], "epwatch.trend/1");
    let times: Vec<&str> = found["series"][0]["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| point["made_at"].as_str().unwrap())
        .collect();
    assert_eq!(times, ["2026-10-01T08:00:00Z", "2026-11-01T08:00:00Z"]);

    // Launches next to a session without them are a series of their own.
    let both = dir.path().join("b/gate.json");
    let mut document: Value = serde_json::from_slice(&fs::read(&both).unwrap()).unwrap();
    let mut launched = document["targets"][0].clone();
    launched["runs"] = json!([{"path": "candidate-001.json", "sha256": "ab"}]);
    document["targets"].as_array_mut().unwrap().push(launched);
    fs::write(&both, document.to_string()).unwrap();
    let found = document_of(&mut epwatch(&format!("gate trend {folder}")));
    let series = found["series"].as_array().unwrap().iter();
    let points: Vec<(&str, usize)> = series
        .map(|one| {
            let points = one["points"].as_array().unwrap().len();
            (one["chipset"].as_str().unwrap(), points)
        })
        .collect();
    assert_eq!(
        points,
        [("SM8635", 2), ("SM8650", 2), ("SM8650, launches", 1)]
    );

    // Other JSON is passed over, and a result that cannot be read is named.
    fs::write(dir.path().join("other.json"), "{}").unwrap();
    fs::write(
        dir.path().join("a/gate.json"),
        "{\"schema\": \"epwatch.gate/1\"}",
    )
    .unwrap();
    let (_, said) = check_ends(&mut epwatch(&format!("gate trend {folder}")), 0);
    assert!(
        said.contains("a/gate.json") && !said.contains("other.json"),
        "{said}"
    );
    let empty = tempfile::tempdir().unwrap();
    let words = format!("gate trend {}", empty.path().display());
    check_fails(&mut epwatch(&words), 2, "has no result");
    check_fails(
        &mut epwatch("gate trend /does/not/exist"),
        2,
        "/does/not/exist",
    );
}
