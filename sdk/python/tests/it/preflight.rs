//! Checks before a session, with the real emulator's files and sessions.

use epwatch_engines::{Engine, for_tests};
use epwatch_proto::ReasonCode;

use crate::environment::{model, run};

#[test]
fn checks_before_a_session_name_what_is_wrong_and_pass_what_the_emulator_takes() {
    let qnn = for_tests(Engine::OnnxRuntimeQnn);
    let (plugin, backend) = (qnn.qnn_provider_library(), qnn.qnn_htp_library());
    let args = [&*model("mixed_v2.head32.onnx"), &plugin, &backend];
    let (printed, reports) = run("preflight.py", &args);
    // QNN prints lines of its own.
    assert!(printed.contains("as expected\n"), "{printed}");
    let mut sessions = reports.iter().flat_map(|report| &report.sessions);
    let fallback = sessions.find(|session| session.model.id == "fallback");
    let reasons = &fallback.unwrap().placement.reasons;
    assert!(
        reasons.contains(&ReasonCode::BackendLibraryMissing),
        "{reasons:?}"
    );
}
