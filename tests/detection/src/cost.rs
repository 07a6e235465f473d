//! The cost of a replay: a file of recorded reports of labelled families, and a replay of it with its CPU time.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use epwatch_detector::DetectorConfig;
use epwatch_detector::read::Source;
use epwatch_detector::replay::{Line, ReplayOptions, read_files, replay};
use epwatch_proto::RecordedReport;
use epwatch_proto::recorded::write_recorded;
use epwatch_server::Period;

use crate::evaluation::START_MS;
use crate::labelled::{Family, FamilyReport};
use crate::scenarios;

/// Number of families of the operational mix, which a recording is made of.
const FAMILIES: u64 = 24;

/// Number of devices of each family, on each of its chipsets.
const DEVICES: usize = 400;

/// Writes at least `reports` recorded reports of the operational mix, in the order of their receipt.
///
/// # Errors
/// The file cannot be written.
pub fn record(path: &Path, first_seed: u64, reports: u64) -> anyhow::Result<u64> {
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    let mut to = BufWriter::new(file);
    let operational = scenarios::all().swap_remove(0);
    let specs = operational.families(first_seed, 0, FAMILIES);
    let families = specs.into_iter().map(|mut spec| {
        spec.devices = DEVICES;
        Family::new(spec, START_MS)
    });
    let families: Vec<Family> = families.collect();
    let mut written = 0;
    for window in 0..families[0].n_windows() {
        let mut of_window: Vec<FamilyReport> = Vec::new();
        for family in &families {
            family.each_report(window, |report| of_window.push(report));
        }
        of_window.sort_by_key(|report| report.received_ms);
        // Makes as many copies of the window's devices as the requested number of reports needs.
        let n = u64::from(families[0].n_windows()) * of_window.len() as u64;
        for copy in 0..reports.div_ceil(n.max(1)) {
            for report in &of_window {
                write_recorded(&mut to, &recorded(report, copy))?;
                written += 1;
            }
        }
    }
    to.flush()?;
    Ok(written)
}

/// Returns the report as of another app for each copy.
fn recorded(report: &FamilyReport, copy: u64) -> RecordedReport {
    RecordedReport {
        is_own: None,
        network: None,
        received_at_unix_ms: report.received_ms,
        app_id: format!("{}-{copy}", report.report.app.id),
        environment: "production".into(),
        report: report.report.to_bytes().into(),
        sent: report.sent.clone(),
        is_unproven: None,
    }
}

/// Replays a file, and returns a line with the cost.
///
/// # Errors
/// The file cannot be read or replayed.
pub async fn replay_of(path: &Path) -> anyhow::Result<String> {
    let began = Instant::now();
    let hour = Duration::from_secs(3_600);
    let read = read_files(&[path.to_owned()], hour)?;
    let reading = began.elapsed();
    let options = ReplayOptions {
        config: DetectorConfig {
            step: Period(24 * hour),
            ..DetectorConfig::default()
        },
        from: None,
        to: None,
        all: true,
        modes: true,
    };
    let reports = read.summary.reports;
    let source = Source::recorded(Arc::new(read.recording), 2_000_000);
    let (mut lines, mut sum) = (0_u64, 0_u64);
    let mut count = |line: Line| {
        lines += 1;
        let text = epwatch_detector::replay::to_json(&line);
        // FNV-1a, to compare two programs' lines.
        let hashed = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        sum = sum.wrapping_add(hashed);
        Ok(())
    };
    replay(source, &options, &mut count).await?;
    Ok(format!(
        "{reports} reports, read in {:.1} s, judged in {:.1} s; {lines} lines, sum {sum:016x}",
        reading.as_secs_f64(),
        (began.elapsed() - reading).as_secs_f64(),
    ))
}
