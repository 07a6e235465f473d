//! Distribution of directives. An operator signs them elsewhere; devices verify the signature. The collector has no
//! signing key, so it can neither make nor change a directive.
//!
//! [`store`] reads and writes the table, for the collector and the command. Every upload is matched against
//! `DirectiveBook`, which counts the devices that each directive was sent to.

mod matching;
mod sent;
pub mod store;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;
use epwatch_proto::upload::MAX_DIRECTIVES;
use epwatch_proto::{DirectiveAction, v1};
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use self::matching::CallReporters;
use self::sent::{Counter, SentCounts};
use self::store::PublishedDirective;
use crate::context::Context;
use crate::ingest::auth::Scope;
use crate::store::note_failure;

/// Size limit of all directives in an answer to a phone.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// The live directives, revocations first.
#[derive(Debug, Default)]
pub(crate) struct DirectiveBook {
    live: RwLock<Arc<Vec<PublishedDirective>>>,
    /// False while there are no directives, which is nearly always the case; then nothing is matched.
    has_any: AtomicBool,
    sent: SentCounts,
}

impl DirectiveBook {
    pub(crate) fn replace(&self, mut live: Vec<PublishedDirective>) {
        // Stable: within each kind the order of publication stays.
        live.sort_by_key(|live| !matches!(live.directive.action, DirectiveAction::Revoke(_)));
        self.has_any.store(!live.is_empty(), Relaxed);
        *self.live.write() = Arc::new(live);
    }

    /// Returns the directives for the sender of `reports`, except those that the sender has, within the limits of an
    /// answer. Reports beyond the key's scope are skipped.
    pub(crate) fn for_reporter(
        &self,
        scope: &Scope,
        reports: &[Bytes],
        held: &[String],
        now_ms: i64,
    ) -> Vec<v1::SignedDirective> {
        if !self.has_any.load(Relaxed) {
            return Vec::new();
        }
        let live = self.live.read().clone();
        let reporter = CallReporters::read(scope, reports);
        let is_meant = |live: &&PublishedDirective| match &live.directive.action {
            DirectiveAction::Revoke(_) => reporter.may_hold(&live.directive.scope),
            _ => reporter.is_meant(&live.directive.scope),
        };
        // An expired revocation counts too, as it does on devices.
        let is_revoked = |id: &str| {
            live.iter().filter(is_meant).any(
                |live| matches!(&live.directive.action, DirectiveAction::Revoke(of) if of == id),
            )
        };
        let mut room = MAX_ANSWER_BYTES;
        let chosen: Vec<&PublishedDirective> = live
            .iter()
            .filter(|live| live.directive.expires_unix_ms > now_ms)
            .filter(is_meant)
            .filter(|live| !held.contains(&live.directive.id))
            .filter(|live| !is_revoked(&live.directive.id))
            .take_while(|live| {
                let weight = live.signed.directive.len() + 128;
                let fits = weight <= room;
                room = room.saturating_sub(weight);
                fits
            })
            .take(MAX_DIRECTIVES)
            .collect();
        let ids = chosen.iter().map(|live| live.directive.id.as_str());
        self.sent.note(&reporter.installations, ids);
        let signed = chosen.iter().map(|live| &live.signed);
        signed.map(v1::SignedDirective::from).collect()
    }

    async fn write_sent(&self, context: &Context, counter: Counter) {
        match self.sent.write(&context.sink, counter).await {
            Ok(()) => {
                let live = self.live.read().clone();
                self.sent
                    .keep(|id| live.iter().any(|live| live.directive.id == id));
            }
            Err(error) => note_failure(&context.metrics, "directives", &error),
        }
    }
}

/// Every `refresh`, reloads the published directives and writes how many devices they were sent to. Goes on until
/// `stop` is cancelled, and does it once more after that. The counts of a process are stored under `started_at_ms`.
pub(crate) async fn keep_fresh(
    context: Arc<Context>,
    book: Arc<DirectiveBook>,
    started_at_ms: i64,
    stop: CancellationToken,
) {
    let metrics = &context.metrics;
    let counter = Counter {
        collector_id: context.collector_id(),
        started_at_ms,
    };
    while !stop.is_cancelled() {
        tokio::select! {
            loaded = store::live(&context.sink, context.now_ms()) => match loaded {
                Ok(live) => {
                    metrics.directives_live.set(i64::try_from(live.len()).unwrap_or(i64::MAX));
                    book.replace(live);
                }
                Err(error) => note_failure(metrics, "directives", &error),
            },
            () = stop.cancelled() => {}
        }
        book.write_sent(&context, counter).await;
        tokio::select! {
            () = tokio::time::sleep(context.config.refresh.0) => {}
            () = stop.cancelled() => {}
        }
    }
    book.write_sent(&context, counter).await;
}

#[cfg(test)]
mod tests {
    use epwatch_proto::{Directive, DirectiveScope, SignedDirective, samples};

    use super::*;

    fn live(id: &str, scope: DirectiveScope, action: DirectiveAction) -> PublishedDirective {
        let directive = Directive {
            id: id.to_owned(),
            scope,
            action,
            not_before_unix_ms: 1_000,
            expires_unix_ms: 2_000,
        };
        let signed = SignedDirective {
            directive: directive.to_bytes().into(),
            key_id: "k".into(),
            signature: [0; 64],
        };
        PublishedDirective {
            directive,
            signed,
            published_at_unix_ms: 0,
            is_revoked: false,
        }
    }

    fn report(app: &str, model: &str, chipset: &str) -> Bytes {
        let mut report = samples::report(samples::key([1; 16], 1, 1), samples::session_uid(1));
        report.app.id = app.into();
        report.device = samples::device(chipset);
        report.sessions[0].model.id = model.into();
        report.to_bytes().into()
    }

    #[track_caller]
    fn check(book: &DirectiveBook, report: &Bytes, held: &[&str], now_ms: i64, expected: &[&str]) {
        let held: Vec<String> = held.iter().map(|id| (*id).to_owned()).collect();
        let scope = Scope::default();
        let found = book.for_reporter(&scope, std::slice::from_ref(report), &held, now_ms);
        let ids: Vec<String> = found
            .iter()
            .map(|signed| Directive::parse(&signed.directive).unwrap().id)
            .collect();
        assert_eq!(ids, expected);
    }

    #[test]
    fn directives_go_to_those_they_match_and_do_not_hold_them() {
        let book = DirectiveBook::default();
        let on = |chipset: &str, model: &str| DirectiveScope {
            app_id: "camera".into(),
            model_id: model.into(),
            chipset: chipset.into(),
            ..DirectiveScope::default()
        };
        let one = report("camera", "detector", "QTI SM8650");
        check(&book, &one, &[], 1_500, &[]);
        book.replace(vec![
            live("off", on("SM8650", "detector"), DirectiveAction::NpuOff),
            live("elsewhere", on("SM8550", ""), DirectiveAction::NpuOff),
            live(
                "all",
                DirectiveScope::default(),
                DirectiveAction::Sampling(10),
            ),
        ]);
        check(&book, &one, &[], 1_500, &["off", "all"]);
        // The directive is sent before its `not_before`, so that the device has it in time.
        check(&book, &one, &[], 0, &["off", "all"]);
        check(&book, &one, &["off"], 1_500, &["all"]);
        check(&book, &one, &[], 2_000, &[]);
        let other = report("gallery", "detector", "SM8650");
        check(&book, &other, &[], 1_500, &["all"]);
        check(&book, &Bytes::from_static(b"\xff"), &[], 1_500, &[]);
    }

    #[test]
    fn a_revocation_comes_first_and_ends_the_handing_out() {
        let book = DirectiveBook::default();
        let everyone = DirectiveScope::default;
        book.replace(vec![
            live("off", everyone(), DirectiveAction::NpuOff),
            live(
                "never-mind",
                everyone(),
                DirectiveAction::Revoke("off".into()),
            ),
            live("slow", everyone(), DirectiveAction::Sampling(10)),
        ]);
        let one = report("camera", "detector", "SM8650");
        check(&book, &one, &[], 1_500, &["never-mind", "slow"]);
        check(&book, &one, &["off", "slow"], 1_500, &["never-mind"]);
        let mut over = live(
            "never-mind",
            everyone(),
            DirectiveAction::Revoke("off".into()),
        );
        over.directive.expires_unix_ms = 1_400;
        book.replace(vec![live("off", everyone(), DirectiveAction::NpuOff), over]);
        check(&book, &one, &[], 1_500, &[]);
    }

    #[test]
    fn an_answer_stays_small() {
        let book = DirectiveBook::default();
        let all = (0..200).map(|n| {
            let id = format!("{n:064}");
            live(&id, DirectiveScope::default(), DirectiveAction::NpuOff)
        });
        book.replace(all.collect());
        let one = report("camera", "detector", "SM8650");
        let found = book.for_reporter(&Scope::default(), &[one], &[], 1_500);
        assert_eq!(found.len(), MAX_DIRECTIVES);
    }
}
