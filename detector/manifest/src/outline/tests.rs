use std::io::Cursor;

use std::path::{Path, PathBuf};

use super::*;
use crate::FreeDim;

const GATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/gate");

fn outline(model: &str) -> ModelOutline {
    ModelOutline::of(&Path::new(GATE).join(format!("{model}.onnx"))).unwrap()
}

/// The text names tensor, file and sizes, while a runtime only says "Failed to read".
#[test]
fn data_that_is_not_what_the_model_says_is_named() {
    for (model, words) in [
        (
            "data_missing",
            "tensor w has its data in nowhere.bin, which is not there",
        ),
        (
            "data_short",
            "short.bin: 1024 bytes from byte 0, and the file has 100",
        ),
        (
            "data_beyond",
            "from byte 4611686018427387904, and the file has 1024",
        ),
        (
            "data_lying_dims",
            "w.bin: 1024 bytes, and its shape [16,32] takes 2048",
        ),
        ("data_lfs", "it is a pointer of Git LFS"),
        (
            "lying_dims",
            "tensor w has 1024 bytes of data, and its shape [16,32] takes 2048",
        ),
    ] {
        let found = outline(&format!("broken/{model}")).missing_data().unwrap();
        assert!(found.contains(words), "{model}: {found}");
    }
    for whole in ["yolo_layernorm.qu8", "block_int4", "mha_past", "enc_loop"] {
        assert_eq!(outline(whole).missing_data(), None, "{whole}");
    }
}

#[test]
fn a_graph_that_was_compiled_before_names_its_chipset() {
    let found = outline("context_sm8650");
    let of_sm8650 = Precompiled {
        chipset: Some(57),
        sdk: Some("2.51.0".to_owned()),
    };
    assert_eq!(found.precompiled(), Some(of_sm8650));
    assert_eq!(found.missing_data(), None);
    assert_eq!(
        outline("context_unnamed").precompiled(),
        Some(Precompiled::default())
    );
    assert_eq!(outline("custom_op").precompiled(), None);
    let text = std::fs::read(format!("{GATE}/context_sm8650.onnx")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let found = ModelOutline::read(Cursor::new(text), elsewhere.path().to_owned()).unwrap();
    let missing = found.missing_data().unwrap();
    assert!(
        missing.contains("context_sm8650_qnn.bin, which is not there"),
        "{missing}"
    );
}

/// Data files are copied to another machine with the model; files outside its folder are not.
#[test]
fn data_files_are_named_by_their_paths_in_the_folder() {
    let files =
        |found: &ModelOutline| Vec::from_iter(found.data_files().into_iter().map(PathBuf::from));
    let of_tensor = files(&outline("broken/data_short"));
    assert_eq!(of_tensor, [Path::new("short.bin")]);
    let of_graph = files(&outline("context_sm8650"));
    assert_eq!(of_graph, [Path::new("context_sm8650_qnn.bin")]);
    let mut found = outline("broken/data_short");
    for location in ["./w.bin", "sub/../w.bin", "sub/./w.bin"] {
        location.clone_into(&mut found.elsewhere[0].location);
        assert_eq!(files(&found), [Path::new(location)], "{location}");
    }
    for location in ["../w.bin", "/etc/passwd", "", ".", "a/..", "a/../../b"] {
        location.clone_into(&mut found.elsewhere[0].location);
        assert!(found.data_files().is_empty(), "{location}");
    }
}

#[test]
fn ops_inputs_and_dimensions_are_read() {
    assert_eq!(outline("custom_op").custom_ops(), ["my.domain:Foo"]);
    assert!(outline("gqa_static").custom_ops().is_empty());
    assert!(outline("enc_loop").op_types().any(|op| op == "MatMul"));
    assert_eq!(
        outline("open_batch")
            .open_dims()
            .into_iter()
            .collect::<Vec<_>>(),
        ["batch"]
    );
    let empty = outline("empty_cache").empty_input();
    assert_eq!(
        empty.as_deref(),
        Some("input past has the shape [1,4,0,16]")
    );
    assert_eq!(outline("open_batch").empty_input(), None);
}

#[test]
fn a_dimension_is_given_by_its_name() {
    let path = Path::new(GATE).join("open_batch.onnx");
    let count = |dim: &str| {
        let dim: FreeDim = dim.parse().unwrap();
        crate::manifest_of(&path, &[(&dim).into()])
    };
    assert_eq!(count("batch=2").unwrap().side_car.total_macs, 2 * 16 * 16);
    let error = count("batsh=2").unwrap_err().to_string();
    assert!(error.contains("its open dimensions are batch"), "{error}");
    let error = crate::manifest_of(&Path::new(GATE).join("sequence_in.onnx"), &[]).unwrap_err();
    assert!(
        error.to_string().contains("input s is a sequence"),
        "{error}"
    );
    let shape = ["s=1,3,224,224".parse().unwrap()];
    let error = crate::manifest_of(&Path::new(GATE).join("sequence_in.onnx"), &shape).unwrap_err();
    let expected =
        "--shape s=1,3,224,224 does not fit the model: it is a sequence, which has no fixed shape";
    assert_eq!(error.to_string(), expected);
    let error = crate::manifest_of(&Path::new(GATE).join("optional_in.onnx"), &[]).unwrap_err();
    assert!(error.to_string().contains("input o is optional"), "{error}");
}

#[test]
fn other_formats_are_named() {
    for (bytes, words) in [
        (&b"\x18\0\0\0ORTM\0\0"[..], "ORT format"),
        (b"\x1c\0\0\0TFL3", "LiteRT"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid",
            "git lfs pull",
        ),
        (b"../../../blobs/aaaa1111", "the text of a link"),
        (b"PK\x03\x04\x14\0\0\0", "a ZIP archive"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "compressed with gzip"),
        (b"\n<!DOCTYPE html>\n<html>", "a page of HTML"),
    ] {
        let error = ModelOutline::read(Cursor::new(bytes), PathBuf::new()).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}
