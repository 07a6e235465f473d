//! The embedded engine: libchdb in a supervised child process, which serves ClickHouse's HTTP protocol on a Unix
//! socket.
//!
//! [`EmbeddedStore`] starts the child, restarts it when it dies, and returns clients for its socket, which are the same
//! clients as for a server. `process` starts and ends both processes. The other modules run in the child. `protocol` is
//! the HTTP protocol, with the limits of third parties on a TCP port. `engine` runs statements; `binding` binds the
//! library.

pub mod backup;
#[expect(unsafe_code, reason = "the binding of the embedded engine")]
mod binding;
mod config;
mod engine;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzz;
mod process;
mod protocol;
mod state;

pub use config::{ChildProgram, EmbeddedConfig, default_socket, engine_dir};
pub use process::child::run_engine_child;
pub use process::supervisor::EmbeddedStore;
pub use protocol::reader::{ReaderAccess, ReaderAccessError};
pub use state::{EmbeddedError, EngineFailure, EngineState};

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
/// Declare it once at the root of the test crate. Cargo builds a package's programs only for that package's own tests.
/// So elsewhere the test executable starts itself again, and runs just this "test". In a normal run this test does
/// nothing.
#[macro_export]
macro_rules! engine_child_entry {
    () => {
        #[test]
        fn engine_child_entry() {
            $crate::embedded::run_engine_child_of_test();
        }
    };
}
