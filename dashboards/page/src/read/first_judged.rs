//! When each version was first judged on each chipset, in the last 30 days.
//!
//! These times hardly change, so a server reads them again only after some minutes of windows. A version that appeared
//! in between is missing here. Its first window is then within the last day, whose windows pages read anyway.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// A model's version on a chipset: model, chipset and version.
pub(crate) type CohortName = (String, String, String);

/// One read is valid for windows that end within this time of the read's last window.
const READ_EVERY: SignedDuration = SignedDuration::from_mins(10);

/// At most this many models are cached.
const MAX_MODELS: usize = 64;

/// The first window's end of each version on each chipset.
pub(crate) type FirstWindows = Arc<HashMap<CohortName, Timestamp>>;

/// App, environment and model; without a model, all models of the app.
pub(super) type Model = (String, String, Option<String>);

/// The cached reads by model, each with the end of the last judged window at the time of the read.
#[derive(Debug, Default)]
pub(super) struct FirstJudged(Mutex<HashMap<Model, (Timestamp, FirstWindows)>>);

impl FirstJudged {
    /// Returns the cached read, if it is still valid for a page of this window.
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
