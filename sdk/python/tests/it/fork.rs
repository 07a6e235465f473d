//! Children of a process that has started the SDK have a stream and a thread of their own.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
};

use epwatch_proto::Report;
use epwatch_strict_collector::Collector;

use crate::environment::{KEY, command, crate_file, environment, model, n_runs, run};

/// Number of streams that have runs; a server's first process makes no runs.
fn n_streams(reports: &[Report]) -> usize {
    let with_runs = reports.iter().filter(|report| !report.series.is_empty());
    let streams: BTreeSet<_> = with_runs.map(|report| report.key.stream).collect();
    streams.len()
}

#[track_caller]
fn check(how: &str, expected_runs: u64) {
    let how: &std::path::Path = how.as_ref();
    let (printed, reports) = run("fork.py", &[&model("d_mlp.fp32.onnx"), how]);
    assert_eq!(printed, "as expected\n");
    assert_eq!(n_runs(&reports), expected_runs, "{how:?}");
    assert_eq!(n_streams(&reports), 4, "{how:?}");
}

/// The child uses only its session, and calls no other function of epwatch.
#[test]
fn a_fork_of_python_begins_its_own_stream() {
    check("os.fork", 15 + 3 * 27);
}

#[test]
fn processes_of_multiprocessing_begin_their_own_streams() {
    check("fork", 15 + 3 * 27);
    check("spawn", 15 + 3 * 20);
    check("forkserver", 15 + 3 * 20);
}

/// A gunicorn server, which loads the app and then forks.
struct Server {
    child: std::process::Child,
    address: String,
}

impl Server {
    fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // `[INFO] Listening at: http://127.0.0.1:PORT (PID)`, among other lines.
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        let address = loop {
            let line = lines.next().unwrap_or_else(|| panic!("ended: {said}"));
            let line = line.unwrap();
            if let Some((_, rest)) = line.split_once("Listening at: http://") {
                break rest.split(' ').next().unwrap().to_owned();
            }
            said += &line;
        };
        // The test does not need the other lines, but they must not fill the pipe.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self { child, address }
    }

    /// Sends a request, and returns the process that answered.
    fn answer(&self) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let request = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    /// Ends it as systemd does.
    fn stop(mut self) {
        let ended = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status();
        assert!(ended.unwrap().success());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn workers_of_gunicorn_report_what_they_served() {
    let collector = Collector::start(KEY);
    let folder = tempfile::tempdir().unwrap();
    let mut gunicorn = command(&environment().program("python"));
    gunicorn
        .args([
            "-m",
            "gunicorn",
            "--preload",
            "--workers=3",
            "--no-control-socket",
        ])
        .args([
            "--bind=127.0.0.1:0",
            "--graceful-timeout=300",
            "--timeout=300",
        ])
        .args(["server:app"])
        .current_dir(crate_file("tests/programs"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("MODEL", model("d_mlp.fp32.onnx"))
        .env("EPWATCH_APP", "com.example.robot")
        .env("EPWATCH_ENDPOINT", collector.endpoint())
        .env("EPWATCH_KEY", KEY)
        .env("EPWATCH_FOLDER", folder.path().join("data"))
        .env("EPWATCH_CONSENT", "yes");
    let server = Server::start(gunicorn);
    // Repeats until two workers have answered, because the kernel chooses the worker.
    let mut workers = BTreeSet::new();
    let mut n_answers = 0;
    while workers.len() < 2 || n_answers < 20 {
        workers.insert(server.answer());
        n_answers += 1;
    }
    server.stop();
    let reports = collector.reports();
    assert_eq!(n_runs(&reports), n_answers);
    assert_eq!(n_streams(&reports), workers.len());
}
