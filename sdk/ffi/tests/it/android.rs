//! The Kotlin library for Android. Robolectric runs its tests over the real framework of API 24, 31 and 35. The AAR has
//! the expected content, and the same inputs give the same bytes. The tests need no phone and no Gradle.

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use epwatch_runtimes::{is_nightly, packages, tool};

use crate::{
    c::{crate_file, library_folder},
    jvm::guide,
};

/// Machines of ELF headers.
const ARM: u8 = 40;
const ARM64: u8 = 183;
const X86_64: u8 = 62;

/// Runs Maven up to a phase. Maven keeps its downloads.
#[track_caller]
fn maven(into: &Path, phase: &str) -> String {
    let ran = tool("mvn")
        .args(["-B", "-Pandroid", "-f"])
        .arg(crate_file("../android/modules.xml"))
        .arg(format!("-Doutput={}", into.display()))
        .arg(phase)
        // With the library path of Cargo, Java would find the host's library; one test needs a JVM without it.
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{said}");
    said
}

/// Makes a library without dependencies. It is for x86_64, or its header claims an ABI of ARM.
fn library(into: &Path, machine: u8) -> PathBuf {
    let (source, library) = (into.join("none.c"), into.join(format!("lib{machine}.so")));
    fs::write(&source, "int none;\n").unwrap();
    let bits = if machine == ARM { "-m32" } else { "-m64" };
    let made = tool("cc")
        .args([bits, "-shared", "-nostdlib", "-o"])
        .args([&library, &source])
        .status();
    assert!(made.unwrap().success());
    let mut bytes = fs::read(&library).unwrap();
    bytes[18] = machine;
    fs::write(&library, bytes).unwrap();
    library
}

/// Packs the AAR with libraries by their ABIs, and returns its bytes.
#[track_caller]
fn aar(classes: &Path, into: &Path, libraries: &[(&str, &Path)]) -> Result<Vec<u8>, String> {
    let libraries = libraries.iter();
    let packed = Command::new(crate_file("../android/aar.py"))
        .args([classes, into])
        .args(libraries.map(|(abi, library)| format!("{abi}={}", library.display())))
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

/// The limits of size, imports and pages of 16 KB. Only Debian packs a compiler together with the sources of std, which the
/// build for size compiles.
#[test]
fn the_library_for_phones_is_within_its_limits() {
    if !is_nightly("the size and the imports of the library for arm64 phones (Debian's rustc-web)")
    {
        return;
    }
    if !Path::new("/usr/lib/rustlib/src/rust/library/std").exists() {
        let line = "left out: the size of the library for arm64 phones needs Debian's rustc-web, cargo-web and rust-web-src\n";
        let _ = std::io::stderr().write_all(line.as_bytes());
        return;
    }
    let zig = packages(&crate_file("../android/native/requirements.txt"));
    let checked = tool("python3")
        .arg(crate_file("../android/native/link_check.py"))
        .args(["--variant", "minimal", "--target-dir"])
        .arg(crate_file("../../target/android"))
        .env("PYTHONPATH", zig)
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .unwrap();
    let said = [checked.stdout, checked.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(checked.status.success(), "{said}");
    assert!(said.contains("arm64-v8a minimal: "), "{said}");
}

/// Whether Maven has Android's frameworks for Robolectric: 740 MB with its other libraries, which a nightly run fetches.
fn has_frameworks() -> bool {
    let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let found = home.join(".m2/repository/org/robolectric/android-all-instrumented");
    fs::read_dir(found).is_ok_and(|versions| versions.count() >= 3)
}

#[test]
fn the_android_library_hears_the_framework_and_packs_into_an_aar() {
    if !has_frameworks()
        && !is_nightly("the Kotlin library for Android under Robolectric, which Maven lacks here")
    {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    guide("## Android", folder.path());
    let said = maven(folder.path(), "test");
    // Each test counts once for each of its API levels. The second number is for the tests of `epwatch-ktx`.
    for n in [33, 2] {
        let line = format!("Tests run: {n}, Failures: 0, Errors: 0, Skipped: 0");
        assert!(said.contains(&line), "{said}");
    }

    let classes = folder.path().join("classes");
    let [arm, arm64] = [ARM, ARM64].map(|machine| library(folder.path(), machine));
    let libraries = [("arm64-v8a", &*arm64), ("armeabi-v7a", &*arm)];
    let packed_in = |name| aar(&classes, &folder.path().join(name), &libraries);
    let packed = packed_in("first").unwrap();
    let again = packed_in("second").unwrap();
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
            "jni/armeabi-v7a/libepwatch.so",
        ]
    );
    for part in ["workmanager", "startup"] {
        assert_eq!(
            listed(&first.join(format!("epwatch-{part}-0.1.0.aar"))),
            [
                "AndroidManifest.xml",
                "classes.jar",
                "R.txt",
                "META-INF/com/android/build/gradle/aar-metadata.properties",
            ]
        );
    }
    let of_ktx = listed(&first.join("epwatch-ktx-0.1.0.jar"));
    assert!(of_ktx.contains(&"META-INF/epwatch-ktx.kotlin_module".to_owned()));
    assert!(
        of_ktx
            .iter()
            .all(|name| name.starts_with("META-INF/") || name.starts_with("dev/epwatch/ktx/"))
    );
}

/// Regression test: the AAR contained a desktop's library of 36 MB as `x86_64`, which no app could load.
#[test]
fn the_aar_takes_no_desktop_library_and_no_other_machine() {
    let folder = tempfile::tempdir().unwrap();
    let host = library_folder().join("libepwatch.so");
    let [none, arm64, x86_64] = [0, ARM64, X86_64].map(|machine| library(folder.path(), machine));
    let refused = |abi, library: &Path| {
        let out = folder.path().join("out");
        aar(folder.path(), &out, &[(abi, library)]).unwrap_err()
    };
    for (abi, library, why) in [
        ("mips", &host, "unknown ABI mips"),
        ("x86_64", &host, "is a desktop's library: it needs lib"),
        (
            "arm64-v8a",
            &x86_64,
            "is for another machine than arm64-v8a",
        ),
        ("armeabi-v7a", &arm64, "is not a shared library of 32 bits"),
        ("x86_64", &none, "is for another machine than x86_64"),
        ("x86_64", &folder.path().join("gone.so"), "No such file"),
        (
            "x86_64",
            &folder.path().join("none.c"),
            "is not a shared library",
        ),
        // Everything is right except the classes.
        (
            "arm64-v8a",
            &arm64,
            "compile with `mvn -f modules.xml -Pandroid` first",
        ),
    ] {
        let said = refused(abi, library);
        assert!(said.contains(why), "{abi} {library:?}: {said}");
    }
}
