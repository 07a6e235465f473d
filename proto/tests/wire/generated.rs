//! The committed code of the messages is made from the contract that lies beside it.

use std::path::Path;

#[path = "../../generate/src/digest.rs"]
mod digest;

/// The hosted workflow compiles the contract again; this guard costs no compiler.
#[test]
fn generated_code_carries_the_digest_of_the_contract() {
    let code = include_str!("../../src/generated/v1.rs");
    let line = code.lines().find_map(|l| l.strip_prefix("// contract: "));
    let digest = digest::contract_digest(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    assert_eq!(line, Some(&*digest), "run `just generate`");
}
