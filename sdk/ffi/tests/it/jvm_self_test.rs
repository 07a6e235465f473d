//! MACs and self-tests of the Kotlin library on a desktop JVM: the same values as in the C example, over JNI.

use std::path::{Path, PathBuf};

use epwatch_engines::{Engine, for_tests};
use epwatch_runtimes::{is_nightly, tool};

use crate::{
    c::{App, KEY, crate_file},
    jvm::{Receiver, built, class_path, java},
};

/// Unpacks ONNX Runtime's library from its jar.
fn library_of(jar: &Path, into: &Path) -> PathBuf {
    const ENTRY: &str = "ai/onnxruntime/native/linux-x64/libonnxruntime.so";
    let unpacked = tool("jar")
        .args(["--extract".as_ref(), "--file".as_ref(), jar.as_os_str()])
        .arg(ENTRY)
        .current_dir(into)
        .status();
    assert!(unpacked.unwrap().success());
    into.join(ENTRY)
}

#[test]
fn kotlin_has_macs_and_a_self_test_as_c_has() {
    if !is_nightly("the Kotlin library's MACs and self-test (Maven)") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    built(folder.path());
    let newest_jar = folder.path().join("jars/onnxruntime-1.29.0.jar");
    let classes = class_path(folder.path(), &newest_jar);
    let qnn = for_tests(Engine::OnnxRuntimeQnn);
    let (model, side_car) = ("mixed_v2.head32.onnx", "mixed_v2.head32.macs.json");
    let fixture = |name: &str| crate_file("../../tests/fixtures/models").join(name);
    let receiver = Receiver::start();
    let printed = java(&classes, "checks.SelfTestApp", |command| {
        command
            .args([&receiver.endpoint, KEY])
            .arg(folder.path().join("data"))
            .args([fixture(model), fixture(side_car)])
            .args([qnn.qnn_provider_library(), qnn.qnn_htp_library()])
            .arg("68");
    });
    // Another version of ONNX Runtime rounds in its own way.
    let library = library_of(&newest_jar, folder.path());
    let (of_c, reports_of_c) = App::compiled().printed(&library, model, Some("68"), Some(side_car));
    let of_c = of_c.lines().find(|line| line.starts_with('{')).unwrap();
    let of_c: serde_json::Value = serde_json::from_str(of_c).unwrap();
    let session = printed.json("session");
    assert_eq!(session["eps"], of_c["eps"]);
    assert!(session["eps"]["CPUExecutionProvider"]["macs_share"].is_f64());

    let reports = receiver.reports();
    let tests: Vec<_> = reports
        .iter()
        .flat_map(|report| &report.self_tests)
        .collect();
    let [first, broken, wrong, closed] = tests[..] else {
        panic!("{tests:?}")
    };
    let mut of_c = reports_of_c[0].self_tests[0].clone();
    of_c.session_uid = first.session_uid;
    assert_eq!(*first, of_c);
    let shown = [
        first.max_abs.unwrap().to_string(),
        first.cosine.unwrap().to_string(),
    ];
    let line = printed.line("first");
    let (max_abs, rest) = line.split_once(' ').unwrap();
    let (cosine, rest) = rest.split_once(' ').unwrap();
    let parsed = [max_abs, cosine].map(|number| number.parse::<f64>().unwrap().to_string());
    assert_eq!(parsed, shown);
    assert_eq!(rest, format!("{} 0", first.top1_equal.unwrap()));
    assert_eq!(printed.line("again"), "none");
    // First the NPU ran, and there was no CPU session. Then Java refused the input, and then the closed session. Java has
    // no error code for these cases, which are no bug of epwatch.
    assert_eq!(printed.line("broken"), "null null null -2");
    assert!(broken.npu_output_hash.is_some() && broken.cpu_output_hash.is_none());
    for failed in [wrong, closed] {
        assert_eq!(failed.error_code, 1, "{failed:?}");
        assert!(failed.npu_output_hash.is_none(), "{failed:?}");
    }
    assert_eq!(printed.line("closed"), "null null null 1");
    assert_eq!(printed.line("refused"), "none");
    let problem = printed.line("problem");
    assert!(problem.contains("id of a golden input"), "{problem}");
}
