//! Empty build script, because cargo ignores build dependencies without one.

fn main() {}
