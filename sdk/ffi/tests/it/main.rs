//! The C header, programs in C and C++ against it, and the bridge under a JVM.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail the test")]

mod android;
mod arm64;
mod c;
mod guide;
mod header;
mod jvm;
mod jvm_explained;
mod jvm_first;
mod jvm_runtimes;
mod jvm_self_test;
mod jvm_start;
mod languages;
mod operator;
mod package;
