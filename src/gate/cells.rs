//! Cells of a certificate: launches on one chipset and firmware, with their placement.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use epwatch_gate::{Launch, placement::InspectedChipset, read::ReadOptions, run::Run};
use epwatch_proto::{
    EpBackend, EpLinkage, Placement, Runtime,
    device::{is_vendor_fingerprint_hash, vendor_fingerprint_hash},
    placement::QNN_EP,
    v1,
};
use prost::Message as _;

use super::{
    certify::Judged,
    runs::{self, certified},
};
use crate::output::{self, WrongUse};

/// Number of runs that are dropped if a launch does not name its number of warm-up runs.
const WARMUP: usize = 3;

/// Cells with the parts of a certificate, and the reasons why other cells are left out.
#[derive(Debug, Default)]
pub(super) struct Cells {
    pub(super) judged: Vec<Judged>,
    pub(super) left_out: Vec<String>,
}

/// Returns the cells of the launches that ran on an NPU, and names the cells that are left out. If a launch does not
/// name the EP's version, the command line's is used. A plugin does not know its package's version.
pub(super) fn cells(
    files: &[PathBuf],
    model: &Path,
    ep_version: Option<&str>,
) -> Result<Cells, WrongUse> {
    let mut by_cell: BTreeMap<(String, String), Vec<Run>> = BTreeMap::new();
    for file in files {
        for mut one in runs::measured(file, ReadOptions::default())? {
            let own = &mut one.run.runtime.ep_version;
            *own = own.take().or_else(|| ep_version.map(str::to_owned));
            if let Some(cell) = cell_of(&one.run) {
                by_cell.entry(cell).or_default().push(one.run);
            }
        }
    }
    let mut found = Cells::default();
    for ((chipset, firmware), launches) in by_cell {
        match judged(&chipset, &firmware, &launches, model) {
            Ok(cell) => found.judged.push(cell),
            Err(why) => {
                let on = match &*firmware {
                    "" => chipset,
                    firmware => format!("{chipset}, firmware {firmware}"),
                };
                output::remark(format_args!("not certified on {on}: {why}"));
                found.left_out.push(format!("on {on}: {why}"));
            }
        }
    }
    Ok(found)
}

/// Chipset and firmware of a launch on an NPU, the firmware as devices report it.
fn cell_of(run: &Run) -> Option<(String, String)> {
    let is_emulated = run.is_off_npu();
    let is_on_npu = run.runtime.ep.as_deref() == Some(QNN_EP) && !is_emulated;
    let placed = run.placed.as_ref().filter(|_| is_on_npu)?;
    let firmware = run.target.firmware.as_deref().unwrap_or_default();
    let firmware = match is_vendor_fingerprint_hash(firmware) {
        true => firmware.to_owned(),
        false => vendor_fingerprint_hash(firmware),
    };
    (!placed.encoded.is_empty()).then(|| (placed.chipset.clone(), firmware))
}

/// Returns the encoded placement, if it is the one that was judged. A file may be assembled from two.
fn encoded(placed: &InspectedChipset) -> Result<Vec<u8>, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("placement.encoded: {error}");
    let bytes = STANDARD
        .decode(&placed.encoded)
        .map_err(|error| wrong(&error))?;
    let message = v1::Placement::decode(bytes.as_slice()).map_err(|error| wrong(&error))?;
    let parsed = Placement::try_from(message).map_err(|error| wrong(&error))?;
    let print = parsed.normalised.map(|print| print.to_string());
    match print == placed.fingerprint_normalised {
        true => Ok(bytes),
        false => Err(wrong(
            &"it is another placement than the one that was judged",
        )),
    }
}

fn judged(chipset: &str, firmware: &str, launches: &[Run], model: &Path) -> Result<Judged, String> {
    let placed: Vec<_> = launches
        .iter()
        .filter_map(|run| run.placed.as_ref())
        .collect();
    let first = placed.first().ok_or("no launch has a placement")?;
    let same = |of: &Run| of.runtime == launches[0].runtime;
    if !launches.iter().all(same) {
        return Err("its launches have two runtimes".to_owned());
    }
    let print = &first.fingerprint_normalised;
    if placed
        .iter()
        .any(|one| one.fingerprint_normalised != *print)
    {
        return Err("its launches have different placements".to_owned());
    }
    let parts = &launches[0].runtime;
    let known = |version: &Option<String>, missing: &str| version.clone().ok_or(missing.to_owned());
    let is_cool = |run: &&Run| run.mistakes.iter().all(|one| one.id != "throttled");
    let timed = launches.iter().filter(is_cool);
    let timed: Vec<Launch> = timed
        .filter_map(|run| Launch::new(&run.runs_us, run.warmup.unwrap_or(WARMUP)).ok())
        .collect();
    Ok(Judged {
        model: model.to_owned(),
        chipset: chipset.to_owned(),
        firmware: firmware.to_owned(),
        placement: encoded(first)?,
        runtime: Runtime {
            ort_version: known(
                &parts.ort_version,
                "its launches name no version of ONNX Runtime",
            )?,
            ep_package: "onnxruntime-qnn".to_owned(),
            ep_version: known(
                &parts.ep_version,
                "give --ep-version, as the app reports it",
            )?,
            ep_linkage: EpLinkage::Plugin,
            backend: EpBackend::Htp,
            qnn_sdk_version: parts.qnn_sdk_version.clone().unwrap_or_default(),
            ..Runtime::default()
        }
        .normalised(),
        latency: certified(&timed),
    })
}
