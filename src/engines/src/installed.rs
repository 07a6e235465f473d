//! An engine that is there, and the paths inside it.

use std::path::{Path, PathBuf};

use crate::{Engine, pins};

/// A folder of the cache that holds a whole engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    engine: Engine,
    dir: PathBuf,
    version: String,
}

impl Installed {
    pub(crate) fn new(engine: Engine, dir: PathBuf, version: String) -> Self {
        Self {
            engine,
            dir,
            version,
        }
    }

    /// Which engine this is.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// The folder, absolute.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The version as its source calls it, `26.7.3-stable.1`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// `libchdb.so`.
    ///
    /// # Panics
    /// On another engine than [`Engine::Chdb`]; the accessors below likewise.
    pub fn chdb_library(&self) -> PathBuf {
        self.file(Engine::Chdb, "libchdb.so")
    }

    /// `libonnxruntime`, the library that `ort` loads.
    pub fn ort_library(&self) -> PathBuf {
        let engine = match self.engine {
            Engine::OnnxRuntime1_22 | Engine::OnnxRuntime1_24 => self.engine,
            _ => Engine::OnnxRuntime,
        };
        self.file(engine, "libonnxruntime.")
    }

    /// The plugin that ONNX Runtime registers as `QNNExecutionProvider`.
    pub fn qnn_provider_library(&self) -> PathBuf {
        self.file(Engine::OnnxRuntimeQnn, "libonnxruntime_providers_qnn.so")
    }

    /// The HTP backend, here the emulator: the plugin's option `backend_path`.
    pub fn qnn_htp_library(&self) -> PathBuf {
        self.file(Engine::OnnxRuntimeQnn, "libQnnHtp.so")
    }

    /// The Alertmanager program.
    pub fn alertmanager_binary(&self) -> PathBuf {
        self.file(Engine::Alertmanager, "prometheus-alertmanager")
    }

    /// The folder of ZooKeeper's jars: all of them are its class path.
    pub fn zookeeper_jars(&self) -> PathBuf {
        let jar = self.file(Engine::ZooKeeper, "zookeeper.jar");
        jar.parent().map(Path::to_owned).unwrap_or_default()
    }

    #[track_caller]
    fn file(&self, engine: Engine, prefix: &str) -> PathBuf {
        assert_eq!(
            self.engine, engine,
            "asked {} for a file of {engine}",
            self.engine
        );
        let plan = pins::plan(engine, pins::HOST).expect("an installed engine has a plan");
        let is_it = |path: &str| {
            path.rsplit('/')
                .next()
                .is_some_and(|f| f.starts_with(prefix))
        };
        let pin = plan
            .pins
            .iter()
            .find(|pin| is_it(pin.path))
            .expect("each accessor has a pin");
        self.dir.join(pin.path)
    }
}
