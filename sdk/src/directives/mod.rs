//! What the operator tells this device: taken in, kept, and asked when a session is made, a report
//! is sealed or a run sampled.
//!
//! A directive comes signed with the answer to an upload. It is verified, checked (`held.rs` has the
//! rules, `clock.rs` says what time it is), kept on disk (`stored.rs`) and takes effect where
//! nobody is surprised: NPU off and preferred variant when the *next* session is planned
//! ([`SessionPlan`]), sampling when the next interval begins, the report interval at once. A
//! session that runs is never touched. What it does is counted and printed by `explain()`.
//!
//! Counted as applied: the first time a directive took effect in this stream. Refused, by reason:
//! each different one once a process, since the collector sends again what the device does not
//! hold. A revoked one is `expired`, one beyond the number that may be held `malformed`.

mod clock;
mod held;
mod keys;
mod plan;
mod stored;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    time::Duration,
};

use epwatch_proto::{
    App, Device, DirectiveAction, DirectiveRefusal, Model, SdkHealth, UploadResponse, v1,
};
use prost::Message;
use sha2::{Digest, Sha256};

use crate::time::Now;
use clock::ServerClock;
use held::{DirectiveBook, Held, Reporter};
use plan::PlannedVariant;
use stored::Unreadable;

pub(crate) use keys::{DirectiveKeys, MAX_KEYS, is_sound};
pub(crate) use plan::InEffect;
pub use plan::SessionPlan;
pub(crate) use stored::Stored;

/// Refused directives that are remembered, so that each is counted once.
const MAX_REFUSED_KNOWN: usize = 256;

/// Everything about directives in one process. No I/O, no clock of its own.
#[derive(Debug, Default)]
pub(crate) struct Directives {
    keys: DirectiveKeys,
    reporter: Reporter,
    book: DirectiveBook,
    clock: ServerClock,
    boot_id: String,
    is_loaded: bool,
    applied: u64,
    refused: BTreeMap<DirectiveRefusal, u64>,
    refused_known: VecDeque<[u8; 32]>,
}

/// The directives of an answer, taken out before it is parsed: a malformed one must not cost the
/// acks beside it.
pub(crate) fn take_from(response: &mut v1::UploadResponse) -> Received {
    Received {
        signed: std::mem::take(&mut response.directives),
        server_unix_ms: response.server_time_unix_ms,
    }
}

/// What an answer brought.
#[derive(Debug, Clone, Default)]
pub(crate) struct Received {
    pub(crate) signed: Vec<v1::SignedDirective>,
    pub(crate) server_unix_ms: i64,
}

impl From<&UploadResponse> for Received {
    fn from(response: &UploadResponse) -> Self {
        Self {
            signed: response.directives.iter().map(Into::into).collect(),
            server_unix_ms: response.server_time_unix_ms,
        }
    }
}

impl Directives {
    pub(crate) fn new(keys: DirectiveKeys, app: &App, device: &Device) -> Self {
        Self {
            // Without a key there is nothing to wait for.
            is_loaded: keys.is_empty(),
            keys,
            reporter: Reporter::of(app, device),
            ..Self::default()
        }
    }

    /// The device turned out to be this one.
    pub(crate) fn set_reporter(&mut self, app: &App, device: &Device, boot_id: &str) {
        self.reporter = Reporter::of(app, device);
        boot_id.clone_into(&mut self.boot_id);
    }

    /// Forgets what was held and counted for an installation that is no more; its file is wiped
    /// with the others.
    pub(crate) fn forget(&mut self) {
        self.book = DirectiveBook::default();
        self.applied = 0;
        self.refused.clear();
        self.refused_known.clear();
    }

    /// Whether the host gave a key at all.
    pub(crate) fn is_enabled(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Whether what is on disk was read.
    pub(crate) fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// Takes over what the file holds: all of it, in place of what was known. What the file of
    /// another process lacks was revoked or is over.
    pub(crate) fn load(&mut self, stored: Result<Option<Stored>, Unreadable>, now: Now) {
        self.is_loaded = true;
        let stored = match stored {
            Ok(stored) => stored.unwrap_or_default(),
            Err(Unreadable) => {
                self.refuse(DirectiveRefusal::Malformed);
                Stored::default()
            }
        };
        if !self.is_enabled() {
            return;
        }
        let resumed = ServerClock::resumed(&stored.anchor, now, &self.boot_id);
        if resumed.judge(now).least_unix_ms > self.clock.judge(now).least_unix_ms {
            self.clock = resumed;
        }
        let before = std::mem::take(&mut self.book);
        for (signed, until_unix_ms) in stored.held {
            self.admit(signed, Some(until_unix_ms), now);
        }
        for held in before.held().iter().filter(|h| h.is_applied) {
            self.book.apply(&held.directive.id);
        }
        self.count_revokes(now);
    }

    /// Takes in what an answer brought. Without a key everything is of an unknown one.
    pub(crate) fn receive(&mut self, received: Received, now: Now) {
        self.clock.heard(received.server_unix_ms, now);
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
        let time = self.clock.judge(now);
        let admitted = self
            .book
            .admit(signed, until_unix_ms, &self.keys, &self.reporter, time);
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

    /// Lets time pass: the clock counts on, what is over is forgotten.
    pub(crate) fn advance(&mut self, now: Now) {
        self.clock.advance(now);
        let time = self.clock.judge(now);
        self.book.tidy(&self.reporter, time);
        self.count_revokes(now);
    }

    fn count_revokes(&mut self, now: Now) {
        let time = self.clock.judge(now);
        self.applied += self.book.apply_revokes(&self.reporter, time);
    }

    /// For the file.
    pub(crate) fn to_store(&self, now: Now) -> Stored {
        let anchor = self.clock.anchor(now, &self.boot_id);
        Stored::new(self.book.held(), anchor)
    }

    /// Ids of all that is held, for the next request.
    pub(crate) fn held_ids(&self) -> Vec<String> {
        let held = self.book.held().iter();
        held.map(|h| h.directive.id.clone()).collect()
    }

    /// How the next session of a model is to be made.
    pub(crate) fn plan(&self, model: &Model, now: Now) -> SessionPlan {
        let time = self.clock.judge(now);
        let npu_off = self.book.for_model(model, &self.reporter, time, |action| {
            matches!(action, DirectiveAction::NpuOff).then_some(())
        });
        let variant = self
            .book
            .for_model(model, &self.reporter, time, |action| match action {
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

    /// A session was made as these directives say.
    pub(crate) fn followed<'a>(&mut self, ids: impl Iterator<Item = &'a str>) {
        for id in ids {
            self.applied += u64::from(self.book.apply(id));
        }
    }

    /// One run in this many of a model is to be recorded; 1: all.
    pub(crate) fn one_in(&mut self, model: &Model, now: Now) -> u32 {
        let time = self.clock.judge(now);
        let sampling = self
            .book
            .for_model(model, &self.reporter, time, |action| match action {
                DirectiveAction::Sampling(one_in) => Some(*one_in),
                _ => None,
            });
        let Some((held, one_in)) = sampling else {
            return 1;
        };
        let id = held.directive.id.clone();
        self.followed([id.as_str()].into_iter());
        one_in.max(1)
    }

    /// How often a report is to be sealed; `None`: as configured.
    pub(crate) fn report_interval(&mut self, models: &[&Model], now: Now) -> Option<Duration> {
        let time = self.clock.judge(now);
        let interval = self
            .book
            .for_process(models, &self.reporter, time, |action| match action {
                DirectiveAction::ReportIntervalMs(ms) => Some(*ms),
                _ => None,
            });
        let (held, ms) = interval?;
        let id = held.directive.id.clone();
        self.followed([id.as_str()].into_iter());
        Some(Duration::from_millis(ms))
    }

    /// Puts the counters into what is reported.
    pub(crate) fn count_into(&self, health: &mut SdkHealth) {
        health.directives_applied = self.applied;
        health.directives_refused.clone_from(&self.refused);
    }

    /// What is held and what became of it, for people.
    pub(crate) fn explain(&self, out: &mut String, now: Now) -> fmt::Result {
        use fmt::Write as _;
        if !self.is_enabled() {
            return Ok(());
        }
        if !self.is_loaded {
            writeln!(out, "directives: not read yet")?;
        }
        let time = self.clock.judge(now);
        for held in self.book.held() {
            explain_one(out, held, time.estimate_unix_ms)?;
        }
        for (reason, n) in &self.refused {
            writeln!(out, "directives refused as {reason}: {n}")?;
        }
        Ok(())
    }
}

fn explain_one(out: &mut String, held: &Held, now_unix_ms: i64) -> fmt::Result {
    use fmt::Write as _;
    let directive = &held.directive;
    write!(out, "directive {}: ", directive.id)?;
    match &directive.action {
        DirectiveAction::Sampling(one_in) => write!(out, "record one run in {one_in}")?,
        DirectiveAction::ReportIntervalMs(ms) => {
            write!(out, "report every {:?}", Duration::from_millis(*ms))?;
        }
        DirectiveAction::NpuOff => write!(out, "do not use the NPU")?,
        DirectiveAction::PreferredVariant(variant) => write!(out, "prefer variant {variant}")?,
        DirectiveAction::Revoke(id) => write!(out, "revokes {id}")?,
    }
    let scope = &directive.scope;
    let parts = [
        ("model", &scope.model_id),
        ("version", &scope.model_version),
        ("chipset", &scope.chipset),
        ("firmware", &scope.vendor_fingerprint_hash),
    ];
    for (what, value) in parts.iter().filter(|(_, value)| !value.is_empty()) {
        write!(out, ", {what} {value}")?;
    }
    let left = |until: i64| {
        let ms = u64::try_from(until.saturating_sub(now_unix_ms)).unwrap_or(0);
        Duration::from_secs(ms / 1000)
    };
    if directive.not_before_unix_ms > now_unix_ms {
        write!(out, "; begins in {:?}", left(directive.not_before_unix_ms))?;
    }
    let applied = if held.is_applied {
        "; in effect here"
    } else {
        ""
    };
    writeln!(out, "; ends in {:?}{applied}", left(held.until_unix_ms))
}

#[cfg(test)]
mod tests;
