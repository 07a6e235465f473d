//! The releases of onnxruntime-qnn that PyPI has, each with the QNN SDK inside it and the ONNX Runtime that loads it.

use std::{fmt, str::FromStr};

use super::plan::{MANYLINUX_X86_64, Pin, Plan, SHARED_X86_64, Source, ort_plan};

/// A release of Qualcomm's plugin: the release with the phone's QNN version partitions models as the phone does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct QnnVersion(usize);

#[derive(Debug)]
struct Release {
    plugin: &'static str,
    sdk: &'static str,
    /// The ONNX Runtime that loads it: version, library and hash; `None` if the engine's own does.
    ort: Option<(&'static str, &'static str, &'static str)>,
    download_bytes: u64,
    pins: &'static [(&'static str, &'static str)],
}

/// In the order of their versions. As measured, 2.3.0 fails to make a session with ONNX Runtime 1.28.0 to 1.31.1
/// (`invalid ort_version_supported`). It works with 1.24.4 to 1.27.0.
const RELEASES: [Release; 5] = [
    Release {
        plugin: "2.3.0",
        sdk: "2.47.0",
        ort: Some((
            "1.27.0",
            "onnxruntime/capi/libonnxruntime.so.1.27.0",
            "b5c9d4f124d24707f514dad926dc181820807178855df1c528e3addb2dd0e6f7",
        )),
        download_bytes: 93_000_000,
        pins: PINS_2_3_0,
    },
    Release {
        plugin: "2.4.0",
        sdk: "2.48.40",
        ort: None,
        download_bytes: 91_000_000,
        pins: PINS_2_4_0,
    },
    Release {
        plugin: "2.5.0",
        sdk: "2.49.40",
        ort: None,
        download_bytes: 90_000_000,
        pins: PINS_2_5_0,
    },
    Release {
        plugin: "2.6.0",
        sdk: "2.50.40",
        ort: None,
        download_bytes: 95_000_000,
        pins: PINS_2_6_0,
    },
    Release {
        plugin: "2.7.0",
        sdk: "2.51.0",
        ort: None,
        download_bytes: 99_000_000,
        pins: PINS_2_7_0,
    },
];

impl QnnVersion {
    /// The release of [`crate::Engine::OnnxRuntimeQnn`].
    pub const NEWEST: Self = Self(RELEASES.len() - 1);
    /// The oldest release that PyPI has.
    pub const OLDEST: Self = Self(0);

    /// All releases, the oldest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..RELEASES.len()).map(Self)
    }

    /// The plugin's version, for example `2.7.0`.
    pub fn plugin(self) -> &'static str {
        self.release().plugin
    }

    /// The version of the QNN SDK inside it, for example `2.51.0`.
    pub fn sdk(self) -> &'static str {
        self.release().sdk
    }

    fn release(self) -> &'static Release {
        &RELEASES[self.0]
    }

    pub(crate) fn plan(self) -> Plan {
        let release = self.release();
        let pin = |(path, sha256): &(&'static str, &'static str)| Pin {
            path,
            sha256: Some(sha256),
        };
        Plan {
            name: format!("onnxruntime-qnn-{}", release.plugin),
            version: release.plugin,
            source: Source::Pip {
                package: "onnxruntime-qnn",
                platforms: MANYLINUX_X86_64,
                // The backends load their C++ runtime from `../onnxruntime_qnn.libs`.
                keep: &["onnxruntime_qnn", "onnxruntime_qnn.libs"],
            },
            pins: release.pins.iter().map(pin).collect(),
            purpose: "Qualcomm's NPU in an emulator",
            download_bytes: release.download_bytes,
            is_unpinned_allowed: false,
        }
    }

    /// The ONNX Runtime that loads it; `None` if the engine's own does.
    pub(crate) fn ort_plan(self) -> Option<Plan> {
        let (version, path, sha256) = self.release().ort?;
        let shared = Some(SHARED_X86_64);
        Some(ort_plan(MANYLINUX_X86_64, version, path, sha256, shared))
    }
}

impl Default for QnnVersion {
    fn default() -> Self {
        Self::NEWEST
    }
}

impl fmt::Display for QnnVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.plugin())
    }
}

impl FromStr for QnnVersion {
    type Err = String;

    /// Takes the plugin's version (`2.3`, `2.3.0`) or the QNN SDK's (`2.47`, `2.47.0`); an SDK's patch number is not
    /// needed to tell releases apart.
    fn from_str(text: &str) -> Result<Self, String> {
        let minor = |version: &str| {
            let mut parts = version.trim().trim_start_matches('v').split('.');
            let (major, minor) = (
                parts.next()?.parse::<u32>().ok()?,
                parts.next()?.parse::<u32>().ok()?,
            );
            parts
                .all(|part| part.parse::<u64>().is_ok())
                .then_some((major, minor))
        };
        let asked = minor(text);
        let is_it = |version: &Self| {
            let of = [version.plugin(), version.sdk()];
            asked.is_some() && of.iter().any(|own| minor(own) == asked)
        };
        Self::all().find(is_it).ok_or_else(|| {
            let each =
                Self::all().map(|version| format!("{} (QNN {})", version.plugin(), version.sdk()));
            format!(
                "expected one of {}: PyPI has no older one with the emulator",
                each.collect::<Vec<_>>().join(", ")
            )
        })
    }
}

const PINS_2_3_0: &[(&str, &str)] = &[
    (
        "onnxruntime_qnn/libGenie.so",
        "3eff1f6eea8c8c04073b2c19f0e893c924061c4e67e320030e607c682b836eb4",
    ),
    (
        "onnxruntime_qnn/libHtpPrepare.so",
        "b0c56480de224e7a5d9ba30a394acebf8ed4e497b918828d13f69a5baf29af77",
    ),
    (
        "onnxruntime_qnn/libQnnCpu.so",
        "e9e83a4fb78163a276c679a3087ce680cad7f42fb5b561c08958a3e6ae7d6ccb",
    ),
    (
        "onnxruntime_qnn/libQnnGpu.so",
        "3d96e6b141b3ef3db4a8c2a87fae4de327eb186c9bec7ba3be0a46c0fe5274fb",
    ),
    (
        "onnxruntime_qnn/libQnnHtp.so",
        "0c5860dcc5115283dadd8521b896f6d25417f91a55f4b326016122537b9a1a37",
    ),
    (
        "onnxruntime_qnn/libQnnHtpNetRunExtensions.so",
        "c9edca82ae7f1ee76d0643910fb2dcdd346494e6999899621b450f1b21945daa",
    ),
    (
        "onnxruntime_qnn/libQnnIr.so",
        "644204bb6879fa1c51f02cc49134e7f67301b7f059d02a7f5a6ad3a75f39d7f7",
    ),
    (
        "onnxruntime_qnn/libQnnSaver.so",
        "9243c3947cc38aff720bc4a9f7389ba56d2de9da69b687c5c2440241108f0167",
    ),
    (
        "onnxruntime_qnn/libQnnSystem.so",
        "bad722b0d258ccc7fd8738b54648c518c73bc54cff64de469b8183722ba3c03f",
    ),
    (
        "onnxruntime_qnn/libonnxruntime_providers_qnn.so",
        "79d0126041e93f2d9799c87413b872decc83dc40d479896029d40639d1886450",
    ),
    (
        "onnxruntime_qnn.libs/libc++-71bc274c.so.1.0",
        "fb441badfd84c8719371709d5d96b3bc93b55d9d30e22e5b1e8cb7d334cb6e79",
    ),
    (
        "onnxruntime_qnn.libs/libc++abi-0539aa51.so.1.0",
        "36105ee30543215b44a1636076123b6071563acfe57faccc8932dfd2d6eb2b53",
    ),
    (
        "onnxruntime_qnn.libs/libunwind-6b740a46.so.1.0",
        "45e7693034d9e89ef55745b69bc62c6302ef9e44bfa6311e47899d10738756dd",
    ),
];

const PINS_2_4_0: &[(&str, &str)] = &[
    (
        "onnxruntime_qnn/libGenie.so",
        "b274a95bba3c12c0125f51a7ce475a5badbddacc717ee3f21048f05e344362ec",
    ),
    (
        "onnxruntime_qnn/libHtpPrepare.so",
        "3fa8f5a88eaeefd2dc1a3b71b47ef678274e40f6900782de1f2e1cd2af39a9a8",
    ),
    (
        "onnxruntime_qnn/libQnnGpu.so",
        "02cff01f6ea98185f97aaf7d8d8152501cf4ea95a653acf838bcecdeb216ac43",
    ),
    (
        "onnxruntime_qnn/libQnnHtp.so",
        "a340e575d1868c9499b59937f3e8bf892ebac00ed1295aef46e951b3998d3fe2",
    ),
    (
        "onnxruntime_qnn/libQnnHtpNetRunExtensions.so",
        "af3cdc4c4ac3d34c934bf53a7cb6857dca4d40870ae37614d57d0954841149f8",
    ),
    (
        "onnxruntime_qnn/libQnnIr.so",
        "4f24a114349d9158a79799b77c18dfabb7d6bbca4719c381f343f47ad2746f05",
    ),
    (
        "onnxruntime_qnn/libQnnSaver.so",
        "eca4c571b9864ff9890fa46275a690a3423cb679ec8e5a97ddded4052e168d46",
    ),
    (
        "onnxruntime_qnn/libQnnSystem.so",
        "9bbd5ebb7d0beb4749a3984070490e2d76506b24b1ba08c1b0c4dbd7cb7560e7",
    ),
    (
        "onnxruntime_qnn/libonnxruntime_providers_qnn.so",
        "df9209b66ca75363d03df6f619c283dd9eb3ec014db472d68172c1e66b17c071",
    ),
    (
        "onnxruntime_qnn.libs/libc++-71bc274c.so.1.0",
        "fb441badfd84c8719371709d5d96b3bc93b55d9d30e22e5b1e8cb7d334cb6e79",
    ),
    (
        "onnxruntime_qnn.libs/libc++abi-0539aa51.so.1.0",
        "36105ee30543215b44a1636076123b6071563acfe57faccc8932dfd2d6eb2b53",
    ),
    (
        "onnxruntime_qnn.libs/libunwind-6b740a46.so.1.0",
        "45e7693034d9e89ef55745b69bc62c6302ef9e44bfa6311e47899d10738756dd",
    ),
];

const PINS_2_5_0: &[(&str, &str)] = &[
    (
        "onnxruntime_qnn/libGenie.so",
        "87efd5ff913f197e2e750275df36552bbfdd4de7b39c903bd78a4430326e2e71",
    ),
    (
        "onnxruntime_qnn/libHtpPrepare.so",
        "5102cc20b58918ecfdd6ec6a4756d230a6fcfc6e76749ce5456bfa91bcafed9d",
    ),
    (
        "onnxruntime_qnn/libQnnGpu.so",
        "f9b894832cc4d70a6c26b5ec07d84c72da5c035f8464ee5b8c69cec33485fe68",
    ),
    (
        "onnxruntime_qnn/libQnnHtp.so",
        "c45a025c3b2e2e23c95d7592fe66fbfde70ce207c2f1985308f918a3763aa5e2",
    ),
    (
        "onnxruntime_qnn/libQnnHtpNetRunExtensions.so",
        "65ffc9033df2cf2f680e9ea5da65fde1c67fa296e6edef811d8af5b7500d9503",
    ),
    (
        "onnxruntime_qnn/libQnnIr.so",
        "efefc2d1e43ac2e22e3c6c4f44017898661877d6910f66baacbf9a385f803668",
    ),
    (
        "onnxruntime_qnn/libQnnSaver.so",
        "6f7fd518c6cb6628d01e8f1a49aeb3ed294b25da73ce77400c526a517761eb8e",
    ),
    (
        "onnxruntime_qnn/libQnnSystem.so",
        "2428906571048f51724c6dfd90469fd9bda8a70ab5dce187b75d47ed7cbf4af2",
    ),
    (
        "onnxruntime_qnn/libonnxruntime_providers_qnn.so",
        "fa16053d7bae3d11d2e58cc58a5fe06337527e5db5baab2aa3ab33c11fa8b147",
    ),
    (
        "onnxruntime_qnn.libs/libc++-71bc274c.so.1.0",
        "46cee8e5f62e9b4a79b863b058879c5e9d4f41841650841df6f6669ebef2e2e2",
    ),
    (
        "onnxruntime_qnn.libs/libc++abi-0539aa51.so.1.0",
        "2cb6d3e6acc815575d5a76acb45f99ae4ed5a4fcc04febaa8cd8981e07b89a47",
    ),
    (
        "onnxruntime_qnn.libs/libunwind-6b740a46.so.1.0",
        "a00822cc6221850754a491cbafa2b2e2fefac06f61f108cc8e80f0869fe5f724",
    ),
];

const PINS_2_6_0: &[(&str, &str)] = &[
    (
        "onnxruntime_qnn/libGenie.so",
        "db4c3be4cf5558b57a31ab32cef0367f12b032aa1a935ce9ae25f81bd30a2606",
    ),
    (
        "onnxruntime_qnn/libHtpPrepare.so",
        "a870bf4b8cd42f76aff49911d194f0c7d9800732da6606958db62aeb0a08d472",
    ),
    (
        "onnxruntime_qnn/libQnnGpu.so",
        "6b88f4cfb2060c5b8ec326c61d85c426aab4bd927fc2408f77eda50d26b0020e",
    ),
    (
        "onnxruntime_qnn/libQnnHtp.so",
        "f46fcd192787db931d7ac522b2d8206cf739c685d116ff8dc399b87708175313",
    ),
    (
        "onnxruntime_qnn/libQnnHtpNetRunExtensions.so",
        "afd57b4a57fffc65e0e436d8e4a0a3fa3fea26aad21b4d9fefc6aa4d69bd4c10",
    ),
    (
        "onnxruntime_qnn/libQnnIr.so",
        "71c0268c104212be120cc51f851dc2e7d17bdaf5b0b3b252ebb64a443fbe6229",
    ),
    (
        "onnxruntime_qnn/libQnnSaver.so",
        "29568273dd7f8453f8f24db2cd9904ef8fab9a3f2ad828ec7fd994b43c94c911",
    ),
    (
        "onnxruntime_qnn/libQnnSystem.so",
        "5e7b43fb0ab5b2bcbdbc3286e78affd9f7cb873bb59df8a052907e4191dd63a4",
    ),
    (
        "onnxruntime_qnn/libonnxruntime_providers_qnn.so",
        "d3cb6247ba81f0c23503d44a76ef7fb508e3f985ed457c03241252d2ec0f4a8a",
    ),
    (
        "onnxruntime_qnn.libs/libc++-71bc274c.so.1.0",
        "46cee8e5f62e9b4a79b863b058879c5e9d4f41841650841df6f6669ebef2e2e2",
    ),
    (
        "onnxruntime_qnn.libs/libc++abi-0539aa51.so.1.0",
        "2cb6d3e6acc815575d5a76acb45f99ae4ed5a4fcc04febaa8cd8981e07b89a47",
    ),
    (
        "onnxruntime_qnn.libs/libunwind-6b740a46.so.1.0",
        "a00822cc6221850754a491cbafa2b2e2fefac06f61f108cc8e80f0869fe5f724",
    ),
];

const PINS_2_7_0: &[(&str, &str)] = &[
    (
        "onnxruntime_qnn.libs/libc++-71bc274c.so.1.0",
        "46cee8e5f62e9b4a79b863b058879c5e9d4f41841650841df6f6669ebef2e2e2",
    ),
    (
        "onnxruntime_qnn.libs/libc++abi-0539aa51.so.1.0",
        "2cb6d3e6acc815575d5a76acb45f99ae4ed5a4fcc04febaa8cd8981e07b89a47",
    ),
    (
        "onnxruntime_qnn.libs/libunwind-6b740a46.so.1.0",
        "a00822cc6221850754a491cbafa2b2e2fefac06f61f108cc8e80f0869fe5f724",
    ),
    (
        "onnxruntime_qnn/libGenie.so",
        "3f8bd88c8433d6d90e95883bf7e30839de618571e0403c1552aa4618e4303e5b",
    ),
    (
        "onnxruntime_qnn/libHtpPrepare.so",
        "240b3db00f71efdce5f5ad3a69a0cc9ae2e375d6d51408d595b292a2ef560568",
    ),
    (
        "onnxruntime_qnn/libQnnGpu.so",
        "73df74e66186cb610c3385903be349af82ef76122f69f9c10578bb102467e4e7",
    ),
    (
        "onnxruntime_qnn/libQnnHtp.so",
        "66fbcc1a97b3ca186c0170123e03978f2351222d59b2e9ceb0202e4a9b0116c0",
    ),
    (
        "onnxruntime_qnn/libQnnHtpNetRunExtensions.so",
        "12e4feae6b00598a56b12539b831eab005e0125b7fd99e12c913d82f014162bd",
    ),
    (
        "onnxruntime_qnn/libQnnIr.so",
        "a43ff16156b2abacf3b43ccbe137901222dba270ced27fa4cf528946a38ab5a7",
    ),
    (
        "onnxruntime_qnn/libQnnSaver.so",
        "21e2470993e2bc2eae5f24ac9735cc914f52f448cb539797c7af71f9dca2477c",
    ),
    (
        "onnxruntime_qnn/libQnnSystem.so",
        "a5441fe0307cfb10478d18f6de16053f3b111eaa01ff3975a54b10afdfa33a38",
    ),
    (
        "onnxruntime_qnn/libonnxruntime_providers_qnn.so",
        "629dfc151fc842bf9aa6ecdba89c0a864cd50e90fda960f9631e234fed5fc457",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_named_by_its_plugin_or_its_sdk() {
        for (text, plugin) in [
            ("2.3", "2.3.0"),
            ("2.3.0", "2.3.0"),
            ("2.47", "2.3.0"),
            ("v2.48.40.260702151143", "2.4.0"),
            ("2.49.0", "2.5.0"),
            ("2.51", "2.7.0"),
        ] {
            let version: QnnVersion = text.parse().unwrap();
            assert_eq!(version.plugin(), plugin, "{text}");
        }
        assert_eq!(QnnVersion::NEWEST.plugin(), "2.7.0");
        for text in [
            "", "2", "2.40", "2.40.0", "2.x", "2.3.x", "1.31.1", "newest",
        ] {
            let error = text.parse::<QnnVersion>().unwrap_err();
            assert!(
                error.contains("2.3.0 (QNN 2.47.0)") && error.contains("no older one"),
                "{error}"
            );
        }
    }

    /// A library without a pin would be refused after the download.
    #[test]
    fn each_release_pins_what_it_loads() {
        for version in QnnVersion::all() {
            let plan = version.plan();
            assert!(!plan.is_unpinned());
            for library in [
                "libonnxruntime_providers_qnn.so",
                "libQnnHtp.so",
                "libHtpPrepare.so",
                "libc++-",
            ] {
                assert!(
                    plan.pins.iter().any(|pin| pin.path.contains(library)),
                    "{version} {library}"
                );
            }
            let paths: std::collections::BTreeSet<&str> =
                plan.pins.iter().map(|pin| pin.path).collect();
            assert_eq!(paths.len(), plan.pins.len());
        }
        let own: Vec<&str> = QnnVersion::all()
            .filter(|v| v.ort_plan().is_some())
            .map(QnnVersion::plugin)
            .collect();
        assert_eq!(own, ["2.3.0"]);
    }
}
