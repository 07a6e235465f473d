//! `epwatch replay`: the detector over recorded reports.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use epwatch_detector::Certified;
use epwatch_detector::read::Source;
use epwatch_detector::replay::{self, CalledFalse, FilesRead, Line, ReplayOptions};
use epwatch_detector::{BaseRates, DetectorConfig};
use epwatch_model::summary;
use epwatch_proto::visible;
use epwatch_server::Period;
use jiff::Timestamp;

use crate::{
    output::{self, WrongUse},
    store_args::AddressArgs,
};

/// Judges recorded reports as the detector would have, window by window, and pages nobody.
///
/// Prints every verdict that is not healthy, every change of an incident, and a summary. The same
/// reports give the same lines, from files or from a store.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    #[command(flatten)]
    over: Over,
    /// Rates that `epwatch detector calibrate` wrote; they hold until seven windows taught others.
    #[arg(long, value_name = "FILE")]
    rates: Option<PathBuf>,
    /// Print healthy verdicts too.
    #[arg(long)]
    all: bool,
    /// Print one JSON document a line.
    #[arg(long)]
    json: bool,
}

/// The source and the windows of a replay.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Over {
    /// Files of varint-length-delimited epwatch.v1.RecordedReport messages, plain or gzip [default: the
    /// reports of the store].
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "clickhouse")]
    reports: Vec<PathBuf>,
    #[command(flatten)]
    store: AddressArgs,
    /// Placements that a lab certified, as JSON lines with the columns of certified_placements_v1. They are the
    /// reference of a first version, and go before a store's certified placements.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    certified: Vec<PathBuf>,
    /// Where the first window begins (RFC 3339); earlier windows only teach what is healthy
    /// [default: where the reports do].
    #[arg(long, value_name = "TIME")]
    from: Option<Timestamp>,
    /// Where the last window ends at the latest (RFC 3339) [default: where the reports end].
    #[arg(long, value_name = "TIME")]
    to: Option<Timestamp>,
    /// Length of a window, by receive time.
    #[arg(long, value_name = "PERIOD", default_value = "24h")]
    window: Period,
    /// How far apart windows end [default: the window: they share no reports].
    #[arg(long, value_name = "PERIOD")]
    step: Option<Period>,
    /// How far back earlier runs, placements and healthy windows are looked for.
    #[arg(long, value_name = "PERIOD", default_value = "14d")]
    baseline: Period,
    /// Length of a bucket; windows are whole buckets [default: 1h, or the window if that is shorter].
    #[arg(long, value_name = "PERIOD")]
    bucket: Option<Period>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (mut source, mut options, is_whole) = args.over.prepared(args.all).await?;
    // The text output leaves the modes out.
    options.modes = args.json;
    if let Some(path) = &args.rates {
        source = source.with_rates(BaseRates::read(path)?);
    }
    let mut out = std::io::BufWriter::new(output::Stdout);
    let mut write = |line: Line| {
        if args.json {
            writeln!(out, "{}", replay::to_json(&line))
        } else {
            writeln!(out, "{}", in_words(&line))
        }
    };
    replay::replay(source, &options, &mut write).await?;
    out.flush()?;
    Ok(exit_code(is_whole))
}

/// Returns the exit code; `is_whole` says whether all reports could be read.
pub(crate) fn exit_code(is_whole: bool) -> ExitCode {
    match is_whole {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(output::COULD_NOT_FIND_OUT),
    }
}

impl Over {
    /// Opens the source, and returns it with whether all of it could be read.
    pub(crate) async fn prepared(
        &self,
        all: bool,
    ) -> anyhow::Result<(Source, ReplayOptions, bool)> {
        let config = self.config();
        let mut problems = config.validate().err().unwrap_or_default();
        let is_empty = self.from.zip(self.to).is_some_and(|(from, to)| from >= to);
        problems.check("to", !is_empty, || {
            "expected a time after --from".to_owned()
        });
        if !problems.0.is_empty() {
            let options = problems.0.iter().map(|problem| format!("--{problem}"));
            bail!(WrongUse(options.collect::<Vec<_>>().join("\n")));
        }
        let (mut source, is_whole) = self.source(&config).await?;
        for path in &self.certified {
            source = source.with_certified(Certified::from_file(path)?);
        }
        let options = ReplayOptions {
            config,
            from: self.from,
            to: self.to,
            all,
            modes: false,
        };
        Ok((source, options, is_whole))
    }

    fn config(&self) -> DetectorConfig {
        let hour = Period(Duration::from_secs(3_600));
        DetectorConfig {
            window: self.window,
            step: self.step.unwrap_or(self.window),
            bucket: self.bucket.unwrap_or(hour.min(self.window)),
            lookback: self.baseline,
            ..DetectorConfig::default()
        }
    }

    /// Returns the source, and whether all reports of it could be read.
    async fn source(&self, config: &DetectorConfig) -> anyhow::Result<(Source, bool)> {
        if self.reports.is_empty() {
            let target = self.store.target_or_local().await?;
            let client = epwatch_store::client(&target);
            return Ok((Source::new(client, config.max_votes), true));
        }
        let read = replay::read_files(&self.reports, config.bucket.0)?;
        let is_whole = tell(&read);
        let source = Source::recorded(Arc::new(read.recording), config.max_votes);
        Ok((source, is_whole))
    }
}

/// Prints how many reports were read and refused; returns whether all could be read.
fn tell(read: &FilesRead) -> bool {
    let mut err = std::io::stderr();
    let summary = read.summary;
    // If stderr is closed, the text is dropped.
    let _ = writeln!(
        err,
        "epwatch: {} records: {} reports, {} copies, {} too old to vote, {} of new installations \
         beyond their quota",
        summary.records, summary.reports, summary.duplicates, summary.late, summary.unproven
    );
    for because in &read.refused_because {
        let _ = writeln!(err, "epwatch: refused {because}");
    }
    if read.refused > read.refused_because.len() as u64 {
        let _ = writeln!(err, "epwatch: refused {} reports in all", read.refused);
    }
    for torn in &read.torn {
        let _ = writeln!(
            err,
            "epwatch: {} ends within the record at byte {}: what comes before it was read",
            torn.path.display(),
            torn.offset
        );
    }
    let is_useless = read.refused > 0 && summary.reports == 0;
    if is_useless {
        let _ = writeln!(
            err,
            "epwatch: no report could be used: nothing is known of them"
        );
    }
    read.torn.is_empty() && !is_useless
}

/// Returns a line as text.
fn in_words(line: &Line) -> String {
    match line {
        Line::Verdict(verdict) => {
            let summary::VerdictSummary {
                window_end,
                model,
                version,
                chipset,
                firmware,
                verdict,
                severity,
                devices_hit,
                devices_seen,
                reasons,
                ..
            } = &**verdict;
            let firmware = match firmware.as_str() {
                "" => String::new(),
                firmware => format!(", firmware {firmware}"),
            };
            format!(
                "{window_end}  {severity:<6}  {verdict}: {model} {version} on {chipset}{firmware}, \
                 {devices_hit} of {devices_seen} devices; {}",
                reasons.join("; ")
            )
        }
        Line::Incident(line) => {
            let incident = &line.incident;
            let verdict = incident.verdict.map(|verdict| verdict.to_string());
            format!(
                "{}  {:<6}  incident {} is {}: {} of {} {} on {}",
                line.window_end,
                incident.severity,
                incident.incident,
                incident.state,
                verdict.unwrap_or_default(),
                incident.model,
                incident.version,
                incident.chipsets.join(", ")
            )
        }
        Line::Summary(summary) => {
            let counts: Vec<String> = summary
                .verdicts
                .iter()
                .map(|(verdict, n)| format!("{n} {verdict}"))
                .collect();
            if counts.is_empty() {
                return "0 cohort windows: no reports in this time".to_owned();
            }
            let called_false = summary.called_false.as_ref();
            format!(
                "{} cohort windows, {} pages; verdicts, those on single firmwares included: {}{}",
                summary.cohort_windows,
                summary.pages,
                counts.join(", "),
                called_false.map_or_else(String::new, |called| format!(
                    "\n{}",
                    false_in_words(called)
                ))
            )
        }
        _ => String::new(),
    }
}

/// Maximum number of incidents called false that are listed; JSON has all of them.
const MOST_FALSE: usize = 20;

/// Returns the incidents that people called false: their numbers by verdict and by signal, and each with its reason.
pub(crate) fn false_in_words(called: &CalledFalse) -> String {
    let counted = |counts: &BTreeMap<String, u64>| {
        let counts = counts.iter().map(|(name, n)| format!("{n} {name}"));
        counts.collect::<Vec<String>>().join(", ")
    };
    let mut text = format!(
        "people called {} of {} incidents of this time false, and this replay raises {} of them again\n  by verdict: {}",
        called.incidents.len(),
        called.fired,
        called.raised_again,
        counted(&called.by_verdict)
    );
    if !called.by_signal.is_empty() {
        text += &format!("\n  by signal that fired: {}", counted(&called.by_signal));
    }
    for of in called.incidents.iter().take(MOST_FALSE) {
        let again = match of.is_raised_again {
            true => "raised again",
            false => "not raised again",
        };
        let of = &of.incident;
        text += &format!(
            "\n  {}  {}: {} {} on {}, by {}: {}; {again}",
            of.started_at,
            of.verdict,
            visible(&of.model),
            visible(&of.version),
            visible(&of.chipsets.join(", ")),
            visible(&of.who),
            visible(&of.why)
        );
    }
    match called.incidents.len().saturating_sub(MOST_FALSE) {
        0 => text,
        more => format!("{text}\n  and {more} more; --json has each"),
    }
}
