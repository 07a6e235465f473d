//! `--baseline`: the earlier model, whose placement a model is compared with, or launches of the earlier model.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use epwatch_gate::{
    change::{self, Neighbours, Side},
    placement::{Inspected, InspectedChipset},
    policy::PlacementLimits,
    verdict::{Check, CheckResult, EarlierModel, GatedModel},
};
use epwatch_manifest::{GraphFacts, ManifestError, ModelOutline, graph_facts};

use super::model_file::gated_model;
use crate::{
    input_file::{self, FilePurpose},
    inspect,
    output::WrongUse,
};

/// First line of the file that Git LFS leaves in place of an unfetched file.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Files of `--baseline` by their kind.
#[derive(Debug, Default)]
pub(super) struct Baseline {
    models: Vec<PathBuf>,
    /// For `--runs`.
    pub(super) launches: Vec<PathBuf>,
}

impl Baseline {
    /// Separates models from launches. Without `--runs` all files are models, else the files that end in `.onnx`.
    /// Models need `--soc`.
    pub(super) fn of(files: &[PathBuf], has_runs: bool, has_socs: bool) -> Result<Self, WrongUse> {
        let is_model = |path: &&PathBuf| !has_runs || path.extension() == Some(OsStr::new("onnx"));
        let (models, launches): (Vec<&PathBuf>, Vec<&PathBuf>) = files.iter().partition(is_model);
        if let Some(model) = models.first().filter(|_| !has_socs) {
            return Err(WrongUse(format!(
                "--baseline {} is a model: give the chipsets to compare it on with --soc",
                model.display()
            )));
        }
        let owned = |paths: Vec<&PathBuf>| paths.into_iter().cloned().collect();
        Ok(Self {
            models: owned(models),
            launches: owned(launches),
        })
    }

    pub(super) fn n_models(&self) -> usize {
        self.models.len()
    }

    /// Returns the earlier model of a model. With one model on each side that is the only one, else the one whose path
    /// ends alike.
    pub(super) fn of_model(
        &self,
        model: &Path,
        n_models: usize,
    ) -> Result<Option<&Path>, WrongUse> {
        if let ([only], 0 | 1) = (self.models.as_slice(), n_models) {
            return Ok(Some(only));
        }
        let common = |path: &PathBuf| {
            let both = path.components().rev().zip(model.components().rev());
            both.take_while(|(a, b)| a == b).count()
        };
        let most = self.models.iter().map(common).max().unwrap_or(0);
        let mut found = self.models.iter().filter(|path| common(path) == most);
        match (most, found.next(), found.next()) {
            (0, ..) | (_, None, _) => Ok(None),
            (_, Some(one), None) => Ok(Some(one)),
            (_, Some(one), Some(other)) => Err(WrongUse(format!(
                "--baseline has two files for {}: {} and {}; give one",
                model.display(),
                one.display(),
                other.display()
            ))),
        }
    }

    /// Returns the placement of the earlier model, inspected with the same options as the model.
    pub(super) async fn before(
        &self,
        inspection: inspect::Args,
        model: &GatedModel,
        n_models: usize,
        facts: Option<&GraphFacts>,
    ) -> anyhow::Result<Compared> {
        if self.models.is_empty() {
            return Ok(Compared::NotAsked);
        }
        let Some(path) = self.of_model(Path::new(&model.path), n_models)? else {
            return Ok(Compared::NoFile);
        };
        let shown = path.display();
        input_file::check(path, FilePurpose::Model)
            .map_err(|error| WrongUse(format!("failed to read --baseline {shown}: {error}")))?;
        let is_pointer = is_lfs_pointer(path)
            .map_err(|error| WrongUse(format!("failed to read --baseline {shown}: {error}")))?;
        if is_pointer {
            let text =
                format!("--baseline {shown} is a pointer of Git LFS: `git lfs pull` fetches it");
            return Err(WrongUse(text).into());
        }
        // Checked before the file is hashed, because hashing such a large file takes a minute.
        if let Err(error @ ManifestError::Over2Gb { .. }) = ModelOutline::of(path) {
            let error = WrongUse(format!("--baseline {shown}: {error}"));
            return Err(judged_alone(error.into()));
        }
        let file = gated_model(path)
            .map_err(|error| WrongUse(format!("failed to read --baseline {shown}: {error}")))?;
        if file.sha256 == model.sha256 {
            return Ok(Compared::SameFile(file));
        }
        let shapes = inspection.app.shapes(&inspection.shape);
        let document = inspect::inspected(&inspect::Args {
            model: path.to_owned(),
            argument: "--baseline",
            ..inspection
        })
        .await
        .map_err(judged_alone)?;
        let found: Inspected = serde_json::from_value(serde_json::to_value(&document)?)?;
        let old = graph_facts(path, &shapes).ok();
        Ok(Compared::Model {
            file,
            chipsets: found.chipsets,
            now: neighbours(facts),
            before: neighbours(old.as_ref()),
        })
    }
}

/// Adds the way out to a problem of the earlier model.
fn judged_alone(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<WrongUse>() {
        Ok(WrongUse(text)) => WrongUse(format!(
            "{text}; without --baseline (baseline: none of the action) MODEL is judged alone"
        ))
        .into(),
        Err(other) => other,
    }
}

/// Whether two models have the same bytes. A file that cannot be read is refused elsewhere, with its reason.
pub(super) fn is_same_model(one: &Path, other: &Path) -> bool {
    let is_readable = |path| input_file::check(path, FilePurpose::Model).is_ok();
    let size = |path: &Path| path.metadata().ok().map(|found| found.len());
    let hashes = |path| -> Option<Vec<String>> {
        let model = gated_model(path).ok()?;
        let data = model.data.into_iter().map(|file| file.sha256);
        Some([model.sha256].into_iter().chain(data).collect())
    };
    is_readable(one)
        && is_readable(other)
        && size(one) == size(other)
        && hashes(one).is_some_and(|hashes_of_one| Some(hashes_of_one) == hashes(other))
}

fn is_lfs_pointer(path: &Path) -> std::io::Result<bool> {
    let mut first = Vec::new();
    let most = LFS_POINTER.len() as u64;
    File::open(path)?.take(most).read_to_end(&mut first)?;
    Ok(first == LFS_POINTER)
}

fn neighbours(facts: Option<&GraphFacts>) -> BTreeMap<String, Neighbours> {
    let each = facts.map(GraphFacts::surroundings).unwrap_or_default();
    let each = each.into_iter().map(|(name, found)| {
        let around = Neighbours {
            op_type: found.op_type,
            between: found.between,
        };
        (name, around)
    });
    each.collect()
}

/// The model that another one is compared with.
pub(super) enum Compared {
    /// `--baseline` has no model.
    NotAsked,
    /// No model of `--baseline` belongs to this model.
    NoFile,
    /// The baseline is the model itself.
    SameFile(GatedModel),
    /// Another one.
    Model {
        file: GatedModel,
        /// The earlier model's chipsets, in the order of the model's own chipsets.
        chipsets: Vec<InspectedChipset>,
        now: BTreeMap<String, Neighbours>,
        before: BTreeMap<String, Neighbours>,
    },
}

impl Compared {
    /// Adds the check of one chipset, and returns the earlier placement.
    pub(super) fn judge(
        &self,
        at: usize,
        on: &InspectedChipset,
        limits: &PlacementLimits,
        checks: &mut Vec<Check>,
    ) -> Option<EarlierModel> {
        match self {
            Self::NotAsked => None,
            Self::NoFile => {
                checks.push(change::no_file());
                None
            }
            Self::SameFile(file) => {
                checks.push(change::same_file());
                Some(EarlierModel {
                    model: file.clone(),
                    placement: on.numbers(),
                })
            }
            Self::Model {
                file,
                chipsets,
                now,
                before,
            } => {
                let was = chipsets.get(at)?;
                let (now, before) = (
                    Side { on, nodes: now },
                    Side {
                        on: was,
                        nodes: before,
                    },
                );
                if let Some(mut check) = change::judge(now, before, limits) {
                    // A node that another failed check lists with its reason is not listed again.
                    let listed: Vec<_> = checks
                        .iter()
                        .filter(|other| other.result == CheckResult::Fail)
                        .flat_map(|other| other.nodes.iter().cloned())
                        .collect();
                    check.nodes.retain(|node| !listed.contains(node));
                    checks.push(check);
                }
                Some(EarlierModel {
                    model: file.clone(),
                    placement: was.numbers(),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_compared_with_the_file_whose_path_ends_like_its_own() {
        let baseline = |paths: &[&str]| Baseline {
            models: paths.iter().map(PathBuf::from).collect(),
            launches: Vec::new(),
        };
        let of = |paths: &[&str], model: &str, n| {
            let baseline = baseline(paths);
            let found = baseline
                .of_model(Path::new(model), n)
                .map_err(|error| error.0);
            found.map(|path| path.map(|path| path.display().to_string()))
        };
        let some = |path: &str| Ok(Some(path.to_owned()));
        assert_eq!(of(&["old.onnx"], "new.onnx", 1), some("old.onnx"));
        assert_eq!(of(&["old.onnx"], "new.onnx", 2), Ok(None));
        let two = ["base/a/m.onnx", "base/b/m.onnx"];
        assert_eq!(of(&two, "b/m.onnx", 2), some("base/b/m.onnx"));
        assert_eq!(of(&two, "./b/m.onnx", 2), some("base/b/m.onnx"));
        let error = of(&two, "c/m.onnx", 2).unwrap_err();
        assert!(error.contains("two files for c/m.onnx"), "{error}");
    }
}
