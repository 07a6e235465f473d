//! `epwatch gate --runs`: launches that were measured elsewhere, a file each.

use std::path::{Path, PathBuf};

use epwatch_gate::{
    Launch,
    launches::{JudgedBy, JudgedLaunches, MeasuredFile, judged},
    macs::ModelMacs,
    measured::quantiles_us,
    placement::Counted,
    policy::Policy,
    read::{ReadOptions, read},
    verdict::{GatedFile, GatedModel, Uncounted},
};
use epwatch_manifest::{
    InputShape, ManifestDocument, ManifestError, ModelOutline, Sha256Reader, manifest_of,
};
use epwatch_proto::v1;

use super::{
    model_file::gated_model,
    policy_ops::{self, OtherOps},
};
use crate::{
    input_file::{self, FilePurpose},
    output::WrongUse,
};

/// Files of the command line.
#[derive(Debug)]
pub(super) struct RunFiles<'a> {
    pub(super) runs: &'a [PathBuf],
    pub(super) baseline: &'a [PathBuf],
    pub(super) model: Option<&'a Path>,
    /// The baseline's model, if the gate has measured it.
    pub(super) before: Option<&'a Path>,
    /// Shapes for the model's MACs.
    pub(super) shapes: &'a [InputShape],
    /// The chipset that the launches ran on.
    pub(super) chipset: Option<String>,
    /// The device that the launches ran on, if the files do not name it.
    pub(super) device: Option<String>,
    pub(super) options: ReadOptions,
    /// Whether the launches were made on this machine, on the CPU.
    pub(super) is_on_cpu: bool,
    /// A folder that is removed at the end: a report names its files without it.
    pub(super) temporary: Option<&'a Path>,
}

/// Reads the launches and judges them. With MODEL the placement of profiles is judged too.
pub(super) fn launches(files: &RunFiles<'_>, policy: &Policy) -> Result<JudgedLaunches, WrongUse> {
    let options = files.options;
    let read = |paths: &[PathBuf]| -> Result<Vec<MeasuredFile>, WrongUse> {
        let each = paths.iter().map(|path| measured(path, options));
        let mut all = each.collect::<Result<Vec<_>, _>>()?.concat();
        for one in &mut all {
            let path = Path::new(&one.file.path);
            let name = files
                .temporary
                .and_then(|folder| path.strip_prefix(folder).ok());
            if let Some(name) = name.map(|name| name.display().to_string()) {
                one.file.path = name;
                // They are removed with the folder.
                if let Some(profile) = &mut one.run.profile {
                    profile.files.clear();
                }
            }
            let device = &mut one.run.target.device;
            *device = device.take().or_else(|| files.device.clone());
        }
        Ok(all)
    };
    let (candidate, baseline) = (read(files.runs)?, read(files.baseline)?);
    let layers = candidate
        .iter()
        .chain(&baseline)
        .flat_map(|of| &of.run.nodes);
    let is_file = |path: &&Path| input_file::check(path, FilePurpose::Model).is_ok();
    let outline = files.model.filter(is_file);
    let outline = outline.and_then(|path| ModelOutline::of(path).ok());
    let of_model = outline.iter().flat_map(ModelOutline::op_types);
    let ops = layers.map(|layer| layer.op_type.as_str()).chain(of_model);
    policy_ops::check(policy, ops, OtherOps::OfRuntimes)?;
    let model = files.model.map(|path| model(path, files.shapes));
    let model = model.transpose()?;
    let before = files.before.map(|path| {
        let shown = path.display();
        gated_model(path).map_err(|error| WrongUse(format!("--baseline {shown}: {error}")))
    });
    let before = before.transpose()?;
    let by = JudgedBy {
        policy,
        model: model.as_ref().map(|(file, _)| file),
        before: before.as_ref(),
        macs: model.as_ref().and_then(|(_, macs)| macs.as_ref()),
        chipset: files.chipset.as_deref(),
        is_on_cpu: files.is_on_cpu,
    };
    judged(candidate, baseline, by).map_err(|error| WrongUse(error.to_string()))
}

/// Reads a file, from its beginning to its end once, so that it may be a pipe.
pub(super) fn measured(path: &Path, options: ReadOptions) -> Result<Vec<MeasuredFile>, WrongUse> {
    let shown = path.display().to_string();
    let wrong = |error: &dyn std::fmt::Display| WrongUse(format!("{shown}: {error}"));
    let file = input_file::open(path, FilePurpose::Run).map_err(|error| wrong(&error))?;
    let mut file = Sha256Reader::new(file);
    let runs = read(&mut file, options).map_err(|error| wrong(&error))?;
    let file = GatedFile {
        path: shown,
        sha256: file.digest(),
    };
    let each = runs.into_iter().map(|run| MeasuredFile {
        file: file.clone(),
        run,
    });
    Ok(each.collect())
}

/// The model with its MACs, if they can be counted.
fn model(path: &Path, shapes: &[InputShape]) -> Result<(GatedModel, Option<ModelMacs>), WrongUse> {
    let shown = path.display().to_string();
    let wrong = |error: &dyn std::fmt::Display| WrongUse(format!("MODEL {shown}: {error}"));
    input_file::check(path, FilePurpose::Model).map_err(|error| wrong(&error))?;
    let counted = match manifest_of(path, shapes) {
        Ok(document) => Some(macs(document)),
        Err(
            error @ (ManifestError::NotOnnx { .. }
            | ManifestError::OtherFormat { .. }
            | ManifestError::Over2Gb { .. }
            | ManifestError::WrongDim { .. }
            | ManifestError::WrongShape { .. }
            | ManifestError::Io(_)),
        ) => {
            return Err(wrong(&error));
        }
        Err(error) => {
            // Tells the user, because a limit of the placement would otherwise silently pass.
            crate::output::remark(format_args!("without MACs: {error}"));
            Some(ModelMacs::default())
        }
    };
    let file = gated_model(path).map_err(|error| wrong(&error))?;
    Ok((file, counted))
}

fn macs(document: ManifestDocument) -> ModelMacs {
    let aliases = document.aliases.into_iter();
    let aliases =
        aliases.flat_map(|(node, names)| names.into_iter().map(move |name| (name, node.clone())));
    ModelMacs {
        total: document.side_car.total_macs,
        unnamed: document.unnamed_macs,
        aliases: aliases.collect(),
        by_name: document.side_car.nodes,
        without: document.uncounted.first().map(|work| work.name.clone()),
        counted: Counted {
            total_macs: Some(document.side_car.total_macs),
            uncounted: document.uncounted.into_iter().map(uncounted).collect(),
        },
    }
}

fn uncounted(work: epwatch_manifest::Uncounted) -> Uncounted {
    Uncounted {
        name: work.name,
        op_type: work.op_type,
        why: work.why,
        at_least_macs: work.at_least_macs,
        unknown_turns: work.unknown_turns,
    }
}

/// Returns the run times for a certificate; `None` if no launch has single runs.
pub(super) fn certified(launches: &[Launch]) -> Option<v1::CertifiedLatency> {
    let runs: usize = launches
        .iter()
        .map(|launch| launch.ascending_us().len())
        .sum();
    let [p10_us, p50_us, p95_us] = quantiles_us(launches)?;
    Some(v1::CertifiedLatency {
        launches: u32::try_from(launches.len()).ok()?,
        runs: runs as u64,
        p10_us,
        p50_us,
        p95_us,
    })
}
