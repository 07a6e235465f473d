//! Golden bytes: reports of earlier senders decode to the same values for ever.
//!
//! `EPWATCH_BLESS=1 cargo test -p epwatch-proto --test wire golden` writes the files again. Do so only for a sample
//! that gained a field, and keep the bytes that phones already send next to the new ones.

use std::{fmt::Debug, fmt::Write as _, fs, path::PathBuf};

use epwatch_proto::{histogram::*, recorded::*, *};
use prost::Message;

use crate::samples;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/wire")
}

/// Returns the bytes in the file; when blessing, writes `bytes` and `text` there first. `text` is the readable form of
/// the bytes, and must still match.
#[track_caller]
fn golden(name: &str, bytes: &[u8], text: &str) -> Vec<u8> {
    let path = folder().join(name);
    let shown = path.with_extension("txt");
    if std::env::var_os("EPWATCH_BLESS").is_some() {
        fs::create_dir_all(folder()).unwrap();
        fs::write(&path, bytes).unwrap();
        fs::write(&shown, text).unwrap();
    }
    let expected = fs::read_to_string(&shown).unwrap_or_else(|e| panic!("{shown:?}: {e}"));
    assert_eq!(text, expected, "{shown:?}");
    fs::read(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"))
}

/// One message: the file decodes, parses to the sample, and encodes to the same bytes.
#[track_caller]
fn check<W, P>(name: &str, sample: P)
where
    W: Message + Default + Debug + for<'a> From<&'a P>,
    P: TryFrom<W, Error = ParseError> + PartialEq + Debug,
{
    let wire = W::from(&sample);
    let bytes = golden(name, &wire.encode_to_vec(), &format!("{wire:#?}\n"));
    let parsed = P::try_from(W::decode(&bytes[..]).unwrap());
    assert_eq!(parsed.as_ref(), Ok(&sample), "{name}");
    assert_eq!(wire.encode_to_vec(), bytes, "{name}");
}

#[test]
fn golden_reports_parse() {
    check::<v1::Report, _>("report_full.bin", samples::full_report());
    check::<v1::Report, _>("report_minimal.bin", samples::minimal_report());
    let bytes = fs::read(folder().join("report_full.bin")).unwrap();
    assert_eq!(Report::parse(&bytes), Ok(samples::full_report()));
    assert_eq!(ReportKey::peek(&bytes), Some(samples::key()));
}

/// Sum and extremes as doubles, every count written out.
#[test]
fn a_report_without_the_short_forms_parses_to_the_same() {
    let mut wire = v1::Report::from(&samples::full_report());
    let series = &mut wire.series[0];
    assert!(series.whole_ns.take().is_some());
    let parsed = samples::series();
    (series.sum_us, series.min_us, series.max_us) = (parsed.sum_us, parsed.min_us, parsed.max_us);
    (series.runs_seen, series.sampled_one_in) = (parsed.runs_seen, parsed.sampled_one_in);
    assert_eq!(
        Report::parse(&wire.encode_to_vec()),
        Ok(samples::full_report())
    );
}

#[test]
fn golden_upload_parses_both_ways() {
    check::<v1::UploadRequest, _>("upload_request.bin", samples::upload_request());
    check::<v1::UploadResponse, _>("upload_response.bin", samples::upload_response());
}

#[test]
fn golden_directives_parse() {
    for (name, signed) in samples::directives() {
        let inner = signed.parse_directive().unwrap();
        assert_eq!(inner.id, name);
        assert_eq!(inner.to_bytes(), signed.directive);
        check::<v1::SignedDirective, _>(&format!("{name}.bin"), signed);
    }
}

#[test]
fn golden_manifest_parses() {
    check::<v1::ModelManifest, _>("model_manifest.bin", samples::manifest());
}

#[test]
fn golden_recording_is_read_record_by_record() {
    let mut bytes = Vec::new();
    let mut text = String::new();
    for record in samples::recorded() {
        write_recorded(&mut bytes, &record).unwrap();
        writeln!(text, "{:#?}", v1::RecordedReport::from(&record)).unwrap();
    }
    let bytes = golden("recorded_reports.bin", &bytes, &text);
    let records: Result<Vec<_>, _> = RecordedReader::new(&bytes[..]).collect();
    let records = records.unwrap();
    assert_eq!(records, samples::recorded());
    assert_eq!(records[0].parse_report(), Ok(samples::full_report()));
}

/// The SQL functions of the store are checked against the same file.
#[test]
fn bucket_edges_are_those_of_the_crate() {
    let hdr =
        hdrhistogram::Histogram::<u64>::new_with_bounds(LOWEST_US, HIGHEST_US, SIGNIFICANT_DIGITS);
    let hdr = hdr.unwrap();
    let mut csv = String::from("index,low_us,high_us\n");
    let mut low = 0;
    for index in 0..hdr.distinct_values() {
        let high = hdr.next_non_equivalent(low);
        writeln!(csv, "{index},{low},{high}").unwrap();
        low = high;
    }
    let path = folder().join("bucket_edges.csv");
    if std::env::var_os("EPWATCH_BLESS").is_some() {
        fs::write(&path, &csv).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), csv);
    for line in csv.lines().skip(1) {
        let row: Vec<u64> = line.split(',').map(|n| n.parse().unwrap()).collect();
        let index = u16::try_from(row[0]).unwrap();
        assert_eq!(
            (bucket_low_us(index), bucket_high_us(index)),
            (row[1], row[2])
        );
    }
}
