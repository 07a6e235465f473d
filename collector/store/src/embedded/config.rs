//! Settings of the embedded engine: folder, library, limits, and the program of its child.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::EmbeddedError;
use super::protocol::reader::ReaderAccess;

/// The variable that is set in the environment of a child that is a test executable.
pub(super) const CHILD_ENV: &str = "EPWATCH_ENGINE_CHILD";

/// Longest path a Unix socket can have: `sun_path` less its NUL (104 on the BSDs, 108 on Linux).
const MAX_SOCKET_PATH_BYTES: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// The engine's server configuration. It exists so that `./config.xml` is never read. Caches are sized for a store next
/// to a collector, instead of a server's gigabytes. Inserts reach the disk before they are acknowledged. Rows of
/// reports have 150 columns. By default each column would take a megabyte of buffers during a merge, and two files in
/// every part of an insert.
///
/// `BACKUPS` is replaced by the folder of archives, `EXTRA` by the elements of
/// [`EmbeddedConfig::engine_config`].
const ENGINE_CONFIG: &str = "\
<clickhouse>
    <backups>
        <allowed_path>BACKUPS</allowed_path>
    </backups>
    <mark_cache_size>67108864</mark_cache_size>
    <primary_index_cache_size>67108864</primary_index_cache_size>
    <index_mark_cache_size>33554432</index_mark_cache_size>
    <query_condition_cache_size>16777216</query_condition_cache_size>
    <compiled_expression_cache_size>33554432</compiled_expression_cache_size>
    <parquet_metadata_cache_size>0</parquet_metadata_cache_size>
    <iceberg_metadata_files_cache_size>0</iceberg_metadata_files_cache_size>
    <vector_similarity_index_cache_size>1048576</vector_similarity_index_cache_size>
    <text_index_tokens_cache_size>1048576</text_index_tokens_cache_size>
    <text_index_header_cache_size>1048576</text_index_header_cache_size>
    <text_index_postings_cache_size>1048576</text_index_postings_cache_size>
    <max_thread_pool_size>512</max_thread_pool_size>
    <max_io_thread_pool_size>16</max_io_thread_pool_size>
    <max_backups_io_thread_pool_size>4</max_backups_io_thread_pool_size>
    <merge_tree>
        <fsync_after_insert>1</fsync_after_insert>
        <fsync_part_directory>1</fsync_part_directory>
        <min_columns_to_activate_adaptive_write_buffer>16</min_columns_to_activate_adaptive_write_buffer>
        <min_bytes_for_wide_part>134217728</min_bytes_for_wide_part>
    </merge_tree>
EXTRA</clickhouse>
";

/// The program that becomes the engine's child: the running program, started again.
#[derive(Debug, Clone)]
pub struct ChildProgram {
    executable: PathBuf,
    args: Vec<OsString>,
    is_test: bool,
}

impl ChildProgram {
    /// The running executable with the subcommand `engine-child`, whose body is
    /// [`run_engine_child`](super::run_engine_child).
    ///
    /// # Errors
    /// The path of the running executable is unknown.
    pub fn current_exe_subcommand() -> io::Result<ChildProgram> {
        Ok(Self::new(std::env::current_exe()?, ["engine-child"]))
    }

    /// An executable with arguments that calls [`run_engine_child`](super::run_engine_child).
    pub fn new(
        executable: impl Into<PathBuf>,
        args: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> ChildProgram {
        ChildProgram {
            executable: executable.into(),
            args: args.into_iter().map(Into::into).collect(),
            is_test: false,
        }
    }

    /// The running test executable, which must declare
    /// [`engine_child_entry!`](crate::engine_child_entry) at its root.
    ///
    /// # Errors
    /// The path of the running executable is unknown.
    pub fn for_tests() -> io::Result<ChildProgram> {
        let libtest = [
            "--exact",
            "engine_child_entry",
            "--nocapture",
            "--test-threads=1",
        ];
        Ok(ChildProgram {
            is_test: true,
            ..Self::new(std::env::current_exe()?, libtest)
        })
    }

    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.args(&self.args);
        // Times must not depend on the machine, and the library takes its time zone only from the environment.
        command.env("TZ", "UTC");
        if self.is_test {
            command.env(CHILD_ENV, "1");
        }
        command
    }
}

/// Settings of the embedded engine. [`new`](Self::new) takes the required ones, and sets the others' defaults.
#[derive(Debug, Clone)]
pub struct EmbeddedConfig {
    pub(super) data_dir: PathBuf,
    pub(super) library: PathBuf,
    pub(super) program: ChildProgram,
    /// The socket's path. Its folder should be readable by this user alone. Default: `store.sock` in the engine's
    /// folder, or in `$XDG_RUNTIME_DIR` if that path is too long.
    pub socket: Option<PathBuf>,
    /// The engine's memory; one statement gets three quarters of it. Default 2 GiB; less than 256 MiB is not useful.
    pub memory_limit_bytes: u64,
    /// Number of statements that run at the same time. Up to eight times as many wait; further ones are refused.
    /// Default 64.
    pub max_concurrent_queries: usize,
    /// How long a start may take before the child is killed and started again. Default 60 s.
    pub start_timeout: Duration,
    /// How long a stop waits for running statements before the child is killed. A start waits as long for a folder
    /// that another process still has open. Default 10 s.
    pub stop_timeout: Duration,
    /// A loopback port where third parties may read with a password. Default: none.
    pub readers: Option<ReaderAccess>,
    /// XML elements of the engine's server configuration, as ClickHouse documents them: for example a cluster and a
    /// Keeper for trials of a schema. They are not checked here; an engine that cannot read them does not start.
    /// Default: none.
    pub engine_config: String,
}

impl EmbeddedConfig {
    /// Settings for an engine in the folder `engine` of `data_dir`, from the libchdb at `library`. The folder is made
    /// with mode 0700, and one engine uses it at a time.
    pub fn new(
        data_dir: impl Into<PathBuf>,
        library: impl Into<PathBuf>,
        program: ChildProgram,
    ) -> EmbeddedConfig {
        EmbeddedConfig {
            data_dir: data_dir.into(),
            library: library.into(),
            program,
            socket: None,
            memory_limit_bytes: 2 << 30,
            max_concurrent_queries: 64,
            start_timeout: Duration::from_secs(60),
            stop_timeout: Duration::from_secs(10),
            readers: None,
            engine_config: String::new(),
        }
    }

    pub(super) fn engine_args(&self) -> Vec<String> {
        vec![format!(
            "--max_server_memory_usage={}",
            self.memory_limit_bytes
        )]
    }

    /// Returns the settings of every request, because a connection does not inherit the engine's arguments.
    pub(super) fn default_settings(&self) -> Vec<(String, String)> {
        let query_bytes = self.memory_limit_bytes / 4 * 3;
        [
            ("max_memory_usage", query_bytes.to_string()),
            // The library accepts asynchronous inserts but never batches them.
            ("async_insert", "0".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

/// The paths of one engine, made and checked.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) database: PathBuf,
    pub(super) config_file: PathBuf,
    pub(super) socket: PathBuf,
}

impl Layout {
    /// Makes the engine's folder and writes the engine's configuration.
    pub(super) fn prepare(config: &EmbeddedConfig) -> Result<Layout, EmbeddedError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| EmbeddedError::DataDir { path, source }
        };
        // Only the engine's own folder may get another mode.
        let home = engine_dir(&config.data_dir);
        fs::create_dir_all(&home).map_err(failed(&home))?;
        fs::set_permissions(&home, Permissions::from_mode(0o700)).map_err(failed(&home))?;
        // The engine compares paths as text, so a folder needs one spelling.
        let home = home.canonicalize().map_err(failed(&home))?;
        if home.to_str().is_none() {
            let source = io::Error::other("the path is not UTF-8, which the engine cannot take");
            return Err(failed(&home)(source));
        }
        let config_file = home.join("engine.xml");
        // The file is written only if it differs, because another engine that starts on the folder may be reading it.
        let text = engine_config(&home, &config.engine_config);
        if fs::read_to_string(&config_file).ok().as_ref() != Some(&text) {
            fs::write(&config_file, text).map_err(failed(&config_file))?;
        }
        Ok(Layout {
            database: home.join("db"),
            config_file,
            socket: socket_path(config.socket.as_deref(), &home, runtime_dir().as_deref())?,
        })
    }
}

/// Returns the engine's folder below a data folder.
#[must_use]
pub fn engine_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("engine")
}

/// Returns the default socket of the engine on a data folder, which it uses if no other is configured.
///
/// # Errors
/// No path is short enough for a socket.
pub fn default_socket(data_dir: &Path) -> Result<PathBuf, EmbeddedError> {
    let home = engine_dir(data_dir);
    let home = home.canonicalize().unwrap_or(home);
    socket_path(None, &home, runtime_dir().as_deref())
}

/// The engine's configuration for a folder, whose name is UTF-8.
fn engine_config(home: &Path, extra: &str) -> String {
    let backups = home.join("backups").join("");
    let text = backups.to_str().unwrap_or_default();
    let escaped = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    ENGINE_CONFIG
        .replace("BACKUPS", &escaped)
        .replace("\nEXTRA", &format!("\n{extra}"))
}

fn runtime_dir() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
}

/// Chooses a socket path that fits the operating system's limit.
fn socket_path(
    chosen: Option<&Path>,
    home: &Path,
    runtime_dir: Option<&Path>,
) -> Result<PathBuf, EmbeddedError> {
    let fits = |path: &Path| path.as_os_str().len() <= MAX_SOCKET_PATH_BYTES;
    let wanted = chosen.map_or_else(|| home.join("store.sock"), Path::to_owned);
    if fits(&wanted) {
        return Ok(wanted);
    }
    if let (None, Some(runtime_dir)) = (chosen, runtime_dir) {
        // The runtime folder belongs to this user alone; the name separates two engines.
        let short = runtime_dir.join(format!("epwatch-{}.sock", short_hash(home)));
        if fits(&short) {
            return Ok(short);
        }
    }
    Err(EmbeddedError::SocketPathTooLong {
        path: wanted,
        max: MAX_SOCKET_PATH_BYTES,
    })
}

fn short_hash(path: &Path) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
    epwatch_proto::hex(&digest[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_data_folder_holds_its_socket() {
        let path = socket_path(None, Path::new("/data"), None).unwrap();
        assert_eq!(path, Path::new("/data/store.sock"));
    }

    #[test]
    fn long_data_folder_gets_a_socket_of_its_own_in_the_runtime_folder() {
        let long = |letter: &str| PathBuf::from(format!("/{}", letter.repeat(120)));
        let at = |data: &Path| socket_path(None, data, Some(Path::new("/run/user/1"))).unwrap();
        let (a, b) = (at(&long("a")), at(&long("b")));
        assert!(a.starts_with("/run/user/1") && a.as_os_str().len() <= MAX_SOCKET_PATH_BYTES);
        assert_ne!(a, b);
    }

    #[test]
    fn too_long_a_path_says_so() {
        let long = PathBuf::from(format!("/{}", "a".repeat(120)));
        for (chosen, runtime) in [(None, None), (Some(&*long), Some(Path::new("/run")))] {
            let error = socket_path(chosen, &long, runtime).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("107") || text.contains("103"), "{text}");
        }
    }
}
