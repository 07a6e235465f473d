//! `docs/reasons.md` is the table of reason codes, and `epwatch explain` prints the same pages.

use epwatch_proto::{ReasonCode, signs_of};

use crate::support::{check_ends, check_fails, check_succeeds, epwatch, json};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reasons.md");

/// Returns the document that the table makes.
fn written() -> String {
    let mut text = String::from(
        "# Reason codes\n\n\
         Why the NPU did not get a node, a graph or a session. Reports, pages, `inspect`, `gate` and `logs` name these codes, and\n\
         `epwatch explain CODE` prints the same. Written by `tests/it/reasons.rs` from the one table, in `proto/src/reason/`.\n",
    );
    for code in ReasonCode::ALL {
        text.push_str(&format!(
            "\n## {code}\n\n{}\n\n{}\n\nFix: {}\n",
            code.meaning(),
            code.about(),
            code.fix().replace('<', "&lt;")
        ));
        if !code.causes().is_empty() {
            text.push_str("\nCauses, the likeliest first:\n\n");
            for (at, cause) in code.causes().iter().enumerate() {
                text.push_str(&format!("{}. [{cause}](#{cause})\n", at + 1));
            }
        }
        let signs: Vec<_> = signs_of(*code).collect();
        if !signs.is_empty() {
            text.push_str("\nLines that show it:\n\n");
            for sign in signs {
                text.push_str(&format!(
                    "- `{}` ({})\n",
                    sign.line.replace('`', "'"),
                    sign.source
                ));
            }
        }
        text.push_str(&format!("\nSource: {}\n", code.source()));
    }
    text
}

#[test]
fn the_document_is_the_table() {
    let text = written();
    if std::env::var_os("EPWATCH_BLESS").is_some() {
        std::fs::write(DOCUMENT, &text).unwrap();
    }
    let found = std::fs::read_to_string(DOCUMENT).unwrap_or_default();
    assert!(
        found == text,
        "docs/reasons.md is of another table: EPWATCH_BLESS=1 with this test writes it"
    );
}

#[test]
fn each_code_is_explained_in_the_terminal() {
    for code in ReasonCode::ALL {
        let text = check_succeeds(&mut epwatch(&format!("explain {code}")));
        assert!(
            text.contains(code.meaning()) && text.contains(code.fix()),
            "{text}"
        );
        for cause in code.causes() {
            assert!(text.contains(cause.fix()), "{code}: {cause}");
        }
    }
    let page = json(&mut epwatch("explain device-creation-failed"));
    assert_eq!(page["causes"][0], "skel_library_missing");
    let all = check_succeeds(&mut epwatch("explain"));
    assert_eq!(all.lines().count(), ReasonCode::ALL.len());
    check_fails(
        &mut epwatch("explain fp16_not_suported"),
        2,
        "fp16_not_supported",
    );
    check_ends(&mut epwatch("explain a b"), 2);
}
