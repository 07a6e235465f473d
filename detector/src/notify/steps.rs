//! Splits a verdict's next step into steps, and each step into sentences and commands to paste.

/// A step for one person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step(pub(super) Vec<StepPart>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StepPart {
    /// A sentence; a setting or a name in it may stand between backticks.
    Text(String),
    /// Commands for a shell, one per line. They contain no backtick.
    Commands(String),
}

/// Ends the first of two commands of a directive. The text after it contains no names from devices.
const NEXT_COMMAND: &str = " && epwatch directive publish ";

/// Splits a next step: one step per line, with code between backticks. Code that begins with `epwatch` and an argument
/// is a command.
pub(super) fn steps(next_step: &str) -> Vec<Step> {
    next_step.lines().map(|line| Step(parts(line))).collect()
}

fn parts(line: &str) -> Vec<StepPart> {
    let mut parts = Vec::new();
    let mut text = String::new();
    for (at, part) in line.split('`').enumerate() {
        match at % 2 {
            0 => text.push_str(part),
            _ if part.starts_with("epwatch ") => {
                push_text(&mut parts, &text);
                text.clear();
                let commands = match part.rsplit_once(NEXT_COMMAND) {
                    Some((first, file)) => format!("{first} &&\nepwatch directive publish {file}"),
                    None => part.to_owned(),
                };
                parts.push(StepPart::Commands(commands));
            }
            _ => {
                text.push('`');
                text.push_str(part);
                text.push('`');
            }
        }
    }
    push_text(&mut parts, &text);
    parts
}

fn push_text(parts: &mut Vec<StepPart>, text: &str) {
    // A full stop may follow a command.
    let text = text.trim().trim_start_matches(". ");
    if !text.is_empty() && text != "." {
        parts.push(StepPart::Text(text.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_stand_apart_and_one_a_line() {
        let text = |text: &str| StepPart::Text(text.to_owned());
        let commands = |text: &str| StepPart::Commands(text.to_owned());
        let next = "On call: `epwatch directive make --app='a && b' && epwatch directive publish x.directive` Not \
                    `--npu-off`: slow.\nAsk why.";
        let made =
            "epwatch directive make --app='a && b' &&\nepwatch directive publish x.directive";
        let first = Step(vec![
            text("On call:"),
            commands(made),
            text("Not `--npu-off`: slow."),
        ]);
        assert_eq!(steps(next), [first, Step(vec![text("Ask why.")])]);
        assert_eq!(steps(""), []);
    }
}
