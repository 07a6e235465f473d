//! Seeds of the fuzz targets, cut and changed at each byte.

use epwatch_gate::fuzz;

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fuzz/seeds");
/// Changes of one seed.
const MOST_CHANGES: usize = 400;

fn each_change(target: &str, run: fn(&[u8])) -> usize {
    let mut seeds = 0;
    for entry in std::fs::read_dir(format!("{SEEDS}/{target}")).unwrap() {
        let seed = std::fs::read(entry.unwrap().path()).unwrap();
        run(&seed);
        seeds += 1;
        let step = seed.len().div_ceil(MOST_CHANGES).max(1);
        for at in (0..seed.len()).step_by(step) {
            run(&seed[..at]);
            let mut changed = seed.clone();
            changed[at] ^= 1 << (at % 8);
            run(&changed);
        }
    }
    seeds
}

#[test]
fn no_file_of_a_stranger_breaks_the_gate() {
    assert!(each_change("gate_read", fuzz::read) >= 12);
    assert!(each_change("gate_policy", fuzz::policy) >= 1);
}
