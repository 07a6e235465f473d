//! The output of a command when it starts, and when it refuses to start.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    process::Stdio,
};

use epwatch_test_support::DEADLINE;
use serde_json::Value;

use crate::{
    examples::service,
    signals::ended_within,
    support::{Running, check_ends, check_fails, check_succeeds, docs, epwatch, json, server, tls},
};

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

/// An operator can see the running version in a log, on a page or from the program itself.
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
    command
        .env("EPWATCH_COLLECTOR__HTTP_LISTEN", "127.0.0.1:0")
        .env("EPWATCH_PAGE__LISTEN", "127.0.0.1:0");
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

/// A port or folder in use is the most common mistake at a start, so it is checked first and reported at once.
#[test]
fn what_another_process_has_is_named_at_once_and_nothing_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let (running, addresses) = Running::start(&mut server("serve", &dir.path().join("a")));
    let taken = addresses["collector"].as_str().unwrap();
    let new = dir.path().join("b");
    let mut second = epwatch(&format!("serve --listen {taken} --data-dir"));
    second
        .arg(&new)
        .env("EPWATCH_COLLECTOR__HTTP_LISTEN", "127.0.0.1:0")
        .env("EPWATCH_PAGE__LISTEN", "127.0.0.1:0");
    let began = std::time::Instant::now();
    let (_, stderr) = check_ends(&mut second, 3);
    let holder = format!("process {} (epwatch serve) has this port", running.0.id());
    for part in ["collector.listen", &holder] {
        assert!(stderr.contains(part), "{stderr}");
    }
    let usual = began.elapsed();
    assert!(!new.exists());

    let began = std::time::Instant::now();
    let mut second = server("serve", &dir.path().join("a"));
    check_fails(
        &mut second,
        3,
        &format!("process {} (epwatch serve)", running.0.id()),
    );
    // The start must not wait for the engine of an ended process, which would take 10 s.
    let took = began.elapsed();
    assert!(took < usual + std::time::Duration::from_secs(8), "{took:?}");
}

/// Nothing can be sent to 0.0.0.0, and devices need https if the port has TLS.
#[test]
fn devices_are_given_an_address_that_they_can_use() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, addresses) = Running::start(&mut server("serve", dir.path()));
    let plain = addresses["endpoint"].as_str().unwrap();
    assert_eq!(
        plain,
        format!("http://{}", addresses["collector"].as_str().unwrap())
    );
    assert!(addresses["endpoint_warning"].is_null(), "{addresses}");
    // The certificate is for localhost, and not for the machine's name.
    let mut command =
        epwatch("serve --clickhouse http://127.0.0.1:9 --json --listen 0.0.0.0:0 --data-dir");
    command
        .arg(dir.path().join("second"))
        .env("EPWATCH_COLLECTOR__HTTP_LISTEN", "127.0.0.1:0")
        .env("EPWATCH_PAGE__LISTEN", "127.0.0.1:0")
        .env("EPWATCH_COLLECTOR__KEYS_FILE", dir.path().join("keys.toml"))
        .env("EPWATCH_COLLECTOR__TLS__CERT_FILE", tls("server.pem"))
        .env("EPWATCH_COLLECTOR__TLS__KEY_FILE", tls("server.key"));
    let key = format!("[[keys]]\nsha256 = \"{}\"\napp = \"a\"\n", "0".repeat(64));
    std::fs::write(dir.path().join("keys.toml"), key).unwrap();
    let (_second, addresses) = Running::start(&mut command);
    let with_tls = addresses["endpoint"].as_str().unwrap();
    assert!(with_tls.starts_with("https://localhost:"), "{with_tls}");
    let warning = addresses["endpoint_warning"].as_str().unwrap();
    assert!(warning.contains(" is not for "), "{warning}");
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

/// A config of `serve` with one mistake, which `config check` must find as the start does.
struct Mistake {
    /// Lines of the config.
    config: &'static str,
    /// A file in its folder, with its text.
    file: Option<(&'static str, &'static str)>,
    /// The key that the error names.
    key: &'static str,
    says: &'static str,
}

const MISTAKES: &[Mistake] = &[
    Mistake {
        config: "[store.reader]\nlisten = \"127.0.0.1:0\"\npassword_file = \"secret\"",
        file: Some(("secret", "12345")),
        key: "store.reader.password_file",
        says: "shorter than 12 bytes",
    },
    Mistake {
        config: "[store.reader]\nlisten = \"127.0.0.1:0\"\npassword_file = \"none\"",
        file: None,
        key: "store.reader.password_file",
        says: "No such file",
    },
    Mistake {
        config: "[store]\nclickhouse = \"http://127.0.0.1:9\"\nuser = \"me\"\npassword_file = \"none\"",
        file: None,
        key: "store.password_file",
        says: "No such file",
    },
    Mistake {
        config: "[page]\ntoken_file = \"secret\"",
        file: Some(("secret", "short")),
        key: "page.token_file",
        says: "16 bytes or more",
    },
    Mistake {
        config: "[page]\norders_token_file = \"none\"",
        file: None,
        key: "page.orders_token_file",
        says: "No such file",
    },
    Mistake {
        config: "[[detector.slack]]\nwebhook_url_file = \"none\"",
        file: None,
        key: "detector.slack[0]",
        says: "No such file",
    },
    Mistake {
        config: "[[detector.slack]]\nwebhook_url_file = \"secret\"",
        file: Some(("secret", "hooks.slack.example/services")),
        key: "detector.slack[0]",
        says: "expected http:// or https://",
    },
    Mistake {
        config: "[[detector.alertmanager]]\nurl = \"http://127.0.0.1:9\"\n\
                 [[detector.alertmanager]]\nurl = \"ftp://127.0.0.1:9\"",
        file: None,
        key: "alertmanager",
        says: "detector.alertmanager[1].url",
    },
    Mistake {
        config: "[store.reader]\nlisten = \"0.0.0.0:0\"\npassword_file = \"secret\"",
        file: Some(("secret", "long-enough-for-readers")),
        key: "store.reader.",
        says: "must be a loopback address",
    },
    Mistake {
        config: "[[detector.pagerduty]]\nrouting_key_file = \"none\"",
        file: None,
        key: "detector.pagerduty[0]",
        says: "No such file",
    },
    Mistake {
        config: "[[detector.webhook]]\nurl = \"http://127.0.0.1:9\"\nkey_file = \"secret\"",
        file: Some(("secret", "")),
        key: "detector.webhook[0]",
        says: "the secret of webhook",
    },
    Mistake {
        config: "[detector]\nrates_file = \"secret\"",
        file: Some(("secret", "{")),
        key: "detector.rates_file",
        says: "secret",
    },
    Mistake {
        config: "[collector]\nkeys_file = \"none\"",
        file: None,
        key: "collector.keys_file",
        says: "No such file",
    },
    Mistake {
        config: "[collector.tls]\ncert_file = \"secret\"\nkey_file = \"secret\"",
        file: Some(("secret", "no certificate")),
        key: "collector.tls.cert_file",
        says: "PEM",
    },
    Mistake {
        config: "data_dir = \".\"\n[collector]\nlisten = \"0.0.0.0:0\"\n\
                 [[collector.keys]]\napp = \"a\"\n\
                 sha256 = \"0000000000000000000000000000000000000000000000000000000000000000\"",
        file: Some(("epwatch-wal/unnamed-proxy", "10.0.0.1")),
        key: "collector.new_installations.trusted_proxies",
        says: "all reports with public keys came from 10.0.0.1",
    },
    Mistake {
        config: "[collector]\nlisten = \"0.0.0.0:0\"",
        file: None,
        key: "collector.keys",
        says: "without an app key only a loopback address may listen",
    },
    Mistake {
        config: "[collector]\nlisten = \"0.0.0.0:4718\"\nhttp_listen = \"127.0.0.1:4718\"\nkeys_file = \"keys\"",
        file: Some(("keys", "")),
        key: "collector.http_listen",
        says: "must be another address than collector.listen",
    },
    Mistake {
        config: "[page]\nlisten = \"127.0.0.1:4718\"",
        file: None,
        key: "page.listen",
        says: "must be another address than collector.http_listen",
    },
    Mistake {
        config: "[page]\nlisten = \"0.0.0.0:0\"\nhosts = [\"epwatch.example\"]",
        file: None,
        key: "page.listen",
        says: "page.token_file",
    },
    Mistake {
        config: "[page]\nlisten = \"0.0.0.0:0\"\ntoken_file = \"secret\"",
        file: Some(("secret", "0123456789abcdef")),
        key: "page.listen",
        says: "page.hosts must list the names",
    },
    Mistake {
        config: "data_dir = \"secret\"",
        file: Some(("secret", "")),
        key: "data_dir",
        says: "must be a folder",
    },
    Mistake {
        config: "data_dir = \"secret/below\"",
        file: Some(("secret", "")),
        key: "data_dir",
        says: "must be a folder",
    },
    Mistake {
        config: "data_dir = \".\"",
        file: Some(("engine", "")),
        key: "data_dir",
        says: "/engine is not one",
    },
    Mistake {
        config: "data_dir = \".\"",
        file: Some(("epwatch-wal", "")),
        key: "data_dir",
        says: "/epwatch-wal is not one",
    },
    Mistake {
        config: "[detector.heartbeat]\nurl = \"alive.example\"",
        file: None,
        key: "detector.heartbeat.url",
        says: "is not an http or https address",
    },
    Mistake {
        config: "data_dir = \"/proc/nope\"",
        file: None,
        key: "data_dir",
        says: "/proc/nope cannot be made",
    },
    Mistake {
        config: "data_dir = \".\"\n[collector.wal]\ndir = \"/proc/nope\"",
        file: None,
        key: "collector.wal.dir",
        says: "/proc/nope cannot be made",
    },
    Mistake {
        config: "[collector.wal]\ndir = \".\"",
        file: None,
        key: "collector.wal.dir",
        says: "is data_dir itself",
    },
    Mistake {
        config: "[collector.wal]\ndir = \"\"",
        file: None,
        key: "collector.wal.dir",
        says: "is data_dir itself",
    },
    Mistake {
        config: "[collector.wal]\ndir = \"engine/wal\"",
        file: None,
        key: "collector.wal.dir",
        says: "in the embedded store's folder",
    },
    Mistake {
        config: "data_dir = \"\"",
        file: None,
        key: "data_dir",
        says: "must name a folder",
    },
    Mistake {
        config: "data_dir = \"a-name-of-50-bytes-in-which-no-socket-has-any-room-x/\
                 a-name-of-50-bytes-in-which-no-socket-has-any-room-y\"",
        file: None,
        key: "data_dir",
        says: "is longer than",
    },
];

/// With an exit code other than 2, a service manager would restart the process for ever.
#[test]
fn what_a_start_refuses_without_the_network_a_check_finds_too() {
    for mistake in MISTAKES {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("epwatch.toml");
        std::fs::write(&config, mistake.config).unwrap();
        if let Some((name, text)) = mistake.file {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let check = format!("config check {}", config.display());
        let serve = format!("serve --config {}", config.display());
        for words in [check, serve] {
            let mut command = epwatch(&words);
            // The engine's socket is there if it does not fit into the data folder.
            command.env_remove("XDG_RUNTIME_DIR");
            if !mistake.config.contains("[collector]\nlisten") {
                command.env("EPWATCH_COLLECTOR__LISTEN", "127.0.0.1:0");
            }
            let (_, stderr) = check_ends(command.current_dir(dir.path()), 2);
            assert!(stderr.contains(mistake.says), "{words}: {stderr}");
            let (_, told) = stderr.split_once("failed to use the config:").unwrap();
            let named = told.matches(mistake.key).count();
            assert_eq!(named, 1, "{words}: {}: {stderr}", mistake.key);
        }
    }
}

/// The cache is found before the start fetches into it. Root may write everywhere but into the kernel's folders.
#[test]
fn a_cache_that_cannot_be_made_is_found_by_a_check() {
    let dir = tempfile::tempdir().unwrap();
    let check = |words: &str, set: Option<(&str, &str)>, says: &str| {
        let mut command = epwatch(words);
        command.env("EPWATCH_COLLECTOR__LISTEN", "127.0.0.1:0");
        for name in ["EPWATCH_CACHE", "XDG_CACHE_HOME", "HOME"] {
            command.env_remove(name);
        }
        let command = command.current_dir(dir.path()).envs(set);
        let (_, stderr) = check_ends(command, 2);
        for part in [says, "set EPWATCH_CACHE to"] {
            assert!(stderr.contains(part), "{words} {set:?}: {stderr}");
        }
    };
    for words in ["config check", "serve"] {
        check(words, None, "failed to find a cache folder");
        let set = Some(("EPWATCH_CACHE", "/dev/null"));
        check(words, set, "environment: EPWATCH_CACHE: libchdb");
        check(
            words,
            Some(("HOME", "/proc/nope")),
            "cannot be made in /proc",
        );
    }
}

/// Files that a config names, each with its key. The file is a FIFO, for which a reader would wait for ever.
const FIFOS: &[(&str, &str)] = &[
    (
        "[store]\nclickhouse = \"http://127.0.0.1:9\"\nuser = \"me\"\npassword_file = \"fifo\"",
        "store.password_file",
    ),
    (
        "[store]\nclickhouse = \"https://127.0.0.1:9\"\nca_file = \"fifo\"",
        "store.ca_file",
    ),
    (
        "[store.reader]\nlisten = \"127.0.0.1:0\"\npassword_file = \"fifo\"",
        "store.reader.password_file",
    ),
    ("[collector]\nkeys_file = \"fifo\"", "collector.keys_file"),
    (
        "[collector.tls]\ncert_file = \"fifo\"\nkey_file = \"fifo\"\nclient_ca = \"fifo\"",
        "collector.tls.client_ca",
    ),
    ("[detector]\nrates_file = \"fifo\"", "detector.rates_file"),
    (
        "[[detector.slack]]\nwebhook_url_file = \"fifo\"",
        "detector.slack[0]",
    ),
    ("[page]\ntoken_file = \"fifo\"", "page.token_file"),
    (
        "[page]\norders_token_file = \"fifo\"",
        "page.orders_token_file",
    ),
];

#[test]
fn a_file_that_may_never_end_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let check = |words: &str, key: &str, says: &str| {
        let mut command = epwatch(words);
        command.current_dir(dir.path()).stderr(Stdio::piped());
        let mut running = Running(command.stdout(Stdio::null()).spawn().unwrap());
        let status = ended_within(&mut running, DEADLINE);
        let stderr = std::io::read_to_string(running.0.stderr.take().unwrap()).unwrap();
        assert_eq!(status.code(), Some(2), "{words}: {key}: {stderr}");
        for part in [key, says] {
            assert!(stderr.contains(part), "{words}: {part}: {stderr}");
        }
    };
    let mut mkfifo = std::process::Command::new("mkfifo");
    check_succeeds(mkfifo.arg(dir.path().join("fifo")));
    for command in ["config check", "serve --config"] {
        for (file, kind) in [
            ("fifo", "a FIFO"),
            ("/dev/zero", "a device"),
            (".", "a folder"),
        ] {
            check(&format!("{command} {file}"), file, kind);
        }
        for (config, key) in FIFOS {
            std::fs::write(dir.path().join("epwatch.toml"), config).unwrap();
            check(&format!("{command} epwatch.toml"), key, "a FIFO");
        }
    }
}

/// A server starts with these configs, and nobody can use it.
#[test]
fn a_check_says_who_would_be_locked_out() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("keys"), "").unwrap();
    let revoked = format!(
        "[[collector.keys]]\nsha256 = \"{}\"\napp = \"a\"\nrevoked = true",
        "0".repeat(64)
    );
    for (config, warning) in [
        (
            "[collector]\nlisten = \"0.0.0.0:0\"\nkeys_file = \"keys\"",
            "collector.keys: no app key is in force, so every device is refused",
        ),
        (
            &revoked,
            "collector.keys: no app key is in force, so every device is refused",
        ),
        (
            "[page]\ntrusted_proxies = [\"10.0.0.1\"]",
            "page.trusted_proxies: is set, and page.hosts is not",
        ),
        (
            "[collector.wal]\nmin_free_bytes = \"1048576GiB\"",
            "collector.wal.min_free_bytes: is 1048576GiB, and ",
        ),
    ] {
        std::fs::write(dir.path().join("epwatch.toml"), config).unwrap();
        let mut check = epwatch("config check epwatch.toml");
        let said = check_succeeds(check.current_dir(dir.path()));
        let lines: Vec<&str> = said.lines().collect();
        let [first, .., last] = lines[..] else {
            panic!("{said}");
        };
        assert!(first.starts_with(warning), "{said}");
        assert_eq!(last, "the config can be used");
    }
    let mut check = epwatch("config check --for collector");
    let said = check_succeeds(check.current_dir(dir.path()));
    assert!(
        said.starts_with("store.clickhouse: names no server"),
        "{said}"
    );
}

/// A start continues with such a certificate, because its files are read again later. A check before the start must
/// fail.
#[test]
fn a_certificate_that_no_device_accepts_is_found_by_a_check() {
    let dir = tempfile::tempdir().unwrap();
    let check = |certificate: &std::path::Path| {
        let mut command = epwatch("config check");
        command
            .current_dir(dir.path())
            .env("EPWATCH_COLLECTOR__TLS__CERT_FILE", certificate)
            .env("EPWATCH_COLLECTOR__TLS__KEY_FILE", tls("server.key"));
        command
    };
    check_succeeds(&mut check(&tls("server.pem")));
    let ended = "collector.tls.cert_file: ";
    check_fails(&mut check(&tls("expired.pem")), 2, ended);
    check_fails(&mut check(&tls("expired.pem")), 2, "ended 2021-01-01");
    check_fails(
        &mut check(&tls("future.pem")),
        2,
        "valid only from 2100-01-01",
    );
    let soon = dir.path().join("soon.pem");
    let mut openssl = epwatch_runtimes::tool("openssl");
    openssl.args("req -x509 -new -days 3 -subj /CN=localhost -key".split(' '));
    openssl.arg(tls("server.key")).arg("-out").arg(&soon);
    check_succeeds(&mut openssl);
    let said = check_succeeds(&mut check(&soon));
    assert!(said.contains("within 7 days"), "{said}");

    let read = |name: &str| std::fs::read_to_string(tls(name)).unwrap();
    let written = |name: &str, texts: [&str; 2]| {
        let path = dir.path().join(name);
        std::fs::write(&path, texts.map(read).concat()).unwrap();
        path
    };
    // Clients read the chain as well.
    let chain = written("chain.pem", ["server.pem", "expired.pem"]);
    check_fails(&mut check(&chain), 2, "ended 2021-01-01");
    // An ended authority of clients is nothing that a device reads.
    let both = written("both.pem", ["device-ca.pem", "ended-device-ca.pem"]);
    let mut command = check(&tls("server.pem"));
    let said = check_succeeds(command.env("EPWATCH_COLLECTOR__TLS__CLIENT_CA", both));
    for part in [
        "collector.tls.client_ca: ",
        "authority 2 of 2 ended 2021-01-01",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("cert_file"), "{said}");
}

/// Answers every request in the same way; returns the address.
fn answering(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = BufReader::new(stream.try_clone().unwrap());
            let mut length = 0;
            loop {
                let mut line = String::new();
                if request.read_line(&mut line).unwrap() <= 2 {
                    break;
                }
                if let Some(n) = line.to_lowercase().strip_prefix("content-length:") {
                    length = n.trim().parse().unwrap();
                }
            }
            request.read_exact(&mut vec![0; length]).unwrap();
            let end = "content-length: 0\r\nconnection: close\r\n\r\n";
            write!(stream, "HTTP/1.1 {answer}\r\n{end}").unwrap();
        }
    });
    url
}

/// A wrong key shows before the first page, and the check sends no page.
#[test]
fn an_online_check_names_the_channels_that_would_take_no_page() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("pagerduty", "0123456789abcdef0123456789abcdef");
    let check = |[slack, events, alerts]: [&str; 3]| {
        write("slack", &format!("{slack}/services/T0/B0/x"));
        let config = format!(
            "[[detector.slack]]\nwebhook_url_file = \"slack\"\n\
             [[detector.pagerduty]]\nrouting_key_file = \"pagerduty\"\nurl = \"{events}/v2/enqueue\"\n\
             [[detector.alertmanager]]\nurl = \"{alerts}\"\n\
             [[detector.webhook]]\nurl = \"{alerts}\"\nkey_file = \"pagerduty\"\n"
        );
        write("epwatch.toml", &config);
        let mut command = epwatch("config check --for detector --online epwatch.toml");
        command.current_dir(dir.path());
        command
    };
    let [ok, accepted, unknown] = ["200 OK", "202 Accepted", "404 Not Found"].map(answering);
    // A real Slack webhook refuses a message without a text, so this answer means that the webhook exists.
    let no_text = answering("400 Bad Request");
    let said = check_succeeds(&mut check([&no_text, &accepted, &ok]));
    for channel in ["slack", "pagerduty", "alertmanager"] {
        let line = format!("{channel}: would take a page");
        assert!(said.contains(&line), "{said}");
    }
    assert!(said.contains("webhook: not asked"), "{said}");
    let (said, _) = check_ends(&mut check([&unknown, &unknown, "http://127.0.0.1:1"]), 1);
    for line in [
        "slack: failed to notify slack: it refused with 404",
        "pagerduty: failed to notify pagerduty: it refused with 404",
        "alertmanager: failed to reach alertmanager",
    ] {
        assert!(said.contains(line), "{said}");
    }
}

/// The detector's log has sentences. Without a source, `replay` reads the server of this folder.
#[test]
fn a_detector_says_that_it_leads_and_replay_finds_its_store() {
    let dir = tempfile::tempdir().unwrap();
    let replay = || {
        let mut command = epwatch("replay");
        command.current_dir(dir.path());
        command
    };
    check_fails(&mut replay(), 2, "--reports");
    let mut serve = server("serve", &dir.path().join("epwatch-data"));
    let (mut running, _) = Running::start(serve.stderr(Stdio::piped()));
    let log = BufReader::new(running.0.stderr.take().unwrap());
    let mut lines = log.lines().map(Result::unwrap);
    let leads = "this detector leads: it judges and notifies";
    assert!(lines.any(|line| line.contains(leads)), "{leads}");
    let replayed = check_succeeds(&mut replay());
    assert!(replayed.contains("0 cohort windows"), "{replayed}");
    let mut calibrate = epwatch("detector calibrate --json");
    let (stdout, stderr) = check_ends(calibrate.current_dir(dir.path()), 1);
    assert_eq!(stdout, "", "a document without rates");
    assert!(stderr.contains("fewer than seven windows"), "{stderr}");
}
