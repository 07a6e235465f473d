//! The seeds of a fuzz target, for the test beside it. Crates take this file in by its path, so that none of them needs
//! another one for its tests.

use std::path::Path;

/// Runs a target over its seeds, each as it is, cut, and with flipped bits, as a fuzzer starts. Of a long seed about
/// `most` places are cut and flipped.
///
/// # Panics
/// The target panics, or has no seeds.
#[track_caller]
pub(crate) fn check(target: &str, most: usize, run: fn(&[u8])) {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut seeds = above.map(|folder| folder.join("tests/fuzz/seeds").join(target));
    let seeds = seeds.find(|folder| folder.is_dir()).unwrap();
    let mut n_seeds = 0;
    for seed in std::fs::read_dir(seeds).unwrap() {
        let bytes = std::fs::read(seed.unwrap().path()).unwrap();
        run(&bytes);
        for at in (0..bytes.len()).step_by(1 + bytes.len() / most) {
            run(&bytes[..at]);
            let mut turned = bytes.clone();
            turned[at] ^= 0x81;
            run(&turned);
        }
        n_seeds += 1;
    }
    assert!(n_seeds > 0, "{target} has no seeds");
}
