//! The embedded engine: libchdb in a supervised child process that speaks ClickHouse's HTTP
//! protocol on a Unix socket.
//!
//! [`EmbeddedStore`] starts the child, starts it again when it dies, and gives clients for its
//! socket; they are the same clients as for a server. The other modules run in the child: `child`
//! is its life, `http` the protocol, `reader` what third parties may on a TCP port, `engine` the
//! jobs, `binding` the library.

mod backup;
#[expect(unsafe_code, reason = "the binding of the embedded engine")]
mod binding;
mod child;
mod config;
mod control;
mod engine;
mod format;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzz;
mod http;
mod listen;
mod reader;
mod request;
mod state;
mod statement;
mod supervisor;

pub use backup::backups_dir;
pub(crate) use backup::is_archive_name;
pub use child::run_engine_child;
pub use config::{ChildProgram, EmbeddedConfig};
pub use reader::{ReaderAccess, ReaderAccessError};
pub use state::{EmbeddedError, EngineFailure, EngineState};
pub use supervisor::EmbeddedStore;

/// Becomes the engine's child if this test executable was started as one.
///
/// Called by [`engine_child_entry!`](crate::engine_child_entry); not for other use.
#[doc(hidden)]
pub fn run_engine_child_of_test() {
    if std::env::var_os(config::CHILD_ENV).is_some() {
        let _ = run_engine_child();
    }
}

/// Lets a test executable be the engine's child, for [`ChildProgram::for_tests`].
///
/// Declare it once at the root of the test crate. Cargo builds a package's programs only for
/// that package's own tests, so elsewhere the test executable starts itself again, running just
/// this "test", which in a normal run has nothing to do.
#[macro_export]
macro_rules! engine_child_entry {
    () => {
        #[test]
        fn engine_child_entry() {
            $crate::embedded::run_engine_child_of_test();
        }
    };
}
