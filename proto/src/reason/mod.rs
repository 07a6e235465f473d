//! Reasons for which the NPU did not get a node, a graph or a session. Each code has a page with its meaning, fix and
//! likely causes (`pages`), and the words that show it in logs and errors (`signs`). SDK, gate, `epwatch explain` and the
//! detector's pages use these two tables.

mod code;
mod pages;
mod signs;

pub use self::code::ReasonCode;
pub use self::signs::{Sign, SignScope, node_sign, signs_of, whole_sign};

use self::pages::Page;

impl ReasonCode {
    /// Returns the meaning as one sentence.
    pub fn meaning(self) -> &'static str {
        self.page().meaning
    }

    /// Returns what to do about it as one sentence.
    pub fn fix(self) -> &'static str {
        self.page().fix
    }

    /// Returns how to recognise and check it, in a few sentences.
    pub fn about(self) -> &'static str {
        self.page().about
    }

    /// Returns other codes that are causes of this one, the likeliest first.
    pub fn causes(self) -> &'static [Self] {
        self.page().causes
    }

    /// Returns the source of the page's statements.
    pub fn source(self) -> &'static str {
        self.page().source
    }

    /// Returns the fix. For a code with causes, each cause follows with its own fix, the likeliest first. Causes in
    /// `seen` come before all others, because there is evidence for them.
    pub fn way_out(self, seen: &[Self]) -> String {
        let page = self.page();
        let mut causes: Vec<Self> = page.causes.to_vec();
        causes.sort_by_key(|cause| !seen.contains(cause));
        let each = causes.iter().enumerate().map(|(at, cause)| {
            let evidence = match seen.contains(cause) {
                true => " (seen here)",
                false => "",
            };
            format!(" {}. {cause}{evidence}: {}", at + 1, cause.fix())
        });
        let each: String = each.collect();
        match page.fix.starts_with("Go through") {
            true => format!("{}{each}", page.fix),
            false => page.fix.to_owned(),
        }
    }

    /// Returns whether the back end failed to start, in contrast to a node that it refused.
    pub fn is_setup_failure(self) -> bool {
        matches!(
            self,
            Self::EpNotAvailable
                | Self::NoEpDevice
                | Self::BackendLibraryMissing
                | Self::BackendSetupFailed
                | Self::SocModelUnknown
                | Self::EpTooOldForOrt
                | Self::DspRestarted
                | Self::DeviceCreationFailed
                | Self::SkelLibraryMissing
                | Self::QnnVersionsDiffer
                | Self::NativeLibraryNotDeclared
                | Self::AdspLibraryPathUnset
                | Self::AdspLibraryPathSeparator
                | Self::NativeLibrariesNotExtracted
        )
    }

    fn page(self) -> Page {
        pages::page(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_says_what_and_how_to_fix_in_one_sentence_each() {
        for code in ReasonCode::ALL {
            for text in [code.meaning(), code.fix()] {
                assert!(text.len() > 15 && text.len() < 120, "{code}: {text}");
                assert!(text.ends_with('.'), "{code}: {text}");
            }
            assert!(
                code.about().ends_with('.') && code.about().len() > 40,
                "{code}"
            );
            assert!(code.source().len() > 8, "{code}");
            assert!(!code.causes().contains(code), "{code}");
        }
    }

    #[test]
    fn a_cause_that_was_seen_comes_first() {
        let code = ReasonCode::DeviceCreationFailed;
        let likeliest = code.way_out(&[]);
        assert!(
            likeliest.contains(" 1. skel_library_missing:"),
            "{likeliest}"
        );
        assert!(
            likeliest.contains(" 2. native_library_not_declared:"),
            "{likeliest}"
        );
        assert!(
            likeliest.contains(" 3. qnn_versions_differ:"),
            "{likeliest}"
        );
        let seen = code.way_out(&[ReasonCode::QnnVersionsDiffer]);
        assert!(
            seen.contains(" 1. qnn_versions_differ (seen here):"),
            "{seen}"
        );
        assert!(seen.contains(" 2. skel_library_missing:"), "{seen}");
    }
}
