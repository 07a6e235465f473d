//! Dependencies between crates point one way. The table below is the architecture, and cargo's metadata must agree.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

/// The crates of the workspace that each crate may use. Collector and detector share ClickHouse only, and the parts in
/// `epwatch-server`. The fleet uses the device's side only.
const MAY_USE: &[(&str, &[&str])] = &[
    ("epwatch-proto", &[]),
    ("epwatch-features", &[]),
    ("epwatch-engines", &["epwatch-proto"]),
    ("epwatch-runtimes", &["epwatch-engines", "epwatch-proto"]),
    ("epwatch-server", &["epwatch-proto"]),
    ("epwatch-strict-collector", &["epwatch-proto"]),
    ("epwatch-stats", &[]),
    ("epwatch-sdk", &["epwatch-proto"]),
    ("epwatch-store", &["epwatch-proto"]),
    (
        "epwatch-collector",
        &["epwatch-proto", "epwatch-server", "epwatch-store"],
    ),
    (
        "epwatch-detector",
        &[
            "epwatch-proto",
            "epwatch-server",
            "epwatch-stats",
            "epwatch-store",
        ],
    ),
    ("epwatch-fleet", &["epwatch-proto", "epwatch-sdk"]),
    (
        "epwatch-faults",
        &[
            "epwatch-collector",
            "epwatch-engines",
            "epwatch-proto",
            "epwatch-server",
            "epwatch-store",
        ],
    ),
    (
        "epwatch-detection",
        &[
            "epwatch-detector",
            "epwatch-fleet",
            "epwatch-proto",
            "epwatch-server",
            "epwatch-stats",
        ],
    ),
    (
        "epwatch",
        &[
            "epwatch-collector",
            "epwatch-detector",
            "epwatch-engines",
            "epwatch-fleet",
            "epwatch-proto",
            "epwatch-sdk",
            "epwatch-server",
            "epwatch-stats",
            "epwatch-store",
        ],
    ),
];

/// Crates that ship into apps, so that their features are few and their own.
const IN_APPS: [&str; 2] = ["epwatch-proto", "epwatch-sdk"];

/// Tests may also fetch runtimes, break their own processes, and enable more features of their own crate.
fn tests_may_use(name: &str, dependency: &str) -> bool {
    let of_all = [
        "epwatch-engines",
        "epwatch-faults",
        "epwatch-features",
        "epwatch-runtimes",
        "epwatch-strict-collector",
    ];
    of_all.contains(&dependency) || name == dependency
}

fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .no_deps()
        .other_options(vec!["--locked".into()])
        .exec()
        .expect("cargo metadata reads this workspace")
}

fn workspace() -> BTreeMap<String, Vec<(String, DependencyKind)>> {
    let metadata = metadata();
    let names: BTreeSet<_> = metadata
        .packages
        .iter()
        .map(|p| p.name.to_string())
        .collect();
    metadata
        .packages
        .iter()
        .map(|package| {
            let inside = package
                .dependencies
                .iter()
                .filter(|d| names.contains(&d.name))
                .map(|d| (d.name.clone(), d.kind))
                .collect();
            (package.name.to_string(), inside)
        })
        .collect()
}

#[test]
fn every_crate_is_in_the_table() {
    let in_table: BTreeSet<_> = MAY_USE.iter().map(|(name, _)| (*name).to_owned()).collect();
    let in_workspace: BTreeSet<_> = workspace().into_keys().collect();
    assert_eq!(in_table, in_workspace);
}

/// Sample reports are for tests and benches: no shipped crate may carry them.
#[test]
fn samples_are_enabled_for_tests_only() {
    let metadata = metadata();
    let test_crates = ["epwatch-faults"];
    for package in &metadata.packages {
        let shipped = package.dependencies.iter().filter(|dependency| {
            dependency.kind != DependencyKind::Development
                && dependency.features.iter().any(|f| f == "samples")
        });
        let is_test_crate = test_crates.contains(&package.name.as_str());
        assert!(is_test_crate || shipped.count() == 0, "{}", package.name);
    }
}

#[test]
fn dependencies_point_one_way() {
    let workspace = workspace();
    for (name, allowed) in MAY_USE {
        for (dependency, kind) in &workspace[*name] {
            let in_tests_only = *kind == DependencyKind::Development;
            let is_features = dependency == "epwatch-features" && !IN_APPS.contains(name);
            assert!(
                is_features
                    || allowed.contains(&dependency.as_str())
                    || in_tests_only && tests_may_use(name, dependency),
                "{name} must not depend on {dependency} ({kind})"
            );
        }
    }
}
