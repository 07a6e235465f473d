//! The Kotlin library of `sdk/android` on a desktop JVM. Its sample runs with the real ONNX Runtime of Maven and QNN's
//! emulator, under `-Xcheck:jni`. A collector here takes its HTTP uploads.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
    thread,
};

use epwatch_engines::{Engine, for_tests};
use epwatch_proto::{Report, ReportKey, v1};
use epwatch_runtimes::{build_by_maven, has_telemetry, is_nightly, tool, with_telemetry};
use epwatch_strict_collector::{answer_to, deletion_of};
use prost::Message;
use serde_json::Value;

use crate::{
    c::{App, KEY, crate_file, library_folder, n_runs, newest},
    guide::Guide,
    operator,
};

const RUNS_PER_THREAD: u64 = 125_000;

/// Takes uploads over HTTP/1.1, and keeps each report once.
pub(crate) struct Receiver {
    pub(crate) endpoint: String,
    received: Arc<Mutex<Received>>,
}

#[derive(Default)]
struct Received {
    reports: BTreeMap<ReportKey, Report>,
    /// The answers to the next uploads.
    answers: VecDeque<v1::UploadResponse>,
    /// Whole answers of a stranger to the next requests, in place of the collector's answers.
    strangers: VecDeque<Vec<u8>>,
    deletions: usize,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        Self::answering([])
    }

    fn answering(answers: impl IntoIterator<Item = v1::UploadResponse>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::new(Mutex::new(Received {
            answers: answers.into_iter().collect(),
            ..Received::default()
        }));
        let kept = Arc::clone(&received);
        // The thread ends with the process.
        thread::spawn(move || {
            for connection in listener.incoming() {
                answer(connection.unwrap(), &kept);
            }
        });
        Self { endpoint, received }
    }

    /// Answers the next request as a stranger, for example a captive portal, would.
    pub(crate) fn answer_as_stranger(&self, answer: Vec<u8>) {
        self.received.lock().unwrap().strangers.push_back(answer);
    }

    pub(crate) fn reports(&self) -> Vec<Report> {
        let received = self.received.lock().unwrap();
        received.reports.values().cloned().collect()
    }
}

/// A whole HTTP answer of a stranger.
pub(crate) fn http(status: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\nconnection: close\r\nlocation: http://127.0.0.1:1/\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Answers one request, and closes the connection.
fn answer(connection: TcpStream, kept: &Mutex<Received>) {
    let mut reader = BufReader::new(&connection);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim() {
            "" => break,
            line => head.push(line.to_lowercase()),
        }
    }
    let has = |line: &str| head.iter().any(|of_head| of_head == line);
    let is_deletion = has("post /epwatch.v1.collectorservice/deleteinstallation http/1.1");
    assert!(
        is_deletion || has("post /epwatch.v1.collectorservice/upload http/1.1"),
        "{head:?}"
    );
    assert!(has(&format!("authorization: bearer {KEY}")), "{head:?}");
    assert!(has("content-type: application/proto"), "{head:?}");
    let length = head.iter().find_map(|l| l.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    let stranger = kept.lock().unwrap().strangers.pop_front();
    if let Some(stranger) = stranger {
        // The client may close the connection before the end.
        let _ = (&connection).write_all(&stranger);
        return;
    }
    let answer = match is_deletion {
        true => {
            kept.lock().unwrap().deletions += 1;
            let request = v1::DeleteInstallationRequest::decode(&body[..]).unwrap();
            deletion_of(&request).encode_to_vec()
        }
        false => {
            let request = v1::UploadRequest::decode(&body[..]).unwrap();
            let mut kept = kept.lock().unwrap();
            for bytes in &request.reports {
                let report = Report::parse(bytes).unwrap();
                kept.reports.insert(report.key, report);
            }
            let answer = kept.answers.pop_front().unwrap_or_default();
            answer_to(&request, answer).encode_to_vec()
        }
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/proto\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.len()
    );
    let mut connection = &connection;
    connection.write_all(head.as_bytes()).unwrap();
    connection.write_all(&answer).unwrap();
}

/// Writes the first program of a section of docs/android.md, for Maven to compile.
pub(crate) fn guide(heading: &str, into: &Path) {
    let section = Guide::read("android.md").section(heading);
    fs::create_dir(into.join("guide")).unwrap();
    fs::write(into.join("guide/Guide.kt"), section.block("kotlin")).unwrap();
}

/// Builds library, sample and the guide's program.
pub(crate) fn built(into: &Path) {
    guide("## Three lines", into);
    build_by_maven(&crate_file("../android/pom.xml"), into);
}

/// Returns the jar of an artifact, `group:name`, in this version.
fn jar(artifact: &str, version: &str, into: &Path) -> PathBuf {
    let (_, name) = artifact.split_once(':').unwrap();
    let artifact = format!("-Dartifact={artifact}:{version}");
    let copied = tool("mvn")
        .args([
            "-q",
            "-B",
            "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy",
        ])
        .arg(artifact)
        .arg(format!("-DoutputDirectory={}", into.display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&copied.stdout);
    assert!(copied.status.success(), "{said}");
    into.join(format!("{name}-{version}.jar"))
}

/// The class path of the sample: its classes, this ONNX Runtime, Kotlin's library.
pub(crate) fn class_path(folder: &Path, onnxruntime: &Path) -> Vec<PathBuf> {
    let mut class_path = vec![folder.join("classes"), onnxruntime.to_owned()];
    let jars = fs::read_dir(folder.join("jars")).unwrap();
    class_path.extend(jars.map(|entry| entry.unwrap().path()).filter(|path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("kotlin-stdlib")
    }));
    class_path
}

/// Packs a folder of classes into a jar.
fn packed(classes: &Path, into: &Path) -> PathBuf {
    let jar = into.join("classes.jar");
    let packed = tool("jar")
        .arg("--create")
        .arg("--file")
        .arg(&jar)
        .arg("-C")
        .arg(classes)
        .arg(".")
        .status();
    assert!(packed.unwrap().success());
    jar
}

/// Shrinks and renames the whole sample, ONNX Runtime and Kotlin's library by R8, with the rules that the library brings to
/// its apps. Returns the jar, and R8's mapping of names.
fn shrunk(folder: &Path, class_path: &[PathBuf]) -> (PathBuf, String) {
    let r8 = jar("com.android.tools:r8", "9.5.28", folder);
    let rules = folder.join("app.pro");
    let app = "-keep class sample.SampleKt { public static void main(java.lang.String[]); }\n\
        -dontwarn org.jetbrains.annotations.**\n-dontwarn kotlin.**\n";
    fs::write(&rules, app).unwrap();
    let (out, mapping) = (folder.join("shrunk.jar"), folder.join("mapping.txt"));
    let java_home = tool("java")
        .args(["-XshowSettings:properties", "-version"])
        .output()
        .unwrap();
    let settings = String::from_utf8_lossy(&java_home.stderr).into_owned();
    let home = settings
        .lines()
        .find_map(|line| line.trim().strip_prefix("java.home = "));
    let classes = packed(&class_path[0], folder);
    let ran = tool("java")
        .arg("-cp")
        .arg(r8)
        .args([
            "com.android.tools.r8.R8",
            "--release",
            "--classfile",
            "--lib",
        ])
        .arg(home.unwrap())
        .arg("--output")
        .arg(&out)
        .arg("--pg-map-output")
        .arg(&mapping)
        .arg("--pg-conf")
        .arg(&rules)
        .arg("--pg-conf")
        .arg(crate_file("../android/consumer-rules.pro"))
        .arg(&classes)
        .args(&class_path[1..])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    (out, fs::read_to_string(mapping).unwrap())
}

/// The lines that the sample printed, by their first word.
pub(crate) struct Printed(String);

impl Printed {
    #[track_caller]
    pub(crate) fn line(&self, word: &str) -> &str {
        let mut lines = self.0.lines().filter_map(|line| line.split_once(' '));
        let found = lines.find(|(first, _)| *first == word);
        found.unwrap_or_else(|| panic!("no {word}: {}", self.0)).1
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    #[track_caller]
    pub(crate) fn json(&self, word: &str) -> Value {
        serde_json::from_str(self.line(word)).unwrap()
    }
}

/// Runs the sample in a JVM of its own.
fn sample(class_path: &[PathBuf], model: &Path, more: &[&str]) -> (Printed, Vec<Report>) {
    let receiver = Receiver::start();
    let data = tempfile::tempdir().unwrap();
    let printed = java(class_path, "sample.SampleKt", |command| {
        command
            .args([model, Path::new(&receiver.endpoint), data.path()])
            .arg(RUNS_PER_THREAD.to_string())
            .args(more);
    });
    (printed, receiver.reports())
}

/// Runs a program in a JVM of its own to its end, with every call over JNI checked.
pub(crate) fn java(class_path: &[PathBuf], main: &str, args: impl FnOnce(&mut Command)) -> Printed {
    java_with(&["-Xcheck:jni"], class_path, main, args)
}

fn java_with(
    flags: &[&str],
    class_path: &[PathBuf],
    main: &str,
    args: impl FnOnce(&mut Command),
) -> Printed {
    let mut command = tool("java");
    command
        .args(flags)
        .arg(format!(
            "-Djava.library.path={}",
            library_folder().display()
        ))
        .arg("-cp")
        .arg(std::env::join_paths(class_path).unwrap())
        .arg(main);
    args(&mut command);
    let ran = command.output().unwrap();
    let out = String::from_utf8_lossy(&ran.stdout).into_owned();
    let err = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{out}\n{err}");
    for said in ["WARNING in native", "FATAL ERROR in native", "panicked"] {
        assert!(!out.contains(said) && !err.contains(said), "{out}\n{err}");
    }
    Printed(out)
}

/// Every run arrives once, or is counted as dropped: 1,000,000 runs of 8 threads, 21 inferences, and 2 runs of a batch.
fn check_runs(reports: &[Report]) {
    let last = reports.last().unwrap();
    let dropped: u64 = last.health.dropped.values().map(|d| d.runs).sum();
    assert_eq!(n_runs(reports), last.health.runs_recorded);
    assert_eq!(
        n_runs(reports) + dropped,
        8 * RUNS_PER_THREAD + 23,
        "{dropped}"
    );
    assert_eq!(last.sdk.language, "kotlin");
}

fn check_misuse(printed: &Printed) {
    assert_eq!(printed.line("failed"), "ORT_INVALID_PROTOBUF");
    assert_eq!(printed.line("stopped"), "true");
    assert_eq!(printed.line("closed"), "");
    assert_eq!(printed.line("upload"), "SENT");
    assert_eq!(printed.json("explain")["host_problem"], "");
    let problem = printed.json("twice")["host_problem"].to_string();
    assert!(problem.contains("called twice"), "{problem}");
    assert_eq!(
        printed.json("after")["host_problem"],
        "Epwatch.stop was called"
    );
}

#[test]
fn kotlin_leaves_no_trace_without_consent_and_is_quiet_by_directive() {
    if !is_nightly("the Kotlin library without consent and by directive (Maven)") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    built(folder.path());
    let newest_jar = folder.path().join("jars/onnxruntime-1.29.0.jar");
    let with_newest = class_path(folder.path(), &newest_jar);
    // The first upload has only the session.
    let answers = [v1::UploadResponse::default(), operator::recording_off()];
    let receiver = Receiver::answering(answers);
    let data = folder.path().join("data");
    let cache = folder.path().join("cache");
    let printed = java(&with_newest, "checks.ConsentApp", |command| {
        with_telemetry(command, &cache);
        command
            .args([&receiver.endpoint, KEY])
            .args([
                &data,
                &crate_file("../../tests/fixtures/models/cnn.qu8.onnx"),
            ])
            .arg(operator::public_key());
    });
    assert!(!has_telemetry(&cache));
    assert_eq!(printed.line("without"), "[]");
    assert!(printed.line("given").contains("secret"), "{}", printed.0);
    let explained = printed.json("explain");
    assert!(
        explained["directives"][0]
            .to_string()
            .contains("directive quiet: record nothing"),
        "{explained}"
    );
    // Only the pending deletion is left in the folder, until it is acknowledged.
    assert_eq!(printed.line("withdrawn"), "[lock]");
    operator::check_quiet(&receiver.reports());
    assert_eq!(receiver.received.lock().unwrap().deletions, 1);
}

#[test]
fn kotlin_gets_the_placement_of_c_and_its_runs_arrive() {
    if !is_nightly("the Kotlin library on a JVM (Maven)") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    built(folder.path());
    let fixture = |model: &str| crate_file("../../tests/fixtures/models").join(model);
    let qnn = for_tests(Engine::OnnxRuntimeQnn);
    let (plugin, backend) = (qnn.qnn_provider_library(), qnn.qnn_htp_library());
    let newest_jar = folder.path().join("jars/onnxruntime-1.29.0.jar");
    let with_newest = class_path(folder.path(), &newest_jar);
    let app = App::compiled();
    for soc_model in ["57", "68"] {
        let model = "e_mixed.q8head32.onnx";
        let npu = [
            plugin.to_str().unwrap(),
            backend.to_str().unwrap(),
            soc_model,
        ];
        let (printed, reports) = sample(&with_newest, &fixture(model), &npu);
        let session = printed.json("session");
        let (of_c, _) = app.run(&newest(), model, Some(soc_model));
        for key in [
            "eps",
            "cpu_nodes",
            "fingerprint_normalised",
            "source",
            "requested",
        ] {
            assert_eq!(session[key], of_c[key], "{key} on {soc_model}");
        }
        assert_eq!(session["source"], "assignment_api");
        let bare = printed.json("bare");
        assert_eq!(bare["reasons"][0]["code"], "assignment_not_recorded");
        assert_eq!(printed.json("explain")["ort_version"], "1.29.0");
        check_misuse(&printed);
        check_runs(&reports);
        let failures = reports.iter().flat_map(|r| &r.start_failures);
        // ORT_INVALID_PROTOBUF
        let codes: Vec<_> = failures.map(|f| f.ort_status_code).collect();
        assert_eq!(codes, [7]);
    }
    // Older versions of ONNX Runtime's Java API: 1.24 returns the placement; in earlier ones everything else works.
    for (version, source) in [
        ("1.17.3", "unavailable"),
        ("1.22.0", "unavailable"),
        ("1.24.2", "assignment_api"),
    ] {
        let jar = jar(
            "com.microsoft.onnxruntime:onnxruntime",
            version,
            folder.path(),
        );
        let older = class_path(folder.path(), &jar);
        let (printed, reports) = sample(&older, &fixture("cnn.qu8.onnx"), &[]);
        let session = printed.json("session");
        assert_eq!(session["source"], source, "{version}");
        if source == "unavailable" {
            assert_eq!(session["reasons"][0]["code"], "assignment_api_unavailable");
        }
        assert_eq!(printed.json("explain")["ort_version"], version);
        check_misuse(&printed);
        check_runs(&reports);
    }

    // The shrunk sample has other names, and the same placement.
    let (jar, mapping) = shrunk(folder.path(), &with_newest);
    assert!(
        mapping.contains("dev.epwatch.Native -> dev.epwatch.Native:"),
        "names of natives are kept"
    );
    assert!(
        !mapping.contains("dev.epwatch.Epwatch -> dev.epwatch.Epwatch:"),
        "nothing was renamed"
    );
    let (printed, reports) = sample(&[jar], &fixture("cnn.qu8.onnx"), &[]);
    assert_eq!(printed.json("session")["source"], "assignment_api");
    check_misuse(&printed);
    check_runs(&reports);
}

/// Makes a certificate for 127.0.0.1, and returns its store and its PEM file.
fn private_ca(folder: &Path) -> (PathBuf, PathBuf) {
    let (store, pem) = (folder.join("store.p12"), folder.join("ca.pem"));
    let keytool = |args: &[&str]| {
        let ran = tool("keytool")
            .args(args)
            .args(["-storetype", "PKCS12", "-storepass", "secret", "-keystore"])
            .arg(&store)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success(), "{said}");
    };
    keytool(&[
        "-genkeypair",
        "-keyalg",
        "EC",
        "-dname",
        "CN=collector",
        "-ext",
        "san=ip:127.0.0.1",
    ]);
    let file = pem.to_str().unwrap();
    keytool(&["-exportcert", "-rfc", "-file", file]);
    (store, pem)
}

/// Regression test: `measure {}` mixed all shapes of a model, and a collector with a private CA could not be reached.
#[test]
fn kotlin_tells_shapes_apart_and_has_the_options_of_c() {
    if !is_nightly("the Kotlin library's options (Maven)") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    built(folder.path());
    let newest_jar = folder.path().join("jars/onnxruntime-1.29.0.jar");
    let classes = class_path(folder.path(), &newest_jar);
    let (store, pem) = private_ca(folder.path());
    let model = crate_file("../../tests/fixtures/models/a_cnn_dynbatch.fp32.onnx");
    let receiver = Receiver::start();
    let sent = |data: &str, pem: Option<&Path>| {
        java(&classes, "checks.OptionsApp", |command| {
            command
                .args([&receiver.endpoint, KEY])
                .args([&folder.path().join(data), &model, &store])
                .args(pem);
        })
    };
    let refused = sent("refused", None).json("explain");
    let problem = refused["last_problem"].to_string();
    assert!(problem.contains("SSLHandshakeException"), "{problem}");
    assert!(receiver.reports().is_empty());
    let explained = sent("trusted", Some(&pem)).json("explain");
    assert_eq!(explained["last_problem"], Value::Null, "{explained}");
    let reports = receiver.reports();
    let labels = &reports[0].app.rollout_labels;
    assert_eq!(labels[..], [("ring".to_owned(), "canary".to_owned())]);
    let mut by_shape = BTreeMap::new();
    for series in reports.iter().flat_map(|report| &report.series) {
        let shape = series.stratum.shape_key.split_once(':').unwrap().1;
        *by_shape.entry(shape.to_owned()).or_insert(0) += series.n;
    }
    let n = by_shape.into_iter().collect::<Vec<_>>();
    let expected = [1, 2, 3].map(|batch| (format!("{batch}x3x32x32"), 15));
    assert_eq!(n[..3], expected);
    assert_eq!(n[3..], [("4x3x32x32".to_owned(), 1)]);
}

/// Prints the cost of the calls, without and with an archive of the classes (AppCDS), which is closer to classes that
/// ART has compiled. The last cost is with the archive and the platform's classes loaded, as Android's zygote has them.
#[test]
#[ignore = "a measurement"]
fn costs_beside_nano_time() {
    let folder = tempfile::tempdir().unwrap();
    built(folder.path());
    let newest_jar = folder.path().join("jars/onnxruntime-1.29.0.jar");
    let mut of_jars = class_path(folder.path(), &newest_jar);
    // An archive can hold only classes from jars.
    of_jars[0] = packed(&of_jars[0], folder.path());
    let model = crate_file("../../tests/fixtures/models/mlp.fp32.onnx");
    let archive = folder.path().join("classes.jsa");
    let [made, used] = ["ArchiveClassesAtExit", "SharedArchiveFile"]
        .map(|flag| format!("-XX:{flag}={}", archive.display()));
    let ways = [
        (&[][..], false),
        (&[&*made], false),
        (&[&*used], false),
        (&[&*used], true),
    ];
    for (flags, has_platform) in ways {
        let data = tempfile::tempdir().unwrap();
        let printed = java_with(flags, &of_jars, "checks.CostsApp", |command| {
            command.args([data.path(), &model]);
            command.args(has_platform.then_some("zygote"));
        });
        println!("{flags:?}, platform loaded: {has_platform}\n{}", printed.0);
    }
}
