#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| epwatch_collector::fuzz::wal_checkpoint(bytes));
