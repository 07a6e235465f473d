//! The name of an EP means the same accelerator to SDK, detector, page and gate, with the same severity.

use std::time::Duration;

use epwatch_gate::{
    policy::Policy,
    read::{ReadOptions, read},
    verdict::{Check, CheckResult},
};
use epwatch_model::{CohortVerdict, Severity, VerdictClass};
use epwatch_proto::{
    Accelerator, Asked, DeviceType, RecordedReport, SendClock,
    accelerator::{ACCELERATORS, cohort_chipset},
    placement::{CPU_EP, QNN_EP},
    recorded::write_recorded,
};
use epwatch_sdk::{
    ExplainedSession, HostAssignment, ModelInfo, SdkConfig, Watch,
    placement::{AssignedNode, Assignment, Subgraph},
};
use epwatch_test_support::until;
use jiff::{SignedDuration, Timestamp};

use crate::{
    fleet::APP,
    one_fleet::{CHIPSET, FIRST, SECOND, Version, judge},
    page::Served,
    support::Store,
};

/// Names that apps give to plugins, in addition to the table's names.
const OTHERS: [&str; 5] = [QNN_EP, "QNN", "qnn", "npu0", "mine"];

/// A fleet whose app requests one EP. App and model are named after it, because devices of another app on the chipset
/// would count as a crowd.
struct Row {
    accelerator: Accelerator,
    second: Version,
}

impl Row {
    fn all() -> Vec<Self> {
        let names = ACCELERATORS.iter().map(|row| row.names[0]);
        let each = names.chain(OTHERS).zip(1..).map(|(ep, fleet)| Self {
            accelerator: Accelerator::of_ep(ep),
            second: Version {
                app: ep,
                model: ep,
                ep,
                fleet,
                ..SECOND
            },
        });
        // Two fleets with the same model would be a single fleet.
        let mut rows: Vec<Self> = each.collect();
        rows.sort_by_key(|row| row.second.model);
        rows.dedup_by_key(|row| row.second.model);
        rows
    }

    fn ep(&self) -> &'static str {
        self.second.ep
    }

    fn is_cpu(&self) -> bool {
        self.accelerator == Accelerator::Cpu
    }

    fn is_unknown(&self) -> bool {
        self.accelerator == Accelerator::Unknown
    }

    fn cohort(&self) -> String {
        let (accelerator, ep) = (self.accelerator, self.ep());
        cohort_chipset(
            CHIPSET,
            Some(Asked { accelerator, ep }),
            DeviceType::Unknown,
        )
    }

    /// If the accelerator has its own word, the text must not call it an NPU.
    #[track_caller]
    fn check_words(&self, who: &str, text: &str) {
        let (noun, ep) = (self.accelerator.noun(), self.ep());
        assert!(text.contains(noun), "{who} of {ep}: {text}");
        let says_npu = text.contains("NPU");
        assert_eq!(says_npu, noun.contains("NPU"), "{who} of {ep}: {text}");
    }
}

/// Returns the session of an app with this EP name: two nodes on the EP, one on the CPU.
fn explained(ep: &str) -> (ExplainedSession, String) {
    let dir = tempfile::tempdir().unwrap();
    let config = SdkConfig::builder(APP, "http://127.0.0.1:1", "key", dir.path());
    let watch = Watch::start(config.with_consent(true).build().unwrap()).unwrap();
    let subgraph = |ep: &str, ops: &[&str]| Subgraph {
        ep: ep.to_owned(),
        nodes: ops
            .iter()
            .map(|op| AssignedNode {
                name: op.to_lowercase(),
                op_type: (*op).to_owned(),
                domain: String::new(),
            })
            .collect(),
    };
    let assignment = Assignment {
        subgraphs: vec![
            subgraph(ep, &["Conv", "Relu"]),
            subgraph(CPU_EP, &["Hardmax"]),
        ],
    };
    let session = watch
        .attach(ModelInfo::new("m", "1").unwrap(), None)
        .requesting([ep])
        .observe_assignment(
            HostAssignment {
                runtime: "1.31.1".to_owned(),
                assignment: Some(assignment),
                devices: Vec::new(),
                ep_compatibility: String::new(),
            },
            None,
        );
    let explained = watch.explain_session(session.uid()).unwrap();
    let text = watch.explain().to_string();
    drop(session);
    watch.stop(Duration::from_secs(300)).unwrap();
    (explained, text)
}

fn check_sdk(row: &Row) {
    let (session, text) = explained(row.ep());
    let asked = Asked::by_names(&session.requested_in_effect);
    let expected = (!row.is_cpu()).then_some(row.accelerator);
    let found = asked.map(|asked| asked.accelerator);
    assert_eq!(found, expected, "{}: {session:?}", row.ep());
    match row.accelerator.is_recorded() {
        true => assert_eq!(session.eps[row.ep()].nodes, 2, "{session:?}"),
        false => assert!(session.eps.is_empty(), "{session:?}"),
    }
    assert_eq!(
        text.contains("does not know the EP"),
        row.is_unknown(),
        "{text}"
    );
}

/// Returns the verdicts on a model's second version.
fn of_model<'a>(verdicts: &'a [CohortVerdict], model: &str) -> Vec<&'a CohortVerdict> {
    let of_second = verdicts
        .iter()
        .filter(|verdict| verdict.key.model_version == SECOND.name);
    of_second
        .filter(|verdict| verdict.key.model.model_id == model)
        .collect()
}

fn check_detector(row: &Row, verdicts: &[CohortVerdict]) {
    let found = of_model(verdicts, row.second.model);
    if row.is_cpu() {
        assert!(found.is_empty(), "{found:#?}");
        return;
    }
    let [verdict] = found[..] else {
        panic!("{}: {found:#?}", row.ep());
    };
    assert_eq!(verdict.key.chipset, row.cohort());
    let expected = match row.is_unknown() {
        true => (VerdictClass::DataQuality, Severity::Info),
        false => (VerdictClass::PartialFallback, Severity::Page),
    };
    let answer = (verdict.class, verdict.severity);
    assert_eq!(answer, expected, "{}: {verdict:#?}", row.ep());
    let first = verdict.reason_texts().next().unwrap();
    match row.is_unknown() {
        true => assert!(first.contains(row.ep()), "{first}"),
        false => row.check_words("the detector's reason", &first),
    }
}

async fn check_page(row: &Row, page: &Served) {
    let chipset = row.cohort().replace(' ', "+");
    let chipset = chipset.replace('[', "%5B").replace(']', "%5D");
    let chipset = chipset.replace('?', "%3F");
    let link = format!(
        "/cohort?app={0}&environment=production&model={0}&version={1}&chipset={chipset}",
        row.ep(),
        SECOND.name
    );
    let expected = if row.is_cpu() { 404 } else { 200 };
    // A busy store may take longer than a person waits.
    until(&link, async || page.get(&link).await.status == expected).await;
    let text = page.get(&link).await.text;
    if row.is_cpu() {
        return;
    }
    let title = match row.is_unknown() {
        true => VerdictClass::DataQuality.heading(),
        false => VerdictClass::PartialFallback.heading(),
    };
    assert!(text.contains(title), "{link}: {text}");
    if !row.is_unknown() {
        let on = format!("on {}", row.accelerator.noun());
        assert!(text.contains(&on), "{link} without {on:?}: {text}");
    }
}

fn check_gate(row: &Row, at: Timestamp) {
    let recorded = RecordedReport {
        received_at_unix_ms: at.as_millisecond(),
        app_id: APP.to_owned(),
        environment: "production".to_owned(),
        report: row.second.report(0, at).to_bytes().into(),
        sent: SendClock::default(),
        is_unproven: None,
        is_own: None,
        network: None,
    };
    let mut file = Vec::new();
    write_recorded(&mut file, &recorded).unwrap();
    let runs = read(&*file, ReadOptions::default()).unwrap();
    let placed = runs[0].placed.as_ref().unwrap();
    let limits = Policy::default().placement_on(&placed.chipset);
    let checks = placed.judge(&limits, None);
    let of = |id: &str| -> &Check {
        let found = checks.iter().find(|check| check.id == id);
        found.unwrap_or_else(|| panic!("{}: no {id} in {checks:#?}", row.ep()))
    };
    let macs = of("npu_macs");
    let expected = match row.is_unknown() {
        true => CheckResult::Undecided,
        false => CheckResult::Fail,
    };
    assert_eq!(macs.result, expected, "{}: {checks:#?}", row.ep());
    if row.is_cpu() {
        assert!(macs.why.contains("on the CPU"), "{}", macs.why);
        return;
    }
    assert_eq!(placed.chipset, row.cohort());
    match row.is_unknown() {
        true => assert!(macs.why.contains(row.ep()), "{}", macs.why),
        false => {
            row.check_words("the gate's check", &macs.why);
            assert!(macs.why.starts_with("70.0 % of the MACs"), "{}", macs.why);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_means_the_same_accelerator_and_severity_everywhere() {
    let rows = Row::all();
    assert!(rows.len() > ACCELERATORS.len());
    let store = Store::start().await;
    let second = Timestamp::now().as_second() - 900;
    let began = Timestamp::from_second(second - second % 60).unwrap();
    let after = |seconds| began + SignedDuration::from_secs(seconds);
    for row in &rows {
        check_sdk(row);
        check_gate(row, after(70));
        let first = Version {
            name: FIRST.name,
            app: row.ep(),
            model: row.ep(),
            ep: row.ep(),
            fleet: row.second.fleet,
            ..FIRST
        };
        first.store(store.client(), after(10)).await;
        row.second.store(store.client(), after(70)).await;
    }
    let verdicts = judge(store.client(), after(120)).await;
    let page = Served::start(store.client()).await;
    for row in &rows {
        check_detector(row, &verdicts);
        check_page(row, &page).await;
    }
    page.stop().await;
    store.engine.stop().await;
}
