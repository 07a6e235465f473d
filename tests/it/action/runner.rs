//! A runner of CI: a repository, and the steps of `action.yml` as GitHub's runner takes them.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use saphyr::{LoadableYamlNode, Yaml};
use tempfile::TempDir;

use crate::support::{EPWATCH, check_succeeds};

pub(super) const CHECKOUT: &str = env!("CARGO_MANIFEST_DIR");
pub(super) const RED: &str = "e_mixed.q8head32.onnx";
pub(super) const GREEN: &str = "e_mixed.qu8.onnx";

pub(super) fn yaml(path: &str) -> String {
    fs::read_to_string(Path::new(CHECKOUT).join(path)).unwrap()
}

pub(super) fn first<'a>(text: &'a str) -> Yaml<'a> {
    Yaml::load_from_str(text).unwrap().remove(0)
}

pub(super) fn texts(of: Option<&Yaml>) -> BTreeMap<String, String> {
    let pairs = of.and_then(|of| of.as_mapping());
    let pairs = pairs.into_iter().flatten();
    let text = |yaml: &Yaml| yaml.as_str().unwrap().to_owned();
    pairs.map(|(key, value)| (text(key), text(value))).collect()
}

/// A runner in the middle of the action.
pub(super) struct Runner {
    pub(super) dir: TempDir,
    pub(super) inputs: BTreeMap<String, String>,
    /// The pull request's number; its base is `main`.
    pub(super) pull: Option<&'static str>,
    /// By `ID.NAME`.
    pub(super) outputs: BTreeMap<String, String>,
    /// Output and exit codes of the steps so far.
    pub(super) log: String,
    pub(super) code: i32,
    /// Inputs of the upload.
    pub(super) uploaded: Option<BTreeMap<String, String>>,
}

impl Runner {
    /// Returns a runner whose repository has this fixture as `scene.onnx`.
    pub(super) fn new(model: &str) -> Self {
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
        // A stand-in for cargo's release build: it accepts only this command, and provides the tested `epwatch`.
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

    /// A stand-in for curl, which fetches the files of a release; `$file` is the target file.
    pub(super) fn release(&self, script: &str) {
        let curl = self.dir.path().join("bin/curl");
        let script = format!(
            "#!/bin/bash\nwhile [ $# -gt 1 ]; do [ \"$1\" != --output ] || file=$2; shift; done\nurl=$1\n{script}\n"
        );
        fs::write(&curl, script).unwrap();
        fs::set_permissions(&curl, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Turns the repository into a clone of one whose `main` has its present content.
    pub(super) fn be_a_pull_request(&mut self) {
        self.pull = Some("7");
        let origin = self.dir.path().join("origin");
        let origin = origin.display();
        self.shell(&format!(
            "git init -q -b main . && git config user.email a@example.com && git config user.name a && git add -A \
             && git commit -q -m base && git clone -q --bare . {origin} && git remote add origin file://{origin} \
             && git switch -q -c change"
        ));
        // A stand-in for GitHub's command: it records its calls, and answers with comments.json.
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

    pub(super) fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).unwrap();
    }

    /// The text of a file, with plain spaces.
    pub(super) fn read(&self, name: &str) -> String {
        let text = fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        text.replace('\u{a0}', " ")
    }

    /// Runs a script in the repository.
    pub(super) fn shell(&self, script: &str) {
        let mut bash = Command::new("bash");
        bash.args(["-ec", script]).current_dir(self.repository());
        check_succeeds(&mut bash);
    }

    pub(super) fn commit(&self, model: &str) {
        let fixture = Path::new(CHECKOUT)
            .join("tests/fixtures/models")
            .join(model);
        fs::copy(fixture, self.repository().join("scene.onnx")).unwrap();
    }

    pub(super) fn repository(&self) -> PathBuf {
        self.dir.path().join("repository")
    }

    pub(super) fn temp(&self) -> PathBuf {
        self.dir.path().join("temp")
    }

    pub(super) fn summary(&self) -> String {
        fs::read_to_string(self.dir.path().join("summary")).unwrap_or_default()
    }

    #[track_caller]
    pub(super) fn check_ends(&self, code: i32, result: &str) {
        let ended = (self.code, self.output("result"));
        assert_eq!(ended, (code, result), "{}", self.log);
    }

    #[track_caller]
    pub(super) fn check_log(&self, part: &str) {
        assert!(self.log.contains(part), "no {part} in {}", self.log);
    }

    #[track_caller]
    pub(super) fn check_summary(&self, part: &str) {
        let summary = self.summary();
        assert!(summary.contains(part), "no {part} in {summary}");
    }

    /// Runs the action with these inputs.
    pub(super) fn run(&mut self, given: &[(&str, &str)]) {
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

    pub(super) fn output(&self, name: &str) -> &str {
        &self.outputs[&format!("action.{name}")]
    }

    pub(super) fn step(&mut self, step: &Yaml) {
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

    /// Checks a third-party action, which must be pinned by its commit.
    pub(super) fn other_action(&mut self, action: &str, with: BTreeMap<String, String>) {
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

    /// Runs a step's own script like `shell: bash`.
    pub(super) fn script(&mut self, step: &Yaml) {
        let run = step["run"].as_str().unwrap();
        // An expression in the script would turn an input's text into code.
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
    pub(super) fn holds(&self, condition: Option<&str>) -> bool {
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

    pub(super) fn expanded(&self, text: &str) -> String {
        let mut parts = text.split("${{ ");
        let mut expanded = parts.next().unwrap().to_owned();
        for part in parts {
            let (expression, rest) = part.split_once(" }}").unwrap();
            expanded.push_str(&self.value(expression));
            expanded.push_str(rest);
        }
        expanded
    }

    pub(super) fn value(&self, expression: &str) -> String {
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
