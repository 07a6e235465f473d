//! The operator's directive that turns recording off, and the reports of an app that obeys it.

use std::time::{SystemTime, UNIX_EPOCH};

use epwatch_proto::{Directive, DirectiveAction, DirectiveScope, Report, hex, v1};
use ring::signature::{Ed25519KeyPair, KeyPair};

use crate::c::n_runs;

const HOUR_MS: i64 = 3_600_000;

fn operator() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[9; 32]).unwrap()
}

/// The operator's public key as an app gets it, under the id `ops`.
pub(crate) fn public_key() -> String {
    hex(operator().public_key().as_ref())
}

/// An answer that turns recording of the segmenter off.
pub(crate) fn recording_off() -> v1::UploadResponse {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = i64::try_from(since.as_millis()).unwrap();
    let directive = Directive {
        id: "quiet".to_owned(),
        scope: DirectiveScope {
            model_id: "segmenter".to_owned(),
            ..DirectiveScope::default()
        },
        action: DirectiveAction::RecordingOff,
        not_before_unix_ms: now - HOUR_MS,
        expires_unix_ms: now + HOUR_MS,
    }
    .to_bytes();
    let signature = operator().sign(&directive);
    v1::UploadResponse {
        server_time_unix_ms: now,
        directives: vec![v1::SignedDirective {
            directive: directive.into(),
            key_id: "ops".to_owned(),
            signature: signature.as_ref().to_vec().into(),
        }],
        ..Default::default()
    }
}

/// Checks that there are ten earlier runs, then one report with the directive and nothing else.
#[track_caller]
pub(crate) fn check_quiet(reports: &[Report]) {
    assert_eq!(n_runs(reports), 10);
    let last = reports.last().unwrap();
    assert!(last.sessions.is_empty() && last.series.is_empty());
    assert!(last.run_errors.is_empty() && last.start_failures.is_empty());
    assert_eq!(last.health.directives_applied, 1);
    assert_eq!(last.health.runs_observed, 10);
}
