//! Runs a process like on a person's machine, where ONNX Runtime's own telemetry is on by default.

use std::{path::Path, process::Command};

/// Variables that keep ONNX Runtime from sending: variables of build machines, and its own switch.
const SILENCING: [&str; 15] = [
    "APPVEYOR",
    "BITBUCKET_BUILD_NUMBER",
    "BUILDKITE",
    "CI",
    "CIRCLECI",
    "CODEBUILD_BUILD_ID",
    "GITHUB_ACTIONS",
    "GITLAB_CI",
    "JENKINS_URL",
    "ORT_DISABLE_TELEMETRY",
    "ORT_RUNNING_UNIT_TESTS",
    "SYSTEM_TEAMFOUNDATIONCOLLECTIONURI",
    "TEAMCITY_VERSION",
    "TF_BUILD",
    "TRAVIS",
];

/// Lets a child's ONNX Runtime send telemetry, with its files below `cache`. The cache of runtimes is not moved.
pub fn with_telemetry(command: &mut Command, cache: &Path) {
    for name in SILENCING {
        command.env_remove(name);
    }
    command
        .env("EPWATCH_CACHE", epwatch_engines::cache_dir().unwrap())
        .env("XDG_CACHE_HOME", cache);
}

/// Returns whether telemetry left an id of the device. The id is written as soon as the environment is made.
pub fn has_telemetry(cache: &Path) -> bool {
    let id = "Microsoft/DeveloperTools/.onnxruntime/deviceid";
    cache.join(id).exists()
}
