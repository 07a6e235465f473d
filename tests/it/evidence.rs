//! Evidence of a gate, verified by `epwatch verify` and by third-party tools.

use std::{fs, path::Path, process::Command};

use epwatch_runtimes::{cosign, in_toto_attestation, is_nightly, securesystemslib};
use serde_json::Value;

use crate::support::{EPWATCH, check_ends, check_fails, check_succeeds};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");

/// Returns the command, which runs in this folder.
fn epwatch(dir: &Path, words: &str) -> Command {
    let mut command = Command::new(EPWATCH);
    command.current_dir(dir).env_remove("EPWATCH_CONFIG");
    command.args(words.split_whitespace());
    command
}

/// Makes a folder with a key, two models, a policy, and the evidence of the first model.
fn attested() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    check_succeeds(&mut epwatch(dir, "gate keygen --out ops.pem"));
    for (model, name) in [
        ("e_mixed.qu8", "good.onnx"),
        ("e_mixed.q8head32", "bad.onnx"),
    ] {
        fs::copy(format!("{MODELS}/{model}.onnx"), dir.join(name)).unwrap();
    }
    fs::write(dir.join("gate.toml"), "[placement]\nmin_npu_macs = 0.9").unwrap();
    check_succeeds(&mut epwatch(
        dir,
        "gate good.onnx --soc SM8650,SM8635 --policy gate.toml --attest ops.pem --out out",
    ));
    folder
}

#[test]
fn evidence_is_of_one_model_policy_and_key() {
    let folder = attested();
    let dir = folder.path();
    let verify = |words: &str| epwatch(dir, &format!("verify {words} --key ops.pem.pub"));
    for evidence in ["out/gate.dsse.json", "out/test-result.dsse.json"] {
        let text = check_succeeds(&mut verify(&format!(
            "{evidence} --model good.onnx --policy gate.toml"
        )));
        assert!(text.contains("result     pass"), "{text}");
        let other = verify(&format!("{evidence} --model good.onnx bad.onnx"));
        check_fails(&mut { other }, 1, "bad.onnx is not a model that was judged");
        check_fails(
            &mut verify(&format!("{evidence} --policy good.onnx")),
            1,
            "not the policy",
        );
    }
    check_succeeds(&mut verify("out/gate.dsse.json --max-age 1h"));

    // The command that makes the key and the command that verifies print the same two ids.
    let made = check_succeeds(&mut epwatch(dir, "gate keygen --out release.pem --json"));
    let made: Value = serde_json::from_str(&made).unwrap();
    check_succeeds(&mut epwatch(
        dir,
        "gate good.onnx --soc SM8650 --attest release.pem --out release",
    ));
    let released = "verify release/gate.dsse.json --key release.pem.pub";
    let text = check_succeeds(&mut epwatch(dir, released));
    let [evidence_id, key_id] = ["evidence_id", "key_id"].map(|id| made[id].as_str().unwrap());
    let signed = format!("signed by  {evidence_id} (key id {key_id})");
    assert!(text.contains(&signed), "{text}");
    // A key for evidence cannot sign a directive that switches the NPU off.
    let directive = "directive make --npu-off --app a --model m --chipset SM8650 --for 7d --key release.pem --out off";
    let (_, said) = check_ends(&mut epwatch(dir, directive), 3);
    assert!(said.contains("for evidence alone"), "{said}");
    check_fails(
        &mut verify("out/test-result.dsse.json --max-age 1h"),
        2,
        "--max-age needs evidence with a time",
    );
    let (json, _) = check_ends(&mut verify("out/gate.dsse.json --max-age 0s --json"), 1);
    let found: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&found["result"], found["models"].as_array().unwrap().len()),
        (&"pass".into(), 1)
    );

    // Another key, changed evidence, and a file without evidence are refused.
    check_succeeds(&mut epwatch(dir, "directive keygen --out other.pem"));
    let other = "verify out/gate.dsse.json --key other.pem.pub";
    check_fails(&mut epwatch(dir, other), 1, "not signed with the key");
    let text = fs::read_to_string(dir.join("out/gate.dsse.json")).unwrap();
    fs::write(
        dir.join("changed"),
        text.replacen("payload\":\"ey", "payload\":\"ez", 1),
    )
    .unwrap();
    check_fails(&mut verify("changed"), 1, "was changed");
    for (name, text) in [
        ("none", ""),
        ("json", "{}"),
        ("cut", &text[..text.len() / 2]),
    ] {
        fs::write(dir.join(name), text).unwrap();
        check_fails(&mut verify(name), 2, "is not evidence");
    }
    check_fails(
        &mut epwatch(dir, "verify none --key ops.pem"),
        2,
        "PUBLIC KEY",
    );
    check_fails(
        &mut epwatch(dir, "verify gone --key ops.pem.pub"),
        2,
        "gone",
    );
}

#[test]
fn a_gate_that_failed_is_no_pass_and_leaves_no_old_evidence() {
    let folder = attested();
    let dir = folder.path();
    let bad = "gate bad.onnx --soc SM8635 --out out";
    check_ends(&mut epwatch(dir, &format!("{bad} --attest ops.pem")), 1);
    for evidence in ["out/gate.dsse.json", "out/test-result.dsse.json"] {
        let words = format!("verify {evidence} --key ops.pem.pub --model bad.onnx");
        check_fails(&mut epwatch(dir, &words), 1, "the gate failed");
    }
    check_ends(&mut epwatch(dir, bad), 1);
    assert!(!dir.join("out/gate.dsse.json").exists());
    let timeout = format!("{bad} --attest ops.pem --timeout 1ms");
    check_ends(&mut epwatch(dir, &timeout), 3);
    assert!(!dir.join("out/gate.dsse.json").exists());
    check_fails(
        &mut epwatch(dir, &format!("{bad} --attest bad.onnx")),
        2,
        "--attest",
    );
    check_ends(
        &mut epwatch(dir, "gate good.onnx --soc SM8650 --attest ops.pem"),
        2,
    );
}

/// PyPI's securesystemslib and openssl read the same files.
#[test]
fn tools_of_others_verify_it() {
    const PYTHON: &str = r#"
import json, sys
sys.path.insert(0, sys.argv[1])
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey
from securesystemslib.signer._key import compute_default_keyid
keyval = {"public": sys.argv[2]}
key = SSlibKey(compute_default_keyid("ed25519", "ed25519", keyval), "ed25519", "ed25519", keyval)
envelope = Envelope.from_dict(json.load(open(sys.argv[3])))
envelope.verify([key], 1)
statement = json.loads(envelope.payload)
print(statement["predicateType"], statement["predicate"].get("result"))
open(sys.argv[4], "wb").write(envelope.pae())
open(sys.argv[4] + ".sig", "wb").write(bytes.fromhex(envelope.signatures[key.keyid].signature))
envelope.payload += b" "
try:
    envelope.verify([key], 1)
except VerificationError:
    sys.exit(0)
sys.exit("a changed payload was accepted")
"#;
    let folder = attested();
    let dir = folder.path();
    let public = fs::read_to_string(dir.join("ops.pem.pub")).unwrap();
    assert!(
        public.starts_with("-----BEGIN PUBLIC KEY-----\n"),
        "{public}"
    );
    let made = check_succeeds(&mut epwatch(dir, "gate keygen --out json.pem --json"));
    let made: Value = serde_json::from_str(&made).unwrap();
    check_succeeds(&mut epwatch(
        dir,
        "gate good.onnx --soc SM8650 --attest json.pem --out out",
    ));
    for (evidence, says) in [
        (
            "test-result",
            "https://in-toto.io/attestation/test-result/v0.1 PASSED",
        ),
        ("gate", "https://epwatch.dev/attestation/gate/v1 None"),
    ] {
        let mut python = Command::new("python3");
        python.current_dir(dir).args(["-c", PYTHON]);
        python.arg(securesystemslib());
        python.arg(made["public_key"].as_str().unwrap());
        let said = check_succeeds(python.args([&format!("out/{evidence}.dsse.json"), "pae"]));
        assert_eq!(said.trim(), says);
        let openssl = "pkeyutl -verify -rawin -pubin -inkey json.pem.pub -in pae -sigfile pae.sig";
        let mut command = epwatch_runtimes::tool("openssl");
        check_succeeds(command.current_dir(dir).args(openssl.split_whitespace()));
    }
}

/// Parses and validates a statement by in-toto's own classes.
const IN_TOTO: &str = r#"
import base64, json, sys
sys.path.insert(0, sys.argv[1])
from google.protobuf.json_format import ParseDict
from in_toto_attestation.predicates.test_result.v0.test_result_pb2 import TestResult
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
payload = json.loads(base64.b64decode(json.load(open(sys.argv[2]))["payload"]))
parsed = ParseDict(payload, statement_pb2.Statement())
statement = Statement.copy_from_pb(parsed)
statement.validate()
print(statement.pb.subject[0].name, end=" ")
if statement.pb.predicate_type.endswith("/test-result/v0.1"):
    result = ParseDict(payload["predicate"], TestResult())
    print(result.result, len(result.passed_tests), result.configuration[0].name)
parsed.subject[0].digest.clear()
parsed.subject[0].name = ""
try:
    Statement.copy_from_pb(parsed).validate()
except ValueError:
    sys.exit(0)
sys.exit("a subject without a name was accepted")
"#;

/// PyPI's in-toto-attestation parses and validates the statements, and its test result.
#[test]
fn statements_are_those_of_in_toto() {
    let folder = attested();
    let dir = folder.path();
    for (evidence, says) in [
        ("test-result", "good.onnx PASSED 10 gate.toml"),
        ("gate", "good.onnx"),
    ] {
        let mut python = Command::new("python3");
        python.current_dir(dir).args(["-c", IN_TOTO]);
        python.arg(in_toto_attestation());
        let said = check_succeeds(python.arg(format!("out/{evidence}.dsse.json")));
        assert_eq!(said.trim(), says);
    }
}

/// Go's dsse, which cosign uses.
#[test]
fn go_verifies_it() {
    if !is_nightly("evidence verified by Go's dsse (needs Go)") {
        return;
    }
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/verify_dsse");
    let folder = attested();
    let dir = folder.path();
    let program = dir.join("verify");
    let mut build = Command::new("go");
    build
        .current_dir(source)
        .args(["build", "-mod=readonly", "-o"]);
    check_succeeds(build.arg(&program));
    let verify = |envelope: &str| {
        let mut verify = Command::new(&program);
        verify.current_dir(dir).args(["ops.pem.pub", envelope]);
        verify
    };
    for evidence in ["out/test-result.dsse.json", "out/gate.dsse.json"] {
        let said = check_succeeds(&mut verify(evidence));
        assert!(said.contains("application/vnd.in-toto+json"), "{said}");
    }
    let text = fs::read_to_string(dir.join("out/gate.dsse.json")).unwrap();
    let changed = text.replacen("payload\":\"ey", "payload\":\"ez", 1);
    fs::write(dir.join("changed"), changed).unwrap();
    check_ends(&mut verify("changed"), 1);
}

/// cosign runs with a key and without network. Its data about Sigstore would be in its home, which is empty here.
#[test]
fn cosign_verifies_it() {
    if !is_nightly("evidence verified by cosign (needs cosign, or Go and half an hour once)") {
        return;
    }
    let cosign = cosign();
    let folder = attested();
    let dir = folder.path();
    let verify = |evidence: &str, kind: &str, model: &str| {
        let mut verify = Command::new(&cosign);
        verify.current_dir(dir).env("HOME", dir);
        verify.env("HTTPS_PROXY", "http://127.0.0.1:9");
        verify.args(["verify-blob-attestation", "--key", "ops.pem.pub"]);
        verify.args(["--insecure-ignore-tlog", "--type", kind]);
        verify.args(["--signature", evidence, model]);
        verify
    };
    for (evidence, kind) in [
        (
            "out/test-result.dsse.json",
            "https://in-toto.io/attestation/test-result/v0.1",
        ),
        (
            "out/gate.dsse.json",
            "https://epwatch.dev/attestation/gate/v1",
        ),
    ] {
        let (_, said) = check_ends(&mut verify(evidence, kind, "good.onnx"), 0);
        assert!(said.contains("Verified OK"), "{said}");
        let (_, said) = check_ends(&mut verify(evidence, kind, "bad.onnx"), 1);
        assert!(said.contains("no matching subject digest found"), "{said}");
        let text = fs::read_to_string(dir.join(evidence)).unwrap();
        let changed = text.replacen("payload\":\"ey", "payload\":\"ez", 1);
        fs::write(dir.join("changed"), changed).unwrap();
        let (_, said) = check_ends(&mut verify("changed", kind, "good.onnx"), 1);
        assert!(said.contains("accepted signatures do not match"), "{said}");
    }
}

/// The model's own hash does not cover tensors in another file.
#[test]
fn data_next_to_the_model_is_a_subject() {
    let folder = attested();
    let dir = folder.path();
    let (model, data) = ("forms_outside.fp32.onnx", "forms_outside.fp32.data");
    fs::create_dir(dir.join("models")).unwrap();
    for name in [model, data] {
        fs::copy(format!("{MODELS}/{name}"), dir.join("models").join(name)).unwrap();
    }
    let limits = "preset = \"macs-only\"\n[placement]\nmin_npu_macs = 0";
    fs::write(dir.join("lenient.toml"), limits).unwrap();
    let words = format!(
        "gate models/{model} --soc SM8650 --policy lenient.toml --attest ops.pem --out outside"
    );
    check_succeeds(&mut epwatch(dir, &words));
    let gated: Value =
        serde_json::from_slice(&fs::read(dir.join("outside/gate.json")).unwrap()).unwrap();
    let found = &gated["targets"][0]["model"]["data"];
    assert_eq!(found[0]["path"], format!("models/{data}"), "{found}");
    let words = |evidence: &str, at: &str| {
        format!("verify {evidence} --key ops.pem.pub --model {at}/{model}")
    };
    // A release job has the files in another folder.
    fs::rename(dir.join("models"), dir.join("released")).unwrap();
    let here = dir.join("released").join(data);
    let whole = fs::read(&here).unwrap();
    let mut other = whole.clone();
    other[0] ^= 1;
    for evidence in ["outside/gate.dsse.json", "outside/test-result.dsse.json"] {
        let words = words(evidence, "released");
        fs::write(&here, &whole).unwrap();
        let (text, told) = check_ends(&mut epwatch(dir, &words), 0);
        assert!(text.contains(&format!("models/{data}")), "{text}");
        assert!(!told.contains("does not cover"), "{told}");
        fs::write(&here, &other).unwrap();
        let told = format!("released/{data} is not the data of released/{model}");
        check_fails(&mut epwatch(dir, &words), 1, &told);
        fs::remove_file(&here).unwrap();
        check_fails(
            &mut epwatch(dir, &words),
            2,
            &format!("released/{data}: No such"),
        );
        // A FIFO would wait for ever.
        assert!(
            Command::new("mkfifo")
                .arg(&here)
                .status()
                .unwrap()
                .success()
        );
        check_fails(
            &mut epwatch(dir, &words),
            2,
            &format!("released/{data}: it is a FIFO"),
        );
        let mut python = Command::new("python3");
        python.current_dir(dir).args(["-c", IN_TOTO]);
        let said = check_succeeds(python.arg(in_toto_attestation()).arg(evidence));
        assert!(said.starts_with(&format!("models/{model}")), "{said}");
        fs::remove_file(&here).unwrap();
    }
    // Launches are judged without the data, as all evidence of older versions was. `verify` says so.
    let runs = format!("{:?}", [1_000; 23]);
    fs::write(dir.join("runs.json"), runs).unwrap();
    let gate = format!(
        "gate released/{model} --runs runs.json --median-ms 10 --attest ops.pem --out without"
    );
    check_succeeds(&mut epwatch(dir, &gate));
    fs::write(&here, &whole).unwrap();
    let words = words("without/gate.dsse.json", "released");
    let (_, told) = check_ends(&mut epwatch(dir, &words), 0);
    assert!(told.contains(&format!("does not cover {data}")), "{told}");
}
