//! Files of recorded reports and of certified placements.

use std::io::Write;
use std::sync::Arc;

use epwatch_detection::labelled::{FamilyReport, FamilySpec, PlacementView};
use epwatch_detector::read::Source;
use epwatch_detector::replay::{read_files, to_json};
use epwatch_proto::RecordedReport;
use epwatch_proto::recorded::write_recorded;

use super::{HOUR, INCIDENT, PLAIN, lines_of, reports, spec};

fn file_of(reports: &[FamilyReport]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for report in reports {
        let record = RecordedReport {
            received_at_unix_ms: report.received_ms,
            app_id: report.report.app.id.clone(),
            environment: "production".into(),
            report: report.report.to_bytes().into(),
            sent: report.sent.clone(),
            is_unproven: None,
            is_own: None,
            network: None,
        };
        write_recorded(&mut bytes, &record).unwrap();
    }
    bytes
}

async fn texts_of(paths: &[std::path::PathBuf]) -> Vec<String> {
    let read = read_files(paths, HOUR).unwrap();
    let lines = lines_of(Source::recorded(Arc::new(read.recording), 1_000_000)).await;
    lines.iter().map(to_json).collect()
}

#[tokio::test]
async fn files_in_any_order_twice_or_packed_give_the_same_lines() {
    let dir = tempfile::tempdir().unwrap();
    let all = reports(FamilySpec {
        devices: 30,
        chipsets: 2,
        ..spec(18, INCIDENT, PlacementView::Full)
    });
    let path = |name: &str| dir.path().join(name);
    let (early, late) = all.split_at(all.len() / 2);
    std::fs::write(path("all"), file_of(&all)).unwrap();
    std::fs::write(path("early"), file_of(early)).unwrap();
    let file = std::fs::File::create(path("late.gz")).unwrap();
    let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    packed.write_all(&file_of(late)).unwrap();
    packed.finish().unwrap();

    let expected = texts_of(&[path("all")]).await;
    let pages = expected.last().unwrap();
    assert!(pages.contains(r#""pages":1"#), "{pages}");
    assert_eq!(texts_of(&[path("late.gz"), path("early")]).await, expected);
    assert_eq!(texts_of(&[path("all"), path("early")]).await, expected);
}

#[tokio::test]
async fn a_torn_tail_and_bytes_that_are_no_records_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let all = reports(FamilySpec {
        devices: 3,
        chipsets: 1,
        ..spec(19, PLAIN, PlacementView::Full)
    });
    let mut bytes = file_of(&all);
    bytes.truncate(bytes.len() - 5);
    let torn = dir.path().join("torn");
    std::fs::write(&torn, bytes).unwrap();
    let read = read_files(std::slice::from_ref(&torn), HOUR).unwrap();
    assert_eq!(read.torn.len(), 1);
    assert_eq!(read.summary.reports, all.len() as u64 - 1);

    let text = dir.path().join("text");
    std::fs::write(&text, "{\"kind\": \"verdict\"}\n".repeat(50)).unwrap();
    let error = read_files(std::slice::from_ref(&text), HOUR).unwrap_err();
    assert!(error.to_string().contains("text"), "{error}");
    let error = read_files(&[dir.path().join("absent")], HOUR).unwrap_err();
    assert!(error.to_string().contains("absent"), "{error}");
}
