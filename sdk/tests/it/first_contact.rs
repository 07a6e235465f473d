//! From an empty folder to the first report, by the program and commands of docs/sdk.md.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use epwatch_runtimes::is_nightly;

use crate::support::collector::Collector;

#[test]
fn the_first_contact_of_the_guide_leads_to_a_report() {
    if !is_nightly("the first program of docs/sdk.md, from an empty folder") {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let guide = fs::read_to_string(root.join("docs/sdk.md")).unwrap();
    let block = |section: &str, language: &str| {
        let (_, section) = guide.split_once(&format!("\n## {section}\n")).unwrap();
        let (_, rest) = section.split_once(&format!("\n```{language}\n")).unwrap();
        rest.split("```").next().unwrap().to_owned()
    };
    let folder = tempfile::tempdir().unwrap();
    symlink(root.canonicalize().unwrap(), folder.path().join("epwatch")).unwrap();
    let collector = Collector::start("demo-key");
    let cargo = |args: &[&str], within: &Path| {
        let ran = Command::new(env!("CARGO"))
            .args(args)
            .current_dir(within)
            .env("CARGO_TARGET_DIR", folder.path().join("target"))
            .env("TMPDIR", folder.path())
            .output()
            .unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&ran.stdout).into_owned(),
            String::from_utf8_lossy(&ran.stderr).into_owned(),
        );
        assert!(ran.status.success(), "{args:?}\n{out}\n{err}");
        out
    };
    cargo(&["new", "camera"], folder.path());
    let app = folder.path().join("camera");
    let edit = |file: &str, from: &str, to: &str| {
        let path = app.join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&path, text.replace(from, to)).unwrap();
    };
    edit(
        "Cargo.toml",
        "[dependencies]\n",
        &block("Cargo.toml", "toml"),
    );
    fs::write(app.join("src/main.rs"), block("First contact", "rust")).unwrap();
    edit(
        "src/main.rs",
        "http://127.0.0.1:4717",
        &collector.endpoint(),
    );
    let printed = cargo(&["run"], &app);
    assert!(printed.contains("100"), "{printed}");
    let runs = collector.reports();
    let runs = runs.iter().flat_map(|report| &report.series).map(|s| s.n);
    assert_eq!(runs.sum::<u64>(), 100, "{printed}");
}
