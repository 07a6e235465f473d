#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| epwatch_store::embedded::fuzz::native_blocks(bytes));
