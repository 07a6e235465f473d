use half::f16;
use proptest::prelude::*;
use prost::encoding;
use serde_json::Value;

use super::*;
use compare::{distances, hash};
use element::ElementType;

fn fixture_path(name: &str) -> std::path::PathBuf {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("../tests/fixtures/self_test").join(name)
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(fixture_path(name)).unwrap()
}

fn element_type(numpy: &str) -> ElementType {
    match numpy {
        "float16" => ElementType::F16,
        "float32" => ElementType::F32,
        "float64" => ElementType::F64,
        "int8" => ElementType::I8,
        "int16" => ElementType::I16,
        "int32" => ElementType::I32,
        "int64" => ElementType::I64,
        "uint8" => ElementType::U8,
        "uint16" => ElementType::U16,
        "uint32" => ElementType::U32,
        "uint64" => ElementType::U64,
        "bool" => ElementType::Bool,
        other => panic!("{other}"),
    }
}

fn output(case: &Value, side: &str) -> Output {
    let dims = case["dims"].as_array().unwrap();
    Output {
        name: "y".to_owned(),
        element_type: element_type(case["type"].as_str().unwrap()),
        dims: dims.iter().map(|d| d.as_i64().unwrap()).collect(),
        data: epwatch_proto::unhex(case[side].as_str().unwrap()).unwrap(),
    }
}

#[test]
fn distances_are_those_of_numpy() {
    let cases: Vec<Value> = serde_json::from_slice(&fixture("distances.json")).unwrap();
    assert!(cases.len() > 20);
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let (npu, cpu) = (output(case, "npu"), output(case, "cpu"));
        assert_eq!(
            hash(std::slice::from_ref(&npu)) == hash(std::slice::from_ref(&cpu)),
            npu.data == cpu.data,
            "{name}"
        );
        let got = distances(&[npu], &[cpu]);
        if case["error"] == "not_finite" {
            assert_eq!(got, Err(code::NOT_FINITE), "{name}");
            continue;
        }
        let got = got.unwrap();
        let max_abs = case["max_abs"].as_f64().unwrap();
        let cosine = case["cosine"].as_f64().unwrap();
        assert!(
            (got.max_abs - max_abs).abs() <= 1e-15 * max_abs,
            "{name}: {got:?}"
        );
        assert!((got.cosine - cosine).abs() < 1e-12, "{name}: {got:?}");
        assert_eq!(
            got.top1_equal,
            case["top1_equal"].as_bool().unwrap(),
            "{name}"
        );
    }
}

fn single(name: &str, values: &[f32]) -> Output {
    Output {
        name: name.to_owned(),
        element_type: ElementType::F32,
        dims: vec![values.len().try_into().unwrap()],
        data: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

#[test]
fn the_worst_of_several_outputs_is_reported() {
    let npu = [single("a", &[1.0, 2.0]), single("b", &[3.0, 0.0])];
    let cpu = [single("a", &[1.0, 2.0]), single("b", &[0.0, 4.0])];
    let worst = distances(&npu, &cpu).unwrap();
    assert_eq!(
        (worst.max_abs, worst.cosine, worst.top1_equal),
        (4.0, 0.0, false)
    );
}

/// An app that exposes inner layers as outputs learns which layer is off. A model with one output has no layer to name.
#[test]
fn the_first_output_that_is_off_is_named() {
    let cpu = |name| single(name, &[1.0, 2.0]);
    let off = |name| single(name, &[2.0, 1.0]);
    let of = |npu: &[Output], cpu: &[Output]| distances(npu, cpu).unwrap().first_off_output;
    let both = [cpu("conv_1"), cpu("softmax_2"), cpu("out")];
    let npu = [cpu("conv_1"), off("softmax_2"), off("out")];
    assert_eq!(of(&npu, &both), "softmax_2");
    assert_eq!(of(&both, &both), "");
    assert_eq!(of(&[off("out")], &[cpu("out")]), "");
    let rounded = [single("conv_1", &[1.0, 2.01]), cpu("softmax_2"), cpu("out")];
    assert_eq!(of(&rounded, &both), "");
}

#[test]
fn outputs_that_are_not_alike_are_a_code() {
    let one = || vec![single("a", &[1.0, 2.0])];
    let check = |other: Vec<Output>| {
        assert_eq!(distances(&one(), &other), Err(code::OUTPUTS_DIFFER));
    };
    check(vec![]);
    check(vec![single("a", &[1.0, 2.0, 3.0])]);
    check(vec![single("b", &[1.0, 2.0])]);
    check([one(), one()].concat());
    let mut other_type = one();
    other_type[0].element_type = ElementType::I32;
    check(other_type);
    let mut other_dims = one();
    other_dims[0].dims = vec![1, 2];
    check(other_dims);
    assert_eq!(distances(&[], &[]), Err(code::OUTPUTS_DIFFER));
}

#[test]
fn shape_and_type_are_part_of_the_hash() {
    let one = [single("a", &[1.0, 2.0])];
    let mut other = one.clone();
    other[0].dims = vec![2, 1];
    assert_ne!(hash(&one), hash(&other));
    let mut other = one.clone();
    other[0].element_type = ElementType::U32;
    assert_ne!(hash(&one), hash(&other));
}

fn golden(folder: &str) -> GoldenInput {
    GoldenInput::load(fixture_path(folder)).unwrap()
}

/// A file in the form that ONNX's own package writes.
fn tensor_proto(name: &str, tensor: &GoldenTensor) -> Vec<u8> {
    let mut bytes = Vec::new();
    let dims: Vec<i64> = tensor.dims().iter().map(|d| *d as i64).collect();
    encoding::int64::encode_repeated(1, &dims, &mut bytes);
    encoding::int32::encode(2, &onnx_type(tensor.element_type), &mut bytes);
    encoding::string::encode(8, &name.to_owned(), &mut bytes);
    encoding::bytes::encode(9, &tensor.data().to_vec(), &mut bytes);
    bytes
}

fn onnx_type(element_type: ElementType) -> i32 {
    let is_it = |n: &i32| ElementType::from_onnx(*n as u64) == Some(element_type);
    (1..14).find(is_it).unwrap()
}

#[test]
fn tensors_written_by_onnx_are_read_and_written_again_byte_for_byte() {
    let image = golden("image-1");
    assert_eq!((image.id(), image.tolerance()), ("image-1", None));
    let (name, tensor) = image.inputs().next().unwrap();
    assert_eq!((name, tensor.dims()), ("x", &[1, 3, 32, 32][..]));
    assert_eq!(tensor_proto(name, tensor), fixture("image-1/input_0.pb"));

    let every = golden("every_type");
    for (n, (name, tensor)) in every.inputs().enumerate() {
        let file = fixture(&format!("every_type/input_{n}.pb"));
        assert_eq!(tensor_proto(name, tensor), file, "{name}");
    }
    let tensor = |n: usize| every.inputs().nth(n).unwrap().1.clone();
    let halves = [f16::from_f32(0.5), f16::from_f32(-2.0)];
    assert_eq!(tensor(0), GoldenTensor::new(&[1, 2], &halves).unwrap());
    assert_eq!(tensor(1), GoldenTensor::new(&[], &[1.5_f32]).unwrap());
    assert_eq!(tensor(5), GoldenTensor::new(&[2, 1], &[7_i32, -7]).unwrap());
    assert_eq!(tensor(10), GoldenTensor::new(&[1], &[u64::MAX]).unwrap());
    assert_eq!(tensor(11), GoldenTensor::new(&[2], &[true, false]).unwrap());
}

#[test]
fn elements_in_the_field_of_their_type_are_those_of_raw_data() {
    let (packed, raw) = (golden("every_type_packed"), golden("every_type"));
    assert_eq!(packed.inputs().count(), 12);
    assert!(packed.inputs().eq(raw.inputs()));
}

#[test]
fn another_id_tolerance_or_tensor_is_another_test() {
    let with = |id: &str, name: &str, dims: &[u64]| {
        let tensor = GoldenTensor::new(dims, &[0_u8]).unwrap();
        let golden = GoldenInput::new(id).unwrap();
        golden.with_input(name, tensor).unwrap()
    };
    let one = || with("g", "x", &[1]);
    let of = |golden: GoldenInput| golden.checksum();
    assert_eq!(of(one()), of(one()));
    assert_ne!(of(one()), of(with("h", "x", &[1])));
    assert_ne!(of(one()), of(with("g", "y", &[1])));
    assert_ne!(of(one()), of(with("g", "x", &[1, 1])));
    assert_ne!(of(one()), of(one().with_tolerance(0.0).unwrap()));
    let other_type = GoldenTensor::new(&[1], &[0_i8]).unwrap();
    let other = GoldenInput::new("g").unwrap().with_input("x", other_type);
    assert_ne!(of(one()), of(other.unwrap()));
}

#[test]
fn errors_name_the_field_and_the_way_out() {
    #[track_caller]
    fn check(error: GoldenError, expected: &str) {
        let text = error.to_string();
        assert!(text.contains(expected), "{text}");
    }
    let f32s = |dims: &[u64], n: usize| GoldenTensor::new(dims, &vec![0.0_f32; n]).unwrap_err();
    check(f32s(&[2, 3], 5), "24 bytes");
    check(f32s(&[2, 0], 0), "1 or more each");
    check(f32s(&[1; 9], 1), "at most 8");
    check(f32s(&[u64::MAX, u64::MAX], 1), "67108864");
    let two = GoldenTensor::from_le_bytes(ElementType::Bool, &[1], vec![2]);
    check(two.unwrap_err(), "0 or 1");
    check(GoldenInput::new("").unwrap_err(), "1 to 64 bytes");
    check(GoldenInput::new("a\nb").unwrap_err(), "1 to 64 bytes");
    let golden = || GoldenInput::new("g").unwrap();
    check(golden().with_tolerance(f64::NAN).unwrap_err(), "finite");
    check(golden().with_tolerance(-1.0).unwrap_err(), "0 or more");
    let one = || GoldenTensor::new(&[1], &[0_u8]).unwrap();
    let twice = golden()
        .with_input("x", one())
        .unwrap()
        .with_input("x", one());
    check(twice.unwrap_err(), "each once");

    let read = |bytes: &[u8]| golden().with_tensor_proto(bytes).unwrap_err();
    let whole = tensor_proto("x", &one());
    check(read(b""), "data type of numbers");
    check(read(&whole[..whole.len() - 1]), "whole TensorProto");
    check(read(&[&whole[..], b"\x70\x01"].concat()), "external file");
    check(read(&[&whole[..], b"\x6a\x00"].concat()), "external file");
    // One tensor has its elements twice; another has 300 as an element of 8 bits.
    check(read(&[&whole[..], b"\x2a\x01\x00"].concat()), "raw_data");
    let too_large = b"\x08\x01\x10\x02\x42\x01x\x2a\x02\xac\x02";
    check(read(too_large), "integers of 1 bytes");
    let text = b"\x10\x08\x42\x01x\x32\x01a";
    check(read(text), "data type of numbers");

    let dir = tempfile::tempdir().unwrap();
    let missing = GoldenInput::load(dir.path().join("none")).unwrap_err();
    check(missing, "none/input_0.pb");
    std::fs::create_dir(dir.path().join("broken")).unwrap();
    std::fs::write(dir.path().join("broken/input_0.pb"), b"\x42").unwrap();
    let broken = GoldenInput::load(dir.path().join("broken")).unwrap_err();
    let cause = epwatch_proto::error_chain(&broken);
    assert!(cause.contains("whole TensorProto"), "{cause}");
    check(broken, "broken/input_0.pb");
}

/// The process's one ORT environment.
fn session(model: &str) -> OrtSession {
    static ENVIRONMENT: std::sync::OnceLock<ort::environment::Environment> =
        std::sync::OnceLock::new();
    let environment = ENVIRONMENT.get_or_init(|| {
        let runtime = epwatch_engines::for_tests(epwatch_engines::Engine::OnnxRuntime);
        let made = ort::init_from(runtime.ort_library()).unwrap().build();
        made.unwrap()
    });
    let mut builder = OrtSession::builder(environment).unwrap();
    builder.commit_from_memory(&fixture(model)).unwrap()
}

fn compared(npu: &str, golden: &GoldenInput, cpu: &str) -> epwatch_proto::SelfTest {
    let uid = crate::random_session_uid();
    let cpu = || Ok::<_, ort::Error>(session(cpu));
    run::compared(uid, &mut session(npu), golden, cpu)
}

#[test]
fn every_element_type_goes_through_onnx_runtime_and_comes_back() {
    let every = golden("every_type");
    let test = compared("every_type.onnx", &every, "every_type.onnx");
    let same: Vec<Output> = every
        .inputs()
        .map(|(name, tensor)| Output {
            name: format!("same_{name}"),
            element_type: tensor.element_type,
            dims: tensor
                .dims()
                .iter()
                .map(|d| (*d).try_into().unwrap())
                .collect(),
            data: tensor.data().to_vec(),
        })
        .collect();
    assert_eq!(test.error_code, 0);
    assert_eq!(test.npu_output_hash, Some(hash(&same)));
    assert_eq!(test.cpu_output_hash, test.npu_output_hash);
    // A NaN is among the elements.
    assert_eq!((test.max_abs, test.top1_equal), (Some(0.0), Some(true)));
    assert!(test.cosine.unwrap() > 1.0 - 1e-12);
}

#[test]
fn outputs_that_are_no_numbers_or_of_another_model_are_a_code() {
    let two = GoldenTensor::new(&[2], &[1.0_f32, 2.0]).unwrap();
    let two = GoldenInput::new("two").unwrap().with_input("x", two);
    let test = compared("text.onnx", &two.unwrap(), "text.onnx");
    assert_eq!(test.error_code, code::UNSUPPORTED_OUTPUT);
    assert_eq!((test.npu_output_hash, test.cpu_output_hash), (None, None));

    let every = golden("every_type");
    let uid = crate::random_session_uid();
    let image = golden("image-1");
    let v1 = || Ok::<_, ort::Error>(session("../models/mixed_v1.int8.onnx"));
    let v2 = run::compared(
        uid,
        &mut session("../models/mixed_v2.head32.onnx"),
        &image,
        v1,
    );
    assert_eq!(
        v2.error_code, 0,
        "as many outputs of the same name, type and shape"
    );
    let missing = compared("text.onnx", &every, "text.onnx");
    // ORT_INVALID_ARGUMENT
    assert_eq!(missing.error_code, 2);
}

/// The inputs must be the same on every device, or devices could not be compared.
#[test]
fn ready_inputs_fit_any_model_and_run() {
    let ready = |ready| GoldenInput::ready(ready, &session("every_type.onnx")).unwrap();
    let named: Vec<String> = ReadyInput::ALL.map(|of| ready(of).id().to_owned()).into();
    assert_eq!(
        named,
        ["ready-zeros", "ready-ones", "ready-ramp", "ready-noise-1"]
    );
    for of in ReadyInput::ALL {
        let golden = ready(of);
        assert_eq!(golden.inputs().count(), 12);
        let test = compared("every_type.onnx", &golden, "every_type.onnx");
        assert_eq!((test.error_code, test.max_abs), (0, Some(0.0)), "{of:?}");
    }
    assert_eq!(ready(ReadyInput::Noise(7)), ready(ReadyInput::Noise(7)));
    assert_ne!(
        ready(ReadyInput::Noise(7)).checksum(),
        ready(ReadyInput::Noise(8)).checksum()
    );

    let image = GoldenInput::ready(ReadyInput::Ramp, &session("../models/cnn.qu8.onnx")).unwrap();
    let (_, tensor) = image.inputs().next().unwrap();
    let (floats, _) = tensor.data().as_chunks::<4>();
    let floats: Vec<f32> = floats
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect();
    assert!(floats.is_sorted() && floats[0] == -1.0 && floats[floats.len() - 1] < 1.0);
    let text = GoldenInput::ready(ReadyInput::Ones, &session("text.onnx"));
    let runs = text.map(|golden| golden.inputs().count());
    assert_eq!(
        runs.unwrap(),
        1,
        "its input is numbers, only its output is text"
    );
}

/// Checks that bytes are refused, or give a tensor that stays the same when written and read again.
fn check_bytes(bytes: &[u8]) {
    let empty = || GoldenInput::new("g").unwrap();
    let Ok(golden) = empty().with_tensor_proto(bytes) else {
        return;
    };
    let (name, tensor) = golden.inputs().next().unwrap();
    let again = empty().with_tensor_proto(&tensor_proto(name, tensor));
    assert_eq!(again.unwrap(), golden);
    assert!(tensor.data().len() <= bytes.len() * 8);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_harm(
        body in prop::collection::vec(any::<u8>(), 0..600),
        head in 0_usize..40,
    ) {
        check_bytes(&body);
        let whole = fixture("every_type/input_5.pb");
        let head = &whole[..head.min(whole.len())];
        check_bytes(&[head, &body].concat());
    }

    #[test]
    fn any_change_of_a_file_is_refused_or_read_without_harm(
        folder in prop::sample::select(vec!["every_type", "every_type_packed"]),
        n in 0..12,
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut changed = fixture(&format!("{folder}/input_{n}.pb"));
        let at = at.index(changed.len());
        changed[at] = byte;
        check_bytes(&changed);
    }

    /// Distances are in the bounds of the contract, whatever the outputs.
    #[test]
    fn any_outputs_give_distances_that_a_collector_takes_or_a_code(
        pairs in prop::collection::vec((any::<f32>(), any::<f32>()), 1..50),
    ) {
        let (a, b): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        match distances(&[single("y", &a)], &[single("y", &b)]) {
            Ok(found) => {
                prop_assert!(found.max_abs.is_finite() && found.max_abs >= 0.0);
                prop_assert!((-1.0..=1.0).contains(&found.cosine));
            }
            Err(error) => prop_assert_eq!(error, code::NOT_FINITE),
        }
        let equal = distances(&[single("y", &a)], &[single("y", &a)]);
        let equal = equal.unwrap();
        prop_assert_eq!((equal.max_abs, equal.top1_equal), (0.0, true));
        prop_assert!(equal.cosine > 1.0 - 1e-12);
    }
}
