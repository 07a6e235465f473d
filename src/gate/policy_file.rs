//! `--policy`: the file of the limits.

use std::path::Path;

use epwatch_gate::{policy::Policy, verdict::GatedFile};
use epwatch_proto::ModelHash;

use crate::{
    input_file::{self, FilePurpose},
    inspect::SocModel,
    output::WrongUse,
};

/// Returns the folder to which a policy's paths are relative.
pub(super) fn folder(policy: Option<&Path>) -> &Path {
    policy.and_then(Path::parent).unwrap_or(Path::new(""))
}

/// Reads a policy, whose chipsets must have names that reports use.
pub(super) fn read(path: &Path) -> Result<(Policy, GatedFile), WrongUse> {
    let shown = path.display();
    let text = input_file::read_text(path, FilePurpose::Document)
        .map_err(|error| WrongUse(format!("failed to read --policy {shown}: {error}")))?;
    let policy = Policy::parse(&text)
        .map_err(|error| WrongUse(format!("--policy {shown} cannot be used: {error}")))?;
    for name in policy.chipsets() {
        let known = name.parse::<SocModel>().map(|soc| soc.chipset());
        if known.as_deref() != Ok(name) {
            let expected = match known {
                Ok(chipset) => format!("expected {chipset}"),
                Err(expected) => expected,
            };
            let text = format!("--policy {shown} names the chipset {name}: {expected}");
            return Err(WrongUse(text));
        }
    }
    let file = GatedFile {
        path: shown.to_string(),
        sha256: ModelHash::of(text.as_bytes()).to_string(),
    };
    Ok((policy, file))
}
