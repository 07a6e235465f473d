//! The examples and command lines of `docs` work with the command.

use std::{path::Path, process::Command};

use saphyr::{LoadableYamlNode, Yaml};

use crate::support::{Running, check_ends, check_fails, check_succeeds, docs, epwatch};

/// One process of the examples, with its exact settings.
#[derive(Debug, Default)]
pub(crate) struct Example {
    args: Vec<String>,
    /// Files that the example needs, as paths in its own root.
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
pub(crate) fn service(name: &str) -> Example {
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
    /// Returns the command in its own root, with an address at which no ClickHouse runs.
    pub(crate) fn command(&self, root: &Path) -> Command {
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
                "page" => "0123456789abcdef0123456789abcdef".to_owned(),
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
        // Uses free ports, because other tests may use the examples' ports.
        for name in [
            "COLLECTOR__LISTEN",
            "COLLECTOR__HTTP_LISTEN",
            "DETECTOR__HTTP_LISTEN",
            "PAGE__LISTEN",
        ] {
            command.env(format!("EPWATCH_{name}"), "127.0.0.1:0");
        }
        command
    }
}

/// A collector starts and takes reports even if its ClickHouse is unreachable.
#[test]
fn the_collectors_of_the_examples_start_with_what_they_are_given() {
    for example in [service("collector"), unit("epwatch-collector")] {
        let root = tempfile::tempdir().unwrap();
        let mut command = example.command(root.path());
        let (_running, addresses) = Running::start(command.arg("--json"));
        assert!(addresses["collector"].is_string());
    }
}

/// Detectors need neither certificates nor keys, so the first failure is the missing ClickHouse.
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
    check_fails(&mut command, 2, "no native root CA certificates");
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
    // Without this group only root can read the key.
    let group = unit
        .lines()
        .find_map(|line| line.strip_prefix("SupplementaryGroups="));
    let told = format!("chgrp {} /etc/epwatch/tls.key", group.unwrap());
    assert!(unit.contains(&told), "{told}");
}

/// The page starts with its token and host names, and fails only at the store.
#[test]
fn the_page_of_the_examples_starts_with_what_it_is_given() {
    let root = tempfile::tempdir().unwrap();
    let mut command = service("page").command(root.path());
    let (_running, address) = Running::start(command.arg("--json"));
    assert!(address["page"].is_string(), "{address}");
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
    for service_name in ["collector", "detector", "page"] {
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
        service("page"),
        unit("epwatch-collector"),
        unit("epwatch-detector"),
        unit("epwatch-serve"),
        unit("epwatch-backup"),
    ] {
        check_command(&example.args);
    }
    for part in ["collector", "detector", "page"] {
        let pod = docs(&format!("examples/kubernetes/base/{part}.yaml"));
        let mut lines = pod.lines().map(str::trim);
        let args = lines.find_map(|line| line.strip_prefix("args: "));
        check_command(&serde_json::from_str::<Vec<String>>(args.unwrap()).unwrap());
    }
}

/// In Kustomize's base and overlay, every file is listed and parses, and the command accepts the config.
#[test]
fn the_kustomize_base_is_whole() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/examples/kubernetes");
    for part in ["base", "with-clickhouse"] {
        let text = std::fs::read_to_string(folder.join(part).join("kustomization.yaml")).unwrap();
        let mut named = vec!["kustomization.yaml".to_owned()];
        let kustomization = &Yaml::load_from_str(&text).unwrap()[0];
        let resources = kustomization["resources"].as_sequence().unwrap();
        named.extend(
            resources
                .iter()
                .map(|name| name.as_str().unwrap().to_owned()),
        );
        for entry in std::fs::read_dir(folder.join(part)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            if name.ends_with(".yaml") {
                assert!(named.contains(&name.to_owned()), "{name} is not a resource");
                let documents = Yaml::load_from_str(&text).unwrap();
                assert!(
                    documents.iter().all(|one| one["kind"].as_str().is_some()),
                    "{name}"
                );
            }
        }
    }
    let root = tempfile::tempdir().unwrap();
    let secret = root.path().join("secret");
    std::fs::create_dir(&secret).unwrap();
    for (name, text) in [
        ("clickhouse", "secret"),
        ("page", "0123456789abcdef0123456789abcdef"),
        ("keys.toml", ""),
        ("tls.pem", include_str!("../fixtures/tls/server.pem")),
        ("tls.key", include_str!("../fixtures/tls/server.key")),
    ] {
        std::fs::write(secret.join(name), text).unwrap();
    }
    let config = docs("examples/kubernetes/base/epwatch.toml");
    let inside = |path: &str| root.path().join(path).display().to_string();
    let config = config
        .replace("/etc/epwatch/secret", &inside("secret"))
        .replace("/var/lib/epwatch", &inside("data"));
    let path = root.path().join("epwatch.toml");
    std::fs::write(&path, config).unwrap();
    for server in ["collector", "detector"] {
        let mut check = epwatch(&format!("config check --for {server}"));
        check_succeeds(check.arg(&path));
    }
}

/// Podman on Debian, and CRI-O, refuse an image without its registry.
#[test]
fn images_name_their_registry() {
    let mut n_images = 0;
    for file in [
        "compose.yaml",
        "Containerfile",
        "kubernetes/with-clickhouse/clickhouse.yaml",
    ] {
        let text = docs(&format!("examples/{file}"));
        let stages = Vec::from_iter(text.lines().filter_map(|line| line.split_once(" AS ")));
        let is_stage = |image: &str| stages.iter().any(|(_, name)| *name == image);
        for line in text.lines().map(str::trim_start) {
            let image = line.strip_prefix("image: ");
            let Some(image) = image.or_else(|| line.strip_prefix("FROM ")) else {
                continue;
            };
            let image = image.split(' ').next().unwrap();
            // The image that is built from this repository.
            if image == "epwatch" || is_stage(image) {
                continue;
            }
            let (registry, _) = image.split_once('/').unwrap_or_default();
            assert!(registry.contains('.'), "{file}: {image}");
            n_images += 1;
        }
    }
    assert_eq!(n_images, 7);
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

/// Tests the simplest deployment, started like its systemd unit does.
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
    let image = docs("examples/Containerfile");
    for part in [
        "FROM epwatch AS serve",
        "epwatch engines import",
        "EPWATCH_CACHE=",
        "\"serve\"",
    ] {
        assert!(image.contains(part), "{part} in {image}");
    }
}
