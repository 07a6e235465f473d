//! Faults that are repaired in the middle of a day: the hours until their incidents end, and whether the incidents come
//! again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use epwatch_detector::DetectorConfig;
use epwatch_detector::read::Source;
use epwatch_detector::read::recorded::{Intake, SenderDecision};
use epwatch_detector::replay::{Line, ReplayOptions, replay};
use epwatch_model::State;
use epwatch_server::Period;

use crate::evaluation::{DAY_MS, START_MS, kind_name, milliseconds};
use crate::labelled::{Benign, Family, FamilySpec, Truth};
use crate::outcome::{Outcome, Repair};

const HOUR_MS: i64 = DAY_MS / 24;

/// Judges the families of a scenario, each by itself.
pub(crate) fn evaluate(
    scenario: &str,
    specs: &[FamilySpec],
    day: u32,
    runtime: &tokio::runtime::Runtime,
) -> anyhow::Result<Outcome> {
    let began = Instant::now();
    let repairs = specs
        .iter()
        .map(|spec| runtime.block_on(repaired(spec, day)));
    let repairs = repairs.collect::<anyhow::Result<_>>()?;
    Ok(Outcome {
        scenario: scenario.to_owned(),
        repairs,
        seconds_replaying: began.elapsed().as_secs_f64(),
        ..Outcome::default()
    })
}

/// Judges a family each hour. Its fault begins on the fourth day and is repaired on `day`, counted from 0. If `day` is
/// after the last day, it is never repaired.
///
/// # Errors
/// The family could not be replayed.
pub async fn repaired(spec: &FamilySpec, day: u32) -> anyhow::Result<Repair> {
    let hour = Duration::from_secs(3_600);
    let day = i64::from(day.min(spec.windows.0 + spec.windows.1));
    let repaired_ms = START_MS + day * DAY_MS + i64::try_from(spec.seed % 24)? * HOUR_MS;
    let sound = FamilySpec {
        truth: Truth::Benign(Benign::Plain),
        ..spec.clone()
    };
    let mut intake = Intake::new(hour);
    for (spec, is_before) in [(spec, true), (&sound, false)] {
        let family = Family::new(spec.clone(), START_MS);
        for window in 0..family.n_windows() {
            family.each_report(window, |report| {
                if (report.received_ms < repaired_ms) == is_before {
                    let key = ("camera", "production");
                    let (received_ms, mark) = (report.received_ms, SenderDecision::default());
                    intake.add_marked(received_ms, key, &report.report, &report.sent, mark);
                }
            });
        }
    }
    let (recording, _) = intake.finish()?;
    let options = ReplayOptions {
        config: DetectorConfig {
            step: Period(hour),
            ..DetectorConfig::default()
        },
        from: Some(jiff::Timestamp::from_millisecond(START_MS + 3 * DAY_MS)?),
        to: None,
        all: false,
        modes: false,
    };
    let mut states: Vec<(String, State)> = Vec::new();
    let mut keep = |line: Line| {
        if let Line::Incident(line) = line {
            states.push((line.window_end, line.incident.state));
        }
        Ok(())
    };
    let source = Source::recorded(Arc::new(recording), 2_000_000);
    replay(source, &options, &mut keep).await?;
    let ended = states
        .iter()
        .position(|(_, state)| *state == State::Resolved);
    let after = |(end, _): &(String, State)| -> anyhow::Result<i64> {
        Ok((milliseconds(end)? - repaired_ms) / HOUR_MS)
    };
    let since = &states[ended.unwrap_or(states.len())..];
    Ok(Repair {
        seed: spec.seed,
        kind: spec
            .fault()
            .map_or(String::new(), |fault| kind_name(fault.kind).to_owned()),
        runs: spec.runs,
        fired: states.iter().any(|(_, state)| *state == State::Firing),
        ended_after_h: ended.map(|at| after(&states[at])).transpose()?,
        came_again: since.iter().any(|(_, state)| *state == State::Firing),
    })
}
