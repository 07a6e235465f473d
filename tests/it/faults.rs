//! The short form of the kill harness: collectors and store are killed under load, and no acknowledged report is lost
//! or counted twice. `just faults` is the long form.

use std::{path::Path, time::Duration};

use epwatch_faults::{FaultOptions, Servers};
use epwatch_runtimes::is_nightly;
use tokio_util::sync::CancellationToken;

use crate::support::EPWATCH;

async fn break_things(servers: Servers, dir: &Path) {
    // The engine is fetched before the time starts.
    let _ = epwatch_engines::for_tests(epwatch_engines::Engine::Chdb);
    let options = FaultOptions {
        program: EPWATCH.into(),
        dir: dir.to_owned(),
        servers,
        kills: 12,
        length: Duration::from_secs(20),
        seed: 3,
        devices: 8,
        pause: Duration::from_millis(200),
        fault_pause: Duration::from_millis(700),
        spell: Duration::from_secs(2),
        drain: Duration::from_secs(90),
    };
    let document = epwatch_faults::run(&options, |_| {}, CancellationToken::new())
        .await
        .unwrap();
    assert!(document.ok, "{document}\n{document:?}");
    assert!(document.kills.total() > 0, "{document}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_collectors_and_stores_lose_and_double_nothing() {
    let dir = tempfile::tempdir().unwrap();
    break_things(Servers::Collectors, dir.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_serve_loses_and_doubles_nothing() {
    if !is_nightly("a killed `epwatch serve` under load") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    break_things(Servers::Serve, dir.path()).await;
}
