//! The statistics that decide and explain: pure functions, each with its reference.
