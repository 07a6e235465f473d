//! Settings of the app's session, which decide the placement next to the model.

use std::path::{Path, PathBuf};

use epwatch_manifest::{FreeDim, InputShape, ModelOutline};
use epwatch_run::PATH_OPTIONS;

use super::session::EpOption;
use crate::input_file::{self, FilePurpose};

/// Settings of the app when it makes the session.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct AppOptions {
    /// Size of a dimension that the model leaves open, by name, as the app fixes it when it makes the session
    /// (AddFreeDimensionOverrideByName): batch=1. Once for each.
    #[arg(long, value_name = "NAME=SIZE")]
    pub(crate) dim: Vec<FreeDim>,
    /// The app's library of custom ops (RegisterCustomOpsLibrary), built for the machine that makes the session. Once for
    /// each.
    #[arg(long, value_name = "LIB")]
    pub(crate) custom_ops: Vec<PathBuf>,
}

impl AppOptions {
    /// Shapes of inputs, with the dimensions that the app fixes.
    pub(crate) fn shapes(&self, given: &[InputShape]) -> Vec<InputShape> {
        let dims = self.dim.iter().map(InputShape::from);
        dims.chain(given.iter().cloned()).collect()
    }

    /// Checks the options, and returns the libraries' absolute paths for a process with another working folder.
    pub(super) fn checked(&self, outline: Option<&ModelOutline>) -> Result<Vec<PathBuf>, String> {
        if let Some(outline) = outline {
            let open = outline.open_dims();
            if let Some(dim) = self.dim.iter().find(|dim| !open.contains(dim.name())) {
                let expected = match open.is_empty() {
                    true => "no input has a dimension with a name".to_owned(),
                    false => format!(
                        "its open dimensions are {}",
                        open.into_iter().collect::<Vec<_>>().join(", ")
                    ),
                };
                return Err(format!("--dim {dim} does not fit the model: {expected}"));
            }
        }
        let each = self.custom_ops.iter().map(|path| {
            input_file::check(path, FilePurpose::Library)
                .and_then(|()| absolute(path))
                .map_err(|error| format!("failed to read --custom-ops {}: {error}", path.display()))
        });
        each.collect()
    }
}

/// Makes a path absolute without resolving links, because a model's data in Hugging Face's cache is next to the link.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| error.to_string())
}

/// Returns the EP's options for a process with another working folder, with absolute paths.
pub(super) fn ep_options(given: &[EpOption]) -> Result<Vec<EpOption>, String> {
    let each = given.iter().map(|option| {
        if !PATH_OPTIONS.contains(&option.key.as_str()) || option.value.is_empty() {
            return Ok(option.clone());
        }
        let wrong = |error| format!("--ep-option {}={}: {error}", option.key, option.value);
        let path = Path::new(&option.value);
        if option.key == "op_affinity" {
            input_file::check(path, FilePurpose::Document).map_err(wrong)?;
        }
        Ok(EpOption {
            key: option.key.clone(),
            value: absolute(path).map_err(wrong)?.display().to_string(),
        })
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_options_do_not_depend_on_the_working_folder() {
        let given: Vec<EpOption> = [
            "json_qnn_graph_dir=out",
            "htp_graph_finalization_optimization_mode=3",
        ]
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
        let found = ep_options(&given).unwrap();
        assert!(Path::new(&found[0].value).is_absolute());
        assert_eq!(found[1], given[1]);
        let missing: EpOption = "op_affinity=no/such.json".parse().unwrap();
        let error = ep_options(&[missing]).unwrap_err();
        assert!(error.contains("op_affinity=no/such.json"), "{error}");
    }
}
