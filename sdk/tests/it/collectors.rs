//! Answers of collectors of another version, as bytes. An older collector leaves fields out; a newer one has fields,
//! outcomes and directives that this version does not know.

use epwatch_proto::{DirectiveRefusal, v1};
use epwatch_sdk::{UploadBatch, Watch};
use prost::Message;
use ring::signature::{Ed25519KeyPair, KeyPair};

use crate::support::{self, NOWHERE, TIMEOUT, run, session_of};

/// An answer of collector version 0.0.1: one result, which is a duplicate, and the server's time.
const OLDER: &[u8] = b"\x0a\x04\x08\x00\x18\x02\x10\xd4\x95\x8c\x9d\xb7\x33";
/// Fields 200 (a number) and 201 (bytes) of a message.
const UNKNOWN: &[u8] = b"\xc0\x0c\x07\xca\x0c\x03new";

fn operator() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[9; 32]).unwrap()
}

fn host(dir: &std::path::Path) -> Watch {
    let key = operator().public_key().as_ref().try_into().unwrap();
    let config = support::config(dir, NOWHERE).with_uploads_by_host();
    let watch = support::start(config.with_directive_key("ops", key));
    assert!(
        watch
            .plan_within(&epwatch_sdk::ModelInfo::new("m", "1").unwrap(), TIMEOUT)
            .is_known()
    );
    watch
}

fn next(watch: &Watch) -> UploadBatch {
    run(&session_of(watch, "m", "1"), 10);
    watch.seal().unwrap();
    watch.next_upload().unwrap()
}

/// A result of the first report, with an outcome of a newer collector.
fn result(retryable: bool) -> v1::ReportResult {
    v1::ReportResult {
        index: 0,
        key: None,
        outcome: 99,
        retryable,
        detail: "says more".to_owned(),
    }
}

#[test]
fn an_older_collectors_answer_names_no_request_and_acknowledges_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let watch = host(dir.path());
    let batch = next(&watch);
    for answer in [OLDER, b""] {
        let error = watch.upload_result(&batch, Ok(answer)).unwrap_err();
        assert!(
            error.to_string().contains("n_reports: expected 1"),
            "{error}"
        );
        support::check_explains(&watch, "spool: 1 report,");
    }
    assert!(watch.health().dropped.is_empty());
    watch.stop(TIMEOUT).unwrap();
}

#[test]
fn a_newer_collectors_answer_is_read_as_far_as_it_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let watch = host(dir.path());
    // An action in field 11.
    let mut directive = v1::Directive {
        id: "newer".to_owned(),
        not_before_unix_ms: 1_800_000_000_000,
        expires_unix_ms: 1_800_000_100_000,
        ..Default::default()
    }
    .encode_to_vec();
    directive.extend(b"\x5a\x00");
    let signature = operator().sign(&directive);
    let mut answer = v1::UploadResponse {
        results: vec![result(true)],
        server_time_unix_ms: 1_800_000_000_000,
        directives: vec![v1::SignedDirective {
            directive: directive.into(),
            key_id: "ops".to_owned(),
            signature: signature.as_ref().to_vec().into(),
        }],
        ..Default::default()
    };
    let batch = next(&watch);
    let bytes = |answer: &v1::UploadResponse| {
        [&support::answered(&batch, answer.clone())[..], UNKNOWN].concat()
    };
    watch.upload_result(&batch, Ok(&bytes(&answer))).unwrap();
    // The report may be accepted later, so it waits.
    support::check_explains(&watch, "spool: 1 report,");
    support::check_explains(&watch, "directives refused as malformed: 1");
    // The report will never be accepted, so it is dropped and counted.
    answer.results = vec![result(false)];
    watch.upload_result(&batch, Ok(&bytes(&answer))).unwrap();
    support::check_explains(&watch, "spool: 0 reports");
    let refused = watch.health().directives_refused;
    assert_eq!(
        refused.get(&DirectiveRefusal::Malformed),
        None,
        "as of the last seal"
    );
    run(&session_of(&watch, "m", "1"), 1);
    watch.seal().unwrap();
    assert_eq!(
        watch.health().directives_refused[&DirectiveRefusal::Malformed],
        1
    );
    watch.stop(TIMEOUT).unwrap();
}
