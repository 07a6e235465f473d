//! `epwatch gate --aihub`: the official qai-hub client against a stand-in for its service.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use epwatch_runtimes::{packages, tool};
use epwatch_test_support::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::support::{Running, check_ended, check_ends, check_fails, epwatch};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");
const SERVICE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/aihub_service.py");
const REQUIREMENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/qai_hub.txt");
const NEW: &str = "e_mixed.q8head32";
const OLD: &str = "e_mixed.qu8";
/// A model whose tensors are in a separate file.
const OUTSIDE: &str = "forms_outside.fp32";

fn path(model: &str) -> String {
    format!("{MODELS}/{model}.onnx")
}

/// The stand-in, and a folder for the client's files.
struct Farm {
    folder: TempDir,
    packages: PathBuf,
    _service: Running,
}

impl Farm {
    /// Starts a service in which the new model takes `us` microseconds, and the old one 8,000.
    fn new(us: u64, more: &Value) -> Self {
        let (folder, packages) = (
            tempfile::tempdir().unwrap(),
            packages(Path::new(REQUIREMENTS)),
        );
        let sha256 = |model: &str| {
            let hash = Sha256::digest(fs::read(path(model)).unwrap());
            epwatch_proto::hex(&hash)
        };
        let times = [
            (sha256(NEW), us),
            (sha256(OLD), 8_000),
            (sha256(OUTSIDE), us),
        ];
        let times = BTreeMap::from(times);
        let mut scenario = json!({"times_us": times});
        for (key, value) in more.as_object().unwrap() {
            scenario[key] = value.clone();
        }
        let file = folder.path().join("scenario.json");
        fs::write(&file, scenario.to_string()).unwrap();
        let mut service = tool("python3");
        service
            .arg(SERVICE)
            .arg(&file)
            .arg(folder.path().join("log"));
        let (service, port) = Running::start(service.env("PYTHONPATH", &packages));
        let url = format!("http://127.0.0.1:{port}");
        let config = format!(
            "[api]\napi_url = {url}\nweb_url = {url}\napi_token = of-the-test\nverbose = True\n"
        );
        fs::write(folder.path().join("client.ini"), config).unwrap();
        Self {
            folder,
            packages,
            _service: service,
        }
    }

    fn jobs(&self) -> PathBuf {
        self.folder.path().join("jobs")
    }

    /// A gate of the new model against the old one on a Galaxy S24.
    fn gate(&self, words: &str) -> Command {
        self.gate_on("Samsung Galaxy S24", words)
    }

    fn gate_on(&self, device: &str, words: &str) -> Command {
        self.gate_with(NEW, device, words)
    }

    fn gate_of(&self, model: &str, words: &str) -> Command {
        self.gate_with(model, "Samsung Galaxy S24", words)
    }

    fn gate_with(&self, model: &str, device: &str, words: &str) -> Command {
        let mut gate = epwatch(&format!(
            "gate {} --baseline {} --poll 100ms {words}",
            path(model),
            path(OLD)
        ));
        gate.arg("--jobs")
            .arg(self.jobs())
            .args(["--aihub", device]);
        gate.env("PYTHONPATH", &self.packages)
            .env("QAIHUB_CLIENT_INI", self.folder.path().join("client.ini"));
        gate
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn submitted(&self) -> usize {
        self.log()
            .lines()
            .filter(|line| *line == "POST /api/v1/jobs/")
            .count()
    }

    fn state(&self) -> Value {
        serde_json::from_slice(&fs::read(self.jobs().join("jobs.json")).unwrap()).unwrap()
    }
}

impl Drop for Farm {
    fn drop(&mut self) {
        // The real client must not send a request that the stand-in does not know.
        if !std::thread::panicking() {
            let log = self.log();
            assert!(!log.contains("unexpected"), "{log}");
        }
    }
}

fn document(stdout: &str) -> Value {
    serde_json::from_str(stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
}

fn check<'a>(document: &'a Value, id: &str) -> &'a Value {
    let checks = document["targets"][0]["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["id"] == id);
    found.unwrap_or_else(|| panic!("{document:#}"))
}

#[test]
fn jobs_go_from_the_command_to_a_verdict() {
    for (us, code, result) in [(8_200, 0, "pass"), (16_000, 1, "fail")] {
        let farm = Farm::new(us, &json!({}));
        let (stdout, stderr) = check_ends(&mut farm.gate("--json --preset macs-only"), code);
        let found = document(&stdout);
        assert_eq!(
            found["targets"][0]["chipset"], "Samsung Galaxy S24",
            "{found:#}"
        );
        let regression = check(&found, "regression");
        assert_eq!(regression["result"], result, "{found:#}");
        assert_eq!(found["targets"][0]["against"]["origin"], "jobs");
        // Jobs, time and cost are printed before a job starts.
        let said = stderr
            .find("2 compile jobs on your account at AI Hub, then 2 profile jobs.")
            .unwrap();
        assert!(said < stderr.find("compile job j1").unwrap(), "{stderr}");
        // The raw results are kept, and --runs accepts them.
        let files = ["candidate-1-001.pb", "baseline-1-001.pb"].map(|name| farm.jobs().join(name));
        let mut again = epwatch(&format!(
            "gate --runs {} --baseline {}",
            files[0].display(),
            files[1].display()
        ));
        check_ends(&mut again, code);
    }
}

#[test]
fn each_class_of_failure_has_its_sentence_and_exit_code() {
    let of_model = |kind: u32| json!({"failures": {"candidate-1-compile": [kind]}});
    let of_phone = |kinds: &[u32]| json!({"failures": {"candidate-1-001.pb": kinds}});
    for (scenario, code, words) in [
        (
            of_model(3),
            1,
            "the service does not support this model there",
        ),
        (
            of_model(3000),
            1,
            "something is wrong with the model; AI Hub says: reason of JOB_FAILURE_TYPE_MODEL_UNKNOWN",
        ),
        (
            of_model(3050),
            1,
            "the compile job j1 failed (3050): a tool of QNN failed on the model",
        ),
        (of_phone(&[12001]), 1, "the phone ran out of memory"),
        (of_model(13003), 1, "the model cannot be used there"),
        (
            of_model(13001),
            2,
            "an option is wrong; see --compile-options and --profile-options",
        ),
        (of_model(13002), 2, "the model file is corrupt"),
        (of_phone(&[13000]), 2, "the inputs do not fit the model"),
        (
            of_phone(&[13050]),
            2,
            "the model was compiled for another version of QNN",
        ),
        (
            of_phone(&[2]),
            3,
            "a failure that this program does not know",
        ),
        (of_phone(&[1001]), 3, "an error of the service"),
        (of_phone(&[2001]), 3, "the profiler crashed"),
        (of_phone(&[2200]), 3, "a cloud service failed"),
        (
            of_phone(&[12000]),
            3,
            "it took longer than the service allows",
        ),
        (
            of_phone(&[21000, 12102, 21000]),
            3,
            "failed 3 times (21000): a service was not available",
        ),
        (
            json!({"failures": {"baseline-1-compile": [3050]}}),
            3,
            "of the baseline the compile job j2 failed (3050)",
        ),
    ] {
        let farm = Farm::new(8_200, &scenario);
        let (_, stderr) = check_ends(&mut farm.gate(""), code);
        assert!(stderr.contains(words), "{scenario}: {stderr}");
    }
    // A job with a transient failure is repeated.
    let farm = Farm::new(8_200, &of_phone(&[21000, 12102]));
    check_ends(&mut farm.gate("--preset macs-only"), 0);
    assert_eq!(farm.submitted(), 6);
}

#[test]
fn what_the_service_refuses_is_told_with_the_way_out() {
    let at =
        |place: &str, status: u32, body: &str| json!({"status": {place: [status]}, "body": body});
    let models = "POST /api/v1/models/";
    for (scenario, code, words) in [
        (
            at("GET /api/v1/devices/", 401, ""),
            2,
            "AI Hub: Failed to authenticate.",
        ),
        (
            at(models, 413, "The model is too large."),
            2,
            "The model is too large.",
        ),
        (
            at(models, 426, "Please upgrade qai-hub."),
            2,
            "Please upgrade qai-hub.",
        ),
        // The client itself repeats the request.
        (at(models, 429, "slow down"), 0, "profile job"),
        (at("GET /api/v1/devices/", 503, ""), 0, "profile job"),
    ] {
        let farm = Farm::new(8_200, &scenario);
        let (_, stderr) = check_ends(&mut farm.gate("--preset macs-only"), code);
        assert!(stderr.contains(words), "{scenario}: {stderr}");
    }
    let farm = Farm::new(8_200, &json!({}));
    let near = "no device 'Samsung Galaxy S42'; near: Samsung Galaxy S24";
    check_fails(&mut farm.gate_on("Samsung Galaxy S42", ""), 2, near);
    let mut gate = farm.gate("");
    check_fails(
        gate.env_remove("PYTHONPATH").env("PYTHONNOUSERSITE", "1"),
        2,
        "has no qai-hub",
    );
    check_fails(
        &mut farm.gate("--aihub-python /no/such/python"),
        2,
        "give a Python that has qai-hub",
    );
    check_fails(
        farm.gate("").env("QAIHUB_CLIENT_INI", "/no/such.ini"),
        2,
        "no usable configuration",
    );
    check_fails(
        &mut farm.gate("--resume"),
        2,
        "has no jobs; leave it out to begin",
    );
    let model = path(NEW);
    for (words, told) in [
        (format!("gate {model} --aihub phone"), "--jobs"),
        ("gate --aihub phone --jobs /tmp".to_owned(), "give MODEL"),
    ] {
        check_fails(&mut epwatch(&words), 2, told);
    }
    assert_eq!(farm.submitted(), 0);
}

#[test]
fn a_model_goes_with_the_file_of_its_tensors() {
    let farm = Farm::new(8_200, &json!({}));
    let mut gate = farm.gate_of(OUTSIDE, "--preset macs-only");
    let ended = gate.output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    // The stand-in's profile belongs to another model, so the job fails, which does not matter here.
    assert!(
        told.contains("profile job j3 of candidate") || told.contains("inference job"),
        "{told}"
    );
    assert_eq!(farm.submitted(), 4, "{told}");
    let folder = farm.folder.path().join("models");
    fs::create_dir(&folder).unwrap();
    let model = folder.join("m.onnx");
    fs::copy(path(OUTSIDE), &model).unwrap();
    fs::remove_dir_all(farm.jobs()).unwrap();
    let mut gate = epwatch(&format!(
        "gate {} --jobs {}",
        model.display(),
        farm.jobs().display()
    ));
    check_fails(gate.args(["--aihub", "phone"]), 2, "its tensors are in ");
}

/// If the service does not answer for a long time, no job is lost.
#[test]
fn a_service_that_stays_away_ends_with_the_way_to_go_on() {
    // The client repeats requests with pauses, so both cases run in parallel.
    std::thread::scope(|scope| {
        for status in [429, 503] {
            scope.spawn(move || {
                let often = vec![status; 60];
                let scenario =
                    json!({"status": {"POST /api/v1/jobs/": often}, "body": "slow down"});
                let farm = Farm::new(8_200, &scenario);
                check_fails(&mut farm.gate(""), 3, "--resume goes on");
                let job = &farm.state()["jobs"][0];
                assert_eq!((&job["state"], &job["id"]), (&"open".into(), &Value::Null));
            });
        }
    });
}

/// The jobs stay at AI Hub, whatever happens to the command.
#[tokio::test]
async fn jobs_survive_ctrl_c_and_a_kill_between_submission_and_answer() {
    let farm = Farm::new(8_200, &json!({"queued": 12}));
    let mut gate = farm.gate("");
    let gate = gate
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("both compile jobs are known", || {
        let ids = fs::read_to_string(farm.jobs().join("jobs.json"));
        let is_known = ids.is_ok_and(|text| text.contains("\"j1\"") && text.contains("\"j2\""));
        std::future::ready(is_known)
    })
    .await;
    let pid = Pid::from_raw(i32::try_from(gate.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let ended = gate.wait_with_output().unwrap();
    let (_, stderr) = check_ended(&ended, 130);
    let named = "jobs that go on at AI Hub: j1, j2; the same command with --resume waits for them";
    assert!(stderr.contains(named), "{stderr}");
    check_fails(
        &mut farm.gate(""),
        2,
        "has the jobs of an earlier call: give --resume",
    );
    let mut other = farm.gate("--resume --profile-options=--max_profiler_iterations=10");
    check_fails(
        &mut other,
        2,
        "are of another model, device or option: give another --jobs",
    );
    // Changes the state as if the command had been killed before the answer.
    let mut state = farm.state();
    let name = format!(
        "epwatch {} candidate-1-compile try 1",
        state["token"].as_str().unwrap()
    );
    let job = state["jobs"][0].as_object_mut().unwrap();
    assert_eq!(job.remove("id").unwrap(), "j1");
    job.insert("submitting".to_owned(), name.into());
    fs::write(farm.jobs().join("jobs.json"), state.to_string()).unwrap();
    check_ends(&mut farm.gate("--resume --preset macs-only"), 0);
    assert_eq!(farm.state()["jobs"][0]["id"], "j1");
    // Two compile jobs and two profile jobs.
    assert_eq!(farm.submitted(), 4, "{}", farm.log());
}

/// At each of these moments the command ends its script, and names the jobs that continue. No job is made twice.
#[tokio::test]
async fn ctrl_c_at_any_moment_names_the_jobs_that_go_on() {
    for moment in [
        "uploading",
        "compile job j1",
        "compile job j2",
        "inference job j3",
    ] {
        let farm = Farm::new(8_200, &json!({"queued": 3}));
        let mut gate = farm.gate("");
        gate.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut gate = Running(gate.spawn().unwrap());
        let lines = BufReader::new(gate.0.stderr.take().unwrap()).lines();
        let mut lines = lines.map(Result::unwrap);
        assert!(lines.any(|line| line.contains(moment)), "{moment}");
        let pid = Pid::from_child(&gate.0);
        kill_process(pid, Signal::INT).unwrap();
        let rest: Vec<String> = lines.collect();
        assert_eq!(gate.0.wait().unwrap().code(), Some(130), "{rest:?}");
        let own = farm.folder.path().join("client.ini");
        until("the script has ended", || {
            std::future::ready(!runs_with(&own.display().to_string()))
        })
        .await;
        let state = farm.state();
        let jobs = state["jobs"].as_array().unwrap();
        let going_on = jobs.iter().filter(|job| job["state"] == "open");
        let told = rest.concat();
        for id in going_on.filter_map(|job| job["id"].as_str()) {
            assert!(
                told.contains(&format!(" {id}")),
                "{moment}: {id} is not in {rest:?}"
            );
        }
        check_ends(&mut farm.gate("--resume --preset macs-only"), 0);
        assert_eq!(farm.submitted(), 4, "{moment}: {}", farm.log());
    }
}

/// Whether any process has this text in its environment.
fn runs_with(text: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut environments =
        processes.filter_map(|entry| fs::read(entry.path().join("environ")).ok());
    environments.any(|of| String::from_utf8_lossy(&of).contains(text))
}
