//! Counts the versions that the devices of a version now have. The end of an incident needs it once its devices have
//! another version. The data come from the census, over the look-back. Pure.

use std::collections::BTreeMap;

use epwatch_model::VersionOnChipset;

use crate::read::interner::TextId;

use super::census::{AppCensus, Census};
use super::span::{Bucket, Span};

/// The devices of a version on a chipset, by the version of the same model that each reported last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Succession {
    /// All devices.
    pub(crate) devices: u64,
    /// Numbers of devices whose last report was of another version, by that version.
    pub(crate) by_version: BTreeMap<String, u64>,
    /// Devices that reported the version in the window, and no other version since.
    pub(crate) left: u64,
}

/// The state of a device while buckets pass in their order.
#[derive(Debug, Clone, Copy, Default)]
struct LastVersion {
    was_on_it: bool,
    last: Option<(Bucket, TextId)>,
}

impl Census {
    /// Returns the versions that the devices of a version on a chipset now have.
    pub(super) fn succession(
        &self,
        (model, version, chipset): &VersionOnChipset,
        span: &Span,
    ) -> Succession {
        let is_app = |(app, environment): (TextId, TextId)| {
            (&**self.texts.get(app), &**self.texts.get(environment)) == model.app()
        };
        let app = self.apps().find(|(names, _)| is_app(*names));
        let mut found = Succession::default();
        let Some((_, app)) = app else {
            return found;
        };
        let is = |id: TextId, name: &str| &**self.texts.get(id) == name;
        for seen in last_versions(app, span, |of_model, ran_version, ran_chipset| {
            is(of_model, &model.model_id)
                .then(|| is(ran_version, version) && is(ran_chipset, chipset))
        }) {
            let Some((at, last)) = seen.last.filter(|_| seen.was_on_it) else {
                continue;
            };
            found.devices += 1;
            if !is(last, version) {
                let name = self.texts.get(last).to_string();
                *found.by_version.entry(name).or_default() += 1;
            } else if span.window_buckets().contains(&at) {
                found.left += 1;
            }
        }
        found
    }
}

/// Returns for each device the version that it reported last, and whether `is_it` was true for any. `is_it` returns
/// `None` for other models.
fn last_versions(
    app: &AppCensus,
    span: &Span,
    is_it: impl Fn(TextId, TextId, TextId) -> Option<bool>,
) -> Vec<LastVersion> {
    let mut all = vec![LastVersion::default(); app.n_devices()];
    app.each_voting(span, |at, group, devices| {
        let ran = group.ran;
        let Some(is_it) = is_it(group.model.2, ran.version, ran.chipset) else {
            return;
        };
        for device in devices {
            let seen = &mut all[device as usize];
            seen.was_on_it |= is_it;
            // If a bucket has both, the device went from that version to another.
            let is_later = seen.last.is_none_or(|(before, _)| before < at);
            if is_later || !is_it {
                seen.last = Some((at, ran.version));
            }
        }
    });
    all
}
