//! Sessions of recorded reports, judged together.

use std::{collections::BTreeMap, sync::Arc};

use epwatch_gate::{
    launches::{JudgedLaunches, LaunchesError, MeasuredFile},
    macs::ModelMacs,
    placement::{Counted, InspectedChipset, InspectedNode, NoSession},
    run::{Run, RunTarget},
    verdict::{CheckResult, EpNumbers, GatedFile},
};

use crate::checks::{By, check, check_mistake, check_refused};

/// A placement with `head` on the CPU, without shares, as an SDK without a manifest reports it.
fn placed(on_cpu: &[&str]) -> InspectedChipset {
    let ep = |nodes: usize| EpNumbers {
        nodes: u32::try_from(nodes).unwrap(),
        partitions: None,
        macs_share: None,
    };
    let eps = [
        ("QNNExecutionProvider", ep(5)),
        ("CPUExecutionProvider", ep(on_cpu.len())),
    ];
    let nodes = on_cpu.iter().map(|name| InspectedNode {
        name: (*name).to_owned(),
        op_type: "Gemm".to_owned(),
        reason: "unknown".to_owned(),
        reason_text: None,
        macs_share: None,
        benign: false,
        place: None,
        time: None,
    });
    InspectedChipset {
        chipset: "SM8650".to_owned(),
        soc_model: String::new(),
        session: "ok".to_owned(),
        error: None,
        requested: Vec::new(),
        backend: epwatch_proto::EpBackend::default(),
        eps: BTreeMap::from(eps.map(|(name, ep)| (name.to_owned(), ep))),
        cpu_nodes: nodes.collect(),
        fingerprint_normalised: None,
        reasons: Vec::new(),
        npu_partitions: Vec::new(),
        crossings: None,
        no_session: NoSession::default(),
        encoded: String::new(),
        counted: Counted::default(),
    }
}

/// Sessions of a model on one phone, each with 30 runs.
fn sessions(model: &str, us: u64, n: u64, phone: &str) -> Vec<MeasuredFile> {
    let each = (0..n).map(|launch| MeasuredFile {
        file: GatedFile {
            path: "bench.reports".to_owned(),
            sha256: "f".to_owned(),
        },
        run: Run {
            source: "recorded_reports",
            target: RunTarget {
                row: format!("{model} {launch}"),
                device: Some("Example EX-1".to_owned()),
                phone: Some(phone.to_owned()),
                chipset: Some("SM8650".to_owned()),
                model: Some(model.to_owned()),
                model_sha256: Some(format!("hash of {model}")),
                ..RunTarget::default()
            },
            runs_us: (0..30).map(|run| us + run % 7 + launch).collect(),
            warmup: Some(0),
            placed: Some(Arc::new(placed(&[]))),
            ..Run::default()
        },
    });
    each.collect()
}

fn judge(
    candidate: Vec<MeasuredFile>,
    baseline: Vec<MeasuredFile>,
    model: Option<&str>,
    macs: Option<&ModelMacs>,
) -> Result<JudgedLaunches, LaunchesError> {
    let by = By {
        model,
        macs,
        ..By::default()
    };
    by.judge(candidate, baseline)
}

/// The file of the baseline was replaced after its launches.
#[test]
fn launches_of_a_baseline_are_of_its_file() {
    let judge = |before: &str| {
        let by = By {
            model: Some("new"),
            before: Some(before),
            ..By::default()
        };
        by.judge(
            sessions("new", 8_000, 12, "a"),
            sessions("old", 8_000, 12, "a"),
        )
    };
    judge("old").unwrap();
    let says = "was measured with another model (SHA-256 hash of old) than before.onnx";
    check_refused(judge("older"), says);
}

/// One file with both models is the usual recording of a bench.
#[test]
fn sessions_of_two_models_pair_up_by_hash() {
    let both = |n| {
        [
            sessions("old", 8_000, 12, "a"),
            sessions("new", 10_000, n, "a"),
        ]
        .concat()
    };
    let found = judge(both(12), both(12), Some("new"), None).unwrap();
    let regression = check(&found, "regression", CheckResult::Fail);
    assert!(regression.why.contains("1.25 times"), "{regression:?}");
    check(&found, "npu_macs", CheckResult::Pass);
    assert_eq!(found.targets[0].runs.len(), 1, "a file is listed once");
    assert_eq!(found.targets[0].device.as_deref(), Some("Example EX-1"));
    let found = judge(both(13), both(13), Some("new"), None).unwrap();
    check_mistake(&found, "unequal_arms");
    let backwards = judge(both(12), both(12), Some("old"), None).unwrap();
    check(&backwards, "regression", CheckResult::Pass);
    check_refused(
        judge(both(12), Vec::new(), None, None),
        "new, old: give MODEL",
    );
    let three = [both(12), sessions("older", 8_000, 12, "a")].concat();
    check_refused(
        judge(both(12), three, Some("new"), None),
        "--baseline has sessions",
    );
    let same = || sessions("new", 8_000, 12, "a");
    check_refused(judge(same(), same(), None, None), "are the same launch");
}

#[test]
fn phones_do_not_pair_up_and_sessions_without_runs_are_not_green() {
    let (a, b) = (
        sessions("new", 8_000, 6, "a"),
        sessions("old", 8_000, 6, "b"),
    );
    check_refused(judge(a.clone(), b, None, None), "phone a against b");
    // The placement is judged for many phones together, without their times.
    let many = [a.clone(), sessions("new", 8_000, 6, "b")].concat();
    check(
        &judge(many, Vec::new(), None, None).unwrap(),
        "npu_macs",
        CheckResult::Pass,
    );
    let mut elsewhere = sessions("old", 8_000, 6, "a");
    for one in &mut elsewhere {
        one.run.target.chipset = Some("SM8635".to_owned());
    }
    check(
        &judge(a.clone(), elsewhere, None, None).unwrap(),
        "latency",
        CheckResult::Undecided,
    );
    let mut short = sessions("old", 8_000, 6, "a");
    for one in &mut short {
        one.run.runs_us.clear();
    }
    let found = judge(a, short, None, None).unwrap();
    check(&found, "latency", CheckResult::Undecided);
    check_mistake(&found, "few_runs");
}

/// One session in six fell back: the worst placement decides, with the shares of MODEL.
#[test]
fn the_worst_placement_is_judged_by_the_macs_of_the_model() {
    let macs = ModelMacs {
        total: 100,
        by_name: BTreeMap::from([("conv".to_owned(), 70), ("head".to_owned(), 30)]),
        ..ModelMacs::default()
    };
    let with = |on_cpu: &[&str]| {
        let mut all = sessions("new", 8_000, 6, "a");
        all[3].run.placed = Some(Arc::new(placed(on_cpu)));
        all
    };
    let found = judge(with(&["head"]), Vec::new(), None, Some(&macs)).unwrap();
    let share = check(&found, "npu_macs", CheckResult::Fail);
    assert_eq!(share.value, Some(0.7));
    assert_eq!(share.nodes[0].macs_share, Some(0.3));
    check_mistake(&found, "placements_differ");
    // A node that the model does not have could be any share.
    let found = judge(with(&["other"]), Vec::new(), None, Some(&macs)).unwrap();
    check(&found, "npu_macs", CheckResult::Undecided);
    let found = judge(with(&["head"]), Vec::new(), None, None).unwrap();
    check(&found, "npu_macs", CheckResult::Undecided);
    // A loop with an unknown number of turns has no MACs in the list.
    let endless = ModelMacs {
        without: Some("loop".to_owned()),
        ..macs
    };
    let found = judge(with(&["head"]), Vec::new(), None, Some(&endless)).unwrap();
    check(&found, "npu_macs", CheckResult::Undecided);
}
