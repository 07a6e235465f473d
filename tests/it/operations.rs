//! `docs/operations.md` and its examples agree with the command.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::support::{
    Running, check_ends, check_fails, check_succeeds, epwatch, get, json, server, tls, until,
};

fn docs(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"))
}

/// Prefixes of this product's metrics.
const PREFIXES: [&str; 6] = [
    "epwatch_build_",
    "epwatch_collector_",
    "epwatch_detector_",
    "epwatch_log_",
    "epwatch_store_last_",
    "process_",
];

fn is_ours(word: &str) -> bool {
    PREFIXES.iter().any(|prefix| word.starts_with(prefix))
}

/// Returns the metrics in backquotes, without labels.
fn metrics_named(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    let metrics = quoted.filter(|word| is_ours(word));
    let name = |word: &str| word.split('{').next().unwrap_or_default().to_owned();
    metrics.map(name).collect()
}

/// Returns the metric families of a page, without the suffix of counters.
fn families(page: &str) -> BTreeSet<String> {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .filter_map(|line| line.split(' ').next().map(family))
        .collect()
}

fn family(metric: &str) -> String {
    metric.strip_suffix("_total").unwrap_or(metric).to_owned()
}

/// One rule of alerts.yml.
#[derive(Debug, Default)]
struct Rule {
    name: String,
    expr: String,
    severity: String,
    summary: String,
    runbook: String,
    runbook_url: String,
    waits: String,
}

/// Parses rules with one key a line; panics at any key that the rules do not use.
fn rules(text: &str) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = line.split_once(':').unwrap_or_else(|| panic!("{line}"));
        let value = value.trim().trim_matches('"');
        if key == "- alert" {
            rules.push(Rule::default());
        }
        let Some(rule) = rules.last_mut() else {
            assert!(["groups", "- name", "rules"].contains(&key), "{line}");
            continue;
        };
        let field = match key {
            "- alert" => &mut rule.name,
            "expr" => &mut rule.expr,
            "labels" => &mut rule.severity,
            "summary" => &mut rule.summary,
            "runbook" => &mut rule.runbook,
            "runbook_url" => &mut rule.runbook_url,
            "for" => &mut rule.waits,
            "annotations" => continue,
            _ => panic!("{line}"),
        };
        value.clone_into(field);
    }
    rules
}

/// Returns this product's metrics in an expression.
fn metrics_of(expr: &str) -> Vec<String> {
    let words = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| is_ours(word));
    ours.map(str::to_owned).collect()
}

fn alerts() -> Vec<Rule> {
    rules(include_str!("../../dashboards/prometheus/alerts.yml"))
}

/// A rule on a metric that does not exist would never fire.
#[test]
fn every_alert_says_who_is_woken_what_is_the_matter_and_what_to_do() {
    let alerts = alerts();
    assert!(alerts.len() > 10, "{alerts:#?}");
    let named = metrics_named(&docs("operations.md"));
    let listed = metrics_named(&docs("metrics.md"));
    let oncall = docs("oncall.md");
    for rule in &alerts {
        let severities = ["{ severity: page }", "{ severity: ticket }"];
        assert!(severities.contains(&rule.severity.as_str()), "{rule:#?}");
        assert!(
            rule.waits.is_empty() || rule.waits.ends_with('m'),
            "{rule:#?}"
        );
        assert!(!rule.summary.is_empty(), "{rule:#?}");
        assert!(rule.runbook.ends_with('.'), "{rule:#?}");
        let section = format!("docs/oncall.md#{}", rule.name.to_lowercase());
        assert_eq!(rule.runbook_url, section, "{rule:#?}");
        assert!(oncall.contains(&format!("# {}\n", rule.name)), "{rule:#?}");
        let metrics = metrics_of(&rule.expr);
        assert!(
            !metrics.is_empty() || rule.name == "EpwatchDown",
            "{rule:#?}"
        );
        for metric in metrics {
            assert!(named.contains(&metric), "{metric} is not in operations.md");
            assert!(listed.contains(&metric), "{metric} is not in metrics.md");
        }
    }
    for example in ["compose.yaml", "prometheus.yml"] {
        let text = docs(&format!("examples/{example}"));
        assert!(text.contains("/etc/prometheus/alerts.yml"), "{example}");
    }
}

/// Inserts a report with losses of today, since without one the ledger has no reasons.
async fn put_a_report_with_losses(store: &str) {
    let target = epwatch_store::StoreTarget::parse(store, "epwatch").unwrap();
    let client = epwatch_store::client(&target);
    let key = "unhex(repeat('01', 16)) AS installation, 1 AS stream_id, 2 AS sequence, \
               toStartOfHour(now('UTC')) AS received_at, 1 AS collector_id, 1 AS wal_offset, \
               toStartOfHour(now('UTC')) AS bucket";
    let columns =
        "installation, stream_id, sequence, received_at, collector_id, wal_offset, bucket";
    let lost = "map('spool_full', 1)";
    for sql in [
        format!("INSERT INTO report_copies ({columns}) SELECT {key}"),
        format!(
            "INSERT INTO reports ({columns}, app_id, environment, health_dropped_reports, \
             health_dropped_runs) SELECT {key}, 'app', 'production', {lost}, {lost}"
        ),
    ] {
        let run = client.query_raw(&sql).execute().await;
        run.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }
}

#[tokio::test]
async fn every_metric_of_serve_is_told_of_and_every_one_told_of_is_there() {
    let dir = tempfile::tempdir().unwrap();
    // A key and a channel, for their metrics. No notification is sent.
    let config = dir.path().join("epwatch.toml");
    let keys = dir.path().join("keys.toml");
    let text = format!(
        "[collector]\nrefresh = \"10ms\"\nkeys_file = {keys:?}\n\
         [[detector.alertmanager]]\nurl = \"http://127.0.0.1:9\"\n"
    );
    let sha256 = "0".repeat(64);
    let entry = format!("[[keys]]\nname = \"old\"\nsha256 = \"{sha256}\"\napp = \"a\"\n");
    std::fs::write(&keys, entry).unwrap();
    std::fs::write(&config, text).unwrap();
    let words = format!("serve --config {}", config.display());
    let mut serve = server(&words, &dir.path().join("data"));
    serve.env("EPWATCH_LOG", "warn");
    let (_running, addresses) = Running::start(&mut serve);
    put_a_report_with_losses(addresses["store"].as_str().unwrap()).await;
    let url = format!("http://{}/metrics", addresses["http"].as_str().unwrap());
    let page = async || get(&url).await.unwrap().text;
    // The gauges exist once the ledger was read.
    let gauges = ["reports{", "reports_by_reason{", "runs{", "runs_by_reason{"];
    until("the ledger is read", async || {
        let page = page().await;
        gauges
            .iter()
            .all(|gauge| page.contains(&format!("_loss_ledger_{gauge}")))
    })
    .await;
    let page = page().await;

    let listed: BTreeSet<String> = metrics_named(&docs("metrics.md"))
        .iter()
        .map(|metric| family(metric))
        .collect();
    assert_eq!(families(&page), listed, "page and docs/metrics.md");
    promtool(&["check", "metrics"], &page);
    let named = metrics_named(&docs("operations.md"));
    assert!(named.len() > 10, "{named:?}");
    for metric in named {
        assert!(
            listed.contains(&family(&metric)),
            "{metric} is not on the page"
        );
    }
}

#[test]
fn prometheus_accepts_the_rules() {
    let rules = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/dashboards/prometheus/alerts.yml"
    );
    promtool(&["check", "rules", rules], "");
}

/// Runs Prometheus' own check, which must have nothing to say. `.ci/run` installs it (Debian's `prometheus`) and
/// requires it; elsewhere a machine may lack it.
fn promtool(args: &[&str], input: &str) {
    let mut command = Command::new("promtool");
    command.args(args).stdin(Stdio::piped());
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if std::env::var_os("REQUIRE_PROMTOOL").is_none() => {
            let _ = writeln!(std::io::stderr(), "left out: {args:?} of promtool: {error}");
            return;
        }
        Err(error) => panic!("promtool: {error}"),
    };
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{said}");
}

/// One process of the examples, with its exact settings.
#[derive(Debug, Default)]
struct Example {
    args: Vec<String>,
    /// Paths in its own root.
    files: Vec<String>,
    environment: Vec<(String, String)>,
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Returns the words of a command line after `start`.
fn words_after(line: &str, start: &str) -> Vec<String> {
    let rest = line.split_once(start).map_or("", |(_, rest)| rest);
    words(rest.split("&&").next().unwrap_or_default())
}

/// Reads a service of compose.yaml: its secrets, and the files among its volumes.
fn service(name: &str) -> Example {
    let compose = docs("examples/compose.yaml");
    let begin = format!("  {name}:");
    let lines = compose.lines().skip_while(|line| *line != begin).skip(1);
    let mut example = Example::default();
    for line in lines.take_while(|line| line.starts_with("    ")) {
        if let Some(list) = line.trim().strip_prefix("command: ") {
            example.args = serde_json::from_str(list).unwrap();
        } else if let Some(list) = line.trim().strip_prefix("secrets: ") {
            let names = list.trim_matches(['[', ']']).split(", ");
            let paths = names.map(|name| format!("/run/secrets/{name}"));
            example.files.extend(paths);
        } else {
            let parts = line.split([':', '"']);
            let paths = parts.filter(|part| part.starts_with("/etc/epwatch/"));
            example.files.extend(paths.map(str::to_owned));
        }
    }
    example
}

/// Reads a systemd unit: its credentials, and the other files in /etc/epwatch that it names.
fn unit(name: &str) -> Example {
    const CREDENTIALS: &str = "/run/credentials";
    let mut example = Example::default();
    for line in docs(&format!("examples/{name}.service")).lines() {
        if let Some(credential) = line.strip_prefix("LoadCredential=") {
            let (name, _readable_by_root) = credential.split_once(':').unwrap();
            example.files.push(format!("{CREDENTIALS}/{name}"));
            continue;
        }
        let parts = line.split([' ', '=', ',']);
        let paths = parts.filter(|part| part.starts_with("/etc/epwatch/"));
        example.files.extend(paths.map(str::to_owned));
        if let Some(command) = line.strip_prefix("ExecStart=/usr/local/bin/epwatch ") {
            example.args = words(command);
        } else if let Some(variable) = line.strip_prefix("Environment=") {
            let (name, value) = variable.split_once('=').unwrap();
            let value = value.replace("%d", CREDENTIALS);
            example.environment.push((name.to_owned(), value));
        }
    }
    example
}

impl Example {
    /// Returns the command in a root of its own, with the address of no ClickHouse.
    fn command(&self, root: &Path) -> Command {
        for path in &self.files {
            let text = match path.rsplit('/').next().unwrap() {
                "serve.toml" => {
                    docs("examples/serve.toml").replace("\"/", &format!("\"{}/", root.display()))
                }
                "epwatch.toml" => docs("examples/epwatch.toml")
                    .replace("\"/", &format!("\"{}/", root.display()))
                    .replace("http://clickhouse:8123", "http://127.0.0.1:9"),
                "tls.pem" => include_str!("../fixtures/tls/server.pem").to_owned(),
                "tls.key" => include_str!("../fixtures/tls/server.key").to_owned(),
                "keys.toml" => String::new(),
                "clickhouse" => "secret".to_owned(),
                other => panic!("{other}: what is in it?"),
            };
            let path = root.join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let inside = |word: &String| match word.strip_prefix('/') {
            Some(path) => root.join(path).display().to_string(),
            None => word.clone(),
        };
        let mut command = epwatch("");
        command.args(self.args.iter().map(inside));
        let environment = self.environment.iter();
        command.envs(environment.map(|(name, value)| (name, inside(value))));
        // Other tests may use the examples' ports.
        for name in [
            "COLLECTOR__LISTEN",
            "COLLECTOR__HTTP_LISTEN",
            "DETECTOR__HTTP_LISTEN",
        ] {
            command.env(format!("EPWATCH_{name}"), "127.0.0.1:0");
        }
        command
    }
}

/// A collector takes reports while its ClickHouse is away.
#[test]
fn the_collectors_of_the_examples_start_with_what_they_are_given() {
    for example in [service("collector"), unit("epwatch-collector")] {
        let root = tempfile::tempdir().unwrap();
        let mut command = example.command(root.path());
        let (_running, addresses) = Running::start(command.arg("--json"));
        assert!(addresses["collector"].is_string());
    }
}

#[test]
fn logs_are_json_where_that_is_asked_for() {
    let root = tempfile::tempdir().unwrap();
    let mut command = service("collector").command(root.path());
    command
        .env("EPWATCH_LOG", "info")
        .env("EPWATCH_LOG_FORMAT", "json");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    let stdout = running.0.stdout.take().unwrap();
    let said = BufReader::new(stdout).lines().next();
    let said = said.expect("it says where it listens").unwrap();
    assert!(said.starts_with("devices send to"), "{said}");
    let stderr = BufReader::new(running.0.stderr.take().unwrap());
    drop(running);
    let lines: Vec<String> = stderr.lines().map(Result::unwrap).collect();
    assert!(!lines.is_empty());
    for line in lines {
        let log: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line}: {e}"));
        for field in ["timestamp", "level", "message"] {
            assert!(log[field].is_string(), "{field} of {line}");
        }
    }
}

#[test]
fn logs_that_cannot_be_as_asked_for_are_wrong_use() {
    for (variable, value) in [
        ("EPWATCH_LOG", "warning"),
        ("EPWATCH_LOG", "loud=very"),
        ("EPWATCH_COLLECTOR_LISTEN", "127.0.0.1:0"),
        ("EPWATCH_LOG_FORMAT", "JSON lines"),
    ] {
        check_fails(
            epwatch("migrate --dry-run").env(variable, value),
            2,
            variable,
        );
    }
}

#[track_caller]
fn check_wrong_use(words: &str, expected: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut command = epwatch(words);
    command.env("EPWATCH_COLLECTOR__LISTEN", "127.0.0.1:0");
    check_fails(command.current_dir(dir.path()), 2, expected);
}

/// A service manager restarts a process that failed, but not one that cannot succeed.
#[test]
fn wrong_use_has_an_exit_code_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("epwatch.toml");
    std::fs::write(&path, "[collector]\nlitsen = \"127.0.0.1:0\"\n").unwrap();
    for command in ["serve", "collector", "detector", "migrate"] {
        let words = format!("{command} --config {}", path.display());
        check_wrong_use(&words, "collector.litsen");
    }
    check_wrong_use("serve --config none.toml", "none.toml");
    for command in ["collector", "detector"] {
        check_wrong_use(command, "no ClickHouse server is named");
        check_wrong_use(&format!("{command} --clickhouse host:8123"), "host:8123");
    }
    check_wrong_use("load --rate=-1", "--rate");
    let load = "load --endpoint http://127.0.0.1:9 --clickhouse host:8123";
    check_wrong_use(load, "host:8123");

    for unit in ["epwatch-collector", "epwatch-detector"] {
        let unit = docs(&format!("examples/{unit}.service"));
        assert!(unit.contains("\nRestartPreventExitStatus=2\n"), "{unit}");
    }
}

/// They have neither certificates nor keys, so the first failure is the missing ClickHouse.
#[test]
fn the_detectors_of_the_examples_get_as_far_as_the_store() {
    let migrate = Example {
        args: words("migrate --config /etc/epwatch/epwatch.toml"),
        ..service("detector")
    };
    for example in [service("detector"), unit("epwatch-detector"), migrate] {
        let root = tempfile::tempdir().unwrap();
        let (_, stderr) = check_ends(&mut example.command(root.path()), 3);
        for text in ["epwatch.toml", "the config"] {
            assert!(!stderr.contains(text), "{example:?}: {stderr}");
        }
        assert!(stderr.contains("onnect"), "{example:?}: {stderr}");
    }
}

/// The first start of an image without certificates fails, with or without ClickHouse.
#[test]
fn a_detector_that_can_verify_nobody_says_so_before_it_asks_the_store() {
    let root = tempfile::tempdir().unwrap();
    let mut command = service("detector").command(root.path());
    command
        .env("SSL_CERT_FILE", root.path().join("none.pem"))
        .env("SSL_CERT_DIR", root.path().join("none"));
    check_fails(&mut command, 3, "the notifiers of the config");
}

/// A credential is a copy made at the start, so a reload would find a renewed certificate with the old key and fail.
#[test]
fn what_a_collector_reads_again_is_no_copy_in_its_unit() {
    let unit = docs("examples/epwatch-collector.service");
    for name in ["TLS__CERT_FILE", "TLS__KEY_FILE"] {
        let set = format!("Environment=EPWATCH_COLLECTOR__{name}=");
        let path = unit.lines().find_map(|line| line.strip_prefix(&set));
        assert!(path.unwrap().starts_with("/etc/epwatch/"), "{path:?}");
    }
    assert!(!unit.contains("LoadCredential=tls"), "{unit}");
    // Without it only root can read the key.
    let group = unit
        .lines()
        .find_map(|line| line.strip_prefix("SupplementaryGroups="));
    let told = format!("chgrp {} /etc/epwatch/tls.key", group.unwrap());
    assert!(unit.contains(&told), "{told}");
}

#[test]
fn the_image_of_the_examples_has_what_its_processes_need() {
    let image = docs("examples/Containerfile");
    let user = image.lines().find_map(|line| line.strip_prefix("USER "));
    let user = user.unwrap().split(':').next().unwrap();
    assert!(image.contains("ca-certificates"), "{image}");
    let config: toml::Table = docs("examples/epwatch.toml").parse().unwrap();
    let data_dir = config["data_dir"].as_str().unwrap();
    let made = image
        .lines()
        .find(|line| line.starts_with("RUN install --directory"));
    let words = words(made.unwrap());
    assert!(words.contains(&format!("--owner={user}")), "{words:?}");
    assert!(words.contains(&data_dir.to_owned()), "{words:?}");
    let compose = docs("examples/compose.yaml");
    assert!(
        compose.contains(&format!("- collector:{data_dir}\n")),
        "{data_dir}"
    );
    // Secrets are mounted with the host's owners, so compose.yaml must name the owner of each.
    let owned: Vec<String> = compose
        .lines()
        .filter(|line| line.starts_with('#') && line.contains("chown "))
        .flat_map(|line| words_after(line, &format!("chown {user} ")))
        .collect();
    for service_name in ["collector", "detector"] {
        for path in service(service_name).files {
            let Some(secret) = path.strip_prefix("/run/secrets/") else {
                continue;
            };
            assert!(
                owned.contains(&format!("secrets/{secret}")),
                "{secret}: {owned:?}"
            );
        }
    }
}

#[test]
fn the_commands_of_the_examples_exist() {
    for example in [
        service("collector"),
        service("detector"),
        unit("epwatch-collector"),
        unit("epwatch-detector"),
        unit("epwatch-serve"),
        unit("epwatch-backup"),
    ] {
        check_command(&example.args);
    }
}

/// Checks that the help of a command line's command has its options.
fn check_command(words: &[String]) {
    let is_plain = |word: &&String| word.starts_with(|c: char| c.is_ascii_lowercase());
    let command = Vec::from_iter(words.iter().take_while(is_plain).cloned()).join(" ");
    let help = check_succeeds(&mut epwatch(&format!("{command} --help")));
    for option in words.iter().filter(|word| word.starts_with("--")) {
        let option = option.split('=').next().unwrap_or_default();
        assert!(help.contains(option), "{option} of {words:?}");
    }
}

/// Returns the command lines of `epwatch` in code, without the rest of the shell's line.
fn command_lines(text: &str) -> Vec<Vec<String>> {
    let text = text.replace("\\\n", " ");
    let mut found = Vec::new();
    for (at, block) in text.split("```").enumerate() {
        let is_shell = at % 2 == 1 && block.starts_with("sh\n");
        let inline = block.split('`').skip(1).step_by(2).filter(|_| at % 2 == 0);
        let lines = inline.chain(block.lines().filter(|_| is_shell));
        for line in lines.flat_map(|line| line.split("&&")) {
            let line = line.split(" #").next().unwrap_or_default();
            let is_variable = |word: &String| word.contains('=') && !word.starts_with('-');
            let words = Vec::from_iter(words(line).into_iter().skip_while(is_variable));
            if words.len() > 1 && words[0] == "epwatch" {
                found.push(words[1..].to_vec());
            }
        }
    }
    found
}

#[test]
fn the_commands_of_the_documents_exist() {
    let mut n_commands = 0;
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            for words in command_lines(&std::fs::read_to_string(path).unwrap()) {
                check_command(&words);
                n_commands += 1;
            }
        }
    }
    assert!(n_commands > 20, "{n_commands}");
}

/// An operator tells from a log, a page or the program itself what runs where.
#[test]
fn the_version_is_on_the_command_line_and_first_in_the_log() {
    let text = check_succeeds(&mut epwatch("--version"));
    for part in ["epwatch 0.1.0\n", "\ncommit ", "\nruntimes libchdb 26"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!(check_succeeds(&mut epwatch("-V")), "epwatch 0.1.0\n");
    let dir = tempfile::tempdir().unwrap();
    let mut command = epwatch("collector --clickhouse http://127.0.0.1:9 --data-dir");
    command
        .arg(dir.path())
        .env("EPWATCH_COLLECTOR__LISTEN", "127.0.0.1:0");
    command.env("EPWATCH_COLLECTOR__HTTP_LISTEN", "127.0.0.1:0");
    let mut running = Running(
        command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let stderr = BufReader::new(running.0.stderr.take().unwrap());
    let first = stderr.lines().next().unwrap().unwrap();
    for part in [
        "epwatch collector",
        "version=\"0.1.0\"",
        "commit=",
        "libchdb 26",
    ] {
        assert!(first.contains(part), "{part} in {first}");
    }
}

/// A port or a folder that is taken is the commonest mistake of a start, so it is found first and said at once.
#[test]
fn what_another_process_has_is_named_at_once_and_nothing_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let (running, addresses) = Running::start(&mut server("serve", &dir.path().join("a")));
    let taken = addresses["collector"].as_str().unwrap();
    let new = dir.path().join("b");
    let mut second = epwatch(&format!("serve --listen {taken} --data-dir"));
    second
        .arg(&new)
        .env("EPWATCH_COLLECTOR__HTTP_LISTEN", "127.0.0.1:0");
    check_fails(&mut second, 3, "collector.listen");
    assert!(!new.exists());

    let began = std::time::Instant::now();
    let mut second = server("serve", &dir.path().join("a"));
    check_fails(
        &mut second,
        3,
        &format!("process {} (epwatch serve)", running.0.id()),
    );
    // The wait for the engine of an ended process takes 10 s.
    assert!(began.elapsed() < std::time::Duration::from_secs(8));
}

/// 0.0.0.0 is no address to send to, and a phone must not be given http where TLS is.
#[test]
fn devices_are_given_an_address_that_they_can_use() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, addresses) = Running::start(&mut server("serve", dir.path()));
    let plain = addresses["endpoint"].as_str().unwrap();
    assert_eq!(
        plain,
        format!("http://{}", addresses["collector"].as_str().unwrap())
    );
    let mut command =
        epwatch("collector --clickhouse http://127.0.0.1:9 --json --listen 0.0.0.0:0 --data-dir");
    command
        .arg(dir.path().join("collector"))
        .env("EPWATCH_COLLECTOR__HTTP_LISTEN", "127.0.0.1:0")
        .env("EPWATCH_COLLECTOR__KEYS_FILE", dir.path().join("keys.toml"))
        .env("EPWATCH_COLLECTOR__TLS__CERT_FILE", tls("server.pem"))
        .env("EPWATCH_COLLECTOR__TLS__KEY_FILE", tls("server.key"));
    let key = format!("[[keys]]\nsha256 = \"{}\"\napp = \"a\"\n", "0".repeat(64));
    std::fs::write(dir.path().join("keys.toml"), key).unwrap();
    let (_collector, addresses) = Running::start(&mut command);
    let with_tls = addresses["endpoint"].as_str().unwrap();
    assert!(
        with_tls.starts_with("https://") && !with_tls.contains("0.0.0.0"),
        "{with_tls}"
    );
}

#[test]
fn a_config_is_checked_and_shown_without_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("epwatch.toml");
    let run = |words: &str| {
        let mut command = epwatch(&format!("config {words}"));
        command.arg(&file).current_dir(dir.path());
        command
    };
    let text = "data_dir = \"d\"\n[store]\nclickhouse = \"https://me:secret@ch.example\"\n\
                [collector]\nlisten = \"0.0.0.0:4717\"\n";
    std::fs::write(&file, text).unwrap();
    check_fails(&mut run("check"), 2, "collector.keys");
    check_succeeds(&mut run("check --for detector"));
    let shown = check_succeeds(run("show").env("EPWATCH_COLLECTOR__BATCH__PERIOD", "3s"));
    for line in [
        "listen = \"0.0.0.0:4717\"",
        "period = \"3s\"",
        "max_bytes = \"8GiB\"",
        "clickhouse = \"https://***@ch.example\"",
    ] {
        assert!(
            shown.lines().any(|found| found == line),
            "{line} in {shown}"
        );
    }
    assert!(!shown.contains("secret"), "{shown}");
    assert_eq!(json(&mut run("show"))["collector"]["batch"]["period"], "1s");
    std::fs::write(&file, "[collector]\nlitsen = \"127.0.0.1:0\"\n").unwrap();
    check_fails(&mut run("show"), 2, "collector.litsen");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// The simplest deployment, as its unit starts it.
#[test]
fn the_serve_of_the_examples_starts_with_what_it_is_given() {
    let root = tempfile::tempdir().unwrap();
    let mut command = unit("epwatch-serve").command(root.path());
    command.env("EPWATCH_CACHE", epwatch_engines::cache_dir().unwrap());
    let (_running, addresses) = Running::start(command.arg("--json"));
    assert!(
        addresses["endpoint"]
            .as_str()
            .unwrap()
            .starts_with("https://"),
        "{addresses}"
    );
    let image = docs("examples/Containerfile.serve");
    for part in [
        "FROM epwatch",
        "epwatch engines import",
        "EPWATCH_CACHE=",
        "\"serve\"",
    ] {
        assert!(image.contains(part), "{part} in {image}");
    }
}
