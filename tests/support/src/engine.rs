//! The embedded ClickHouse of one test.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use epwatch_engines::Engine;
use epwatch_store::embedded::{ChildProgram, EmbeddedConfig};

/// Returns the engine's library, which is fetched once and then cached.
pub fn chdb_library() -> PathBuf {
    epwatch_engines::for_tests(Engine::Chdb).chdb_library()
}

/// Returns the configuration of an engine on a test's own folder. The test executable is the engine's child, so its
/// root must declare [`engine_child_entry!`](epwatch_store::engine_child_entry).
///
/// # Panics
/// Panics if the path of the test executable is unknown.
pub fn engine_config(data_dir: &Path) -> EmbeddedConfig {
    let child = ChildProgram::for_tests().expect("the path of this test executable");
    let mut config = EmbeddedConfig::new(data_dir, chdb_library(), child);
    config.memory_limit_bytes = 1 << 30;
    config.stop_timeout = Duration::from_secs(5);
    config
}
