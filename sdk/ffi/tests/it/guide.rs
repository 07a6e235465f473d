//! The programs and commands of the guides in `docs/`, for tests that compile and run them.

use std::fs;

use crate::c::crate_file;

/// A guide, or a section of one.
pub(crate) struct Guide(String);

impl Guide {
    /// Reads a guide by its file's name.
    pub(crate) fn read(name: &str) -> Self {
        Self(fs::read_to_string(crate_file("../../docs").join(name)).unwrap())
    }

    /// The guide from a heading on.
    pub(crate) fn section(&self, heading: &str) -> Self {
        let (_, section) = self.0.split_once(&format!("\n{heading}\n")).unwrap();
        Self(section.to_owned())
    }

    /// All blocks of a language, in order.
    pub(crate) fn blocks(&self, language: &str) -> Vec<&str> {
        let begin = format!("\n```{language}\n");
        let blocks = self.0.split(&*begin).skip(1);
        blocks
            .map(|rest| rest.split("\n```").next().unwrap())
            .collect()
    }

    /// The first block of a language.
    #[track_caller]
    pub(crate) fn block(&self, language: &str) -> &str {
        let blocks = self.blocks(language);
        blocks.first().expect("the guide has a block")
    }
}

/// Replaces what a reader of the guide replaces, such as an endpoint.
#[track_caller]
pub(crate) fn given(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{text}");
    text.replace(from, to)
}
