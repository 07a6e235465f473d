//! The pinned build of each engine, by platform, with its hashes.
//!
//! The hashes were taken from the packages named here, November 2026. A version changes here and nowhere else.

use crate::{Engine, EngineError};

/// One engine's package for this platform.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The entry's folder, `<name>-<version>`.
    pub(crate) name: String,
    /// As its source calls it.
    pub(crate) version: &'static str,
    pub(crate) source: Source,
    /// Files that the entry must hold.
    pub(crate) pins: Vec<Pin>,
    /// About the bytes that come over the network, for progress.
    pub(crate) download_bytes: u64,
    /// The user takes files without a pin on the source's word.
    pub(crate) is_unpinned_allowed: bool,
}

impl Plan {
    /// Returns whether no hash is known for a file that is needed.
    pub(crate) fn is_unpinned(&self) -> bool {
        self.pins.iter().any(|pin| pin.sha256.is_none())
    }
}

/// A file of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pin {
    /// Relative path with `/`.
    pub(crate) path: &'static str,
    /// Lower-case hex, where this project pins it.
    pub(crate) sha256: Option<&'static str>,
}

/// A package of a package manager.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// `npm pack`, which checks the archive against the registry's integrity hash.
    Npm { package: &'static str },
    /// `pip download` of a wheel.
    Pip {
        package: &'static str,
        /// Platform tags, so that the host's Python does not choose.
        platforms: &'static [&'static str],
        /// Folders of the wheel whose libraries are kept.
        keep: &'static [&'static str],
    },
}

impl Engine {
    /// Returns the version that this program uses, as its source calls it. `None` if the engine does not exist
    /// for this platform.
    pub fn version(self) -> Option<&'static str> {
        plan(self, HOST).ok().map(|plan| plan.version)
    }
}

const CHDB_VERSION: &str = "26.7.3-stable.1";
const ORT_VERSION: &str = "1.31.1";
const QNN_VERSION: &str = "2.7.0";

/// (operating system, architecture) as Rust's `std::env::consts` names them.
type Platform<'a> = (&'a str, &'a str);

/// The platform this program was built for.
const HOST: Platform<'static> = (std::env::consts::OS, std::env::consts::ARCH);

/// Returns the engine's plan for this platform.
pub(crate) fn plan_here(engine: Engine) -> Result<Plan, EngineError> {
    plan(engine, HOST).map_err(|reason| EngineError::Unavailable { engine, reason })
}

/// Returns the engine's plan for `platform`, or the reason why there is none.
fn plan(engine: Engine, platform: Platform<'_>) -> Result<Plan, String> {
    let (plan, published) = match engine {
        Engine::Chdb => (
            chdb(platform),
            "libchdb is published for Linux (glibc) and macOS, x86-64 and arm64",
        ),
        Engine::OnnxRuntime => (
            onnxruntime(platform),
            "onnxruntime 1.31.1 is published for Linux x86-64 and arm64 and macOS 14 on arm64",
        ),
        Engine::OnnxRuntimeQnn => (
            onnxruntime_qnn(platform),
            "Qualcomm publishes the HTP emulator of onnxruntime-qnn for Linux x86-64 only",
        ),
    };
    let (os, arch) = platform;
    plan.ok_or_else(|| format!("{published}, and this is {os} {arch}"))
}

fn chdb(platform: Platform<'_>) -> Option<Plan> {
    // The other platforms' packages could not be had where these hashes were taken. For them npm's own check against the
    // registry's integrity hash is all there is, so they are fetched with `--unpinned` only.
    let (package, sha256) = match platform {
        ("linux", "x86_64") => (
            "@chdb/lib-linux-x64-gnu",
            Some("36ad4e999882821ef13cf2d0f52c93f48e6ee1b4498b35a201c23ce4b8d15bf5"),
        ),
        ("linux", "aarch64") => ("@chdb/lib-linux-arm64-gnu", None),
        ("macos", "x86_64") => ("@chdb/lib-darwin-x64", None),
        ("macos", "aarch64") => ("@chdb/lib-darwin-arm64", None),
        _ => return None,
    };
    Some(Plan {
        name: format!("libchdb-{CHDB_VERSION}"),
        version: CHDB_VERSION,
        source: Source::Npm { package },
        pins: vec![Pin {
            path: "libchdb.so",
            sha256,
        }],
        download_bytes: 178_000_000,
        is_unpinned_allowed: false,
    })
}

fn onnxruntime(platform: Platform<'_>) -> Option<Plan> {
    const LINUX: &str = "onnxruntime/capi/libonnxruntime.so.1.31.1";
    const MACOS: &str = "onnxruntime/capi/libonnxruntime.1.31.1.dylib";
    const SHARED: &str = "onnxruntime/capi/libonnxruntime_providers_shared.so";
    let (platforms, path, sha256, shared): (&'static [&'static str], _, _, _) = match platform {
        ("linux", "x86_64") => (
            MANYLINUX_X86_64,
            LINUX,
            "fc44112fbe06d7d689c57e11d3862031f64711007e4ee020f8eed5185fd2c1d3",
            Some("086ec1d5388f64153d9c63470d126693db9a182c8ce236d3a1119068471b8a0d"),
        ),
        ("linux", "aarch64") => (
            &[
                "manylinux_2_27_aarch64",
                "manylinux_2_28_aarch64",
                "manylinux_2_35_aarch64",
            ],
            LINUX,
            "8aa3b76b28c778a2b1dd660d34161adb1d508c9ccd04ff9dc80e26eca5df8467",
            Some("3b6be288fbfb7dff8770d08a23defdde18e8f7e0f5a2b344a0e5e238c999ea88"),
        ),
        ("macos", "aarch64") => (
            &["macosx_14_0_arm64"],
            MACOS,
            "f8b06155feece624e55e49124340eea279da812529ae6fbc46a9f2be9c9cad2e",
            None,
        ),
        _ => return None,
    };
    Some(Plan {
        name: format!("onnxruntime-{ORT_VERSION}"),
        version: ORT_VERSION,
        source: Source::Pip {
            package: "onnxruntime",
            platforms,
            keep: &["onnxruntime/capi"],
        },
        pins: [(path, Some(sha256)), (SHARED, shared)]
            .into_iter()
            .filter(|(_, sha256)| sha256.is_some())
            .map(|(path, sha256)| Pin { path, sha256 })
            .collect(),
        download_bytes: 24_000_000,
        is_unpinned_allowed: false,
    })
}

const MANYLINUX_X86_64: &[&str] = &[
    "manylinux_2_27_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux_2_35_x86_64",
];

fn onnxruntime_qnn(platform: Platform<'_>) -> Option<Plan> {
    let pin = |path, sha256| Pin {
        path,
        sha256: Some(sha256),
    };
    (platform == ("linux", "x86_64")).then(|| Plan {
        name: format!("onnxruntime-qnn-{QNN_VERSION}"),
        version: QNN_VERSION,
        source: Source::Pip {
            package: "onnxruntime-qnn",
            platforms: MANYLINUX_X86_64,
            // The backends load their C++ runtime from `../onnxruntime_qnn.libs`.
            keep: &["onnxruntime_qnn", "onnxruntime_qnn.libs"],
        },
        pins: vec![
            pin(
                "onnxruntime_qnn/libonnxruntime_providers_qnn.so",
                "629dfc151fc842bf9aa6ecdba89c0a864cd50e90fda960f9631e234fed5fc457",
            ),
            pin(
                "onnxruntime_qnn/libQnnHtp.so",
                "66fbcc1a97b3ca186c0170123e03978f2351222d59b2e9ceb0202e4a9b0116c0",
            ),
            pin(
                "onnxruntime_qnn/libHtpPrepare.so",
                "240b3db00f71efdce5f5ad3a69a0cc9ae2e375d6d51408d595b292a2ef560568",
            ),
            pin(
                "onnxruntime_qnn/libQnnSystem.so",
                "a5441fe0307cfb10478d18f6de16053f3b111eaa01ff3975a54b10afdfa33a38",
            ),
            pin(
                "onnxruntime_qnn/libQnnIr.so",
                "a43ff16156b2abacf3b43ccbe137901222dba270ced27fa4cf528946a38ab5a7",
            ),
            pin(
                "onnxruntime_qnn/libQnnGpu.so",
                "73df74e66186cb610c3385903be349af82ef76122f69f9c10578bb102467e4e7",
            ),
            pin(
                "onnxruntime_qnn/libQnnHtpNetRunExtensions.so",
                "12e4feae6b00598a56b12539b831eab005e0125b7fd99e12c913d82f014162bd",
            ),
            pin(
                "onnxruntime_qnn/libQnnSaver.so",
                "21e2470993e2bc2eae5f24ac9735cc914f52f448cb539797c7af71f9dca2477c",
            ),
            pin(
                "onnxruntime_qnn/libGenie.so",
                "3f8bd88c8433d6d90e95883bf7e30839de618571e0403c1552aa4618e4303e5b",
            ),
            pin(
                "onnxruntime_qnn.libs/libc++-71bc274c.so.1.0",
                "46cee8e5f62e9b4a79b863b058879c5e9d4f41841650841df6f6669ebef2e2e2",
            ),
            pin(
                "onnxruntime_qnn.libs/libc++abi-0539aa51.so.1.0",
                "2cb6d3e6acc815575d5a76acb45f99ae4ed5a4fcc04febaa8cd8981e07b89a47",
            ),
            pin(
                "onnxruntime_qnn.libs/libunwind-6b740a46.so.1.0",
                "a00822cc6221850754a491cbafa2b2e2fefac06f61f108cc8e80f0869fe5f724",
            ),
        ],
        download_bytes: 99_000_000,
        is_unpinned_allowed: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macos_has_no_qnn_and_says_who_does_not_publish_it() {
        let reason = plan(Engine::OnnxRuntimeQnn, ("macos", "aarch64")).unwrap_err();
        assert!(
            reason.contains("Qualcomm") && reason.contains("macos aarch64"),
            "{reason}"
        );
    }

    /// The package of libchdb could be had for Linux on x86-64 alone.
    #[test]
    fn every_engine_but_libchdb_elsewhere_is_pinned_by_hash() {
        for platform in [
            ("linux", "x86_64"),
            ("linux", "aarch64"),
            ("macos", "x86_64"),
            ("macos", "aarch64"),
        ] {
            for engine in Engine::ALL {
                let Ok(plan) = plan(engine, platform) else {
                    continue;
                };
                let is_elsewhere = engine == Engine::Chdb && platform != ("linux", "x86_64");
                assert_eq!(plan.is_unpinned(), is_elsewhere, "{engine} {platform:?}");
                assert!(!plan.is_unpinned_allowed);
                for sha256 in plan.pins.iter().filter_map(|pin| pin.sha256) {
                    assert_eq!(sha256.len(), 64);
                }
            }
        }
    }
}
