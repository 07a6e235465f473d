//! The programs that fetch engines. All that are missing are named at once, before anything is downloaded.

use std::{
    env,
    process::{Command, Stdio},
};

use crate::{
    EngineError,
    pins::{Plan, Source},
};

/// A program that fetches or unpacks, with the package that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Program {
    Npm,
    Python,
    Pip,
    Tar,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Npm => "npm",
            Self::Python => python(),
            Self::Pip => "pip",
            Self::Tar => "tar",
        }
    }

    /// Returns the package of Debian and Ubuntu, which is also in `.ci/packages`, and Homebrew's package.
    fn packages(self) -> (&'static str, &'static str) {
        match self {
            Self::Npm => ("npm", "node"),
            Self::Python => ("python3", "python"),
            Self::Pip => ("python3-pip", "python"),
            Self::Tar => ("tar", "gnu-tar"),
        }
    }

    fn is_installed(self) -> bool {
        match self {
            Self::Pip => {
                let mut pip = Command::new(python());
                pip.args(["-m", "pip", "--version"]);
                pip.stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null());
                pip.status().is_ok_and(|status| status.success())
            }
            _ => is_in_path(self.name()),
        }
    }
}

/// The command of Python 3.
pub(crate) fn python() -> &'static str {
    if cfg!(windows) { "python" } else { "python3" }
}

pub(crate) fn is_in_path(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let file = format!("{name}{}", env::consts::EXE_SUFFIX);
    env::split_paths(&path).any(|folder| folder.join(&file).is_file())
}

fn needed(plan: &Plan) -> &'static [Program] {
    match plan.source {
        Source::Npm { .. } => &[Program::Npm, Program::Tar],
        Source::Pip { .. } => &[Program::Python, Program::Pip],
    }
}

/// Checks that the machine has the programs that fetch these engines.
///
/// # Errors
/// Names every program that is missing, and the packages that have them.
pub(crate) fn check(plans: &[&Plan]) -> Result<(), EngineError> {
    check_with(plans, &Program::is_installed)
}

fn check_with(plans: &[&Plan], is_installed: &dyn Fn(Program) -> bool) -> Result<(), EngineError> {
    let mut programs: Vec<Program> = plans
        .iter()
        .flat_map(|plan| needed(plan))
        .copied()
        .collect();
    programs.sort();
    programs.dedup();
    let missing: Vec<Program> = programs
        .into_iter()
        .filter(|one| !is_installed(*one))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let joined = |of: &dyn Fn(Program) -> String, between: &str| {
        let mut words: Vec<String> = missing.iter().copied().map(of).collect();
        words.dedup();
        words.join(between)
    };
    let names: Vec<&str> = plans.iter().map(|plan| plan.name.as_str()).collect();
    Err(EngineError::ProgramsMissing {
        names: names.join(", "),
        programs: joined(&|one| format!("`{}`", one.name()), ", "),
        verb: if missing.len() == 1 { "is" } else { "are" },
        apt: joined(&|one| one.packages().0.to_owned(), " "),
        brew: joined(&|one| one.packages().1.to_owned(), " "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, pins::plan_here};

    #[track_caller]
    fn check_says(installed: &[Program], expected: &str) {
        let plans = [Engine::Chdb, Engine::OnnxRuntime].map(|engine| plan_here(engine).unwrap());
        let plans = plans.each_ref();
        let said = match check_with(&plans, &|one| installed.contains(&one)) {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
        assert!(said.contains(expected), "no {expected} in {said}");
    }

    #[test]
    fn all_programs_that_are_missing_are_named_at_once() {
        use Program::{Npm, Pip, Python, Tar};
        check_says(
            &[],
            "failed to fetch libchdb-26.7.3-stable.1, onnxruntime-1.31.1: `npm`, `python3`, `pip`, `tar` are not installed; \
             install them (Debian, Ubuntu: `apt-get install npm python3 python3-pip tar`; macOS: `brew install node python gnu-tar`)",
        );
        check_says(
            &[Npm, Python, Tar],
            "`pip` is not installed; install it (Debian, Ubuntu: `apt-get install python3-pip`;",
        );
        check_says(&[Npm, Python, Pip, Tar], "");
    }

    /// Scripts and the command use the same packages.
    #[test]
    fn the_packages_are_those_that_the_scripts_install() {
        let table = include_str!("../../../.ci/packages");
        for program in [Program::Npm, Program::Python, Program::Pip, Program::Tar] {
            let package = program.packages().0;
            let row = table.lines().find(|row| {
                let mut words = row.split_whitespace();
                words.next() == Some("run") && words.nth(1) == Some(package)
            });
            let check = row.and_then(|row| row.split_whitespace().nth(1));
            let name = check.map(|check| check.trim_start_matches("python:"));
            assert_eq!(name, Some(program.name()), "{package}");
        }
    }
}
