use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::{SdkConfig, Watch, simulated_device};

/// A host that has only the given files and variables.
#[derive(Debug, Default)]
struct MadeUp {
    variables: BTreeMap<&'static str, String>,
    files: BTreeSet<PathBuf>,
    closed: BTreeSet<PathBuf>,
}

impl MadeUp {
    fn with(mut self, files: &[&str]) -> Self {
        self.files.extend(files.iter().map(PathBuf::from));
        self
    }

    fn with_path(mut self, value: &str) -> Self {
        self.variables.insert(LIBRARY_PATH, value.to_owned());
        self
    }
}

impl Host for MadeUp {
    fn variable(&self, name: &str) -> Option<String> {
        let is_known = [NEWER_LIBRARY_PATH, LIBRARY_PATH].contains(&name);
        assert!(is_known, "no check reads {name}");
        self.variables.get(name).cloned()
    }

    fn exists(&self, path: &Path) -> bool {
        assert!(path.is_absolute(), "{path:?}");
        self.files.contains(path)
    }

    fn may_use(&self, path: &Path) -> bool {
        assert!(self.files.contains(path), "{path:?}");
        !self.closed.contains(path)
    }
}

const SKELETON: &str = "/data/app/lib/libQnnHtpV75Skel.so";

/// A phone without any problem.
fn phone() -> (MadeUp, PreflightFacts) {
    let host = MadeUp::default()
        .with(&["/data/app/lib/libQnnHtp.so", SKELETON, RPC_LIBRARIES[0]])
        .with_path("/data/app/lib;/vendor/dsp");
    let facts = PreflightFacts {
        platform: Platform::Android,
        backend_path: "/data/app/lib/libQnnHtp.so".into(),
        soc_model: "57".to_owned(),
        hexagon_arch: Some(75),
        native_library_dir: Some("/data/app/lib".into()),
        declares_rpc_library: Some(true),
        model_qairt: "2.45.1".to_owned(),
        runtime_qairt: "v2.51.0.260101".to_owned(),
        plugin_version: "2.7.0".to_owned(),
        api_level: Some(34),
    };
    (host, facts)
}

/// A robot without any problem.
fn robot() -> (MadeUp, PreflightFacts) {
    let host = MadeUp::default()
        .with(&["/usr/lib/dsp/libQnnHtpV68Skel.so", DRIVERS[0]])
        .with_path("/usr/lib/dsp");
    let facts = PreflightFacts {
        platform: Platform::Linux,
        backend_path: "libQnnHtp.so".into(),
        soc_model: "93".to_owned(),
        hexagon_arch: Some(68),
        ..PreflightFacts::default()
    };
    (host, facts)
}

#[track_caller]
fn finds(host: &MadeUp, facts: &PreflightFacts, expected: &[(ReasonCode, &str)]) {
    let found = run_on(host, facts);
    let reasons: Vec<ReasonCode> = found.iter().map(|check| check.reason.into()).collect();
    let wanted: Vec<ReasonCode> = expected.iter().map(|(reason, _)| *reason).collect();
    assert_eq!(reasons, wanted, "{found:?}");
    for (check, (_, seen)) in found.iter().zip(expected) {
        assert!(check.seen.contains(seen), "{check:?}");
        assert!(!check.meaning().is_empty() && check.fix().ends_with('.'));
    }
}

#[test]
fn where_nothing_is_wrong_nothing_is_found() {
    let (host, facts) = phone();
    finds(&host, &facts, &[]);
    let (host, facts) = robot();
    finds(&host, &facts, &[]);
    let anywhere = PreflightFacts {
        platform: Platform::Other,
        ..PreflightFacts::default()
    };
    finds(&MadeUp::default(), &anywhere, &[]);
    assert_eq!(PreflightFacts::default().platform, Platform::current());
}

#[test]
fn each_fault_of_a_phone_is_found_alone() {
    let (host, mut facts) = phone();
    facts.declares_rpc_library = Some(false);
    let declared = (ReasonCode::NativeLibraryNotDeclared, RPC_LIBRARIES[0]);
    finds(&host, &facts, &[declared]);
    facts.declares_rpc_library = None;
    finds(&host, &facts, &[]);

    let (mut host, facts) = phone();
    host.variables.clear();
    finds(
        &host,
        &facts,
        &[(ReasonCode::AdspLibraryPathUnset, "not set")],
    );

    let (host, facts) = phone();
    let host = host.with_path("/data/app/lib:/vendor/dsp");
    let separator = (ReasonCode::AdspLibraryPathSeparator, "/lib:/vendor");
    finds(&host, &facts, &[separator]);

    let (mut host, facts) = phone();
    host.files.remove(Path::new(SKELETON));
    // The other half of the back end is a file here, so the skeleton was never packaged.
    let expected = [
        (ReasonCode::BackendLibraryMissing, "in no folder"),
        (ReasonCode::BackendLibraryMissing, "not packaged"),
    ];
    finds(&host, &facts, &expected);
    // No library is a file: all are still inside the APK, which the loader can read and the DSP cannot.
    host.files.remove(Path::new("/data/app/lib/libQnnHtp.so"));
    let mut facts = facts;
    facts.backend_path = "/data/app/base.apk!/lib/arm64-v8a/libQnnHtp.so".into();
    let host = host.with(&["/data/app/base.apk"]);
    let expected = [
        (ReasonCode::BackendLibraryMissing, "in no folder"),
        (ReasonCode::NativeLibrariesNotExtracted, SKELETON),
    ];
    finds(&host, &facts, &expected);
    facts.backend_path = "/data/app/other.apk!/lib/arm64-v8a/libQnnHtp.so".into();
    let missing = (ReasonCode::BackendLibraryMissing, "other.apk");
    finds(&host, &facts, &[missing, expected[0], expected[1]]);

    let (host, mut facts) = phone();
    facts.backend_path = "/data/app/lib/libQnnHtpOld.so".into();
    finds(
        &host,
        &facts,
        &[(ReasonCode::BackendLibraryMissing, "libQnnHtpOld.so")],
    );

    // QNN does not know this name, or knows the chipset only by number.
    for (asked, seen) in [
        ("snapdragon", "snapdragon"),
        ("SM9999", "SM9999"),
        ("-1", "-1"),
        ("QCS6490", "its number is 93"),
        ("SA8775P", "SA8775P"),
    ] {
        let (host, mut facts) = phone();
        facts.soc_model = asked.to_owned();
        finds(&host, &facts, &[(ReasonCode::SocModelUnknown, seen)]);
    }
    // QNN may know numbers that epwatch does not.
    for asked in ["12345", "57", " sm8650 "] {
        let (host, mut facts) = phone();
        facts.soc_model = asked.to_owned();
        finds(&host, &facts, &[]);
    }

    let (host, mut facts) = phone();
    for model in ["2.52", "2.51.1", "v2.52-rc1", "3.0.0"] {
        facts.model_qairt = model.to_owned();
        finds(&host, &facts, &[(ReasonCode::RuntimeOlderThanModel, model)]);
    }
    // A version without a patch has patch 0.
    (facts.model_qairt, facts.runtime_qairt) = ("2.51.0".to_owned(), "2.51".to_owned());
    finds(&host, &facts, &[]);
}

#[test]
fn a_robot_needs_a_driver_that_it_may_open() {
    let (mut host, facts) = robot();
    host.closed.insert(DRIVERS[0].into());
    finds(&host, &facts, &[(ReasonCode::BackendSetupFailed, "group")]);
    host.files.remove(Path::new(DRIVERS[0]));
    finds(&host, &facts, &[(ReasonCode::BackendSetupFailed, "kernel")]);
}

#[test]
fn a_robot_with_the_skeleton_where_its_distribution_puts_it_needs_no_path() {
    for folder in LINUX_FOLDERS {
        for hexagon_arch in [Some(68), None] {
            let (_, mut facts) = robot();
            facts.soc_model.clear();
            facts.hexagon_arch = hexagon_arch;
            let at = format!("{folder}/cdsp/libQnnHtpV68Skel.so");
            let host = MadeUp::default().with(&[&at, DRIVERS[0]]);
            finds(&host, &facts, &[]);
            // Another architecture does not help; a phone's app cannot read the folder.
            facts.hexagon_arch = Some(75);
            let unset = (ReasonCode::AdspLibraryPathUnset, "not set");
            finds(&host, &facts, &[unset]);
            facts.platform = Platform::Android;
            facts.hexagon_arch = hexagon_arch;
            finds(&host, &facts, &[unset]);
        }
    }
}

#[test]
fn the_newer_variable_is_read_first() {
    let (mut host, facts) = robot();
    let newer = |value: &str| (NEWER_LIBRARY_PATH, value.to_owned());
    host.variables.extend([newer("/nowhere")]);
    let missing = (ReasonCode::BackendLibraryMissing, " DSP_LIBRARY_PATH=");
    finds(&host, &facts, &[missing]);
    host.variables.clear();
    host.variables.extend([newer("/usr/lib/dsp")]);
    finds(&host, &facts, &[]);
}

#[test]
fn the_requested_chipset_determines_the_skeleton() {
    let (host, mut facts) = phone();
    facts.hexagon_arch = None;
    finds(&host, &facts, &[]);
    facts.soc_model = "SM8750".to_owned();
    let expected = [
        (ReasonCode::BackendLibraryMissing, "libQnnHtpV79Skel.so"),
        (
            ReasonCode::BackendLibraryMissing,
            "holds libQnnHtpV75Skel.so",
        ),
    ];
    finds(&host, &facts, &expected);
}

#[test]
fn a_watch_adds_its_device_and_keeps_the_findings() {
    let dir = tempfile::tempdir().unwrap();
    let config = SdkConfig::builder("app", "http://127.0.0.1:9", "key", dir.path())
        .with_device(simulated_device("SM8650").into())
        .build()
        .unwrap();
    let watch = Watch::start(config).unwrap();
    let facts = PreflightFacts {
        platform: Platform::Android,
        native_library_dir: Some(dir.path().join("lib")),
        ..PreflightFacts::default()
    };
    let found = watch.preflight(&facts);
    let skeleton = found
        .iter()
        .find(|check| check.reason == ReasonCode::NativeLibrariesNotExtracted.into());
    assert!(skeleton.unwrap().seen.ends_with("libQnnHtpV75Skel.so"));
    let explained = watch.explain().to_string();
    assert!(explained.contains("native_libraries_not_extracted"));
    watch.stop(std::time::Duration::from_secs(30)).unwrap();
}

#[test]
fn the_real_host_reads_files_and_permissions() {
    let dir = tempfile::tempdir().unwrap();
    let driver = dir.path().join("fastrpc-cdsp");
    std::fs::write(&driver, b"").unwrap();
    assert!(SystemHost.exists(&driver) && SystemHost.may_use(&driver));
    assert!(!SystemHost.exists(&dir.path().join("adsprpc-smd")));
    assert!(SystemHost.exists(Path::new("/")));
}

proptest! {
    #[test]
    fn any_text_is_looked_at_without_harm(value in "\\PC{0,60}|[a-z;:]{0,2000}", soc in "\\PC{0,10}", version in "[v0-9.]{0,12}") {
        let (host, mut facts) = phone();
        let value = format!("/{value}").replace(";", ";/");
        facts.soc_model = soc;
        facts.model_qairt = version;
        for check in run_on(&host.with_path(&value), &facts) {
            prop_assert!(check.seen.len() <= MAX_SEEN_BYTES);
            prop_assert!(!check.seen.contains(char::is_control));
        }
    }
}

#[test]
fn plugins_that_find_no_npu_in_an_app_are_named() {
    let (host, facts) = phone();
    let with = |plugin_version: &str, api_level: Option<u32>| {
        let facts = PreflightFacts {
            plugin_version: plugin_version.to_owned(),
            api_level,
            ..facts.clone()
        };
        let found = run_on(&host, &facts);
        let reasons = found.into_iter().map(|c| ReasonCode::from(c.reason));
        reasons.collect::<Vec<_>>()
    };
    let no_device = [ReasonCode::NoEpDevice];
    assert_eq!(with("2.4.0", Some(36)), no_device);
    assert_eq!(with("2.7.0", Some(30)), no_device);
    assert_eq!(with("2.7.0", Some(31)), []);
    assert_eq!(with("2.7.0", None), []);
    assert_eq!(with("", Some(30)), []);
    let robot = PreflightFacts {
        platform: Platform::Other,
        plugin_version: "2.4.0".to_owned(),
        ..PreflightFacts::default()
    };
    assert_eq!(run_on(&MadeUp::default(), &robot), []);
}
