//! The statistics against other implementations, and what must hold for any input.

mod properties;
mod references;
