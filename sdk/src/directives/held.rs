//! The directives that a device holds, and which of them are in force. Pure: time, device and keys are arguments.
//!
//! The rules:
//!
//! - A directive is accepted only if it is whole, and signed by a known key over exactly its bytes. It must be for this
//!   app, chipset and firmware, and neither over nor revoked. The first directive with an id stays; a different
//!   directive with the same id is malformed.
//! - If several directives of one kind are in force, the one that began last counts. If they began together, the
//!   greater id counts.
//! - A revoke removes another directive within its own scope. The revoke stays until both are over, so that the revoked
//!   directive is refused if it is sent again. (A directive that the device never held must not outlive its revoke.) A
//!   revoke cannot be revoked; send the directive again under another id.
//! - A device holds at most [`MAX_HELD`] directives, because the contract allows no more in a request or an answer.
//!   Further directives are refused; only a revoke replaces the directive that ends first.

use epwatch_proto::{
    App, Device, Directive, DirectiveAction, DirectiveRefusal, DirectiveScope, Model,
    SignedDirective, upload::MAX_DIRECTIVES, v1,
};

use super::{clock::ServerTime, keys::DirectiveKeys};

pub(crate) const MAX_HELD: usize = MAX_DIRECTIVES;

/// This app on this device, which a directive's scope is compared with.
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

/// When a revoke is forgotten. The revoked directive ends at most one life after the revoke, whatever the file
/// contains.
fn until_of_revoke(directive: &Directive, kept_until_unix_ms: Option<i64>) -> i64 {
    let expires = directive.expires_unix_ms;
    let latest = expires.saturating_add(epwatch_proto::directive::MAX_LIFE_MS);
    kept_until_unix_ms.unwrap_or(expires).clamp(expires, latest)
}

/// A verified directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeldDirective {
    pub(crate) signed: SignedDirective,
    pub(crate) directive: Directive,
    /// When it is forgotten: its end, or the end of the directive that it revokes if that is later.
    pub(crate) until_unix_ms: i64,
    /// Whether it took effect in this process.
    pub(crate) is_applied: bool,
}

impl HeldDirective {
    fn is_in_force(&self, time: ServerTime) -> bool {
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

/// All held directives in the order of arrival, and the device that holds them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct HeldDirectives {
    pub(super) held: Vec<HeldDirective>,
    pub(super) reporter: Reporter,
}

impl HeldDirectives {
    /// Accepts a directive from the network, or from the file together with the time until which it was kept. Returns
    /// whether it is new.
    pub(crate) fn admit(
        &mut self,
        signed: v1::SignedDirective,
        kept_until_unix_ms: Option<i64>,
        keys: &DirectiveKeys,
        time: ServerTime,
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
        if !self.reporter.is_meant_by(&directive.scope) {
            return Err(DirectiveRefusal::OutOfScope);
        }
        if self.is_revoked(&directive.id, None, time) {
            return Err(DirectiveRefusal::Expired);
        }
        let held = HeldDirective {
            signed,
            directive,
            until_unix_ms,
            is_applied: false,
        };
        self.make_room_for(&held)?;
        self.held.push(held);
        self.tidy(time);
        Ok(true)
    }

    fn make_room_for(&mut self, new: &HeldDirective) -> Result<(), DirectiveRefusal> {
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

    /// Forgets directives that are certainly over, and those revoked completely.
    pub(crate) fn tidy(&mut self, time: ServerTime) {
        let certain = ServerTime {
            estimate_unix_ms: time.least_unix_ms,
            ..time
        };
        let mut revoked = Vec::new();
        for (at, revoke) in self.held.iter().enumerate() {
            let is_at_work = revoke.is_in_force(certain)
                && self.reporter.is_meant_by(&revoke.directive.scope)
                && !names_a_model(&revoke.directive.scope);
            let Some(id) = revoke.revokes().filter(|_| is_at_work) else {
                continue;
            };
            let is_target = |h: &HeldDirective| h.directive.id == id && h.revokes().is_none();
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

    /// Whether a revoke applies to this directive, for this model or for all.
    fn is_revoked(&self, id: &str, model: Option<&Model>, time: ServerTime) -> bool {
        self.held.iter().any(|revoke| {
            let scope = &revoke.directive.scope;
            let means_it = match model {
                Some(model) => means_model(scope, model),
                None => !names_a_model(scope),
            };
            revoke.revokes() == Some(id)
                && revoke.is_in_force(time)
                && self.reporter.is_meant_by(scope)
                && means_it
        })
    }

    /// Returns the directive of this kind that is in force for a model.
    pub(crate) fn for_model<'a, T>(
        &'a self,
        model: &Model,
        time: ServerTime,
        kind: impl Fn(&'a DirectiveAction) -> Option<T>,
    ) -> Option<(&'a HeldDirective, T)> {
        let means_it = |held: &HeldDirective| {
            means_model(&held.directive.scope, model)
                && !self.is_revoked(&held.directive.id, Some(model), time)
        };
        self.newest(time, means_it, kind)
    }

    /// Returns the directive of this kind that is in force for the process. A directive that names a model counts only
    /// while a session of that model exists.
    pub(crate) fn for_process<'a, T>(
        &'a self,
        models: &[&Model],
        time: ServerTime,
        kind: impl Fn(&'a DirectiveAction) -> Option<T>,
    ) -> Option<(&'a HeldDirective, T)> {
        let means_it = |held: &HeldDirective| {
            let scope = &held.directive.scope;
            let has_model = models.iter().any(|model| means_model(scope, model));
            (!names_a_model(scope) || has_model) && !self.is_revoked(&held.directive.id, None, time)
        };
        self.newest(time, means_it, kind)
    }

    fn newest<'a, T>(
        &'a self,
        time: ServerTime,
        means_it: impl Fn(&HeldDirective) -> bool,
        kind: impl Fn(&'a DirectiveAction) -> Option<T>,
    ) -> Option<(&'a HeldDirective, T)> {
        self.held
            .iter()
            .filter(|held| held.is_in_force(time))
            .filter(|held| self.reporter.is_meant_by(&held.directive.scope))
            .filter(|held| means_it(held))
            .filter_map(|held| Some((held, kind(&held.directive.action)?)))
            .max_by_key(|(held, _)| {
                let directive = &held.directive;
                (directive.not_before_unix_ms, directive.id.as_str())
            })
    }

    /// Notes that a directive took effect; returns whether this is the first time.
    pub(crate) fn apply(&mut self, id: &str) -> bool {
        let held = self.held.iter_mut().find(|h| h.directive.id == id);
        held.is_some_and(|h| !std::mem::replace(&mut h.is_applied, true))
    }

    /// Counts revokes that have begun since the last call.
    pub(crate) fn apply_revokes(&mut self, time: ServerTime) -> u64 {
        let mut applied = 0;
        for held in &mut self.held {
            let is_at_work = held.revokes().is_some()
                && held.is_in_force(time)
                && self.reporter.is_meant_by(&held.directive.scope);
            if is_at_work && !std::mem::replace(&mut held.is_applied, true) {
                applied += 1;
            }
        }
        applied
    }
}
