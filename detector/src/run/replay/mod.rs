//! Runs the detector over recorded reports, with the same windows, verdicts and incidents, and without writing.
//!
//! Windows are judged one after another, as a running detector would have judged them, each with the history of the
//! earlier ones. The clock shows the end of the window, so the same reports give the same lines.

mod called_false;
mod files;
mod lines;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use epwatch_model::{Incident, Severity, State, VerdictClass};
use epwatch_server::Period;
use futures::future::LocalBoxFuture;
use jiff::{SignedDuration, Timestamp};

use crate::incident::set::IncidentSet;
use crate::judge::base_rates::BaseRates;
use crate::judge::cv_rules;
use crate::judge::evaluate::{Evaluator, Shows};
use crate::judge::pinned_references::PinnedReferences;
use crate::read::{PastWindows, Source, SourceError};
use crate::run::config::DetectorConfig;
use called_false::Raised;

pub use called_false::{CalledFalse, FalseInReplay};
pub use files::{FileError, FilesRead, TornTail, read_files};
pub use lines::{IncidentLine, Line, ReplaySummary, to_json};

/// Windows and settings of a replay.
#[derive(Debug, Clone)]
pub struct ReplayOptions {
    /// Windows, step and look-back.
    pub config: DetectorConfig,
    /// Start of the first window. `None` means the start of the reports, or up to a quarter of a window before. It is
    /// then on a whole number of windows since 1970 (days in UTC). Earlier windows only add to the history.
    pub from: Option<Timestamp>,
    /// Latest end of the last window; `None` means the end of the reports.
    pub to: Option<Timestamp>,
    /// Whether healthy verdicts are lines too.
    pub all: bool,
    /// Whether lines tell whether latency has two modes. Finding the modes takes up to half of the time of a replay.
    pub modes: bool,
}

/// The reason why a replay ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the end of the window, and the cause")]
pub enum ReplayError {
    /// A window could not be judged.
    #[error("failed to judge the window that ends at {end}")]
    Window {
        end: Timestamp,
        #[source]
        source: SourceError,
    },
    /// The span of the windows could not be read.
    #[error("failed to find the recorded reports")]
    Span(#[source] SourceError),
    /// The incidents that people called false could not be read.
    #[error("failed to read which incidents people called false")]
    Feedback(#[source] SourceError),
    /// A line could not be written.
    #[error("failed to write a line")]
    Write(#[source] io::Error),
}

/// Judges every window of `source` and hands each line to `write`.
///
/// # Errors
/// The source or `write` failed.
pub fn replay<'a>(
    source: Source,
    options: &'a ReplayOptions,
    write: &'a mut dyn FnMut(Line) -> io::Result<()>,
) -> LocalBoxFuture<'a, Result<Replayed, ReplayError>> {
    Box::pin(async move {
        let past = Arc::new(PastWindows::default());
        let source = source.with_past(past.clone());
        let received = source.received().await.map_err(ReplayError::Span)?;
        let mut summary = ReplaySummary::default();
        let windows = received.map(|received| windows(received, options));
        let mut config = options.config.clone();
        // Common CV rules are counted too, so that people know their cost before they switch one on.
        config.cv_rules.extend(cv_rules::stock());
        for rule in &config.cv_rules {
            summary.cv_rules.insert(rule.name.clone(), 0);
        }
        let shows = match (options.modes, options.all) {
            (true, true) => Shows::Verdicts,
            (true, false) => Shows::Findings,
            (false, _) => Shows::Words,
        };
        let evaluator = Evaluator::new(source.clone(), config).showing(shows);
        let mut incidents = IncidentSet::default();
        let mut told = Told::default();
        let windows = windows.unwrap_or_default();
        let time = judged_time(&windows, options.config.window);
        for (end, counts) in windows {
            let failed = |source| ReplayError::Window { end, source };
            let pinned = PinnedReferences::of(incidents.in_mind());
            let evaluation = evaluator.evaluate_beside(end, pinned).await;
            let mut evaluation = evaluation.map_err(failed)?;
            if let Some((_, error)) = evaluation.failures.pop() {
                return Err(failed(error));
            }
            past.add(&evaluation.verdicts);
            if !counts {
                continue;
            }
            for verdict in &evaluation.verdicts {
                if verdict.key.firmware.is_none() {
                    summary.cohort_windows += 1;
                }
                *summary.verdicts.entry(verdict.class).or_default() += 1;
                for rule in &verdict.cv_rules {
                    *summary.cv_rules.entry(rule.clone()).or_default() += 1;
                }
                if options.all || verdict.class != VerdictClass::Healthy {
                    write(Line::verdict(verdict)).map_err(ReplayError::Write)?;
                }
            }
            let forget_after = options.config.lookback.0;
            for verdict in &evaluation.quiet {
                if verdict.severity >= Severity::Ticket {
                    write(Line::verdict(verdict)).map_err(ReplayError::Write)?;
                }
            }
            evaluation.verdicts.append(&mut evaluation.quiet);
            let recovery = evaluator.evaluate_recovery(end, incidents.in_mind()).await;
            let recovery = recovery.map_err(failed)?;
            incidents.advance(&evaluation.verdicts, forget_after, end);
            if let Some((recovery, verdicts)) = recovery {
                incidents.recover(&verdicts, recovery, end);
            }
            let changed = incidents.unsaved();
            incidents.saved(&changed);
            for incident in told.news(changed) {
                write(Line::incident(&incident, end)).map_err(ReplayError::Write)?;
            }
        }
        summary.pages = told.paged.len() as u64;
        if let Some(time) = time {
            let feedback = source.feedback(time).await;
            let feedback = feedback.map_err(ReplayError::Feedback)?;
            let raised = told.raised.iter().cloned();
            let window = signed(options.config.window);
            summary.called_false =
                feedback.and_then(|feedback| called_false::counted(feedback, raised, window));
        }
        write(Line::Summary(summary.clone())).map_err(ReplayError::Write)?;
        Ok(Replayed {
            summary,
            rates: past.all_rates(),
        })
    })
}

/// Results of a replay in addition to its lines.
#[derive(Debug)]
pub struct Replayed {
    /// The last line.
    pub summary: ReplaySummary,
    /// How often healthy devices were hit; `None` with fewer than seven windows.
    pub rates: Option<BaseRates>,
}

/// Verdicts and incidents that became lines.
#[derive(Debug, Default)]
struct Told {
    news: BTreeMap<String, (State, u64)>,
    paged: BTreeSet<String>,
    raised: BTreeSet<Raised>,
}

impl Told {
    /// Returns the incidents with news that is not a line yet.
    fn news(&mut self, changed: Vec<Incident>) -> Vec<Incident> {
        let mut news = Vec::new();
        for incident in changed {
            if incident.state == State::Firing {
                self.raised.insert(Raised::of(&incident));
                if incident.severity() == Severity::Page {
                    self.paged.insert(incident.id.clone());
                }
            }
            let told = (incident.state, incident.news);
            if self.news.insert(incident.id.clone(), told) != Some(told) {
                news.push(incident);
            }
        }
        news
    }
}

/// Returns the time from the first window that counts to the end of the last one.
fn judged_time(windows: &[(Timestamp, bool)], window: Period) -> Option<(Timestamp, Timestamp)> {
    let (first, _) = windows.iter().find(|(_, counts)| *counts)?;
    let (last, _) = windows.last()?;
    Some((first.saturating_sub(signed(window)).ok()?, *last))
}

fn signed(period: Period) -> SignedDuration {
    SignedDuration::try_from(period.0).unwrap_or(SignedDuration::MAX)
}

/// Returns the ends of the windows, and whether each counts or only adds to the history.
fn windows(
    (first, last): (Timestamp, Timestamp),
    options: &ReplayOptions,
) -> Vec<(Timestamp, bool)> {
    let config = &options.config;
    let seconds = |period: Period| i64::try_from(period.0.as_secs()).unwrap_or(i64::MAX).max(1);
    let (bucket, window, step) = (
        seconds(config.bucket),
        seconds(config.window),
        seconds(config.step),
    );
    let floor = |at: Timestamp| at.as_second().div_euclid(bucket) * bucket;
    let start = options
        .from
        .map_or_else(|| beginning(floor(first), window), floor);
    // The first end that is after the last report.
    let after_last = (last + SignedDuration::from_secs(1)).as_second();
    let latest = options.to.map_or(i64::MAX, Timestamp::as_second);
    let steps_before = (start - floor(first)).max(0) / step;
    let mut ends = Vec::new();
    let mut end = start + window - steps_before * step;
    while end <= latest {
        if let Ok(at) = Timestamp::from_second(end) {
            ends.push((at, end >= start + window));
        }
        if end >= after_last {
            break;
        }
        end += step;
    }
    ends
}

/// The first report of a small fleet comes hours after its first day began. Windows that began with it would cut every
/// day in two.
fn beginning(first_s: i64, window_s: i64) -> i64 {
    let whole = first_s.div_euclid(window_s) * window_s;
    if first_s - whole <= window_s / 4 {
        whole
    } else {
        first_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(hours: i64, seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 / 86_400 * 86_400 + hours * 3_600 + seconds).unwrap()
    }

    fn options(from: Option<Timestamp>, to: Option<Timestamp>) -> ReplayOptions {
        ReplayOptions {
            config: DetectorConfig {
                step: Period(Duration::from_secs(24 * 3_600)),
                ..DetectorConfig::default()
            },
            from,
            to,
            all: false,
            modes: false,
        }
    }

    #[test]
    fn windows_begin_with_the_reports_and_cover_the_last() {
        let received = (at(7, 90), at(60, 0));
        let ends = windows(received, &options(None, None));
        assert_eq!(
            ends,
            [(at(31, 0), true), (at(55, 0), true), (at(79, 0), true)]
        );
    }

    #[test]
    fn windows_are_days_where_the_first_report_comes_in_the_first_hours_of_one() {
        let ends = windows((at(4, 90), at(40, 0)), &options(None, None));
        assert_eq!(ends, [(at(24, 0), true), (at(48, 0), true)]);
    }

    #[test]
    fn windows_before_from_only_teach_and_none_ends_after_to() {
        let received = (at(0, 5), at(100, 0));
        let ends = windows(received, &options(Some(at(48, 0)), Some(at(80, 0))));
        assert_eq!(
            ends,
            [(at(24, 0), false), (at(48, 0), false), (at(72, 0), true)]
        );
    }
}
