//! The commands of docs/python.md, from an empty folder to the first report.

use std::fs;

use epwatch_runtimes::ci_wheels;
use epwatch_strict_collector::Collector;

use crate::environment::{
    KEY, app, command, crate_file, environment, model, n_runs, new_folder, wheel,
};

/// Blocks of a language in the section, in order.
fn blocks<'a>(section: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("\n```{language}\n");
    let blocks = section.split(&*begin).skip(1);
    blocks
        .map(|rest| rest.split("\n```").next().unwrap())
        .collect()
}

#[test]
fn the_commands_of_the_guide_lead_to_a_report() {
    let guide = fs::read_to_string(crate_file("../../docs/python.md")).unwrap();
    let section = guide.split("\n## ").nth(1).unwrap();
    let collector = Collector::start(KEY);
    let folder = new_folder("guide");
    fs::copy(wheel(), folder.join(wheel().file_name().unwrap())).unwrap();
    let [program] = blocks(section, "python")[..] else {
        panic!("one program")
    };
    let local = "http://127.0.0.1:4717";
    assert!(program.contains(local));
    let program = program.replace(local, &collector.endpoint());
    fs::write(folder.join("first.py"), program).unwrap();
    let mut printed = String::new();
    for lines in blocks(section, "sh") {
        let ran = command("sh".as_ref())
            .args(["-e", "-c", lines])
            .current_dir(&folder)
            // Uses wheels that are already here, as pip's cache would on a developer's machine.
            .env("PIP_NO_INDEX", "1")
            .env("PIP_FIND_LINKS", ci_wheels())
            .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{lines}: {said}");
        printed = String::from_utf8(ran.stdout).unwrap();
    }
    assert!(
        printed.contains("model sigmoid version 1: 100 runs"),
        "{printed}"
    );
    assert!(
        printed.contains("CPUExecutionProvider: 1 node"),
        "{printed}"
    );
    assert_eq!(n_runs(&collector.reports()), 100);
}

/// The guide's session by a policy, with a model of the fixtures.
#[test]
fn the_policy_of_the_guide_is_in_the_explanation() {
    let guide = fs::read_to_string(crate_file("../../docs/python.md")).unwrap();
    let mut programs = blocks(&guide, "python").into_iter();
    let program = programs.find(|program| program.contains("selection_policy=policy"));
    let folder = tempfile::tempdir().unwrap();
    fs::copy(
        model("d_mlp.fp32.onnx"),
        folder.path().join("segmenter.onnx"),
    )
    .unwrap();
    let lines = [
        "import onnxruntime, epwatch",
        "epwatch.start()",
        program.unwrap(),
        "print(epwatch.explain(session)['selection_policy'])",
    ];
    let ran = app(&Collector::start(KEY), environment(), folder.path())
        .args(["-c", &lines.join("\n")])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(
        String::from_utf8_lossy(&ran.stdout),
        "prefer_npu\n",
        "{said}"
    );
}
