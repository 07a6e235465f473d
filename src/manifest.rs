//! `epwatch manifest`: MACs per node of a model, and the side-car that the SDK reads.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use epwatch_manifest::{
    FreeDim, InputShape, ManifestDocument, ManifestError, SCHEMA, manifest_of, stamp_names,
};
use epwatch_run::{ReportKind, replace_report};
use tempfile::NamedTempFile;

use crate::{
    input_file::{self, FilePurpose},
    output::{self, WrongUse},
};

/// Maximum number of nodes in the text; the side-car has all.
const SHOWN_NODES: usize = 20;

/// Counts the MACs of each node of a model, from its graph alone.
///
/// Writes the side-car MODEL.macs.json, which an app passes to the SDK, so that placements have shares
/// of the work. Weights are not read, so external data need not be there. Exit codes: 0 counted; 2 wrong use, not an
/// ONNX model, or an input without a shape; 3 some work has no rule or shape. With 3 no side-car is written.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The ONNX model.
    model: PathBuf,
    /// The side-car to write [default: MODEL with the ending .macs.json].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write a copy of the model with a name for each node that has none, so that placements and profiles can be
    /// attributed. The side-car is for the copy.
    #[arg(long, value_name = "COPY")]
    stamp_names: Option<PathBuf>,
    /// Shape of an input that the model leaves open, for example input=1,3,224,224. Once for each.
    #[arg(long, value_name = "INPUT=DIMS")]
    shape: Vec<InputShape>,
    /// Size of a dimension that the model leaves open, by name: batch=1. Once for each.
    #[arg(long, value_name = "NAME=SIZE")]
    dim: Vec<FreeDim>,
    /// Print the side-car too.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    input_file::check(&args.model, FilePurpose::Model).map_err(|error| {
        WrongUse(format!(
            "failed to read MODEL {}: {error}",
            args.model.display()
        ))
    })?;
    let stamped = stamped(args)?;
    let model = args.stamp_names.as_ref().unwrap_or(&args.model);
    let shapes = args.dim.iter().map(InputShape::from);
    let shapes: Vec<InputShape> = shapes.chain(args.shape.iter().cloned()).collect();
    let out = match &args.out {
        Some(out) => out.clone(),
        None => side_car_of(model),
    };
    output::check_report("--out", &out, ReportKind::Json("/schema", SCHEMA))?;
    let manifest = manifest_of(model, &shapes).map_err(|error| refused(model, error))?;
    // No side-car is written with uncounted work, because too small a sum would make a placement's shares too large.
    if manifest.uncounted.is_empty() {
        write(&manifest, &out)?;
    }
    if args.json {
        output::json(&manifest)?;
    } else {
        if let Some((copy, nodes)) = stamped {
            let copy = copy.display();
            output::line(format_args!(
                "{nodes} nodes named: {copy}; external data stays where it is, so keep the copy next to the model"
            ))?;
        }
        output::line(described(&manifest, &out))?;
    }
    Ok(match manifest.uncounted.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(3),
    })
}

/// Writes the copy with names, and returns its path with the number of nodes that got one.
fn stamped(args: &Args) -> anyhow::Result<Option<(&Path, usize)>> {
    let Some(copy) = args.stamp_names.as_deref() else {
        return Ok(None);
    };
    // The copy must be another file, because it is written while the model is read.
    let is_same = |copy: PathBuf| args.model.canonicalize().is_ok_and(|model| model == copy);
    if copy.canonicalize().is_ok_and(is_same) {
        let text = "--stamp-names writes a copy: give it another path than MODEL";
        return Err(WrongUse(text.to_owned()).into());
    }
    let nodes = stamp_names(&args.model, copy).map_err(|error| refused(&args.model, error))?;
    Ok(Some((copy, nodes)))
}

/// Writes the side-car into a temporary file, which is removed when its handle is dropped.
pub(crate) fn temporary(manifest: &ManifestDocument) -> anyhow::Result<NamedTempFile> {
    let file = NamedTempFile::new()?;
    write(manifest, file.path())?;
    Ok(file)
}

fn write(manifest: &ManifestDocument, to: &Path) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(manifest)?;
    text.push('\n');
    let shown = to.display();
    replace_report(to, &text).with_context(|| format!("failed to write the side-car {shown}"))
}

fn side_car_of(model: &Path) -> PathBuf {
    model.with_extension("macs.json")
}

fn refused(model: &Path, error: ManifestError) -> anyhow::Error {
    let shown = model.display();
    let text = match error {
        ManifestError::Io(cause) => format!("failed to read MODEL {shown}: {cause}"),
        error => format!("MODEL {shown}: {}", output::one_line(&error.to_string())),
    };
    WrongUse(text).into()
}

fn described(manifest: &ManifestDocument, out: &Path) -> String {
    let total = manifest.side_car.total_macs;
    let mut nodes: Vec<_> = manifest.side_car.nodes.iter().collect();
    nodes.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let share = |macs: u64| 100.0 * macs as f64 / total.max(1) as f64;
    let mut text = format!("{total} MACs in {} nodes", nodes.len());
    if manifest.uncounted.is_empty() {
        text.push_str(&format!(": {}", out.display()));
    }
    for (name, macs) in nodes.iter().take(SHOWN_NODES) {
        let name = output::one_line(name);
        text.push_str(&match manifest.has_unknown_turns() {
            true => format!("\n  {macs:>12}  {name}"),
            false => format!("\n  {:>5.1} %  {name}", share(**macs)),
        });
    }
    if let Some(more) = nodes
        .len()
        .checked_sub(SHOWN_NODES)
        .filter(|more| *more > 0)
    {
        text.push_str(&format!("\n  and {more} more; the side-car has all"));
    }
    if manifest.unnamed_macs > 0 && !manifest.has_unknown_turns() {
        let share = share(manifest.unnamed_macs);
        text.push_str(&format!(
            "\n{share:.1} % of the MACs are in nodes without a name, which no placement can attribute; --stamp-names COPY names them"
        ));
    }
    if let Some(why) = manifest.not_counted() {
        let why = output::one_line(&why);
        text.push_str(&format!(
            "\n{why}\nno side-car is written: the SDK would take its sum for the whole; --json has all of them"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use epwatch_manifest::{SCHEMA, Uncounted};
    use epwatch_proto::{SideCar, manifest::MANIFEST_ALGORITHM};

    use super::*;

    #[test]
    fn names_of_a_model_stay_on_their_line() {
        let evil = "a\n::error::\u{1b}[31mred";
        let manifest = ManifestDocument {
            schema: SCHEMA,
            side_car: SideCar {
                algorithm: MANIFEST_ALGORITHM,
                model_sha256: "0".repeat(64),
                total_macs: 1,
                nodes: BTreeMap::from([(evil.to_owned(), 1)]),
            },
            unnamed_macs: 0,
            inputs: BTreeMap::new(),
            ops: BTreeMap::new(),
            aliases: BTreeMap::new(),
            tensor_bytes: BTreeMap::new(),
            uncounted: vec![Uncounted {
                name: evil.to_owned(),
                op_type: evil.to_owned(),
                why: evil.to_owned(),
                at_least_macs: 0,
                unknown_turns: true,
            }],
        };
        let text = described(&manifest, Path::new("m.json"));
        assert!(text.contains("a ::error::[U+001B][31mred"), "{text}");
        let is_whole = |line: &str| !line.starts_with(':') && !line.contains('\u{1b}');
        assert!(text.lines().all(is_whole), "{text}");
    }
}
