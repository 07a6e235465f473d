//! Reads the results of a folder.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use epwatch_gate::verdict::{self, with_launches};
use jiff::Timestamp;
use serde::{Deserialize, de::IgnoredAny};

use super::series::{Point, SCHEMA, Series, Skipped, Trend};

/// Largest document; a gate over all chipsets has some hundred kilobytes.
const MOST_BYTES: u64 = 16 << 20;
/// Maximum number of files of a folder.
const MOST_FILES: usize = 10_000;
/// Maximum number of levels of folders below the given folder.
const MOST_DEPTH: usize = 8;

/// Reads each `*.json` below the folder.
pub(super) fn folder(folder: &Path) -> io::Result<Trend> {
    let mut paths = Vec::new();
    collect(folder, 0, &mut paths)?;
    paths.sort();
    let (mut series, mut skipped) = (BTreeMap::new(), Vec::new());
    for path in paths {
        let shown = path.display().to_string();
        match document(&path) {
            Ok(Some(found)) => add(&mut series, found, &shown),
            Ok(None) => {}
            Err(why) => skipped.push(Skipped { file: shown, why }),
        }
    }
    let series = series.into_iter();
    let series = series.map(|((model, chipset), mut points): (_, Vec<Point>)| {
        points.sort_by(|a, b| (a.made_at, &a.file).cmp(&(b.made_at, &b.file)));
        Series {
            model,
            chipset,
            points,
        }
    });
    Ok(Trend {
        schema: SCHEMA,
        series: series.collect(),
        skipped,
    })
}

fn collect(folder: &Path, depth: usize, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // Links are not followed, so that a folder cannot contain itself.
        let kind = entry.file_type()?;
        let path = entry.path();
        if kind.is_dir() && depth < MOST_DEPTH {
            collect(&path, depth + 1, paths)?;
        } else if kind.is_file() && path.extension().is_some_and(|end| end == "json") {
            if paths.len() == MOST_FILES {
                let why = format!("it has more than {MOST_FILES} JSON files; give a smaller one");
                return Err(io::Error::other(why));
            }
            paths.push(path);
        }
    }
    Ok(())
}

/// The parts of the document that are shown.
#[derive(Debug, Deserialize)]
struct Document {
    made_at: Option<String>,
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    chipset: String,
    model: Option<Model>,
    #[serde(default)]
    runs: Vec<IgnoredAny>,
    placement: Option<Placement>,
    latency: Option<Latency>,
    checks: Vec<Check>,
}

impl Target {
    fn key(&self) -> (Option<String>, String) {
        let model = self.model.as_ref().map(|model| model.path.clone());
        (model, self.chipset.clone())
    }
}

#[derive(Debug, Deserialize)]
struct Model {
    path: String,
}

#[derive(Debug, Deserialize)]
struct Placement {
    npu_macs: Option<f64>,
    partitions: u64,
    cpu_nodes: u64,
    crossings: Option<Crossings>,
}

#[derive(Debug, Deserialize)]
struct Crossings {
    to_npu: Way,
    to_cpu: Way,
}

#[derive(Debug, Deserialize)]
struct Way {
    bytes: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Latency {
    median_ms: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Check {
    result: String,
}

/// A document with its time; `None` for another kind of JSON.
fn document(path: &Path) -> Result<Option<(Timestamp, Document)>, String> {
    let mut text = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    let read = file.take(MOST_BYTES + 1).read_to_end(&mut text);
    read.map_err(|error| error.to_string())?;
    #[derive(Deserialize)]
    struct Kind {
        schema: Option<String>,
    }
    let is_it = serde_json::from_slice::<Kind>(&text)
        .is_ok_and(|kind| kind.schema.as_deref() == Some(verdict::SCHEMA));
    if !is_it {
        let is_named = path.file_name().is_some_and(|name| name == "gate.json");
        return match is_named {
            true => Err(format!("it is not {}", verdict::SCHEMA)),
            false => Ok(None),
        };
    }
    let found: Document = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let time = found.made_at.as_deref().ok_or("it has no made_at")?;
    let time = time
        .parse()
        .map_err(|error| format!("its made_at is not a time: {error}"))?;
    Ok(Some((time, found)))
}

type BySeries = BTreeMap<(Option<String>, String), Vec<Point>>;

fn add(series: &mut BySeries, (made_at, found): (Timestamp, Document), file: &str) {
    let without_launches = found.targets.iter().filter(|target| target.runs.is_empty());
    let without_launches: BTreeSet<_> = without_launches.map(Target::key).collect();
    for target in found.targets {
        let has = |result: &str| target.checks.iter().any(|check| check.result == result);
        let result = ["fail", "undecided", "warn"]
            .into_iter()
            .find(|one| has(one));
        let placement = target.placement.as_ref();
        let bytes = |of: &Placement| {
            let crossings = of.crossings.as_ref()?;
            let (to_npu, to_cpu) = (crossings.to_npu.bytes?, crossings.to_cpu.bytes?);
            Some(to_npu.saturating_add(to_cpu))
        };
        // JSON numbers are finite, but a share may be out of range.
        let share = placement.and_then(|of| of.npu_macs);
        let point = Point {
            made_at,
            file: file.to_owned(),
            result: result.unwrap_or("pass").to_owned(),
            npu_macs: share.filter(|share| (0.0..=1.0).contains(share)),
            partitions: placement.map(|of| of.partitions),
            cpu_nodes: placement.map(|of| of.cpu_nodes),
            crossing_bytes: placement.and_then(bytes),
            median_ms: target.latency.as_ref().and_then(|of| of.median_ms),
        };
        let mut key = target.key();
        if !target.runs.is_empty() && without_launches.contains(&key) {
            key.1 = with_launches(&key.1);
        }
        series.entry(key).or_default().push(point);
    }
}
