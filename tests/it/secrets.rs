//! Secrets in the real process: its logs have none at any level, and keys are replaced at a signal while it runs.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use epwatch_proto::v1;
use epwatch_test_support::until;
use hyper::Request;
use prost::Message;

use crate::support::{
    Running, check_ends, check_fails, check_succeeds, epwatch, json, send, server,
};

const APP: &str = "com.example.camera";
const STORE_PASSWORD: &str = "a-password-of-the-store-that-nobody-guesses";

/// A collector that takes reports although its store is unreachable.
struct Collector {
    running: Running,
    address: String,
    dir: tempfile::TempDir,
}

impl Collector {
    fn start(keys: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let password = file("password", STORE_PASSWORD);
        let keys = file("keys.toml", keys);
        let config = format!(
            "[store]\nclickhouse = \"http://127.0.0.1:9\"\nuser = \"epwatch\"\npassword_file = {password:?}\n\
             [collector]\nkeys_file = {keys:?}\n\
             [collector.batch]\ndrain_timeout = \"100ms\"\n"
        );
        let config = file("epwatch.toml", &config);
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let words = format!("collector --config {}", config.display());
        let mut command = server(&words, &dir.path().join("data"));
        let (running, addresses) = Running::start(command.env("EPWATCH_LOG", "trace").stderr(log));
        let address = addresses["collector"].as_str().unwrap().to_owned();
        Self {
            running,
            address,
            dir,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the status of a Connect call with this key.
    async fn post(&self, call: &str, key: &str, message: &impl Message) -> u16 {
        let url = format!("http://{}/epwatch.v1.CollectorService/{call}", self.address);
        let request = Request::post(url)
            .header("content-type", "application/proto")
            .header("authorization", format!("Bearer {key}"))
            .body(message.encode_to_vec().into());
        send(request.unwrap()).await.unwrap().status
    }

    /// Sends an upload over gRPC with this key.
    async fn upload(&self, key: &str) -> Result<(), tonic::Code> {
        let endpoint = format!("http://{}", self.address);
        let mut client = v1::collector_service_client::CollectorServiceClient::connect(endpoint)
            .await
            .unwrap();
        let mut request = tonic::Request::new(an_upload());
        let bearer = format!("Bearer {key}").parse().unwrap();
        request.metadata_mut().insert("authorization", bearer);
        let answer = client.upload(request).await;
        answer.map(drop).map_err(|status| status.code())
    }

    fn signal(&self, name: &str) {
        let pid = self.running.0.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.unwrap().success());
    }
}

/// Returns an upload of one malformed report: the call is accepted, and the report is refused.
fn an_upload() -> v1::UploadRequest {
    v1::UploadRequest {
        reports: vec![vec![0].into()],
        sdk: Some(v1::Sdk {
            name: "test".into(),
            version: "1".into(),
            language: "rust".into(),
        }),
        ..v1::UploadRequest::default()
    }
}

/// Makes a key, and returns it with its entry for a keys file.
fn new_key() -> (String, String) {
    let made = json(&mut epwatch(&format!(
        "collector key --app {APP} --kind app --environment production"
    )));
    let entry = format!("[[keys]]\nsha256 = {}\napp = \"{APP}\"\n", made["sha256"]);
    (made["key"].as_str().unwrap().to_owned(), entry)
}

/// A key for every app must not end up in an app by accident.
#[test]
fn a_key_for_every_app_is_made_only_when_asked_for() {
    let key = |words: &str| epwatch(&format!("collector key {words}"));
    let end = "--environment production";
    for words in ["", "--app com.example.camera --all-apps"] {
        check_fails(&mut key(&format!("{words} --kind own {end}")), 2, "--app");
    }
    // A key that ships in an app is never valid for every app.
    check_fails(&mut key(&format!("--all-apps --kind app {end}")), 2, "own");
    let out = check_succeeds(&mut key(&format!("--all-apps --kind own {end}")));
    assert!(out.contains("app = \"*\"\n"), "{out}");
    assert!(out.contains("kind = \"own\"\n"), "{out}");
    assert!(out.contains("name = \"own *\"\n"), "{out}");
    let app = "--app com.example.camera";
    // A missing choice is explained in the error; the command never prompts for it.
    check_fails(&mut key(&format!("{app} {end}")), 2, "ships in an app");
    check_fails(&mut key(&format!("{app} --kind app")), 2, "--environment");
    let out = check_succeeds(&mut key(&format!("{app} --kind pipeline {end}")));
    assert!(out.contains("kind = \"pipeline\"\n"), "{out}");
    assert!(out.contains("environment = \"production\"\n"), "{out}");
}

/// Replaces a file atomically, like an operator's tools.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_never_logged_and_keys_change_at_a_signal() {
    let ((one, entry_one), (two, entry_two)) = (new_key(), new_key());
    let stranger = new_key().0;
    let malformed = "epw_this-is-not-a-key-but-may-be-a-secret-of-something-else";
    let mut collector = Collector::start(&entry_one);

    assert_eq!(collector.post("Upload", &one, &an_upload()).await, 200);
    assert_eq!(collector.upload(&one).await, Ok(()));
    for refused in [&two, &stranger, malformed] {
        let said = collector.post("Upload", refused, &an_upload()).await;
        assert_eq!(said, 401, "{refused}");
        let said = collector.upload(refused).await;
        assert_eq!(said, Err(tonic::Code::Unauthenticated), "{refused}");
    }
    let secret = b"the-secret-of-one-installation-0".to_vec();
    let deletion = v1::DeleteInstallationRequest {
        secret: secret.clone().into(),
    };
    let said = collector.post("DeleteInstallation", &one, &deletion).await;
    assert_eq!(said, 200);

    // Rotation: both keys are valid, then only the new one.
    replace(
        &collector.path("keys.toml"),
        &format!("{entry_one}{entry_two}"),
    );
    collector.signal("HUP");
    until("the new key is taken", async || {
        collector.upload(&two).await == Ok(())
    })
    .await;
    assert_eq!(collector.upload(&one).await, Ok(()));
    replace(&collector.path("keys.toml"), &entry_two);
    collector.signal("HUP");
    until("the old key is revoked", async || {
        collector.upload(&one).await == Err(tonic::Code::Unauthenticated)
    })
    .await;
    // A file that cannot be used changes nothing.
    replace(&collector.path("keys.toml"), "[[keys]]\nsha256 = 7\n");
    collector.signal("HUP");
    let failed = || std::fs::read_to_string(collector.path("log")).unwrap();
    until("the broken file is told", async || {
        failed().contains("failed to read again")
    })
    .await;
    assert_eq!(collector.upload(&two).await, Ok(()));

    collector.signal("TERM");
    let ended = collector.running.0.wait().unwrap();
    let log = std::fs::read_to_string(collector.path("log")).unwrap();
    assert!(ended.success(), "{ended}: {log}");
    assert!(log.contains("TRACE"), "the log says everything: {log}");
    let secret = String::from_utf8(secret).unwrap();
    for secret in [&one, &two, &stranger, malformed, STORE_PASSWORD, &secret] {
        // For keys, only the part after their prefix is checked.
        let core = secret.strip_prefix("epw_").unwrap_or(secret);
        for (at, line) in log.lines().enumerate() {
            assert!(
                !line.contains(core),
                "line {at} of the log has a secret: {line}"
            );
        }
    }
}

/// Writes a test file with this mode, and returns its path.
fn file_of_mode(dir: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

/// A secret file that all users can read is still used. A warning names each such file, whatever reads it.
#[tokio::test(flavor = "multi_thread")]
async fn others_see_nothing_of_the_data_folder_and_open_secrets_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let secret = |name: &str, text: &str, mode| file_of_mode(dir.path(), name, text, mode);
    let open = [
        secret("slack", "http://127.0.0.1:9/hook", 0o644),
        secret("tokens", "a-token-of-readers", 0o666),
    ];
    let closed = secret("orders", "a-token-of-orders", 0o640);
    let [slack, tokens] = &open;
    let config = format!(
        "[[detector.slack]]\nwebhook_url_file = {slack:?}\n\
         [page]\ntoken_file = {tokens:?}\norders_token_file = {closed:?}\n"
    );
    let config = secret("epwatch.toml", &config, 0o600);
    let log_path = dir.path().join("log");
    let data = dir.path().join("above/data");

    let served = server(&format!("serve --config {}", config.display()), &data);
    let mut command = Command::new("sh");
    command.args(["-c", "umask 0; exec \"$0\" \"$@\""]);
    command.arg(served.get_program()).args(served.get_args());
    for (name, value) in served.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let (mut running, _) = Running::start(command.stderr(fs::File::create(&log_path).unwrap()));
    let pid = running.0.id().to_string();
    let sent = Command::new("kill").args(["-s", "TERM", &pid]).status();
    assert!(sent.unwrap().success());
    let ended = running.0.wait().unwrap();
    let log = fs::read_to_string(&log_path).unwrap();
    assert!(ended.success(), "{log}");

    let is_for_others = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o077 != 0;
    let inside = fs::read_dir(&data)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let inside: Vec<PathBuf> = inside.collect();
    assert!(inside.len() >= 3, "{inside:?}");
    let above = data.parent().unwrap().to_owned();
    for path in inside.iter().chain([&above, &data]) {
        assert!(!is_for_others(path), "{}", path.display());
    }

    let warnings = |path: &Path| {
        let name = path.to_str().unwrap();
        let lines = log.lines();
        lines
            .filter(|line| line.contains("others can use") && line.contains(name))
            .count()
    };
    for path in &open {
        assert_eq!(warnings(path), 1, "{}: {log}", path.display());
    }
    assert_eq!(warnings(&closed), 0);

    let at = |words: &str| {
        let mut command = epwatch(words);
        command.current_dir(dir.path());
        command
    };
    check_succeeds(&mut at("directive keygen --out signing"));
    let make =
        format!("directive make --npu-off --for 7d --app {APP} --model m --key signing --out");
    let told = |out: &str| {
        let (_, stderr) = check_ends(&mut at(&format!("{make} {out}")), 0);
        stderr.contains("others can use")
    };
    assert!(!told("a.directive"));
    fs::set_permissions(
        dir.path().join("signing"),
        fs::Permissions::from_mode(0o644),
    )
    .unwrap();
    assert!(told("b.directive"));
}
