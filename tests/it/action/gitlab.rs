//! GitLab's job of `docs/examples/gitlab-gate.yml`.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use saphyr::Yaml;

use super::runner::{GREEN, RED, Runner, first, yaml};
use crate::support::EPWATCH;

#[test]
fn the_job_of_gitlab_writes_the_reports_that_it_names() {
    let text = yaml("docs/examples/gitlab-gate.yml");
    let job = &first(&text)["epwatch-gate"];
    let runner = Runner::new(RED);
    let bin = runner.repository().join(".epwatch/bin");
    fs::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink(EPWATCH, bin.join("epwatch")).unwrap();
    let cache = epwatch_engines::cache_dir().unwrap();
    std::os::unix::fs::symlink(cache, runner.repository().join(".epwatch/epwatch")).unwrap();
    for code in [1, 0] {
        let ran = Command::new("bash")
            .args(["-ec", job["script"][0].as_str().unwrap()])
            .current_dir(runner.repository())
            .env_remove("EPWATCH_CACHE")
            .env_remove("EPWATCH_CONFIG")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{said}");
        let junit = job["artifacts"]["reports"]["junit"].as_str().unwrap();
        assert!(runner.repository().join("gate/comment.md").exists());
        let junit = fs::read_to_string(runner.repository().join(junit)).unwrap();
        assert_eq!(junit.contains("<failure"), code == 1, "{junit}");
        runner.commit(GREEN);
    }
}

/// In a merge request the job compares with the target branch, and updates a single note.
#[test]
fn the_job_of_gitlab_compares_with_the_target_branch_and_notes_it() {
    let text = yaml("docs/examples/gitlab-gate.yml");
    let job = &first(&text)["epwatch-gate"];
    let mut runner = Runner::new(GREEN);
    runner.be_a_pull_request();
    let bin = runner.repository().join(".epwatch/bin");
    fs::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink(EPWATCH, bin.join("epwatch")).unwrap();
    let cache = epwatch_engines::cache_dir().unwrap();
    std::os::unix::fs::symlink(cache, runner.repository().join(".epwatch/epwatch")).unwrap();
    runner.commit(RED);
    // A stand-in for GitLab: it records its calls, and answers with notes.json.
    let folder = runner.dir.path().display();
    let curl =
        format!("#!/bin/bash\nprintf '%s ' \"$@\" >> {folder}/curl.log\ncat {folder}/notes.json\n");
    runner.write("bin/curl", &curl);
    let curl = runner.dir.path().join("bin/curl");
    fs::set_permissions(&curl, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!(
        "{}:{}",
        runner.dir.path().join("bin").display(),
        std::env::var("PATH").unwrap()
    );
    let run = |script: &Yaml, code: i32| {
        let ran = Command::new("bash")
            .args(["-ec", script.as_str().unwrap()])
            .current_dir(runner.repository())
            .env_remove("EPWATCH_CACHE")
            .env_remove("EPWATCH_CONFIG")
            .env("PATH", &path)
            .env("CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "main")
            .env("CI_MERGE_REQUEST_IID", "9")
            .env("CI_API_V4_URL", "https://gitlab.example/api/v4")
            .env("CI_PROJECT_ID", "5")
            .env("GATE_TOKEN", "of-the-project")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{said}");
    };
    run(&job["script"][0], 1);
    let comment = runner.read("repository/gate/comment.md");
    assert!(
        comment.contains("| SM8635 | **fail** | 100.0 % → 72.6 % |"),
        "{comment}"
    );
    let notes = "https://gitlab.example/api/v4/projects/5/merge_requests/9/notes";
    for (known, call) in [
        ("[]", format!("--request POST {notes} ")),
        (
            r#"[{"id": 3, "body": "a"}, {"id": 4, "body": "<!-- epwatch gate -->\nold"}]"#,
            format!("--request PUT {notes}/4 "),
        ),
    ] {
        runner.write("notes.json", known);
        runner.write("curl.log", "");
        run(&job["after_script"][0], 0);
        let log = runner.read("curl.log");
        let body = format!("{call}--data-urlencode body@gate/comment.md");
        assert!(
            log.contains(&body) && log.contains("PRIVATE-TOKEN: of-the-project"),
            "{log}"
        );
    }
}
