//! The steps within the detector's next step, which is one text. Pages number them.

/// Begins of the detector's steps. Other sentences belong to the step before them: a reason, a note on its command.
const BEGINS: [&str; 7] = [
    "On call",
    "Where the app has ",
    "The model's owner: ",
    "The app's owner: ",
    "It comes with firmware ",
    "It came without a new version ",
    "All models on these devices ",
];

/// Returns the steps in their order, which together are the text without the spaces between them. A step begins at the
/// text's begin, after a sentence or after a command in backticks; a text that is not known is one step.
pub(crate) fn steps(text: &str) -> Vec<&str> {
    let mut steps = Vec::new();
    let mut begin = 0;
    let mut in_code = false;
    for (at, c) in text.char_indices() {
        in_code ^= c == '`';
        if in_code || c != ' ' {
            continue;
        }
        let (step, rest) = (&text[begin..at], &text[at + 1..]);
        let is_whole = step.ends_with(['.', '`']);
        if is_whole && BEGINS.iter().any(|known| rest.starts_with(known)) {
            steps.push(step.trim());
            begin = at + 1;
        }
    }
    steps.push(text[begin..].trim());
    steps.retain(|step| !step.is_empty());
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        assert_eq!(steps(text), expected);
        assert_eq!(expected.join(" "), text);
    }

    /// The detector's text of a partial fallback.
    #[test]
    fn a_step_begins_with_the_person_who_takes_it_and_keeps_its_notes() {
        let expected = [
            "On call: keep version 1 on SM8635, and stop the roll-out of 2 there.",
            "Where the app has 1 as a variant, NAME: `epwatch directive make --variant NAME` Not `--npu-off`: the \
             CPU alone takes 181 ms (1 device), the devices hit take 60.5 ms.",
            "The model's owner: ask why the NPU of SM8635 refuses Gemm. With the file of m 2 as MODEL, this gives \
             the reason of each node: `epwatch inspect MODEL --soc SM8635`",
            "It comes with firmware f: ask what that update changed before you take a version back.",
        ];
        check(&expected.join(" "), &expected);
    }

    #[test]
    fn what_is_not_known_is_one_step() {
        check("", &[]);
        for text in [
            "Wait for more devices, or certify a placement to compare with.",
            "If these devices are real: On call: keep it. Then see.",
            "Paste `epwatch x. On call` there.",
            "An open `code. On call: it never ends",
        ] {
            check(text, &[text]);
        }
    }
}
