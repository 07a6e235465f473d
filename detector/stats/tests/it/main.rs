//! The statistics against other implementations, and properties that hold for any input.

mod properties;
mod references;
