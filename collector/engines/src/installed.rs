//! An engine in the cache, and the paths inside it.

use std::path::{Path, PathBuf};

use crate::{Engine, pins::Plan};

/// A cache folder with a complete engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    engine: Engine,
    dir: PathBuf,
    version: &'static str,
    /// The pinned paths below `dir`.
    files: Vec<&'static str>,
}

impl Installed {
    pub(crate) fn new(engine: Engine, cache: &Path, plan: &Plan) -> Self {
        Self {
            engine,
            dir: cache.join(&plan.name),
            version: plan.version,
            files: plan.pins.iter().map(|pin| pin.path).collect(),
        }
    }

    /// The engine's version in its source's own form, for example `26.7.3-stable.1`.
    pub fn version(&self) -> &'static str {
        self.version
    }

    /// `libchdb.so`.
    ///
    /// # Panics
    /// On an engine other than [`Engine::Chdb`]. Each accessor below panics on a wrong engine.
    pub fn chdb_library(&self) -> PathBuf {
        self.file(Engine::Chdb, "libchdb.so")
    }

    /// `libonnxruntime`, the library that `ort` loads.
    pub fn ort_library(&self) -> PathBuf {
        self.file(Engine::OnnxRuntime, "libonnxruntime.")
    }

    /// The plugin that ONNX Runtime registers as `QNNExecutionProvider`.
    pub fn qnn_provider_library(&self) -> PathBuf {
        self.file(Engine::OnnxRuntimeQnn, "libonnxruntime_providers_qnn.so")
    }

    /// The HTP backend, here the emulator: the plugin's option `backend_path`.
    pub fn qnn_htp_library(&self) -> PathBuf {
        self.file(Engine::OnnxRuntimeQnn, "libQnnHtp.so")
    }

    #[track_caller]
    fn file(&self, engine: Engine, prefix: &str) -> PathBuf {
        assert_eq!(self.engine, engine, "{} has no {prefix}", self.engine);
        let is_it = |path: &&&str| {
            path.rsplit('/')
                .next()
                .is_some_and(|f| f.starts_with(prefix))
        };
        let path = self.files.iter().find(is_it);
        self.dir.join(path.expect("each accessor has a pin"))
    }
}
