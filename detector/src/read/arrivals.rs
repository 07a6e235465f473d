//! New installations of a window. An app key ships in an app, so installations can be made up.
//!
//! [`epwatch_server::AppAdmission`] decided before which reports vote. Installations that were admitted in an earlier
//! window have a past. If there are enough of them, a page must hold on them alone. Installations that were admitted in
//! a window with a flood stay new for half of the look-back. Coming back the next day does not prove that they are
//! real.

use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_model::{AppEnvironment, Installation, ModelKey};

use crate::judge::hash::HashSet;

use super::span::{Bucket, Span};

/// New installations of each app that vote.
#[derive(Debug, Default)]
pub struct NewInstallations(BTreeMap<AppEnvironment, Arc<HashSet<Installation>>>);

impl NewInstallations {
    pub(super) fn of_apps(
        apps: impl Iterator<Item = (AppEnvironment, HashSet<Installation>)>,
    ) -> Self {
        NewInstallations(apps.map(|(app, new)| (app, Arc::new(new))).collect())
    }

    /// Returns the new installations of a model's app.
    #[must_use]
    pub fn of(&self, model: &ModelKey) -> Option<&Arc<HashSet<Installation>>> {
        self.0
            .get(&(model.app_id.clone(), model.environment.clone()))
    }
}

/// Returns the new installations of one app. `admitted` has each installation with the bucket of its first report that
/// votes. `unproven` has the buckets with reports of installations that were not admitted.
pub(super) fn newcomers(
    admitted: impl Iterator<Item = (Bucket, Installation)>,
    unproven: &[Bucket],
    span: &Span,
) -> HashSet<Installation> {
    let window_s = (span.end_s() - span.start_s()).max(1);
    // 0 is the window itself.
    let windows_ago = |at: Bucket| (span.end_s() - 1 - i64::from(at)).div_euclid(window_s);
    let recent = windows_ago(span.buckets().start) / 2;
    let flooded: HashSet<i64> = unproven.iter().map(|at| windows_ago(*at)).collect();
    let is_new = |(at, _): &(Bucket, Installation)| {
        let ago = windows_ago(*at);
        ago <= 0 || ago <= recent && flooded.contains(&ago)
    };
    admitted.filter(is_new).map(|(_, new)| new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const HOUR_S: Bucket = 3_600;

    /// Checks which of fourteen hours have new installations if the hours in `flooded` have floods. One installation is
    /// admitted per hour.
    fn check(flooded: &[Bucket], expected: &[u8]) {
        let span = Span {
            end: jiff::Timestamp::from_second(14 * i64::from(HOUR_S)).unwrap(),
            window: Duration::from_secs(3_600),
            lookback: Duration::from_secs(14 * 3_600),
            stands_alone: false,
        };
        let admitted = (0..14_u8).map(|hour| (Bucket::from(hour) * HOUR_S + 5, [hour; 16]));
        let unproven: Vec<Bucket> = flooded.iter().map(|hour| hour * HOUR_S + 9).collect();
        let new = newcomers(admitted, &unproven, &span);
        let mut new: Vec<u8> = new.into_iter().map(|new| new[0]).collect();
        new.sort_unstable();
        assert_eq!(new, expected);
    }

    #[test]
    fn admitted_in_the_window_is_new_and_so_for_half_the_look_back_with_a_flood() {
        check(&[], &[13]);
        check(&[13], &[13]);
        check(&[12, 9], &[9, 12, 13]);
        check(&[7, 6], &[7, 13]);
    }
}
