//! Reads placements from the logs of ONNX Runtime and the QNN EP. Pure: text in, placements and reasons out.
//!
//! There are two sources. ORT's list at VERBOSE (`Node placements`) has the EP of each node. In this list a QNN
//! partition is one fused node, and CPU nodes have been fused further. QNN's validator reports each node, with the
//! reason for a refusal. Its lines have the plugin's form, or one of two forms of the EP that was built into older ORT.
//! Together they give the same facts as the assignment API: see [`SessionLog::assignment`].
//!
//! Lines may be bare, or have ORT's own header, colours, logcat's prefix with any tag, or a prefix of an app's own. Lines
//! that people paste from elsewhere are kept apart ([`Pasted`]). Other text is ignored; nothing panics, and memory is bounded.

mod line;
mod own_prefix;
mod pasted;
mod reader;
mod reason;
mod run_error;
mod session;
mod session_reader;
mod unsupported;

pub use self::pasted::{Pasted, PastedKind, PastedLine};
pub use self::reader::{LogReader, read_log};
pub use self::run_error::RunError;
pub use self::session::{ListedEp, SessionLog};

pub(crate) use self::reason::setup_reason;

/// Number of nodes kept per session. A larger session gets no placement from its log.
const MAX_LOG_NODES: usize = 100_000;
/// Number of sessions kept per log.
const MAX_LOG_SESSIONS: usize = 256;

#[cfg(test)]
mod tests;
