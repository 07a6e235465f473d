//! The Kotlin library for Android. Robolectric runs its tests over the real framework of API 24, 31 and 35. The AAR
//! holds what it should, and the same inputs give the same bytes. No phone, no Gradle.

use std::{fs, path::Path, process::Command};

use epwatch_runtimes::{is_nightly, tool};

use crate::{
    c::{crate_file, library_folder},
    jvm::guide,
};

/// Runs Maven up to a phase, which keeps what it downloads.
#[track_caller]
fn maven(into: &Path, phase: &str) -> String {
    let ran = tool("mvn")
        .args(["-B", "-Pandroid", "-f"])
        .arg(crate_file("../android/pom.xml"))
        .arg(format!("-Doutput={}", into.display()))
        .arg(phase)
        // Cargo's path finds the host's library: a test is without it.
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{said}");
    said
}

/// Packs the AAR with the host's library in the place of Android's, and returns its bytes.
#[track_caller]
fn aar(classes: &Path, into: &Path, abi: &str) -> Result<Vec<u8>, String> {
    let library = library_folder().join("libepwatch.so");
    let packed = Command::new(crate_file("../android/aar.py"))
        .args([classes, into])
        .arg(format!("{abi}={}", library.display()))
        .output()
        .unwrap();
    if !packed.status.success() {
        return Err(String::from_utf8_lossy(&packed.stderr).into_owned());
    }
    let said = String::from_utf8(packed.stdout).unwrap();
    Ok(fs::read(said.split_once(' ').unwrap().0).unwrap())
}

/// The names of a zip file's entries.
#[track_caller]
fn listed(path: &Path) -> Vec<String> {
    let listed = tool("jar")
        .arg("--list")
        .arg("--file")
        .arg(path)
        .output()
        .unwrap();
    let names = String::from_utf8(listed.stdout).unwrap();
    names.lines().map(str::to_owned).collect()
}

#[test]
fn the_android_library_hears_the_framework_and_packs_into_an_aar() {
    if !is_nightly("the Kotlin library for Android under Robolectric (Maven)") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    guide("## Android", folder.path());
    let said = maven(folder.path(), "test");
    // Each test once for each of its API levels.
    assert!(
        said.contains("Tests run: 16, Failures: 0, Errors: 0, Skipped: 0"),
        "{said}"
    );

    let classes = folder.path().join("classes");
    let packed = aar(&classes, &folder.path().join("first"), "arm64-v8a").unwrap();
    let again = aar(&classes, &folder.path().join("second"), "arm64-v8a").unwrap();
    assert!(packed == again, "the same inputs give the same bytes");
    let first = folder.path().join("first");
    assert_eq!(
        listed(&first.join("epwatch-0.1.0.aar")),
        [
            "AndroidManifest.xml",
            "classes.jar",
            "R.txt",
            "proguard.txt",
            "META-INF/com/android/build/gradle/aar-metadata.properties",
            "jni/arm64-v8a/libepwatch.so",
        ]
    );
    // Of WorkManager's part only that it compiles and what it packs is known here.
    assert_eq!(
        listed(&first.join("epwatch-workmanager-0.1.0.aar")),
        [
            "AndroidManifest.xml",
            "classes.jar",
            "R.txt",
            "META-INF/com/android/build/gradle/aar-metadata.properties",
        ]
    );
    let refused = aar(&classes, &folder.path().join("third"), "mips").unwrap_err();
    assert!(refused.contains("unknown ABI mips"), "{refused}");
}
