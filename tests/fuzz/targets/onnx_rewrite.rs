#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| epwatch_manifest::fuzz::rewrite(bytes));
