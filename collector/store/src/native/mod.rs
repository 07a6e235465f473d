//! ClickHouse's Native format: blocks of columns, as servers send and take them over HTTP.
//!
//! The collector encodes rows with [`encode`], the detector reads answers with [`decode`], and the
//! embedded engine's front uses `reframe` for clients that announce a protocol version.

pub mod decode;
pub mod encode;
pub(crate) mod reframe;
