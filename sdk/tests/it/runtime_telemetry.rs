//! ONNX Runtime's own telemetry: sessions in processes whose calls to the network are watched, with the switch and without.
//!
//! A library in front of libc (`runtime_telemetry.c`) notes name look-ups and connections, and refuses them, so that
//! nothing leaves this machine. The first look-up comes some nine seconds after the environment was made; the files in
//! the cache folder are there at once.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use epwatch_engines::{Engine, for_tests};
use epwatch_runtimes::{has_telemetry, with_telemetry};
use epwatch_sdk::{ModelInfo, qnn::Plugin, runtime};
use ort::{AsPointer, session::Session};

use crate::support::{
    self, NOWHERE, TIMEOUT, command, config, emit, emitted_line, fixture, qnn, role,
};

/// The host of the endpoint in the library.
const HOST: &str = "mobile.events.data.microsoft.com";

/// A process with a session, which is killed when this value is dropped. An orderly end of the process would try an
/// upload.
struct Host {
    child: Child,
    folder: PathBuf,
}

impl Host {
    fn start(role: &str, watcher: &Path, folder: &Path) -> Self {
        let folder = folder.join(role.replace(' ', "-"));
        fs::create_dir(&folder).unwrap();
        let mut command = command(no_name_is_looked_up_with_the_switch, role);
        with_telemetry(&mut command, &folder.join("cache"));
        let child = command
            .env("LD_PRELOAD", watcher)
            .env("EPWATCH_TEST_NOTES", folder.join("notes"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child, folder }
    }

    fn notes(&self) -> String {
        fs::read_to_string(self.folder.join("notes")).unwrap_or_default()
    }

    fn has_telemetry(&self) -> bool {
        has_telemetry(&self.folder.join("cache"))
    }

    /// Waits for the process's session; returns the explanation's value about telemetry, and its text.
    fn explained(&mut self) -> [String; 2] {
        let stdout = BufReader::new(self.child.stdout.take().unwrap());
        let lines = stdout.lines().map(Result::unwrap);
        let lines = lines.filter_map(|line| emitted_line(&line).map(str::to_owned));
        let emitted: Vec<_> = lines.take(2).collect();
        emitted.try_into().unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn watcher(folder: &Path) -> PathBuf {
    let library = folder.join("watcher.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/runtime_telemetry.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([library.as_path(), Path::new(source), Path::new("-ldl")])
        .status();
    assert!(built.unwrap().success());
    library
}

/// The child process: makes a session, and keeps it until standard input ends.
fn host(role: &str) {
    if role.contains("switch") {
        // SAFETY: the test harness's other thread waits for this one.
        unsafe { runtime::disable_telemetry() };
    }
    let library = for_tests(Engine::OnnxRuntime).ort_library();
    let environment = runtime::load(library).unwrap().build().unwrap();
    if role.contains("api") {
        let disable = ort::api().DisableTelemetryEvents;
        // SAFETY: the environment is alive.
        let status = unsafe { disable(environment.ptr()) };
        // SAFETY: it is ORT's own status, and ownership passes to `ort`.
        unsafe { ort::Error::result_from_status(status) }.unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let watch = support::start(config(folder.path(), NOWHERE));
    let model = fixture("models/d_mlp.fp32.onnx");
    let session = match role.contains("qnn") {
        true => {
            let provider = qnn::installed().qnn_provider_library();
            let plugin = Plugin::register(&environment, &provider).unwrap();
            let builder = plugin.session_builder(&qnn::htp("57")).unwrap();
            qnn::request(&watch, "m", builder).commit_from_file(model)
        }
        false => {
            let builder = Session::builder(&environment).unwrap();
            let named = ModelInfo::new("m", "1").unwrap();
            watch.session(named, builder).commit_from_file(model)
        }
    };
    let session = session.unwrap();
    let explained = watch.explain();
    emit(serde_json::to_value(explained.runtime_telemetry).unwrap());
    emit(explained.to_string().replace('\n', "|"));
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(session);
}

/// Without the switch the same processes look the name up: if a later ONNX Runtime does not, this test shows it to the
/// pin's author.
#[test]
fn no_name_is_looked_up_with_the_switch() {
    if let Some(role) = role() {
        return host(&role);
    }
    let folder = tempfile::tempdir().unwrap();
    let watcher = watcher(folder.path());
    let start = |role: &str| Host::start(role, &watcher, folder.path());
    let mut loud = ["plain", "plain qnn", "api"].map(start);
    let mut quiet = ["switch", "switch qnn"].map(start);
    let began = Instant::now();
    while !loud.iter().all(|host| host.notes().contains(HOST)) {
        let notes: Vec<_> = loud.iter().map(Host::notes).collect();
        assert!(began.elapsed() < TIMEOUT, "{notes:?}");
        thread::sleep(Duration::from_millis(50));
    }
    for host in &mut quiet {
        let [state, text] = host.explained();
        assert_eq!(host.notes(), "", "{}", host.folder.display());
        assert!(!host.has_telemetry(), "{}", host.folder.display());
        assert_eq!(state, "\"switched_off\"", "{text}");
    }
    for host in &mut loud {
        let [state, text] = host.explained();
        assert_eq!(state, "\"not_switched_off\"", "{text}");
        assert!(text.contains("ORT_DISABLE_TELEMETRY=1"), "{text}");
        assert!(host.has_telemetry(), "{}", host.folder.display());
    }
}
