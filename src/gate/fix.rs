//! `epwatch gate fix`: rewrites nodes that the NPU refuses into equivalent forms that it accepts.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use epwatch_engines::{Engine, QnnVersion};
use epwatch_gate::placement::{Inspected, InspectedChipset};
use epwatch_manifest::{InputShape, ManifestError, Rewrite, Rewritten, rewrite};
use epwatch_server::Period;
use serde::Serialize;

use super::{
    distance::{self, Distance},
    percent::Percent,
};
use crate::{
    engines,
    inspect::{self, AppOptions, EpOption, InspectedEp, SocModel},
    output::{self, No, WrongUse},
};

/// Name and version of the document.
const SCHEMA: &str = "epwatch.fix/1";
/// Smallest difference of a share of the MACs that is more than rounding.
const LEAST_GAIN: f64 = 1e-6;

/// Rewrites nodes that the NPU refuses into forms that compute the same and that it takes, into a new file.
///
/// Gelu by Erf becomes one Gelu. LayerNormalization over another axis is computed by Reshape, and a LayerNormalization
/// in nine nodes becomes one. Einsum becomes MatMul. CumSum becomes MatMul with a triangle of ones.
/// InstanceNormalization is computed by Reshape and LayerNormalization. These rules hold in float and between
/// QuantizeLinear and DequantizeLinear. Only nodes that a chipset of --soc leaves to the CPU are rewritten. Both models
/// run on the CPU with the same random inputs, and the new one is placed on each chipset. The file is written only if
/// the outputs are as near as --max-distance. In addition no chipset may have more nodes on the CPU, and one must gain. It
/// does not gain if it has more partitions or crossings, but no more of the MACs on the NPU: it keeps MODEL.
///
/// Exit code 0: written. Exit code 1: nothing to rewrite, or the new model is too far away or no better. Exit code 2:
/// wrong use, or no ONNX model. Exit code 3: could not find out.
#[derive(Debug, clap::Args)]
pub(crate) struct FixArgs {
    /// The ONNX model.
    model: PathBuf,
    /// Chipsets, by name (SM8650) or QNN's number (57), separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',', required = true)]
    soc: Vec<SocModel>,
    /// The file to write [default: MODEL with the ending .npu.onnx].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Largest difference of an output, of the largest element of that output. A quantised Gelu loses the steps between
    /// its nodes, so that its numbers change by a few steps.
    #[arg(long, value_name = "PERCENT", default_value = "5%")]
    max_distance: Percent,
    /// Shape of an input that the model leaves open: input=1,3,224,224. Once for each.
    #[arg(long, value_name = "INPUT=DIMS")]
    shape: Vec<InputShape>,
    /// Option of the QNN EP, as the app gives it. Once for each.
    #[arg(long, value_name = "KEY=VALUE")]
    ep_option: Vec<EpOption>,
    #[command(flatten)]
    app: AppOptions,
    /// QNN that partitions, as `epwatch gate` takes it.
    #[arg(long, value_name = "VERSION", default_value_t)]
    qnn_version: QnnVersion,
    /// How long one chipset may take.
    #[arg(long, value_name = "TIME", default_value = "10m")]
    timeout: Period,
    /// Print one JSON document, epwatch.fix/1.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct FixDocument {
    schema: &'static str,
    model: String,
    out: String,
    rewrites: Vec<ShownRewrite>,
    /// Nodes that match a rule but are not rewritten, each with the reason.
    kept: Vec<Kept>,
    distance: Distance,
    chipsets: Vec<BeforeAfter>,
}

#[derive(Debug, Serialize)]
struct ShownRewrite {
    from: &'static str,
    to: &'static str,
    /// Whether the rewritten form computes the same numbers. If not, it omits 8-bit quantisation steps between the
    /// nodes.
    exact: bool,
    removed: Vec<String>,
    added: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Kept {
    node: String,
    why: String,
}

/// A chipset with both models.
#[derive(Debug, Serialize)]
struct BeforeAfter {
    chipset: String,
    before: Side,
    after: Side,
    /// Why this chipset keeps MODEL; `null` if it may take the new one.
    refused: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
struct Side {
    session: String,
    /// Nodes that compute on the CPU; `null` without a session.
    cpu_nodes: Option<usize>,
    /// Partitions on the NPU; `null` without a session.
    partitions: Option<u32>,
    /// Share of the MACs on the NPU, 0 to 1; `null` if it is not known.
    npu_macs: Option<f64>,
    /// Bytes that cross between NPU and CPU in a run; `null` if they are not known.
    crossing_bytes: Option<u64>,
}

pub(crate) async fn fix(args: FixArgs) -> anyhow::Result<ExitCode> {
    let out = args
        .out
        .clone()
        .unwrap_or_else(|| args.model.with_extension("npu.onnx"));
    let is_model = |path: &Path| path.canonicalize().ok() == args.model.canonicalize().ok();
    if out.exists() && is_model(&out) {
        let text = "--out writes a new file: give it another path than MODEL";
        return Err(WrongUse(text.to_owned()).into());
    }
    let before = placed(&args, &args.model).await?;
    let wanted = Wanted::of(&before);
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let copy = tempfile::Builder::new()
        .prefix(".epwatch-fix-")
        .suffix(".onnx")
        .tempfile_in(folder)
        .map_err(|error| {
            WrongUse(format!(
                "failed to write into {}: {error}",
                folder.display()
            ))
        })?;
    let found = rewrite(
        &args.model,
        copy.path(),
        &args.app.shapes(&args.shape),
        |name| wanted.has(name),
    );
    let rewritten = found.map_err(|error| refused(&args.model, error))?;
    if rewritten.rewrites.is_empty() {
        return Err(No(nothing(&before, &rewritten)).into());
    }
    let ort = engines::ensure(Engine::OnnxRuntime).await?;
    let apart = distance::distance(&ort.ort_library(), [&args.model, copy.path()])
        .context("failed to compare the outputs of both models on the CPU")?;
    let after = placed(&args, copy.path()).await?;
    let chipsets: Vec<BeforeAfter> = before.iter().zip(&after).map(BeforeAfter::of).collect();
    let document = FixDocument {
        schema: SCHEMA,
        model: args.model.display().to_string(),
        out: out.display().to_string(),
        rewrites: rewritten
            .rewrites
            .into_iter()
            .map(ShownRewrite::of)
            .collect(),
        kept: rewritten
            .kept
            .into_iter()
            .map(|(node, why)| Kept { node, why })
            .collect(),
        distance: apart,
        chipsets,
    };
    let problem = document.problem(args.max_distance.0);
    if problem.is_none() {
        let kept = copy.persist(&out);
        kept.with_context(|| format!("failed to write {}", out.display()))?;
        // Only its owner can read a temporary file, so the permissions are set to the permissions of the model.
        #[cfg(unix)]
        readable(&args.model, &out)?;
    }
    if args.json {
        output::json(&document)?;
    } else {
        output::line(document.text(problem.is_none()))?;
    }
    match problem {
        None => Ok(ExitCode::SUCCESS),
        Some(problem) => Err(No(problem).into()),
    }
}

#[cfg(unix)]
fn readable(model: &Path, out: &Path) -> anyhow::Result<()> {
    let permissions = std::fs::metadata(model)?.permissions();
    std::fs::set_permissions(out, permissions)
        .with_context(|| format!("failed to make {} readable", out.display()))
}

async fn placed(args: &FixArgs, model: &Path) -> anyhow::Result<Vec<InspectedChipset>> {
    let document = inspect::inspected(&inspect::Args {
        model: model.to_owned(),
        argument: "MODEL",
        soc: args.soc.clone(),
        ep: InspectedEp::Qnn,
        ort: None,
        manifest: None,
        shape: args.shape.clone(),
        ep_option: args.ep_option.clone(),
        app: args.app.clone(),
        qnn_version: args.qnn_version,
        timeout: args.timeout,
        fail_on: Vec::new(),
        json: false,
    })
    .await?;
    let found: Inspected = serde_json::from_value(serde_json::to_value(&document)?)?;
    let is_answer = |on: &&InspectedChipset| matches!(&*on.session, "ok" | "failed");
    let unanswered = found.chipsets.iter().find(|on| !is_answer(on));
    if let Some(late) = unanswered {
        anyhow::bail!(
            "{}: {}",
            late.shown(),
            output::one_line(late.error.as_deref().unwrap_or_default())
        );
    }
    Ok(found.chipsets)
}

fn refused(model: &Path, error: ManifestError) -> anyhow::Error {
    let shown = model.display();
    WrongUse(match error {
        ManifestError::Io(cause) => format!("failed to read or write for MODEL {shown}: {cause}"),
        error => format!("MODEL {shown}: {}", output::one_line(&error.to_string())),
    })
    .into()
}

/// Nodes to rewrite if a rule matches them.
struct Wanted {
    names: BTreeSet<String>,
    /// Rewrite all nodes, because without a session it is not known which nodes the NPU would accept.
    all: bool,
}

impl Wanted {
    fn of(before: &[InspectedChipset]) -> Self {
        let nodes = before.iter().flat_map(|on| &on.cpu_nodes);
        let computing = nodes.filter(|node| !node.benign);
        Self {
            names: computing.map(|node| node.name.clone()).collect(),
            all: before.iter().any(|on| on.session != "ok"),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.all || self.names.contains(name)
    }
}

/// Returns the reason why nothing is rewritten.
fn nothing(before: &[InspectedChipset], rewritten: &Rewritten) -> String {
    let on_cpu = |on: &InspectedChipset| on.cpu_nodes.iter().any(|node| !node.benign);
    if before.iter().all(|on| on.session == "ok" && !on_cpu(on)) {
        return "nothing to rewrite: no node computes on the CPU".to_owned();
    }
    let mut text =
        "nothing to rewrite: no rule is about the nodes on the CPU; docs/ops.md has other forms"
            .to_owned();
    for (node, why) in &rewritten.kept {
        _ = write!(text, "\n{}", output::one_line(&format!("{node}: {why}")));
    }
    text
}

impl ShownRewrite {
    fn of(rewrite: Rewrite) -> Self {
        Self {
            from: rewrite.from,
            to: rewrite.to,
            exact: rewrite.is_exact,
            removed: rewrite.removed,
            added: rewrite.added,
        }
    }
}

impl BeforeAfter {
    fn of((before, after): (&InspectedChipset, &InspectedChipset)) -> Self {
        let sides = (Side::of(before), Side::of(after));
        Self {
            chipset: before.shown(),
            refused: sides.0.worse(&sides.1),
            before: sides.0,
            after: sides.1,
        }
    }

    fn gains(&self) -> bool {
        let is_less = self.after.badness() < self.before.badness();
        self.refused.is_none() && (is_less || self.before.gains_macs(&self.after))
    }
}

impl Side {
    fn of(on: &InspectedChipset) -> Self {
        let numbers = on.numbers();
        Self {
            session: on.session.clone(),
            cpu_nodes: numbers.as_ref().map(|numbers| numbers.cpu_nodes),
            partitions: numbers.as_ref().map(|numbers| numbers.partitions),
            npu_macs: numbers.as_ref().and_then(|numbers| numbers.npu_macs),
            crossing_bytes: numbers
                .and_then(|numbers| numbers.crossings)
                .and_then(|ways| ways.to_npu.bytes?.checked_add(ways.to_cpu.bytes?)),
        }
    }

    fn shown(&self) -> String {
        match (self.cpu_nodes, self.partitions) {
            (Some(nodes), Some(partitions)) => {
                let unit = if partitions == 1 {
                    "partition"
                } else {
                    "partitions"
                };
                format!("{nodes} on the CPU, {partitions} {unit}")
            }
            _ => "no session".to_owned(),
        }
    }

    fn gains_macs(&self, after: &Self) -> bool {
        let shares = self.npu_macs.zip(after.npu_macs);
        shares.is_some_and(|(before, after)| after > before + LEAST_GAIN)
    }

    /// Returns why the rewritten model is worse than this one. The NPU does not get more of the MACs, but needs more
    /// calls or copies.
    fn worse(&self, after: &Self) -> Option<String> {
        let (before, partitions) = self.partitions.zip(after.partitions)?;
        if self.gains_macs(after) {
            return None;
        }
        // The first partition may be the whole model.
        if partitions > before.max(1) {
            return Some(format!(
                "{partitions} partitions instead of {before}, and no more of the MACs on the NPU"
            ));
        }
        let (bytes_before, bytes) = self.crossing_bytes.zip(after.crossing_bytes)?;
        (bytes > bytes_before).then(|| {
            format!(
                "{bytes} bytes cross between NPU and CPU instead of {bytes_before}, and no more of the MACs are on the NPU"
            )
        })
    }

    /// Returns the number of nodes on the CPU. A failed session counts as worse than any number.
    fn badness(&self) -> usize {
        self.cpu_nodes.unwrap_or(usize::MAX)
    }
}

impl FixDocument {
    /// Returns why the file is not written; `None` if it is.
    fn problem(&self, most: f64) -> Option<String> {
        if self.distance.share > most {
            return Some(format!(
                "nothing is written: the outputs differ by {:.2} % of their largest element, and --max-distance is {:.2} %",
                100.0 * self.distance.share,
                100.0 * most
            ));
        }
        let worse = |of: &&BeforeAfter| of.after.badness() > of.before.badness();
        if let Some(worse) = self.chipsets.iter().find(worse) {
            return Some(format!(
                "nothing is written: {} has {} instead of {}",
                worse.chipset,
                worse.after.shown(),
                worse.before.shown()
            ));
        }
        if self.chipsets.iter().any(BeforeAfter::gains) {
            return None;
        }
        let refused = self
            .chipsets
            .iter()
            .find_map(|of| Some(format!("{}: {}", of.chipset, of.refused.as_ref()?)));
        let why = refused.unwrap_or_else(|| "no chipset has fewer nodes on the CPU".to_owned());
        Some(format!("nothing is written: {why}"))
    }

    fn text(&self, is_written: bool) -> String {
        let mut text = String::new();
        for rewrite in &self.rewrites {
            _ = writeln!(text, "{} -> {}", rewrite.from, rewrite.to);
            for node in &rewrite.removed {
                _ = writeln!(text, "  - {}", node.escape_debug());
            }
            for node in &rewrite.added {
                _ = writeln!(text, "  + {}", node.escape_debug());
            }
        }
        for Kept { node, why } in &self.kept {
            let why = output::one_line(why);
            _ = writeln!(text, "stays: {}: {why}", node.escape_debug());
        }
        let Distance {
            inputs,
            max_abs,
            share,
        } = self.distance;
        let apart = match max_abs {
            0.0 => "none".to_owned(),
            some => format!(
                "{some:.2e} at most, {:.2} % of the output's largest element",
                100.0 * share
            ),
        };
        _ = writeln!(
            text,
            "distance: {apart}, over {inputs} random inputs on the CPU"
        );
        if self.rewrites.iter().any(|rewrite| !rewrite.exact) {
            text.push_str("          steps of 8 bits between rewritten nodes are left out, so that numbers change a little\n");
        }
        for on in &self.chipsets {
            _ = writeln!(
                text,
                "{:<8}  {}  ->  {}",
                on.chipset,
                on.before.shown(),
                on.after.shown()
            );
            if let Some(why) = &on.refused {
                _ = writeln!(text, "          keeps MODEL: {why}");
            }
        }
        if is_written {
            _ = write!(text, "written: {}", self.out);
        }
        text.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(cpu_nodes: usize, partitions: u32, npu_macs: f64, bytes: u64) -> Side {
        Side {
            session: "ok".to_owned(),
            cpu_nodes: Some(cpu_nodes),
            partitions: Some(partitions),
            npu_macs: Some(npu_macs),
            crossing_bytes: Some(bytes),
        }
    }

    fn on(before: Side, after: Side) -> BeforeAfter {
        BeforeAfter {
            chipset: "SM8635".to_owned(),
            refused: before.worse(&after),
            before,
            after,
        }
    }

    /// On a chipset without FP16 a float model runs wholly on the CPU. Parts of a rewritten norm on the NPU do not help
    /// it.
    #[test]
    fn partitions_and_copies_without_work_are_refused() {
        let no_session = || Side {
            session: "failed".to_owned(),
            cpu_nodes: None,
            partitions: None,
            npu_macs: None,
            crossing_bytes: None,
        };
        for (before, after, refused, gains) in [
            (
                side(10, 0, 0.0, 0),
                side(3, 2, 0.0, 1_024),
                Some("2 partitions"),
                false,
            ),
            (
                side(10, 0, 0.0, 0),
                side(3, 1, 0.0, 512),
                Some("512 bytes"),
                false,
            ),
            (side(4, 3, 1.0, 4_096), side(0, 1, 1.0, 0), None, true),
            (side(4, 1, 0.4, 64), side(3, 2, 0.6, 128), None, true),
            (side(2, 0, 0.0, 0), side(0, 1, 1.0, 0), None, true),
            (side(2, 2, 0.5, 64), side(2, 2, 0.5, 64), None, false),
            (no_session(), side(0, 1, 1.0, 0), None, true),
            (side(0, 1, 1.0, 0), no_session(), None, false),
        ] {
            let on = on(before, after);
            let why = on.refused.as_deref();
            let is_expected = match refused {
                Some(words) => why.is_some_and(|why| why.contains(words)),
                None => why.is_none(),
            };
            assert!(is_expected && on.gains() == gains, "{on:?}");
        }
    }

    /// The file is written if one chipset gains, unless another gets more nodes on the CPU.
    #[test]
    fn a_file_that_no_chipset_gains_from_is_not_written() {
        let worse = || on(side(10, 0, 0.0, 0), side(3, 2, 0.0, 1_024));
        let better = || on(side(4, 3, 1.0, 4_096), side(0, 1, 1.0, 0));
        let broken = || on(side(0, 1, 1.0, 0), side(1, 2, 1.0, 64));
        for (chipsets, problem) in [
            (vec![worse()], Some("2 partitions instead of 0")),
            (vec![worse(), better()], None),
            (vec![better(), broken()], Some("1 on the CPU")),
        ] {
            let document = FixDocument {
                schema: SCHEMA,
                model: String::new(),
                out: String::new(),
                rewrites: Vec::new(),
                kept: Vec::new(),
                distance: Distance::default(),
                chipsets,
            };
            let found = document.problem(0.05);
            match problem {
                Some(words) => assert!(found.unwrap().contains(words)),
                None => assert_eq!(found, None),
            }
        }
    }
}
