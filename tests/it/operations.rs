//! What `docs/operations.md` and its examples say, held against the command.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use crate::support::EPWATCH;

fn docs(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"))
}

/// Ends its process when a test ends, however it does.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Names in backquotes that begin with a component's name, without labels.
fn metrics_named(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    let metrics =
        quoted.filter(|word| word.starts_with("collector_") || word.starts_with("detector_"));
    let name = |word: &str| word.split('{').next().unwrap_or_default().to_owned();
    metrics.map(name).collect()
}

#[tokio::test]
async fn every_metric_that_operators_are_told_of_is_on_the_page_of_serve() {
    let dir = tempfile::tempdir().unwrap();
    // A channel, for its metrics; nobody is there, and nothing is told.
    let config = dir.path().join("epwatch.toml");
    std::fs::write(
        &config,
        "[[detector.alertmanager]]\nurl = \"http://127.0.0.1:9\"\n",
    )
    .unwrap();
    let child = Command::new(EPWATCH)
        .args(["serve", "--json", "--listen", "127.0.0.1:0", "--config"])
        .arg(&config)
        .arg("--data-dir")
        .arg(dir.path().join("data"))
        .env("EPWATCH_COLLECTOR__HTTP_LISTEN", "127.0.0.1:0")
        .env("EPWATCH_LOG", "warn")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut running = Running(child);
    let stdout = running.0.stdout.take().unwrap();
    let mut said = serde_json::Deserializer::from_reader(stdout).into_iter::<Value>();
    let addresses = said.next().expect("serve says where it listens").unwrap();
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let page = format!("http://{}/metrics", addresses["http"].as_str().unwrap());
    let text = reqwest::get(page).await.unwrap().text().await.unwrap();
    let named = metrics_named(&docs("operations.md"));
    assert!(named.len() > 10, "{named:?}");
    for metric in named {
        let name = metric.trim_end_matches("_total");
        let is_there = text
            .lines()
            .any(|line| line.starts_with(&format!("# TYPE {name} ")));
        assert!(is_there, "{metric} is not on the page:\n{text}");
    }
}

/// The config of the examples with its secrets where a test may put them.
fn example_config(dir: &Path) -> PathBuf {
    let secret = |name: &str, text: &str| {
        std::fs::write(dir.join(name), text).unwrap();
        dir.join(name).display().to_string()
    };
    let mut config = docs("examples/epwatch.toml");
    for (path, text) in [
        ("/run/secrets/clickhouse", "secret"),
        (
            "/run/secrets/tls.pem",
            include_str!("../fixtures/tls/server.pem"),
        ),
        (
            "/run/secrets/tls.key",
            include_str!("../fixtures/tls/server.key"),
        ),
        ("/etc/epwatch/keys.toml", ""),
    ] {
        assert!(config.contains(path), "{path}");
        let name = path.rsplit('/').next().unwrap();
        config = config.replace(path, &secret(name, text));
    }
    // Nobody is there.
    config = config.replace("http://clickhouse:8123", "http://127.0.0.1:9");
    let file = dir.join("epwatch.toml");
    std::fs::write(&file, config).unwrap();
    file
}

/// Every key is one the command knows: it fails for the store, which is not there, not for the config.
#[test]
fn the_example_config_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let config = example_config(dir.path());
    let output = Command::new(EPWATCH)
        .args(["migrate", "--dry-run", "--config"])
        .arg(&config)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(!stderr.contains("epwatch.toml"), "{stderr}");
}

/// The words of a command line in a unit or in compose.yaml, from the subcommand on.
fn command_lines() -> Vec<Vec<String>> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    let mut lines = Vec::new();
    for unit in ["epwatch-collector.service", "epwatch-detector.service"] {
        let text = docs(&format!("examples/{unit}"));
        let starts = text
            .lines()
            .filter_map(|l| l.strip_prefix("ExecStart=/usr/local/bin/epwatch "));
        lines.extend(starts.map(words));
    }
    let compose = docs("examples/compose.yaml");
    let commands = compose
        .lines()
        .filter_map(|l| l.trim().strip_prefix("command: "));
    lines.extend(commands.map(|list| serde_json::from_str(list).unwrap()));
    lines
}

#[test]
fn the_commands_of_the_examples_exist() {
    let lines = command_lines();
    assert_eq!(lines.len(), 4);
    for line in lines {
        let output = Command::new(EPWATCH)
            .args([&line[0], "--help"])
            .output()
            .unwrap();
        let help = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{line:?}");
        for option in line.iter().filter(|word| word.starts_with("--")) {
            assert!(help.contains(option.as_str()), "{option} of {line:?}");
        }
    }
}
