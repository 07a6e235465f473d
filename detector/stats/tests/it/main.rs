//! Compares the statistics with other implementations, and tests properties that hold for any input.

mod properties;
mod references;
