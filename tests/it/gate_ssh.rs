//! `epwatch gate --ssh`: a real ssh and a real sshd on loopback, with QNN's emulator as the board.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use epwatch_runtimes::tool;
use epwatch_test_support::wait_for;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    gate_local::check_launches,
    support::{Running, check_fails, epwatch},
};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");
const SSHD: &str = "/usr/sbin/sshd";

/// A machine that ssh knows as `board`. Each connection has an sshd of its own, which ends with it.
pub(crate) struct Board {
    folder: TempDir,
    port: u16,
    connections: Arc<Mutex<Vec<TcpStream>>>,
    /// Whether the board refuses connections at present.
    is_away: Arc<AtomicBool>,
}

impl Board {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["host_key", "key", "other_key"] {
            let mut keygen = tool("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
            assert!(
                keygen
                    .arg(folder.path().join(name))
                    .status()
                    .unwrap()
                    .success()
            );
        }
        let at = folder.path().display();
        fs::copy(
            folder.path().join("key.pub"),
            folder.path().join("authorized_keys"),
        )
        .unwrap();
        let config = format!(
            "HostKey {at}/host_key\nAuthorizedKeysFile {at}/authorized_keys\nPidFile none\nStrictModes no\n\
             UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        );
        fs::write(folder.path().join("sshd_config"), config).unwrap();
        fs::create_dir(folder.path().join("work")).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let board = Self {
            port: listener.local_addr().unwrap().port(),
            connections: Arc::default(),
            is_away: Arc::default(),
            folder,
        };
        board.know("host_key");
        board.write_config("key");
        serve(
            listener,
            board.folder.path().join("sshd_config"),
            Arc::clone(&board.connections),
            Arc::clone(&board.is_away),
        );
        board
    }

    /// Makes this key the host key by which ssh knows the board.
    fn know(&self, key: &str) {
        let key = fs::read_to_string(self.folder.path().join(format!("{key}.pub"))).unwrap();
        let line = format!("[127.0.0.1]:{} {key}", self.port);
        fs::write(self.folder.path().join("known_hosts"), line).unwrap();
    }

    /// Writes ssh's configuration, with this key of the user.
    fn write_config(&self, key: &str) {
        let (at, port) = (self.folder.path().display(), self.port);
        let user = Command::new("id").arg("-un").output().unwrap().stdout;
        let user = String::from_utf8(user).unwrap();
        let text = format!(
            "Host board\nHostName 127.0.0.1\nPort {port}\nUser {user}IdentityFile {at}/{key}\nIdentitiesOnly yes\n\
             IdentityAgent none\nUserKnownHostsFile {at}/known_hosts\nGlobalKnownHostsFile none\n\
             StrictHostKeyChecking yes\n"
        );
        fs::write(self.folder.path().join("ssh_config"), text).unwrap();
    }

    /// Returns a gate that measures on the board, with few and short launches.
    fn gate(&self, model: &str, launches: u32, words: &str) -> Command {
        self.gate_file(&format!("{MODELS}/{model}.onnx"), launches, words)
    }

    /// The same for a model by its path.
    fn gate_file(&self, model: &str, launches: u32, words: &str) -> Command {
        let policy = self.folder.path().join("gate.toml");
        let text = format!(
            "[latency]\nlaunches = {launches}\nruns = 21\nwarmup = 1\nmedian_ms = 60000.0\n"
        );
        fs::write(&policy, text).unwrap();
        let (reach, policy) = (self.reach(), policy.display());
        epwatch(&format!(
            "gate {model} {reach} --policy {policy} --json {words}"
        ))
    }

    /// Options of a command that measures on the board.
    pub(crate) fn reach(&self) -> String {
        let at = self.folder.path().display();
        format!("--ssh board --ssh-config {at}/ssh_config --workdir {at}/work")
    }

    /// Returns the document of a gate with one launch on the board.
    pub(crate) fn measured_file(&self, model: &str, words: &str) -> Value {
        found(&mut self.gate_file(model, 1, words))
    }

    fn cut_connections(&self) {
        for connection in self.connections.lock().unwrap().drain(..) {
            // Fails only for a connection that has already ended.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Waits until no runner is left; a runner without a listener ends by itself.
    #[track_caller]
    fn check_no_process(&self) {
        let (began, work) = (Instant::now(), self.folder.path().join("work"));
        while !processes_of(&work).is_empty() {
            assert!(began.elapsed() < Duration::from_secs(300));
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Checks that the board has no file and no process of a session.
    #[track_caller]
    pub(crate) fn check_empty(&self) {
        self.check_no_process();
        let work = self.folder.path().join("work");
        let left: Vec<PathBuf> = fs::read_dir(&work)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Answers each connection by an sshd on its socket.
fn serve(
    listener: TcpListener,
    config: PathBuf,
    connections: Arc<Mutex<Vec<TcpStream>>>,
    is_away: Arc<AtomicBool>,
) {
    if rustix::process::getuid().is_root() {
        // sshd's own folder, which Debian makes at the start of the machine.
        fs::create_dir_all("/run/sshd").unwrap();
    }
    assert!(
        Path::new(SSHD).is_file(),
        "{}",
        epwatch_runtimes::not_installed(SSHD)
    );
    thread::spawn(move || {
        for connection in listener.incoming() {
            let connection = connection.unwrap();
            if is_away.load(Relaxed) {
                continue;
            }
            let socket = || Stdio::from(OwnedFd::from(connection.try_clone().unwrap()));
            let child = Command::new(SSHD)
                .args(["-i", "-e", "-f"])
                .arg(&config)
                .stdin(socket())
                .stdout(socket())
                .stderr(Stdio::null())
                .spawn();
            connections.lock().unwrap().push(connection);
            let mut child = child.unwrap();
            thread::spawn(move || child.wait());
        }
    });
}

/// Command lines of processes that name a folder.
fn processes_of(folder: &Path) -> Vec<String> {
    let folder = folder.display().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    // The gate and the test's other programs also name the folder, so only a session's folder counts.
    let of_board = lines.filter(|line| line.contains(&format!("{folder}/epwatch-")));
    of_board.collect()
}

/// Returns the document of a gate that measured, whatever its result.
fn found(gate: &mut Command) -> Value {
    let ended = gate.output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(matches!(ended.status.code(), Some(0 | 1 | 3)), "{told}");
    serde_json::from_slice(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {told}"))
}

/// Reads lines of a gate's standard error up to one with this text.
fn until(lines: &mut impl Iterator<Item = String>, text: &str) -> String {
    let mut before = Vec::new();
    for line in lines {
        if line.contains(text) {
            return line;
        }
        before.push(line);
    }
    panic!("no line has {text:?}: {before:#?}")
}

fn with_stderr(mut gate: Command) -> (Running, impl Iterator<Item = String>) {
    let started = gate.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut gate = Running(started.unwrap());
    let lines = BufReader::new(gate.0.stderr.take().unwrap()).lines();
    (gate, lines.map(Result::unwrap))
}

/// The model's tensors are in a file next to it.
#[test]
fn a_model_goes_with_the_file_of_its_tensors() {
    let board = Board::new();
    let found = found(&mut board.gate("forms_outside.fp32", 1, ""));
    let target = &found["targets"][0];
    assert_eq!(target["source"], "run", "{found:#}");
    check_launches(&found, 1);
    board.check_empty();
}

#[test]
fn a_connection_that_breaks_loses_no_launch() {
    let board = Board::new();
    let keep = board.folder.path().join("launches");
    let words = format!("--keep {}", keep.display());
    let (mut gate, mut told) = with_stderr(board.gate("mixed_v2.head32", 6, &words));
    // The others are still to be made when the connection is cut.
    until(&mut told, "launch 1 of 6");
    // The file arrives on a different stream from the line.
    wait_for(|| keep.join("candidate-001.json").exists());
    let first = fs::read(keep.join("candidate-001.json")).unwrap();
    board.cut_connections();
    until(&mut told, "the connection broke");
    until(&mut told, "is back; the launches that were made count");
    until(&mut told, "launch 6 of 6");
    let rest: Vec<String> = told.collect();
    let code = gate.0.wait().unwrap().code();
    // The launches keep the limit, or do not decide.
    assert!(matches!(code, Some(0 | 3)), "{code:?}: {rest:?}");
    // A profiler's own file comes back as it was written there.
    let profile = fs::read(keep.join("candidate-ort-profile.json")).unwrap();
    let events: Value = serde_json::from_slice(&profile).unwrap();
    assert!(!events.as_array().unwrap().is_empty());
    // The second session did not repeat the launch. The positions of its nodes in the graph are added at the end.
    let time = |bytes: &[u8]| {
        let document: Value = serde_json::from_slice(bytes).unwrap();
        document["started_unix_ms"].clone()
    };
    let now = fs::read(keep.join("candidate-001.json")).unwrap();
    assert_eq!(time(&now), time(&first));
    board.check_empty();
}

/// Any program ends well. Waiting for a connection that did not break would be for nothing.
#[test]
fn a_program_that_is_no_runner_is_named() {
    let board = Board::new();
    let mut gate = board.gate("d_mlp.fp32", 1, "--runner /bin/true");
    let told = "board: the program of --runner ended without a launch; expected `epwatch` or `epwatch-run`";
    check_fails(&mut gate, 3, told);
    board.check_empty();
}

#[test]
fn ctrl_c_at_any_moment_leaves_nothing_on_the_board() {
    let board = Board::new();
    for moment in ["works in", "launch 1 of", "launch 2 of", "launch 5 of"] {
        let (mut gate, mut told) = with_stderr(board.gate("mixed_v2.head32", 50, ""));
        until(&mut told, moment);
        let pid = rustix::process::Pid::from_child(&gate.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let rest: Vec<String> = told.collect();
        assert_eq!(gate.0.wait().unwrap().code(), Some(130), "{rest:?}");
        board.check_empty();
    }
}

#[test]
fn what_is_left_on_a_board_that_is_away_is_named() {
    let board = Board::new();
    let (mut gate, mut told) = with_stderr(board.gate("mixed_v2.head32", 50, ""));
    let line = until(&mut told, "works in ");
    let folder = line.split_once("works in ").unwrap().1.to_owned();
    until(&mut told, "launch 1 of");
    board.is_away.store(true, Relaxed);
    board.cut_connections();
    until(&mut told, "the connection broke; waiting for it");
    let pid = rustix::process::Pid::from_child(&gate.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    until(&mut told, &format!("left on board: {folder} ("));
    drop(told);
    assert_eq!(gate.0.wait().unwrap().code(), Some(130));
    board.check_no_process();
}

/// A kill leaves a folder, which the gate has named, and no process.
#[test]
fn a_runner_whose_gate_was_killed_ends_by_itself() {
    let board = Board::new();
    let (mut gate, mut told) = with_stderr(board.gate("mixed_v2.head32", 50, ""));
    let line = until(&mut told, "works in ");
    let folder = line.split_once("works in ").unwrap().1.to_owned();
    until(&mut told, "launch 1 of");
    gate.0.kill().unwrap();
    gate.0.wait().unwrap();
    board.check_no_process();
    assert!(Path::new(&folder).is_dir());
}

#[test]
fn ssh_checks_the_boards_key_and_the_users() {
    let board = Board::new();
    board.know("other_key");
    let expected = "Host key verification failed.; connect once with ssh by hand";
    check_fails(&mut board.gate("a_cnn.qu8", 1, ""), 3, expected);
    board.know("host_key");
    board.write_config("other_key");
    let expected = "it asks for no password here";
    check_fails(&mut board.gate("a_cnn.qu8", 1, ""), 3, expected);
    board.check_empty();
}

#[test]
fn what_cannot_be_measured_over_ssh_is_told_before_a_launch() {
    let board = Board::new();
    let model = format!("{MODELS}/a_cnn.qu8.onnx");
    // Writes the policy.
    board.gate("a_cnn.qu8", 1, "");
    let policy = board.folder.path().join("gate.toml");
    let policy = policy.display();
    for (words, expected) in [
        ("--ssh=-oProxyCommand=x", "expected a host as ssh takes it"),
        ("--ssh board --workdir a'b", "expected an absolute path"),
        ("--ssh board --local", "cannot be used with"),
        ("--adb", "--runner"),
    ] {
        let words = format!("gate {model} --policy {policy} {words}");
        check_fails(&mut epwatch(&words), 2, expected);
    }
    let runner = board.folder.path().join("runner");
    fs::write(&runner, "#!/no/such/program\n").unwrap();
    let mut gate = board.gate("a_cnn.qu8", 1, "");
    let expected = "cannot start the runner";
    check_fails(gate.arg("--runner").arg(&runner), 3, expected);
    board.check_empty();
    fs::remove_dir(board.folder.path().join("work")).unwrap();
    check_fails(
        &mut board.gate("a_cnn.qu8", 1, ""),
        3,
        "mkdir: cannot create",
    );
}
