//! Gives the shared library its SONAME. Without it a program that was linked by a path asks the loader for that path.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let os = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if matches!(os.as_str(), "linux" | "android") {
        // The name has no version: each struct carries its size, so a later library takes the calls of an earlier
        // header.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libepwatch.so");
    }
}
