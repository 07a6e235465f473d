//! When each version was first judged on each chipset, in the last 30 days.
//!
//! That hardly changes, so a server reads it again only some minutes of windows later. A version that came in between is
//! absent here. Its first window is among its windows of the last day then, which pages read anyway.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// A model's version on a chipset: model, chipset and version.
pub(crate) type CohortName = (String, String, String);

/// Ends of judged windows for which one reading counts.
const READ_EVERY: SignedDuration = SignedDuration::from_mins(10);

/// Models that are remembered.
const MAX_MODELS: usize = 64;

/// The first window's end of each version on each chipset.
pub(crate) type FirstWindows = Arc<HashMap<CohortName, Timestamp>>;

/// App, environment and model; without a model all of them.
pub(super) type Model = (String, String, Option<String>);

/// What was read so far, with the end of the window that was judged last then.
#[derive(Debug, Default)]
pub(super) struct FirstJudged(Mutex<HashMap<Model, (Timestamp, FirstWindows)>>);

impl FirstJudged {
    /// Returns what a page of this window needs not read.
    pub(super) fn at(&self, model: &Model, until: Timestamp) -> Option<FirstWindows> {
        let known = self.0.lock();
        let (read, first) = known.get(model)?;
        let age = until.duration_since(*read);
        (SignedDuration::ZERO..READ_EVERY)
            .contains(&age)
            .then(|| first.clone())
    }

    pub(super) fn put(&self, model: Model, until: Timestamp, first: FirstWindows) {
        let mut known = self.0.lock();
        if known.len() >= MAX_MODELS && !known.contains_key(&model) {
            known.clear();
        }
        known.insert(model, (until, first));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_counts_for_windows_that_end_soon_after_it() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let model = |name: &str| (String::new(), String::new(), Some(name.to_owned()));
        let known = FirstJudged::default();
        known.put(model("m"), at(10_000), FirstWindows::default());
        for (until, is_known) in [
            (9_999, false),
            (10_000, true),
            (10_599, true),
            (10_600, false),
        ] {
            let found = known.at(&model("m"), at(until));
            assert_eq!(found.is_some(), is_known, "{until}");
        }
        assert!(known.at(&model("other"), at(10_000)).is_none());
        for n in 0..1_000 {
            known.put(model(&n.to_string()), at(10_000), FirstWindows::default());
        }
        assert!(known.0.lock().len() <= MAX_MODELS);
    }
}
