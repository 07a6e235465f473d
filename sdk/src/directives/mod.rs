//! The operator's directives on this device: accepted, stored, and applied to sessions, reports and sampling.
//!
//! A directive arrives signed with the answer to an upload. It is verified and checked (`held.rs` has the rules,
//! `clock.rs` the time), stored (`stored.rs`), and takes effect at a defined moment. NPU off and the preferred variant
//! take effect with the *next* session's plan ([`SessionPlan`]), and sampling with the next interval. Recording off and
//! the report interval take effect at once. A running session never changes. Effects are counted, and `explain()`
//! prints them.
//!
//! A directive counts as applied when it first takes effect in this stream. Refusals are counted by reason, each
//! directive once per process, because the collector repeats directives that the device does not hold. A revoked
//! directive counts as `expired`, a directive beyond the limit as `malformed`.

mod clock;
mod held;
mod keys;
mod plan;
mod stored;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use epwatch_proto::{App, Device, DirectiveAction, DirectiveRefusal, Model, SdkHealth, v1};
use prost::Message;
use sha2::{Digest, Sha256};

use crate::time::Now;
use clock::ServerClock;
use held::{HeldDirective, HeldDirectives, Reporter};
use plan::PlannedVariant;
use stored::UnreadableFile;

pub(crate) use keys::{DirectiveKeys, MAX_KEYS, is_sound};
pub(crate) use plan::EffectiveRequest;
pub use plan::SessionPlan;
pub(crate) use stored::StoredDirectives;

/// Refused directives that are remembered, so that each is counted once.
const MAX_REFUSED_KNOWN: usize = 256;

/// Directives of one process, without I/O or a clock.
#[derive(Debug, Default)]
pub(crate) struct Directives {
    keys: DirectiveKeys,
    held: HeldDirectives,
    clock: ServerClock,
    boot_id: String,
    is_loaded: bool,
    applied: u64,
    refused: BTreeMap<DirectiveRefusal, u64>,
    refused_known: VecDeque<[u8; 32]>,
}

/// Takes the directives out of an answer before it is parsed, because a malformed directive must not invalidate the
/// answer's acks.
pub(crate) fn take_from(response: &mut v1::UploadResponse) -> ReceivedDirectives {
    ReceivedDirectives {
        signed: std::mem::take(&mut response.directives),
        server_unix_ms: response.server_time_unix_ms,
    }
}

/// The directives and the server's time of an answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReceivedDirectives {
    pub(crate) signed: Vec<v1::SignedDirective>,
    pub(crate) server_unix_ms: i64,
}

impl Directives {
    pub(crate) fn new(keys: DirectiveKeys, app: &App, device: &Device) -> Self {
        Self {
            // Without a key the file need not be read.
            is_loaded: keys.is_empty(),
            keys,
            held: HeldDirectives {
                held: Vec::new(),
                reporter: Reporter::of(app, device),
            },
            ..Self::default()
        }
    }

    /// Sets the device once it is known.
    pub(crate) fn set_reporter(&mut self, app: &App, device: &Device, boot_id: &str) {
        self.held.reporter = Reporter::of(app, device);
        boot_id.clone_into(&mut self.boot_id);
    }

    /// Forgets everything held and counted for an installation that has ended. Its file is wiped with the others.
    pub(crate) fn forget(&mut self) {
        self.held.held.clear();
        self.applied = 0;
        self.refused.clear();
        self.refused_known.clear();
    }

    /// Whether the host gave a key.
    pub(crate) fn is_enabled(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Whether the file was read.
    pub(crate) fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// Replaces the held directives by the directives of the file. Directives that another process's file lacks were
    /// revoked or are over.
    pub(crate) fn load(
        &mut self,
        stored: Result<Option<StoredDirectives>, UnreadableFile>,
        now: Now,
    ) {
        self.is_loaded = true;
        let stored = match stored {
            Ok(stored) => stored.unwrap_or_default(),
            Err(UnreadableFile) => {
                self.refuse(DirectiveRefusal::Malformed);
                StoredDirectives::default()
            }
        };
        if !self.is_enabled() {
            return;
        }
        let resumed = ServerClock::resumed(&stored.anchor(), now, &self.boot_id);
        if resumed.time(now).least_unix_ms > self.clock.time(now).least_unix_ms {
            self.clock = resumed;
        }
        let before = std::mem::take(&mut self.held.held);
        for entry in stored.held {
            self.admit(entry.signed, Some(entry.until_unix_ms), now);
        }
        for held in before.iter().filter(|h| h.is_applied) {
            self.held.apply(&held.directive.id);
        }
        self.count_revokes(now);
    }

    /// Takes the directives of an answer. Without a configured key, each is refused for its unknown key.
    pub(crate) fn receive(&mut self, received: ReceivedDirectives, now: Now) {
        self.clock.set_server_time(received.server_unix_ms, now);
        let too_many = received.signed.len().saturating_sub(held::MAX_HELD);
        for _ in 0..too_many {
            self.refuse(DirectiveRefusal::Malformed);
        }
        for signed in received.signed.into_iter().take(held::MAX_HELD) {
            self.admit(signed, None, now);
        }
        self.count_revokes(now);
    }

    fn admit(&mut self, signed: v1::SignedDirective, until_unix_ms: Option<i64>, now: Now) {
        let print: [u8; 32] = Sha256::digest(signed.encode_to_vec()).into();
        let time = self.clock.time(now);
        let admitted = self.held.admit(signed, until_unix_ms, &self.keys, time);
        let Err(reason) = admitted else {
            return;
        };
        if self.refused_known.contains(&print) {
            return;
        }
        if self.refused_known.len() >= MAX_REFUSED_KNOWN {
            self.refused_known.pop_front();
        }
        self.refused_known.push_back(print);
        self.refuse(reason);
    }

    fn refuse(&mut self, reason: DirectiveRefusal) {
        let count = self.refused.entry(reason).or_default();
        *count = count.saturating_add(1);
    }

    /// Returns a time that the collector's clock has certainly passed; 0 before its first answer.
    pub(crate) fn least_server_time(&self, now: Now) -> i64 {
        self.clock.time(now).least_unix_ms
    }

    /// Advances the time, and forgets directives that are over.
    pub(crate) fn advance(&mut self, now: Now) {
        self.clock.advance(now);
        let time = self.clock.time(now);
        self.held.tidy(time);
        self.count_revokes(now);
    }

    fn count_revokes(&mut self, now: Now) {
        let time = self.clock.time(now);
        self.applied += self.held.apply_revokes(time);
    }

    pub(crate) fn to_store(&self, now: Now) -> StoredDirectives {
        let anchor = self.clock.anchor(now, &self.boot_id);
        StoredDirectives::new(&self.held.held, anchor)
    }

    /// Ids of all held directives, for the next request.
    pub(crate) fn held_ids(&self) -> Vec<String> {
        let held = self.held.held.iter();
        held.map(|h| h.directive.id.clone()).collect()
    }

    /// Returns what the directives ask for the next session of a model.
    pub(crate) fn plan(&self, model: &Model, now: Now) -> SessionPlan {
        let time = self.clock.time(now);
        let npu_off = self.held.for_model(model, time, |action| {
            matches!(action, DirectiveAction::NpuOff).then_some(())
        });
        let variant = self.held.for_model(model, time, |action| match action {
            DirectiveAction::PreferredVariant(variant) => Some(variant),
            _ => None,
        });
        SessionPlan {
            npu_off: npu_off.map(|(held, ())| held.directive.id.clone()),
            variant: variant.map(|(held, variant)| PlannedVariant {
                directive_id: held.directive.id.clone(),
                variant: variant.clone(),
            }),
            is_known: self.is_loaded,
        }
    }

    /// Records that these directives took effect in a new session.
    pub(crate) fn mark_applied<'a>(&mut self, ids: impl Iterator<Item = &'a str>) {
        for id in ids {
            self.applied += u64::from(self.held.apply(id));
        }
    }

    /// Returns the sampling of a model: one in this many runs is recorded.
    pub(crate) fn one_in(&mut self, model: &Model, now: Now) -> u32 {
        let time = self.clock.time(now);
        let sampling = self.held.for_model(model, time, |action| match action {
            DirectiveAction::Sampling(one_in) => Some(*one_in),
            _ => None,
        });
        let Some((held, one_in)) = sampling else {
            return 1;
        };
        let id = held.directive.id.clone();
        self.mark_applied([id.as_str()].into_iter());
        one_in.max(1)
    }

    /// Whether a directive turns recording off for a model.
    pub(crate) fn is_recording_off(&mut self, model: &Model, now: Now) -> bool {
        let time = self.clock.time(now);
        let off = self.held.for_model(model, time, |action| {
            matches!(action, DirectiveAction::RecordingOff).then_some(())
        });
        let Some((held, ())) = off else {
            return false;
        };
        let id = held.directive.id.clone();
        self.mark_applied([id.as_str()].into_iter());
        true
    }

    /// Returns the report interval that a directive asks for, if one does.
    pub(crate) fn report_interval(&mut self, models: &[&Model], now: Now) -> Option<Duration> {
        let time = self.clock.time(now);
        let interval = self.held.for_process(models, time, |action| match action {
            DirectiveAction::ReportIntervalMs(ms) => Some(*ms),
            _ => None,
        });
        let (held, ms) = interval?;
        let id = held.directive.id.clone();
        self.mark_applied([id.as_str()].into_iter());
        Some(Duration::from_millis(ms))
    }

    /// Adds the counters to the SDK's own.
    pub(crate) fn count_into(&self, health: &mut SdkHealth) {
        health.directives_applied = self.applied;
        health.directives_refused.clone_from(&self.refused);
    }

    /// Describes the held directives for people, one line per directive.
    pub(crate) fn explained(&self, now: Now) -> Vec<String> {
        if !self.is_enabled() {
            return Vec::new();
        }
        let now_unix_ms = self.clock.time(now).estimate_unix_ms;
        let unread = (!self.is_loaded).then(|| "directives: not read yet".to_owned());
        let held = self.held.held.iter();
        let held = held.map(|held| explained_one(held, now_unix_ms));
        let refused = self.refused.iter();
        let refused = refused.map(|(reason, n)| format!("directives refused as {reason}: {n}"));
        unread.into_iter().chain(held).chain(refused).collect()
    }
}

fn explained_one(held: &HeldDirective, now_unix_ms: i64) -> String {
    let directive = &held.directive;
    let action = match &directive.action {
        DirectiveAction::Sampling(one_in) => format!("record one run in {one_in}"),
        DirectiveAction::ReportIntervalMs(ms) => {
            format!("report every {:?}", Duration::from_millis(*ms))
        }
        DirectiveAction::NpuOff => "do not use the NPU".to_owned(),
        DirectiveAction::RecordingOff => "record nothing".to_owned(),
        DirectiveAction::PreferredVariant(variant) => format!("prefer variant {variant}"),
        DirectiveAction::Revoke(id) => format!("revokes {id}"),
    };
    let mut line = format!("directive {}: {action}", directive.id);
    let scope = &directive.scope;
    for (field, value) in [
        ("model", &scope.model_id),
        ("version", &scope.model_version),
        ("chipset", &scope.chipset),
        ("firmware", &scope.vendor_fingerprint_hash),
    ] {
        if !value.is_empty() {
            line += &format!(", {field} {value}");
        }
    }
    let left = |until: i64| {
        let ms = u64::try_from(until.saturating_sub(now_unix_ms)).unwrap_or(0);
        Duration::from_secs(ms / 1000)
    };
    if directive.not_before_unix_ms > now_unix_ms {
        line += &format!("; begins in {:?}", left(directive.not_before_unix_ms));
    }
    line += &format!("; ends in {:?}", left(held.until_unix_ms));
    if held.is_applied {
        line += "; in effect here";
    }
    line
}

#[cfg(test)]
mod tests;
