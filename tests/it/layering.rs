//! Dependencies between crates point one way. The table below defines the architecture, and cargo's metadata must match
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use cargo_metadata::{DependencyKind, MetadataCommand, Package};

use crate::support::check_succeeds;

/// The crates of the workspace that each crate may use, without their prefix `epwatch-`. Collector and detector share
/// only ClickHouse and the parts in `server`. The fleet uses only the device's side.
const MAY_USE: &str = "
    proto:
    features:
    stats:
    gate: proto stats
    model: proto
    grafana: model proto
    engines: proto
    manifest: proto
    sdk: proto
    ffi: proto sdk
    python: manifest proto sdk
    run: gate manifest proto sdk
    server: proto
    store: proto
    collector: proto server store
    detector: model proto server stats store
    io-faults:
    runtimes: engines proto
    strict-collector: proto
    test-support: engines store
    fleet: proto sdk
    page: model proto server
    faults: collector engines proto server store
    detection: detector fleet model proto server stats
    epwatch: collector detector engines fleet gate manifest model page proto run sdk server stats store
";

/// Crates that ship in apps, so they enable few features, and only their own.
const IN_APPS: [&str; 4] = ["proto", "sdk", "ffi", "python"];

/// Tests may also store rows as the collector does, fetch runtimes, break their own processes, and load the library of
/// other languages. They may enable more features of their own crate.
const TESTS_MAY_USE: [&str; 10] = [
    "collector",
    "engines",
    "faults",
    "features",
    "ffi",
    "io-faults",
    "python",
    "runtimes",
    "strict-collector",
    "test-support",
];

fn may_use() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let lines = MAY_USE.trim().lines();
    let crates = lines.map(|line| {
        line.trim()
            .split_once(':')
            .expect("a colon after the crate")
    });
    crates
        .map(|(name, allowed)| (name, allowed.split_whitespace().collect()))
        .collect()
}

/// The packages of the workspace by name, without `epwatch-`.
fn packages() -> BTreeMap<String, Package> {
    let metadata = MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .no_deps()
        .other_options(vec!["--locked".into()])
        .exec();
    let packages = metadata
        .expect("cargo metadata reads this workspace")
        .packages;
    packages
        .into_iter()
        .map(|package| (short(&package.name).to_owned(), package))
        .collect()
}

fn short(name: &str) -> &str {
    name.strip_prefix("epwatch-").unwrap_or(name)
}

#[test]
fn every_crate_is_in_the_table() {
    let in_table: BTreeSet<_> = may_use().into_keys().collect();
    let packages = packages();
    let in_workspace: BTreeSet<_> = packages.keys().map(String::as_str).collect();
    assert_eq!(in_table, in_workspace);
}

/// Sample reports are for tests and benches: only crates below `tests` may carry them.
#[test]
fn samples_are_enabled_for_tests_only() {
    for (name, package) in packages() {
        let shipped = package.dependencies.iter().filter(|dependency| {
            dependency.kind != DependencyKind::Development
                && dependency.features.iter().any(|f| f == "samples")
        });
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let is_of_tests = package.manifest_path.starts_with(root.join("tests"));
        assert!(is_of_tests || shipped.count() == 0, "{name}");
    }
}

#[test]
fn dependencies_point_one_way() {
    let packages = packages();
    let may_use = may_use();
    for (name, package) in &packages {
        for dependency in &package.dependencies {
            let used = short(&dependency.name);
            let is_ours = dependency.name.starts_with("epwatch") && packages.contains_key(used);
            let in_tests_only = dependency.kind == DependencyKind::Development;
            let is_features = used == "features" && !IN_APPS.contains(&name.as_str());
            assert!(
                !is_ours
                    || is_features
                    || may_use[name.as_str()].contains(used)
                    || in_tests_only && (TESTS_MAY_USE.contains(&used) || used == name),
                "{name} must not depend on {used} ({})",
                dependency.kind
            );
        }
    }
}

/// The two crates that apps link can be published. They have the fields that a registry shows, and each package has its
/// license and README. Every dependency can be found outside this folder. The nightly run builds the packages.
#[test]
fn the_crates_of_apps_can_be_published() {
    let packages = packages();
    let is_public = |package: &&Package| package.publish != Some(Vec::new());
    let public: Vec<&Package> = packages.values().filter(is_public).collect();
    let names: Vec<&str> = public.iter().map(|package| short(&package.name)).collect();
    assert_eq!(names, ["proto", "sdk"]);
    for package in public {
        let name: &str = &package.name;
        assert!(package.description.is_some(), "{name}");
        assert_eq!(package.license.as_deref(), Some("Apache-2.0"), "{name}");
        assert!(package.rust_version.is_some(), "{name}");
        assert!((1..=5).contains(&package.keywords.len()), "{name}");
        assert!(!package.categories.is_empty(), "{name}");
        assert_eq!(
            package.metadata["docs"]["rs"]["all-features"], true,
            "{name}"
        );
        for dependency in &package.dependencies {
            let is_of_tests = dependency.kind == DependencyKind::Development;
            let is_elsewhere = dependency.req.to_string() != "*";
            assert!(is_of_tests || is_elsewhere, "{name}: {}", dependency.name);
        }
        let mut list = Command::new(env!("CARGO"));
        list.args(["package", "--list", "--locked", "--allow-dirty", "-p", name]);
        let listed = check_succeeds(list.current_dir(env!("CARGO_MANIFEST_DIR")));
        let files: BTreeSet<&str> = listed.lines().collect();
        for file in ["LICENSE", "README.md", "Cargo.lock", "src/lib.rs"] {
            assert!(files.contains(file), "no {file} in {name}: {files:?}");
        }
        let is_of_another = |file: &&&str| file.starts_with("ffi/") || file.starts_with("android/");
        assert_eq!(files.iter().find(is_of_another), None, "{name}");
    }
}
