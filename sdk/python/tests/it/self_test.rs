//! Self-tests of Python's sessions, as they arrive.

use epwatch_engines::{Engine, for_tests};
use epwatch_proto::SelfTest;

use crate::environment::{crate_file, run};

#[test]
fn a_self_test_compares_the_outputs_of_npu_and_cpu_and_is_reported() {
    let qnn = for_tests(Engine::OnnxRuntimeQnn);
    let fixtures = crate_file("../../tests/fixtures");
    let (plugin, backend) = (qnn.qnn_provider_library(), qnn.qnn_htp_library());
    let (printed, reports) = run("self_test.py", &[&fixtures, &plugin, &backend]);
    assert!(printed.contains("as expected\n"), "{printed}");
    // In the order of sessions.
    let tests: Vec<&SelfTest> = reports.iter().flat_map(|r| &r.self_tests).collect();
    let (compared, failed): (Vec<&SelfTest>, Vec<&SelfTest>) =
        tests.into_iter().partition(|test| test.error_code == 0);
    let mut codes: Vec<_> = failed.iter().map(|test| test.error_code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [-6, -5, -3, -2, -2, -2, 2, 7, 11]);
    let of_types = 1 + 12;
    assert_eq!(compared.len(), 3 + of_types);
    let by_id = |of: &[&SelfTest], id: &str| {
        let mut found = of.iter().filter(|test| test.input_id == id);
        SelfTest::clone(found.next().unwrap())
    };
    let first = by_id(&compared, "ramp-1");
    assert_eq!(first.tolerance, Some(0.25));
    assert!(first.max_abs > Some(0.0) && first.cosine > Some(0.9));
    assert_ne!(first.npu_output_hash, first.cpu_output_hash);
    let no_session = by_id(&failed, "no session");
    assert_eq!(no_session.npu_output_hash, first.npu_output_hash);
    assert_eq!(no_session.cpu_output_hash, None);
    // The runs of self-tests do not count as runs of the app.
    assert!(
        reports
            .iter()
            .all(|report| report.series.is_empty() && report.run_errors.is_empty())
    );
}
