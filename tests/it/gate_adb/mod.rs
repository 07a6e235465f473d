//! `epwatch gate --adb`: Debian's adb with its server, and stand-ins for phones on loopback.

mod phone;

use std::{
    fs,
    io::{BufRead, BufReader},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use epwatch_engines::{Engine, ensure};
use epwatch_proto::ReasonCode;
use epwatch_runtimes::tool;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use self::phone::{Answer, Door, Phone, Script};
use epwatch_test_support::wait_for;

use crate::support::{EPWATCH, Running, check_ended, epwatch};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");
const MODEL: &str = "mixed_v2.head32";

const GREETING: &str = "uname -sm; getprop ro.product.model; getprop ro.soc.model; getprop ro.build.version.release; \
     dumpsys battery; dumpsys power | grep mWakefulness=; dumpsys thermalservice | grep 'Thermal Status'; \
     ls /vendor/lib64/libcdsprpc.so /system/vendor/lib64/libcdsprpc.so 2>/dev/null; true";
const GREETED: &str = "Linux aarch64\nSM-S921B\nSM8650\n14\n  USB powered: true\n  level: 83\n  temperature: 295\n  \
     mWakefulness=Asleep\nThermal Status: 0\n/vendor/lib64/libcdsprpc.so\n";
const MAKES: &str = "umask 077 && mkdir 'DIR' && mkdir -p 'DIR/candidate' 'DIR/launches' 'DIR/lib'";
const RUNS: &str = "cd 'DIR' && chmod 700 epwatch-run && \
     export LD_LIBRARY_PATH='DIR/lib'\"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\" \
     ADSP_LIBRARY_PATH='DIR/lib'\";/vendor/dsp/cdsp;/vendor/lib/rfsa/adsp;/system/lib/rfsa/adsp;/dsp\" && \
     exec ./epwatch-run 'DIR/candidate/mixed_v2.head32.onnx' '--ort' 'DIR/lib/libonnxruntime.so*";
const REMOVES: &str = "n=0; while p=$(grep -l '[e]pwatch-ID' /proc/[0-9]*/cmdline 2>/dev/null); \
     [ -n \"$p\" ] && [ $n -lt 20 ]; do \
     for f in $p; do f=${f#/proc/}; kill ${f%/cmdline} 2>/dev/null; done; sleep 1; n=$((n+1)); done; \
     rm -rf /data/local/tmp/epw''atch-ID";

/// Returns a phone that answers a whole session, and answers the runner's command like this.
fn script(run: Answer) -> Script {
    let says = |text: &str| Answer::Says {
        stdout: text.to_owned(),
        stderr: String::new(),
        code: 0,
    };
    let answers = [
        (GREETING, says(GREETED)),
        (MAKES, Answer::Runs),
        (RUNS, run),
        (REMOVES, Answer::Runs),
        ("true", says("")),
    ];
    Script {
        door: Door::Open,
        answers: answers
            .map(|(asked, answer)| (asked.to_owned(), answer))
            .into(),
        room: usize::MAX,
    }
}

fn ends(stderr: &str, code: u8) -> Answer {
    Answer::Says {
        stdout: String::new(),
        stderr: stderr.to_owned(),
        code,
    }
}

/// An adb server with these phones.
struct Adb {
    port: u16,
    folder: TempDir,
    _server: Running,
}

impl Adb {
    fn with(phones: &[&Phone]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let server = tool("adb")
            .args(["-L", &format!("tcp:localhost:{port}"), "server", "nodaemon"])
            .env("HOME", folder.path())
            // The server must not look for other emulators on this machine.
            .env("ADB_LOCAL_TRANSPORT_MAX_PORT", "5553")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let adb = Self {
            port,
            folder,
            _server: Running(server.unwrap()),
        };
        // Without a running server, a client would start its own.
        wait_for(|| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        for phone in phones {
            let mut connect = tool("adb");
            adb.env(&mut connect);
            // The result is not checked here, because the phone's state shows it.
            connect.args(["connect", &phone.serial]).output().unwrap();
        }
        adb
    }

    fn env(&self, command: &mut Command) {
        command
            .env("ADB_SERVER_SOCKET", format!("tcp:localhost:{}", self.port))
            .env("HOME", self.folder.path());
    }

    /// A gate that measures on phones.
    fn gate(&self, words: &str) -> Command {
        let at = self.folder.path();
        let runner = at.join("runner");
        fs::write(&runner, format!("#!/bin/sh\nexec {EPWATCH} run \"$@\"\n")).unwrap();
        fs::set_permissions(&runner, fs::Permissions::from_mode(0o755)).unwrap();
        let policy = "[latency]\nlaunches = 1\nruns = 21\nwarmup = 1\nmedian_ms = 60000.0\n";
        fs::write(at.join("gate.toml"), policy).unwrap();
        let at = at.display();
        let ort = ensure(Engine::OnnxRuntime).unwrap().ort_library();
        let mut gate = epwatch(&format!(
            "gate {MODELS}/{MODEL}.onnx --runner {at}/runner --policy {at}/gate.toml --json --ort {} {words}",
            ort.display()
        ));
        self.env(&mut gate);
        gate
    }
}

/// Checks that the gate ends with this code; returns standard error.
#[track_caller]
fn told(mut gate: Command, code: i32) -> String {
    check_ended(&gate.output().unwrap(), code).1
}

#[test]
fn phones_are_measured_side_by_side() {
    let phones = [(); 2].map(|()| Phone::new(script(Answer::Runs)));
    let adb = Adb::with(&[&phones[0], &phones[1]]);
    let keep = adb.folder.path().join("launches");
    let words = format!(
        "--keep {} --adb {} {}",
        keep.display(),
        phones[0].serial,
        phones[1].serial
    );
    let ended = adb.gate(&words).output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    let found: Value = serde_json::from_slice(&ended.stdout).unwrap_or_else(|_| panic!("{told}"));
    assert_eq!(found["targets"].as_array().unwrap().len(), 2, "{found:#}");
    for (at, phone) in phones.iter().enumerate() {
        let expected = format!(
            "{}: SM-S921B, chipset SM8650, Android 14, battery 83 %, at 29.5 C, screen Asleep, thermal status 0",
            phone.serial
        );
        assert!(told.contains(&expected), "{told}");
        assert!(told.contains("warning: the screen is off"), "{told}");
        let file = keep.join(format!("phone-{}/candidate-001.json", at + 1));
        let document: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        assert_eq!(document["target"]["phone"], (at + 1).to_string());
        phone.check();
    }
}

#[test]
fn a_cable_that_breaks_loses_no_launch() {
    let phone = Phone::new(script(Answer::Runs));
    let adb = Adb::with(&[&phone]);
    let keep = adb.folder.path().join("launches");
    let mut gate = adb.gate(&format!("--keep {} --adb", keep.display()));
    fs::write(
        adb.folder.path().join("gate.toml"),
        "[latency]\nlaunches = 2\nruns = 21\nwarmup = 1\nmedian_ms = 60000.0\n",
    )
    .unwrap();
    let mut gate = Running(
        gate.stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut lines = BufReader::new(gate.0.stderr.take().unwrap()).lines();
    let mut until = |text: &str| {
        let mut before = Vec::new();
        for line in lines.by_ref().map(Result::unwrap) {
            if line.contains(text) {
                return;
            }
            before.push(line);
        }
        panic!("no line has {text:?}: {before:#?}");
    };
    until("launch 1 of 2");
    phone.cut_connections();
    until("waiting for it");
    // Simulates the user who plugs the cable in again.
    let reconnect = || {
        let mut connect = tool("adb");
        adb.env(&mut connect);
        let said = connect.args(["connect", &phone.serial]).output().unwrap();
        String::from_utf8_lossy(&said.stdout).contains("connected to")
    };
    wait_for(reconnect);
    until("is back; the launches that were made count");
    until("launch 2 of 2");
    // Two launches keep the limit, or do not decide.
    assert!(matches!(gate.0.wait().unwrap().code(), Some(0 | 3)));
    assert!(keep.join("candidate-ort-profile.json").is_file());
    phone.check();
}

#[test]
fn ctrl_c_at_any_moment_leaves_nothing_on_the_phone() {
    for moment in ["works in", "launch 1 of", "launch 3 of"] {
        let phone = Phone::new(script(Answer::Runs));
        let adb = Adb::with(&[&phone]);
        let mut gate = adb.gate("--adb");
        let policy = "[latency]\nlaunches = 50\nruns = 21\nwarmup = 1\nmedian_ms = 60000.0\n";
        fs::write(adb.folder.path().join("gate.toml"), policy).unwrap();
        gate.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut gate = Running(gate.spawn().unwrap());
        let lines = BufReader::new(gate.0.stderr.take().unwrap()).lines();
        let mut lines = lines.map(Result::unwrap);
        assert!(lines.any(|line| line.contains(moment)), "{moment}");
        let pid = rustix::process::Pid::from_child(&gate.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let rest: Vec<String> = lines.collect();
        assert_eq!(gate.0.wait().unwrap().code(), Some(130), "{rest:?}");
        assert!(
            !rest.iter().any(|line| line.contains("left on")),
            "{rest:?}"
        );
        phone.check();
    }
}

#[test]
fn a_phone_that_cannot_be_reached_says_the_way_out() {
    let with_door = |door| {
        let script = script(Answer::Runs);
        Phone::new(Script { door, ..script })
    };
    for (door, expected) in [
        (
            Door::Asks,
            "is unauthorized: unlock the phone, and allow this computer",
        ),
        (Door::Silent, "is offline: take the cable out and in"),
    ] {
        let phone = with_door(door);
        let adb = Adb::with(&[&phone]);
        let said = told(adb.gate("--adb"), 3);
        assert!(said.contains(expected), "{said}");
        phone.check();
    }
    let adb = Adb::with(&[]);
    let said = told(adb.gate("--adb"), 3);
    assert!(
        said.contains("adb has no device: connect a phone"),
        "{said}"
    );
    let phones = [Door::Open, Door::Open].map(with_door);
    let adb = Adb::with(&[&phones[0], &phones[1]]);
    let said = told(adb.gate("--adb"), 2);
    let expected = "adb has several devices: give --adb the serials of";
    assert!(said.contains(expected), "{said}");
    let said = told(adb.gate("--adb other"), 3);
    assert!(said.contains("adb has no device other; it has"), "{said}");
}

#[test]
fn a_session_that_fails_says_why_and_leaves_nothing() {
    let full = Script {
        room: 1_000,
        ..script(Answer::Runs)
    };
    let killed = script(ends("", 137));
    let denied = "/system/bin/sh: ./epwatch-run: can't execute: Permission denied\n";
    let denied = script(ends(denied, 126));
    let no_program = "can't execute: Permission denied; expected a program for it";
    // Only after a killed runner may another try help.
    for (script, expected, tries) in [
        (full, "No space left on device; free space on the phone", 0),
        (killed, "the runner was ended there by signal 9", 3),
        (denied, no_program, 0),
    ] {
        let phone = Phone::new(script);
        let adb = Adb::with(&[&phone]);
        let said = told(adb.gate("--adb"), 3);
        assert!(said.contains(expected), "{said}");
        assert_eq!(said.matches("is back").count(), tries, "{said}");
        phone.check();
    }
}

/// Makes files with the names of QNN's libraries; nothing loads them.
fn libraries(folder: &Path) -> (PathBuf, PathBuf) {
    let names = [
        "libonnxruntime_providers_qnn.so",
        "libQnnHtp.so",
        "libQnnHtpV75Skel.so",
    ];
    let [provider, backend, _] = names.map(|name| {
        let path = folder.join(name);
        fs::write(&path, name).unwrap();
        path
    });
    (provider, backend)
}

#[test]
fn a_rom_without_fastrpc_and_a_missing_skeleton_are_named() {
    // This phone lacks the library through which QNN reaches the DSP.
    let mut without = script(Answer::Runs);
    if let Answer::Says { stdout, .. } = &mut without.answers[0].1 {
        *stdout = stdout.replace("/vendor/lib64/libcdsprpc.so\n", "");
    }
    let model = fs::read(format!("{MODELS}/{MODEL}.onnx")).unwrap();
    let reason = ReasonCode::SkelLibraryMissing;
    let launch = json!({
        "schema": "epwatch.run/1", "runs_us": [], "warmup": 1,
        "model": {"sha256": epwatch_proto::hex(&Sha256::digest(model)), "name": MODEL},
        "target": {"chipset": "SM8650"},
        "runtime": {"ort": "1.31.1", "ep": "QNNExecutionProvider", "options": {}},
        "source": "epwatch-run", "launch": 1, "arm": "candidate", "started_unix_ms": 1,
        "placement": {
            "chipset": "SM8650", "soc_model": "", "session": "failed",
            "error": "QNN SetupBackend failed Failed to create device. Error: QNN_DEVICE_ERROR_INVALID_CONFIG",
            "requested": ["QNNExecutionProvider"], "source": "unavailable", "graph_kind": null, "eps": {},
            "cpu_nodes": [], "npu_partitions": [], "fingerprint": null, "fingerprint_normalised": null,
            "reasons": [{"code": "skel_library_missing", "meaning": reason.meaning(), "fix": reason.fix()}],
        },
    });
    let skeleton = script(Answer::Says {
        stdout: format!("candidate-look.json {launch}\ncandidate-001.json {launch}\nend\n"),
        stderr: "epwatch-run: candidate: no session\n".to_owned(),
        code: 0,
    });
    for (script, code, expected) in [
        (without, 3, "its ROM has no libcdsprpc.so in /vendor/lib64"),
        (skeleton, 1, reason.fix()),
    ] {
        let phone = Phone::new(script);
        let adb = Adb::with(&[&phone]);
        let (provider, backend) = libraries(adb.folder.path());
        let mut gate = adb.gate("--adb");
        gate.arg("--qnn-provider").arg(provider);
        let ended = gate.arg("--qnn-backend").arg(backend).output().unwrap();
        let (stdout, stderr) = check_ended(&ended, code);
        assert!(
            format!("{stdout}{stderr}").contains(expected),
            "{stdout}\n{stderr}"
        );
        phone.check();
    }
}
