//! The files that are fetched from a package, and the hashes that they must have.

/// One engine's package for this platform.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The entry's folder, `<name>-<version>`.
    pub(crate) name: String,
    /// The version in its source's own form.
    pub(crate) version: &'static str,
    pub(crate) source: Source,
    /// Files that the entry must hold.
    pub(crate) pins: Vec<Pin>,
    /// Purpose of the engine in epwatch, as a phrase.
    pub(crate) purpose: &'static str,
    /// Approximate number of downloaded bytes, for progress.
    pub(crate) download_bytes: u64,
    /// Whether the user accepts files without a pinned hash, trusting their source.
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
    /// The hash in lower-case hex; `None` if this project does not pin it.
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

/// Returns the plan of an ONNX Runtime.
pub(super) fn ort_plan(
    platforms: &'static [&'static str],
    version: &'static str,
    path: &'static str,
    sha256: &'static str,
    shared: Option<&'static str>,
) -> Plan {
    const SHARED: &str = "onnxruntime/capi/libonnxruntime_providers_shared.so";
    Plan {
        name: format!("onnxruntime-{version}"),
        version,
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
        purpose: "runs models",
        download_bytes: 24_000_000,
        is_unpinned_allowed: false,
    }
}

/// Hash of `libonnxruntime_providers_shared.so` for Linux on x86-64, the same in each version.
pub(super) const SHARED_X86_64: &str =
    "086ec1d5388f64153d9c63470d126693db9a182c8ce236d3a1119068471b8a0d";

pub(super) const MANYLINUX_X86_64: &[&str] = &[
    "manylinux_2_27_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux_2_35_x86_64",
];
