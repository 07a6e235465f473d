//! Uploads over TLS to a collector with a private CA: accepted if the host trusts the CA, otherwise refused and
//! counted.

use std::path::Path;

use epwatch_proto::UploadFailureKind;
use epwatch_sdk::{SdkConfigBuilder, TrustedRoots, Watch};

use crate::support::{self, KEY, TIMEOUT, collector::Collector, config, fixture, run, session};

fn pem(name: &str) -> String {
    std::fs::read_to_string(fixture("tls").join(name)).unwrap()
}

fn collector() -> Collector {
    Collector::start_secured(KEY, &pem("server.pem"), &pem("server.key"))
}

fn start_and_run(config: SdkConfigBuilder) -> Watch {
    let watch = support::start(config);
    run(&session(&watch), 1);
    watch
}

#[test]
fn a_private_ca_is_trusted_in_addition_to_or_instead_of_the_roots() {
    for roots in [TrustedRoots::Bundled, TrustedRoots::Only] {
        let dir = tempfile::tempdir().unwrap();
        let collector = collector();
        for endpoint in [
            collector.endpoint(),
            collector.endpoint().replace("127.0.0.1", "localhost"),
        ] {
            let config = config(dir.path(), &endpoint)
                .with_trusted_roots(roots)
                .with_root_certificate(pem("ca.pem"));
            let watch = start_and_run(config);
            watch.flush(TIMEOUT).unwrap();
            assert!(watch.health().upload_failures.is_empty());
            watch.stop(TIMEOUT).unwrap();
        }
        assert_eq!(collector.reports().len(), 2);
    }
}

#[test]
fn an_unknown_ca_is_refused_and_counted_as_that() {
    let collector = collector();
    let mut configs = vec![];
    let dir = tempfile::tempdir().unwrap();
    configs.push(config(&dir.path().join("bundled"), &collector.endpoint()));
    let system = config(&dir.path().join("system"), &collector.endpoint())
        .with_trusted_roots(TrustedRoots::System);
    configs.push(system);
    // The root of another certificate.
    let other = config(&dir.path().join("other"), &collector.endpoint())
        .with_trusted_roots(TrustedRoots::Only)
        .with_root_certificate(pem("other-ca.pem"));
    configs.push(other);
    for config in configs {
        let watch = start_and_run(config);
        watch.flush(TIMEOUT).unwrap_err();
        let failures = watch.health().upload_failures;
        let expected = [(UploadFailureKind::Tls, 1)].into();
        assert_eq!(failures, expected, "{}", watch.explain());
        crate::support::check_explains(&watch, "spool: 1 report,");
    }
    assert!(collector.calls().is_empty());
}

#[test]
fn an_expired_certificate_of_the_collector_costs_no_report() {
    let dir = tempfile::tempdir().unwrap();
    let trusting = |collector: &Collector| {
        config(dir.path(), &collector.endpoint())
            .with_root_certificate(pem("ca.pem") + &pem("expired.pem"))
    };
    let expired = Collector::start_secured(KEY, &pem("expired.pem"), &pem("server.key"));
    let watch = start_and_run(trusting(&expired));
    watch.flush(TIMEOUT).unwrap_err();
    let failures = watch.health().upload_failures;
    assert_eq!(failures, [(UploadFailureKind::Tls, 1)].into());
    for says in ["expired", "spool: 1 report,"] {
        support::check_explains(&watch, says);
    }
    assert!(expired.calls().is_empty());
    watch.stop(TIMEOUT).unwrap();
    // The certificate is renewed.
    let collector = collector();
    let watch = support::start(trusting(&collector));
    watch.flush(TIMEOUT).unwrap();
    let reports = collector.reports();
    let runs: u64 = reports.iter().flat_map(|r| &r.series).map(|s| s.n).sum();
    assert_eq!(runs, 1, "{reports:#?}");
}

#[test]
fn a_certificate_that_cannot_be_parsed_is_named_where_it_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let collector = collector();
    let broken = "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n";
    let config = config(dir.path(), &collector.endpoint())
        .with_trusted_roots(TrustedRoots::Only)
        .with_root_certificate(broken);
    let watch = start_and_run(config);
    watch.flush(TIMEOUT).unwrap_err();
    let failures = watch.health().upload_failures;
    assert_eq!(failures[&UploadFailureKind::Tls], 1, "{failures:?}");
    assert!(collector.calls().is_empty());
}

#[test]
fn plaintext_to_a_port_with_tls_names_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let collector = collector();
    let endpoint = collector.endpoint().replace("https://", "http://");
    let watch = start_and_run(config(dir.path(), &endpoint));
    watch.flush(TIMEOUT).unwrap_err();
    support::check_explains(&watch, "its address begins with https://");
    let failures = watch.health().upload_failures;
    assert_eq!(failures, [(UploadFailureKind::Unreachable, 1)].into());
}

/// Copies a client's certificate and key to where the SDK reads them.
fn present(dir: &Path, name: &str) {
    for kind in ["pem", "key"] {
        std::fs::write(
            dir.join(format!("client.{kind}")),
            pem(&format!("{name}.{kind}")),
        )
        .unwrap();
    }
}

#[test]
fn a_client_certificate_is_presented_and_a_renewed_one_needs_no_restart() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start_mutual(
        KEY,
        &pem("server.pem"),
        &pem("server.key"),
        &pem("device-ca.pem"),
    );
    let (cert_file, key_file) = (dir.path().join("client.pem"), dir.path().join("client.key"));
    let config = config(&dir.path().join("data"), &collector.endpoint())
        .with_root_certificate(pem("ca.pem"))
        .with_client_certificate(&cert_file, &key_file);
    let watch = start_and_run(config);
    // There is no certificate yet.
    watch.flush(TIMEOUT).unwrap_err();
    support::check_explains(&watch, "no client certificate");
    // This certificate is from another authority.
    present(dir.path(), "other-device");
    watch.flush(TIMEOUT).unwrap_err();
    present(dir.path(), "device");
    watch.flush(TIMEOUT).unwrap();
    assert_eq!(collector.reports().len(), 1);
    // Only the key is renewed yet, so the earlier pair stays in use.
    std::fs::write(&key_file, pem("other-device.key")).unwrap();
    run(&session(&watch), 1);
    watch.flush(TIMEOUT).unwrap();
    // Now both files are renewed. The collector refuses the new pair, because it does not know its authority.
    present(dir.path(), "other-device");
    run(&session(&watch), 1);
    watch.flush(TIMEOUT).unwrap_err();
    support::check_explains(&watch, "spool: 1 report,");
    watch.stop(TIMEOUT).unwrap();
}

#[test]
fn a_client_certificate_needs_tls() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), "http://127.0.0.1:1").with_client_certificate("a", "b");
    let error = config.build().unwrap_err();
    assert!(error.to_string().contains("https://"), "{error}");
}

#[test]
fn tls_to_a_port_without_it_names_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    let endpoint = collector.endpoint().replace("http://", "https://");
    let watch = start_and_run(config(dir.path(), &endpoint));
    watch.flush(TIMEOUT).unwrap_err();
    support::check_explains(&watch, "this address speaks no TLS");
}
