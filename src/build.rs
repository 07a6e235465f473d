//! Hands the commit to the command. Only release builds have one, since others would be compiled again at each commit.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=EPWATCH_REVISION");
    let given = std::env::var("EPWATCH_REVISION").ok();
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let (revision, date) = match given.filter(|given| !given.is_empty()) {
        Some(given) => (Some(given), None),
        None if is_release => {
            for path in ["HEAD", "index"] {
                if let Some(path) = git(&["rev-parse", "--git-path", path]) {
                    println!("cargo:rerun-if-changed={path}");
                }
            }
            let revision = git(&["describe", "--always", "--dirty", "--exclude=*"]);
            (
                revision,
                git(&["show", "--no-patch", "--format=%cs", "HEAD"]),
            )
        }
        None => (None, None),
    };
    println!(
        "cargo:rustc-env=BUILD_REVISION={}",
        revision.as_deref().unwrap_or("unknown")
    );
    println!(
        "cargo:rustc-env=BUILD_REVISION_DATE={}",
        date.as_deref().unwrap_or("unknown")
    );
}

/// `None` without git or outside of a checkout.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
