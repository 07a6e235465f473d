//! The directives that a device holds, and which of them say something now. Pure: time, device and
//! keys are passed in.
//!
//! The rules:
//!  - taken in only whole, signed by a known key over exactly its bytes, not over yet, for this
//!    app, chipset and firmware, and not revoked; the first of an id stays, another one under the
//!    same id is malformed;
//!  - of several that say the same kind of thing the one that began last counts, among those the
//!    one with the greater id;
//!  - a revoke takes another directive away for whom it is itself for, and stays until both are
//!    over, so that the revoked one, sent again, is refused. (One that the device never held must
//!    not outlive its revoke.) A revoke cannot be revoked: say it anew under another id;
//!  - at most [`MAX_HELD`], the number that the contract allows to be named and sent. Beyond it a
//!    directive is refused, but a revoke takes the place of the one that ends first.

use epwatch_proto::{
    App, Device, Directive, DirectiveAction, DirectiveRefusal, DirectiveScope, Model,
    SignedDirective, upload::MAX_DIRECTIVES, v1,
};

use super::{clock::Judged, keys::DirectiveKeys};

/// Most directives that a device holds.
pub(crate) const MAX_HELD: usize = MAX_DIRECTIVES;

/// Whom directives can be for: this app on this device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Reporter {
    pub(crate) app_id: String,
    pub(crate) chipset: String,
    pub(crate) firmware: String,
}

impl Reporter {
    pub(crate) fn of(app: &App, device: &Device) -> Self {
        Self {
            app_id: app.id.clone(),
            chipset: device.chipset.to_string(),
            firmware: device.vendor_fingerprint_hash.clone(),
        }
    }

    fn is_meant_by(&self, scope: &DirectiveScope) -> bool {
        is_for(&scope.app_id, &self.app_id)
            && is_for(&scope.chipset, &self.chipset)
            && is_for(&scope.vendor_fingerprint_hash, &self.firmware)
    }
}

fn is_for(wanted: &str, actual: &str) -> bool {
    wanted.is_empty() || wanted == actual
}

fn names_a_model(scope: &DirectiveScope) -> bool {
    !scope.model_id.is_empty() || !scope.model_version.is_empty()
}

fn means_model(scope: &DirectiveScope, model: &Model) -> bool {
    is_for(&scope.model_id, &model.id) && is_for(&scope.model_version, &model.version)
}

/// What it revoked ends a life later at most, whatever the file says.
fn until_of_revoke(directive: &Directive, kept_until_unix_ms: Option<i64>) -> i64 {
    let expires = directive.expires_unix_ms;
    let latest = expires.saturating_add(epwatch_proto::directive::MAX_LIFE_MS);
    kept_until_unix_ms.unwrap_or(expires).clamp(expires, latest)
}

/// A verified directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) signed: SignedDirective,
    pub(crate) directive: Directive,
    /// When it is forgotten: its end, or for a revoke the end of what it revoked if that is later.
    pub(crate) until_unix_ms: i64,
    /// It took effect in this process.
    pub(crate) is_applied: bool,
}

impl Held {
    fn is_in_force(&self, time: Judged) -> bool {
        self.directive.not_before_unix_ms <= time.estimate_unix_ms
            && time.estimate_unix_ms < self.until_unix_ms
    }

    fn revokes(&self) -> Option<&str> {
        match &self.directive.action {
            DirectiveAction::Revoke(id) => Some(id),
            _ => None,
        }
    }
}

/// Everything held, in the order it came.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct DirectiveBook {
    held: Vec<Held>,
}

impl DirectiveBook {
    pub(crate) fn held(&self) -> &[Held] {
        &self.held
    }

    /// Takes a directive in, from the network or, with the time until which it was to be kept,
    /// from the file. `true` if it is new.
    pub(crate) fn admit(
        &mut self,
        signed: v1::SignedDirective,
        kept_until_unix_ms: Option<i64>,
        keys: &DirectiveKeys,
        reporter: &Reporter,
        time: Judged,
    ) -> Result<bool, DirectiveRefusal> {
        let malformed = |_| DirectiveRefusal::Malformed;
        let signed = SignedDirective::try_from(signed).map_err(malformed)?;
        keys.verify(&signed)?;
        let directive = signed.parse_directive().map_err(malformed)?;
        if let Some(same) = self.held.iter().find(|h| h.directive.id == directive.id) {
            return match same.signed.directive == signed.directive {
                true => Ok(false),
                false => Err(DirectiveRefusal::Malformed),
            };
        }
        let until_unix_ms = match directive.action {
            DirectiveAction::Revoke(_) => until_of_revoke(&directive, kept_until_unix_ms),
            _ => directive.expires_unix_ms,
        };
        if time.estimate_unix_ms >= until_unix_ms {
            return Err(DirectiveRefusal::Expired);
        }
        if !reporter.is_meant_by(&directive.scope) {
            return Err(DirectiveRefusal::OutOfScope);
        }
        if self.is_revoked(&directive.id, None, reporter, time) {
            return Err(DirectiveRefusal::Expired);
        }
        let held = Held {
            signed,
            directive,
            until_unix_ms,
            is_applied: false,
        };
        self.make_room_for(&held)?;
        self.held.push(held);
        self.tidy(reporter, time);
        Ok(true)
    }

    fn make_room_for(&mut self, new: &Held) -> Result<(), DirectiveRefusal> {
        if self.held.len() < MAX_HELD {
            return Ok(());
        }
        let others = self.held.iter().enumerate();
        let evictable = others.filter(|(_, h)| h.revokes().is_none());
        let first_to_end = evictable.min_by_key(|(_, h)| h.until_unix_ms);
        match (new.revokes(), first_to_end.map(|(at, _)| at)) {
            (Some(_), Some(at)) => {
                self.held.remove(at);
                Ok(())
            }
            _ => Err(DirectiveRefusal::Malformed),
        }
    }

    /// Forgets what is certainly over, and what is revoked for good.
    pub(crate) fn tidy(&mut self, reporter: &Reporter, time: Judged) {
        let certain = Judged {
            estimate_unix_ms: time.least_unix_ms,
            ..time
        };
        let mut revoked = Vec::new();
        for (at, revoke) in self.held.iter().enumerate() {
            let is_at_work = revoke.is_in_force(certain)
                && reporter.is_meant_by(&revoke.directive.scope)
                && !names_a_model(&revoke.directive.scope);
            let Some(id) = revoke.revokes().filter(|_| is_at_work) else {
                continue;
            };
            let is_target = |h: &Held| h.directive.id == id && h.revokes().is_none();
            if let Some(target) = self.held.iter().find(|h| is_target(h)) {
                revoked.push((at, target.directive.id.clone(), target.until_unix_ms));
            }
        }
        for (at, _, until_unix_ms) in &revoked {
            let revoke = &mut self.held[*at];
            revoke.until_unix_ms = revoke.until_unix_ms.max(*until_unix_ms);
        }
        self.held.retain(|h| {
            let is_target = |(_, id, _): &(usize, String, i64)| *id == h.directive.id;
            h.until_unix_ms > time.least_unix_ms && !revoked.iter().any(is_target)
        });
    }

    /// Whether a revoke takes this directive away, for this model or altogether.
    fn is_revoked(
        &self,
        id: &str,
        model: Option<&Model>,
        reporter: &Reporter,
        time: Judged,
    ) -> bool {
        self.held.iter().any(|revoke| {
            let scope = &revoke.directive.scope;
            let means_it = match model {
                Some(model) => means_model(scope, model),
                None => !names_a_model(scope),
            };
            revoke.revokes() == Some(id)
                && revoke.is_in_force(time)
                && reporter.is_meant_by(scope)
                && means_it
        })
    }

    /// The directive of this kind that counts for a model.
    pub(crate) fn for_model<'a, T>(
        &'a self,
        model: &Model,
        reporter: &Reporter,
        time: Judged,
        kind: impl Fn(&'a DirectiveAction) -> Option<T>,
    ) -> Option<(&'a Held, T)> {
        let means_it = |held: &Held| {
            means_model(&held.directive.scope, model)
                && !self.is_revoked(&held.directive.id, Some(model), reporter, time)
        };
        self.newest(reporter, time, means_it, kind)
    }

    /// The directive of this kind that counts for the process: one that names a model while a
    /// session of it is there.
    pub(crate) fn for_process<'a, T>(
        &'a self,
        models: &[&Model],
        reporter: &Reporter,
        time: Judged,
        kind: impl Fn(&'a DirectiveAction) -> Option<T>,
    ) -> Option<(&'a Held, T)> {
        let means_it = |held: &Held| {
            let scope = &held.directive.scope;
            let has_model = models.iter().any(|model| means_model(scope, model));
            (!names_a_model(scope) || has_model)
                && !self.is_revoked(&held.directive.id, None, reporter, time)
        };
        self.newest(reporter, time, means_it, kind)
    }

    fn newest<'a, T>(
        &'a self,
        reporter: &Reporter,
        time: Judged,
        means_it: impl Fn(&Held) -> bool,
        kind: impl Fn(&'a DirectiveAction) -> Option<T>,
    ) -> Option<(&'a Held, T)> {
        self.held
            .iter()
            .filter(|held| held.is_in_force(time))
            .filter(|held| reporter.is_meant_by(&held.directive.scope))
            .filter(|held| means_it(held))
            .filter_map(|held| Some((held, kind(&held.directive.action)?)))
            .max_by_key(|(held, _)| {
                let directive = &held.directive;
                (directive.not_before_unix_ms, directive.id.as_str())
            })
    }

    /// Notes that a directive took effect; `true` the first time.
    pub(crate) fn apply(&mut self, id: &str) -> bool {
        let held = self.held.iter_mut().find(|h| h.directive.id == id);
        held.is_some_and(|h| !std::mem::replace(&mut h.is_applied, true))
    }

    /// Revokes that have begun and were not counted yet.
    pub(crate) fn apply_revokes(&mut self, reporter: &Reporter, time: Judged) -> u64 {
        let mut applied = 0;
        for held in &mut self.held {
            let is_at_work = held.revokes().is_some()
                && held.is_in_force(time)
                && reporter.is_meant_by(&held.directive.scope);
            if is_at_work && !std::mem::replace(&mut held.is_applied, true) {
                applied += 1;
            }
        }
        applied
    }
}
