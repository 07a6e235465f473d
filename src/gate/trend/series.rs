//! Results of gates, by model and chipset, the oldest first.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde::Serialize;

/// Name and version of the document.
pub(super) const SCHEMA: &str = "epwatch.trend/1";

/// All results of a folder.
#[derive(Debug, Serialize)]
pub(super) struct Trend {
    pub(super) schema: &'static str,
    pub(super) series: Vec<Series>,
    /// Files that look like results but are not, each with the reason.
    pub(super) skipped: Vec<Skipped>,
}

/// A model on a chipset.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Series {
    /// The model, as on the gate's command line; `null` for launches without a model.
    pub(super) model: Option<String>,
    pub(super) chipset: String,
    /// The oldest first.
    pub(super) points: Vec<Point>,
}

/// One result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Point {
    pub(super) made_at: Timestamp,
    /// The document.
    pub(super) file: String,
    /// The worst result of the checks: `pass`, `warn`, `undecided` or `fail`.
    pub(super) result: String,
    pub(super) npu_macs: Option<f64>,
    pub(super) partitions: Option<u64>,
    /// Nodes that compute on the CPU.
    pub(super) cpu_nodes: Option<u64>,
    /// Bytes that cross between NPU and CPU in a run, both ways together.
    pub(super) crossing_bytes: Option<u64>,
    pub(super) median_ms: Option<f64>,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Skipped {
    pub(super) file: String,
    pub(super) why: String,
}

impl Series {
    pub(super) fn name(&self) -> String {
        match &self.model {
            Some(model) => format!("{}  {model}", self.chipset),
            None => self.chipset.clone(),
        }
    }
}

impl Trend {
    pub(super) fn table(&self) -> String {
        let has_times = self
            .series
            .iter()
            .flat_map(|series| &series.points)
            .any(|point| point.median_ms.is_some());
        let mut text = String::new();
        for series in &self.series {
            let name = epwatch_proto::visible(&series.name());
            _ = writeln!(text, "{name}");
            let median = if has_times { "     median" } else { "" };
            _ = writeln!(
                text,
                "  time              result       NPU  parts  CPU ops      bytes{median}  since before"
            );
            let mut before: Option<&Point> = None;
            for point in &series.points {
                let line = point.line(has_times, before);
                _ = writeln!(text, "  {}", line.trim_end());
                before = Some(point);
            }
            text.push('\n');
        }
        text
    }
}

impl Point {
    fn line(&self, has_times: bool, before: Option<&Self>) -> String {
        let or_dash = |text: Option<String>| text.unwrap_or("-".to_owned());
        let count = |number: Option<u64>| or_dash(number.map(|n| n.to_string()));
        let mut line = format!(
            "{}  {:<9} {:>7}  {:>5}  {:>7}  {:>9}",
            self.made_at.strftime("%Y-%m-%d %H:%M"),
            match self.result.as_str() {
                "fail" => "FAIL",
                result => result,
            },
            or_dash(self.npu_macs.map(|share| format!("{:.1} %", 100.0 * share))),
            count(self.partitions),
            count(self.cpu_nodes),
            count(self.crossing_bytes),
        );
        if has_times {
            let median = self.median_ms.map(|ms| format!("{ms:.2} ms"));
            _ = write!(line, "  {:>9}", or_dash(median));
        }
        let changes = before
            .map(|before| self.changes(before))
            .unwrap_or_default();
        _ = write!(line, "  {}", changes.join(", "));
        line
    }

    /// Returns the changes, for example `+3 CPU ops`.
    fn changes(&self, before: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        if let (Some(now), Some(was)) = (self.npu_macs, before.npu_macs) {
            let points = 100.0 * (now - was);
            if points.abs() >= 0.05 {
                changes.push(format!("{points:+.1} points"));
            }
        }
        for (now, was, what) in [
            (self.partitions, before.partitions, "partitions"),
            (self.cpu_nodes, before.cpu_nodes, "CPU ops"),
            (self.crossing_bytes, before.crossing_bytes, "bytes"),
        ] {
            match (now, was) {
                (Some(now), Some(was)) if now > was => {
                    changes.push(format!("+{} {what}", now - was));
                }
                (Some(now), Some(was)) if now < was => {
                    changes.push(format!("-{} {what}", was - now));
                }
                _ => {}
            }
        }
        if let (Some(now), Some(was)) = (self.median_ms, before.median_ms)
            && was > 0.0
            && !(0.95..=1.05).contains(&(now / was))
        {
            changes.push(format!("{:.2} x the median", now / was));
        }
        changes
    }
}
