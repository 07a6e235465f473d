//! Steps of the person on call after a page: the test notification, the directive to paste, and `status` as another
//! user.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    process::Command,
};

use crate::support::{EPWATCH, check_ends, check_fails, check_succeeds, epwatch};

/// The page that people review, as the detector writes it.
const PAGE: &str = include_str!("../../detector/src/notify/snapshots/firing.txt");

#[test]
fn the_directives_of_a_page_can_be_pasted() {
    let dir = tempfile::tempdir().unwrap();
    let key = "directive keygen --out PRIVATE_KEY_FILE";
    check_succeeds(epwatch(key).current_dir(&dir));
    // Each directive takes two lines: `make ... &&` and `publish`.
    let lines: Vec<&str> = PAGE.lines().map(str::trim).collect();
    let pasted = lines.windows(2).filter_map(|two| {
        let make = two[0].strip_suffix(" &&")?.strip_prefix("epwatch ")?;
        Some((make, two[1]))
    });
    let mut files = Vec::new();
    for (make, publish) in pasted {
        check_succeeds(epwatch(make).current_dir(&dir));
        let publish = publish.strip_prefix("epwatch ").unwrap();
        check_fails(epwatch(publish).current_dir(&dir), 3, "no store is there");
        // As docs/oncall.md says.
        let elsewhere = format!("{publish} --data-dir other");
        check_fails(epwatch(&elsewhere).current_dir(&dir), 3, "other");
        let file = publish.rsplit(' ').next().unwrap();
        let show = format!("directive show {file}");
        let shown = check_succeeds(epwatch(&show).current_dir(&dir));
        for scope in ["camera", "segmenter", "2.0.0", "SM8635"] {
            assert!(shown.contains(scope), "{shown}");
        }
        files.push(file);
    }
    assert_eq!(files, ["variant.directive", "npu-off.directive"]);
}

#[test]
fn a_test_page_goes_through_the_channels_of_the_config() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("epwatch.toml");
    std::fs::write(
        &config,
        "[[detector.alertmanager]]\nurl = \"http://127.0.0.1:1\"\n",
    )
    .unwrap();
    let test_page = |more: &str| {
        let mut command = epwatch("detector test-page");
        command
            .arg("--config")
            .arg(&config)
            .args(more.split_whitespace());
        command
    };
    let (stdout, _) = check_ends(&mut test_page(""), 1);
    assert!(
        stdout.contains("TEST  a test of this channel; nothing is wrong"),
        "{stdout}"
    );
    assert!(stdout.contains("stdout: sent"), "{stdout}");
    assert!(stdout.contains("docs/oncall.md#epwatchtest"), "{stdout}");
    assert!(
        stdout.contains("alertmanager: failed to reach alertmanager"),
        "{stdout}"
    );
    check_succeeds(&mut test_page("--channel stdout"));
    check_fails(
        &mut test_page("--channel pager"),
        2,
        "it has stdout, alertmanager",
    );
}

/// Checks [O18]. If the folder exists but only its owner can read it, the command says so and names the way out.
#[test]
fn status_as_another_user_says_whose_the_store_is() {
    let dir = tempfile::tempdir().unwrap();
    let status = || {
        let is_root = fs::metadata(dir.path()).unwrap().uid() == 0;
        // Root can read every folder because of two capabilities, so these are dropped.
        let mut command = match is_root {
            true => Command::new("setpriv"),
            false => Command::new(EPWATCH),
        };
        if is_root {
            command.args(["--bounding-set=-dac_override,-dac_read_search", EPWATCH]);
        }
        command.env_remove("EPWATCH_CONFIG");
        command.arg("status").arg("--data-dir").arg(dir.path());
        command
    };
    check_fails(&mut status(), 3, "does not exist");
    let engine = dir.path().join("engine");
    fs::create_dir(&engine).unwrap();
    fs::set_permissions(&engine, Permissions::from_mode(0o000)).unwrap();
    let text = "is not yours to read: its folder is its owner's alone; run this as that user, for example with sudo";
    check_fails(&mut status(), 3, text);
}
