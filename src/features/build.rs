//! Empty: without a build script cargo ignores the build dependencies.

fn main() {}
