//! Compares counts with the counts that `tests/fixtures/make_counts.py` makes from onnx's own shape inference.

use std::{
    collections::BTreeMap,
    io::{self, Cursor, Read, Seek, SeekFrom},
    path::PathBuf,
};

use crate::{InputShape, ManifestDocument, ManifestError, counted, manifest_of};

const OURS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models");

fn counts() -> BTreeMap<String, BTreeMap<String, u64>> {
    let text = std::fs::read_to_string(format!("{OURS}/counts.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn path(model: &str) -> PathBuf {
    let ours = PathBuf::from(format!("{OURS}/{model}"));
    match ours.exists() {
        true => ours,
        false => PathBuf::from(format!("{SHARED}/{model}")),
    }
}

fn shapes_of(model: &str) -> Vec<InputShape> {
    match model {
        "a_cnn_dynbatch.fp32.onnx" => vec!["x=1,3,32,32".parse().unwrap()],
        _ => Vec::new(),
    }
}

fn manifest(model: &str) -> ManifestDocument {
    manifest_of(&path(model), &shapes_of(model)).unwrap()
}

fn read(bytes: &[u8], shapes: &[InputShape]) -> Result<ManifestDocument, ManifestError> {
    counted(Cursor::new(bytes), "0".repeat(64), shapes)
}

#[test]
fn counts_are_those_of_onnx() {
    let counts = counts();
    assert!(counts.len() >= 21, "{}", counts.len());
    for (model, expected) in counts {
        let found = manifest(&model);
        assert_eq!(found.side_car.nodes, expected, "{model}");
        let sum: u64 = expected.values().sum();
        assert_eq!(found.side_car.total_macs, sum, "{model}");
        assert_eq!((found.unnamed_macs, found.uncounted.len()), (0, 0));
    }
}

/// Another program made the first side-cars.
#[test]
fn side_cars_lying_about_are_read_and_agree() {
    for model in [
        "cnn.qu8",
        "mixed_v1.int8",
        "mixed_v2.head32",
        "mlp.fp32",
        "instance_norm.fp32",
    ] {
        let text = std::fs::read_to_string(path(&format!("{model}.macs.json"))).unwrap();
        let mut old: epwatch_proto::SideCar = serde_json::from_str(&text).unwrap();
        assert_eq!(old.algorithm, 1);
        old.algorithm = 2;
        let found = manifest(&format!("{model}.onnx"));
        assert_eq!(found.side_car, old);
        let text = serde_json::to_string(&found).unwrap();
        let again: epwatch_proto::SideCar = serde_json::from_str(&text).unwrap();
        assert_eq!(again, old);
    }
}

#[test]
fn the_document_has_ops_sizes_and_names_of_fused_nodes() {
    let found = manifest("unet.onnx");
    assert_eq!(found.inputs["x"], [1, 3, 24, 24]);
    assert_eq!((found.ops["Conv"], found.ops["ConvTranspose"]), (4, 2));
    assert_eq!(found.aliases["c0"], ["c0", "r0", "r0"]);
    // Two nodes read the result of `c1`, so nothing is fused.
    assert_eq!(found.aliases["c1"], ["c1"]);
    assert_eq!(found.tensor_bytes["c0"], 4 * 4 * 24 * 24);
    assert_eq!(found.tensor_bytes["u1s"], 4 * 4 * 12 * 12);
    let found = manifest("cnn.qu8.onnx");
    let bytes: Vec<u64> = found.tensor_bytes.values().copied().collect();
    assert!(
        bytes.contains(&(3 * 32 * 32)) && bytes.contains(&(4 * 3 * 32 * 32)),
        "{bytes:?}"
    );
}

#[test]
fn a_symbolic_shape_is_an_error_that_names_the_input() {
    let model = path("a_cnn_dynbatch.fp32.onnx");
    let error = |shapes: &[&str]| {
        let shapes: Vec<InputShape> = shapes.iter().map(|shape| shape.parse().unwrap()).collect();
        manifest_of(&model, &shapes).unwrap_err().to_string()
    };
    let text = error(&[]);
    assert!(text.contains("input x has the shape [N,3,32,32]"), "{text}");
    assert!(text.contains("--shape x=1,3,32,32"), "{text}");
    assert!(error(&["y=1"]).contains("its inputs are x"));
    for wrong in ["x=1,3,32", "x=1,4,32,32"] {
        assert!(error(&[wrong]).contains("it has [N,3,32,32]"), "{wrong}");
    }
    let four = manifest_of(&model, &["x=4,3,32,32".parse().unwrap()]).unwrap();
    assert_eq!(
        four.side_car.total_macs,
        4 * manifest("a_cnn_dynbatch.fp32.onnx").side_car.total_macs
    );
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = key_and_len(number, bytes.len() as u64);
    out.extend(bytes);
    out
}

/// A model of one node, `op(a, b) -> y`, without any shape.
fn shapeless(op: &str) -> Vec<u8> {
    let node = [
        field(1, b"a"),
        field(1, b"b"),
        field(2, b"y"),
        field(4, op.as_bytes()),
    ]
    .concat();
    field(7, &field(1, &node))
}

#[test]
fn a_node_that_cannot_be_counted_is_named_with_a_way_out() {
    let not_counted = |op| {
        let found = read(&shapeless(op), &[]).unwrap();
        found.not_counted().unwrap()
    };
    let text = not_counted("MatMul");
    assert!(text.contains("MatMul (unnamed, makes y)"), "{text}");
    assert!(
        text.contains("tensor a") && text.contains("onnx.shape_inference"),
        "{text}"
    );
    for op in ["LinearAttention", "PagedAttention", "STFT"] {
        assert!(not_counted(op).contains("no rule"), "{op}");
    }
    assert!(not_counted("EPContext").contains("precompiled"));
    assert!(not_counted("GroupQueryAttention").contains("num_heads"));
    assert!(not_counted("Einsum").contains("tensor a"));
    let relu = read(&shapeless("Relu"), &[]).unwrap();
    assert_eq!((relu.side_car.total_macs, relu.not_counted()), (0, None));
    let with_function = [shapeless("Relu"), vec![0xca, 1, 0]].concat();
    assert!(
        read(&with_function, &[])
            .unwrap_err()
            .to_string()
            .contains("inline")
    );
}

/// The expected counts were computed by hand from the shapes; each case's README shows how.
#[test]
fn work_beyond_plain_products_is_counted_or_named() {
    let count = |model: &str| {
        let path = format!("{SHARED}/../gate/{model}");
        let found = manifest_of(path.as_ref(), &[]).unwrap();
        let macs = found.side_car.nodes.values().copied();
        let not_counted = found.not_counted();
        (
            macs.max().unwrap_or(0),
            found.side_car.total_macs,
            not_counted,
        )
    };
    // One query, 1,023 cached keys and one new, 8 heads of 16.
    let attention = 2 * 8 * 1_024 * 16;
    let projections = 4 * 128 * 128;
    assert_eq!(
        count("mha_past.onnx"),
        (attention, attention + projections, None)
    );
    // One loop has 400 turns by a constant, and one 100 turns by the shape of the scanned tensor.
    let (body, _, none) = count("enc_loop.onnx");
    assert_eq!((body, none), (400 * 64 * 64, None));
    let (body, total, none) = count("enc_scan.onnx");
    assert_eq!((2 * body, none), (total, None));
    let (_, macs, none) = count("gqa_static.onnx");
    assert!(macs > 0 && none.is_none(), "{macs} {none:?}");
    for model in ["tanh_clip.onnx", "resize_ac.onnx"] {
        assert_eq!(count(model), (0, 0, None), "{model}");
    }
}

#[test]
fn what_is_no_model_is_refused_with_its_place() {
    let text = include_bytes!("../../../README.md");
    for bytes in [
        &[][..],
        &text[..],
        &[0xff; 64],
        b"{}",
        &[8, 9],
        &[0x3a, 0x80, 0x80, 0x80, 0x80, 0x10],
    ] {
        let error = read(bytes, &[]).unwrap_err();
        assert!(matches!(error, ManifestError::NotOnnx { .. }), "{error}");
    }
    let mut nested = Vec::new();
    for _ in 0..1_000 {
        nested = field(1, &field(5, &field(6, &nested)));
    }
    assert!(matches!(
        read(&field(7, &nested), &[]),
        Err(ManifestError::NotOnnx { .. })
    ));
}

/// Two bytes in the file are hundreds in memory, so the graph is bounded there.
#[test]
fn a_graph_larger_than_any_is_refused() {
    let nodes = [0x0a, 0].repeat(1 << 18);
    let dims = field(5, &[[8, 1].repeat(6 << 20), field(8, b"w")].concat());
    for bytes in [nodes, dims] {
        let error = read(&field(7, &bytes), &[]).unwrap_err();
        assert!(matches!(error, ManifestError::TooLarge { .. }), "{error}");
    }
}

/// A simulated model file whose weights are zeros without storage. It refuses to read more than a few kilobytes of
/// them.
struct Huge {
    head: Vec<u8>,
    len: u64,
    at: u64,
    read_of_weights: usize,
}

impl Read for Huge {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let head = usize::try_from(self.at)
            .ok()
            .and_then(|at| self.head.get(at..));
        let n = match head.filter(|head| !head.is_empty()) {
            Some(mut head) => head.read(out)?,
            None => {
                let left = usize::try_from(self.len.saturating_sub(self.at)).unwrap();
                let n = out.len().min(left);
                out[..n].fill(0);
                self.read_of_weights += n;
                assert!(self.read_of_weights < 1 << 17, "weights are read");
                n
            }
        };
        self.at += n as u64;
        Ok(n)
    }
}

impl Seek for Huge {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = match to {
            SeekFrom::Start(at) => at,
            SeekFrom::End(by) => self.len.checked_add_signed(by).unwrap(),
            SeekFrom::Current(by) => self.at.checked_add_signed(by).unwrap(),
        };
        Ok(self.at)
    }
}

fn key_and_len(number: u8, len: u64) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut len = len;
    while len >= 0x80 {
        out.push(len.to_le_bytes()[0] | 0x80);
        len >>= 7;
    }
    out.push(len.to_le_bytes()[0]);
    out
}

/// A MatMul of x [1, 1024] with w [1024, columns], float; `columns` as a varint.
fn huge(columns: &[u8], raw_len: u64) -> Huge {
    let node = [
        field(1, b"x"),
        field(1, b"w"),
        field(2, b"y"),
        field(3, b"m"),
        field(4, b"MatMul"),
    ];
    let node = field(1, &node.concat());
    let dim = |size: &[u8]| field(1, &[&[8], size].concat());
    let shape = field(2, &[dim(&[1]), dim(&[0x80, 8])].concat());
    let tensor_type = field(1, &[vec![8, 1], shape].concat());
    let input = field(11, &[field(1, b"x"), field(2, &tensor_type)].concat());
    let weight = [
        [&[8, 0x80, 8, 8], columns, &[16, 1]].concat(),
        field(8, b"w"),
        key_and_len(9, raw_len),
    ];
    let weight = weight.concat();
    let initializer = key_and_len(5, weight.len() as u64 + raw_len);
    let graph = [node, input, initializer, weight].concat();
    let head = [key_and_len(7, graph.len() as u64 + raw_len), graph].concat();
    let len = head.len() as u64 + raw_len;
    Huge {
        head,
        len,
        at: 0,
        read_of_weights: 0,
    }
}

/// 1.5 GiB of weights are skipped unread. ONNX Runtime does not load a file of 2 GiB or more, so 3 GiB are refused,
/// also unread.
#[test]
fn weights_are_not_read_and_files_over_two_gigabytes_are_refused() {
    let count = |model| counted(model, "0".repeat(64), &[]);
    let found = count(huge(&[0x80, 0x80, 0x18], 3 << 29)).unwrap();
    assert_eq!(found.side_car.nodes["m"], 1_024 * 393_216);
    let refused = count(huge(&[0x80, 0x80, 0x30], 3 << 30));
    assert!(matches!(refused, Err(ManifestError::Over2Gb { .. })));
}

/// Truncated and changed models of each kind give a result or an error.
#[test]
fn damaged_models_never_panic() {
    for model in counts().into_keys() {
        let whole = std::fs::read(path(&model)).unwrap();
        if whole.len() > 32_000 {
            continue;
        }
        let shapes = shapes_of(&model);
        for at in (0..whole.len()).step_by(whole.len().div_ceil(60).max(1)) {
            let _ = read(&whole[..at], &shapes);
            let mut changed = whole.clone();
            for byte in [0, 0x7f, 0x80, 0xff, whole[at] ^ 1, whole[at] ^ 8] {
                changed[at] = byte;
                let _ = read(&changed, &shapes);
            }
        }
    }
}
