//! The pinned build of each engine, by platform, with its hashes.
//!
//! The hashes were taken from the packages named here, November 2026. A version changes here and nowhere else.

mod openvino;
mod plan;
mod qnn;

use plan::{MANYLINUX_X86_64, SHARED_X86_64, ort_plan};
pub(crate) use plan::{Pin, Plan, Source};
pub use qnn::QnnVersion;

use crate::{Engine, EngineError};

impl Engine {
    /// Returns the version that this program uses, as its source calls it. `None` if the engine does not exist
    /// for this platform.
    pub fn version(self) -> Option<&'static str> {
        plan(self, HOST).ok().map(|plan| plan.version)
    }
}

const CHDB_VERSION: &str = "26.7.3-stable.1";
const ORT_VERSION: &str = "1.31.1";

/// Operating system and architecture, by their names in Rust's `std::env::consts`.
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
    // The packages for other platforms were not available when these hashes were taken. They are only checked by npm
    // against the registry's integrity hash. So they are fetched with `--unpinned` only.
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
        purpose: "the embedded store",
        download_bytes: 178_000_000,
        is_unpinned_allowed: false,
    })
}

fn onnxruntime(platform: Platform<'_>) -> Option<Plan> {
    const LINUX: &str = "onnxruntime/capi/libonnxruntime.so.1.31.1";
    const MACOS: &str = "onnxruntime/capi/libonnxruntime.1.31.1.dylib";
    let (platforms, path, sha256, shared): (&'static [&'static str], _, _, _) = match platform {
        ("linux", "x86_64") => (
            MANYLINUX_X86_64,
            LINUX,
            "fc44112fbe06d7d689c57e11d3862031f64711007e4ee020f8eed5185fd2c1d3",
            Some(SHARED_X86_64),
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
    Some(ort_plan(platforms, ORT_VERSION, path, sha256, shared))
}

fn onnxruntime_qnn(platform: Platform<'_>) -> Option<Plan> {
    (platform == ("linux", "x86_64")).then(|| QnnVersion::NEWEST.plan())
}

/// Returns the plan of ONNX Runtime with Intel's EP for this platform.
pub(crate) fn openvino_here() -> Result<Plan, EngineError> {
    let (os, arch) = HOST;
    if HOST == ("linux", "x86_64") {
        return Ok(openvino::plan());
    }
    Err(EngineError::Unavailable {
        engine: Engine::OnnxRuntime,
        reason: format!(
            "onnxruntime-openvino is pinned for Linux x86-64 only, and this is {os} {arch}"
        ),
    })
}

/// Plans of releases that only an option asks for. These are QNN plugins before the newest one, each with the ONNX
/// Runtime that it needs, and ONNX Runtime with Intel's EP.
pub(crate) fn older_here() -> Vec<(Engine, Plan)> {
    if HOST != ("linux", "x86_64") {
        return Vec::new();
    }
    let older = QnnVersion::all().filter(|version| *version != QnnVersion::NEWEST);
    let each = older.flat_map(|version| {
        let ort = version.ort_plan().map(|plan| (Engine::OnnxRuntime, plan));
        ort.into_iter()
            .chain([(Engine::OnnxRuntimeQnn, version.plan())])
    });
    let openvino = (Engine::OnnxRuntime, openvino::plan());
    each.chain([openvino]).collect()
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

    /// The package of libchdb exists for Linux on x86-64 alone.
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
