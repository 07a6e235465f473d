//! Converts a large model into a small one whose weights are external data in the model's own file. ONNX Runtime maps
//! external data and does not read it into memory. So a session needs less memory, by the model's size. The graph is
//! the same.

use std::{
    fs::File,
    io::{Read, Seek},
    path::Path,
};

use epwatch_proto::wire::push_varint;

use super::{
    edit::{Part, copied},
    encode::{push_bytes, push_key, push_number},
};
use crate::{
    ManifestError,
    wire::{MOST_BYTES, WireReader, Wired},
};

/// Sizes of converted models. A smaller model saves too little. A larger model is left unchanged, so ONNX Runtime
/// refuses its single file here as in the app.
const SIZES: std::ops::Range<u64> = 64 << 20..1 << 31;
/// Smallest weight that is left in the file. Smaller ones may be shapes.
const LEAST_WEIGHT: u64 = 64 << 10;

/// Returns the model with its large weights as external data in the file `location`. `None` if the model stays as it
/// is. It stays if it is small, has external data already, or is precompiled, because precompiled models have a path of
/// their own.
///
/// # Errors
/// The file cannot be read or is not an ONNX model.
pub fn weights_outside(model: &Path, location: &str) -> Result<Option<Vec<u8>>, ManifestError> {
    let file = File::open(model)?;
    if !SIZES.contains(&file.metadata()?.len()) {
        return Ok(None);
    }
    outside(model, file, location, LEAST_WEIGHT)
}

fn outside(
    model: &Path,
    file: File,
    location: &str,
    least: u64,
) -> Result<Option<Vec<u8>>, ManifestError> {
    let mut wire = WireReader::new(file)?;
    let end = wire.len();
    let (mut parts, mut moved) = (Vec::new(), 0_usize);
    loop {
        let at = wire.at();
        let Some((number, wired)) = wire.field(end)? else {
            break;
        };
        let Wired::Until(until) = wired else {
            parts.push(Part::Copied(at, wire.at()));
            continue;
        };
        if number != 7 {
            wire.pass(wired)?;
            parts.push(Part::Copied(at, wire.at()));
            continue;
        }
        let mut inner = Vec::new();
        loop {
            let at = wire.at();
            let Some((number, wired)) = wire.field(until)? else {
                break;
            };
            match (number, wired) {
                (1, Wired::Until(until)) => {
                    if is_precompiled(&mut wire, until)? {
                        return Ok(None);
                    }
                    inner.push(Part::Copied(at, wire.at()));
                }
                (5, Wired::Until(until)) => match tensor(&mut wire, until, location, least)? {
                    Weight::External => return Ok(None),
                    Weight::Kept => inner.push(Part::Copied(at, wire.at())),
                    Weight::Moved(parts) => {
                        moved += 1;
                        message(&mut inner, 5, parts);
                    }
                },
                _ => {
                    wire.pass(wired)?;
                    inner.push(Part::Copied(at, wire.at()));
                }
            }
        }
        message(&mut parts, 7, inner);
    }
    let size: u64 = parts.iter().map(Part::len).sum();
    if moved == 0 || size > MOST_BYTES as u64 {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    copied(model, &mut bytes, &parts)?;
    Ok(Some(bytes))
}

/// Adds a field whose message has these parts.
fn message(parts: &mut Vec<Part>, number: u64, inner: Vec<Part>) {
    let mut head = Vec::new();
    push_key(&mut head, number, 2);
    push_varint(&mut head, inner.iter().map(Part::len).sum());
    parts.push(Part::New(head));
    parts.extend(inner);
}

fn is_precompiled<R: Read + Seek>(
    wire: &mut WireReader<R>,
    until: u64,
) -> Result<bool, ManifestError> {
    let mut is_context = false;
    while let Some((number, wired)) = wire.field(until)? {
        match (number, wired) {
            (4, Wired::Until(until)) => is_context |= wire.text(until)? == "EPContext",
            _ => wire.pass(wired)?,
        }
    }
    Ok(is_context)
}

enum Weight {
    /// The tensor's data is already in another file.
    External,
    Kept,
    /// The fields of the tensor without its data.
    Moved(Vec<Part>),
}

fn tensor<R: Read + Seek>(
    wire: &mut WireReader<R>,
    until: u64,
    location: &str,
    least: u64,
) -> Result<Weight, ManifestError> {
    let (mut parts, mut data) = (Vec::new(), None);
    loop {
        let at = wire.at();
        let Some((number, wired)) = wire.field(until)? else {
            break;
        };
        match (number, wired) {
            (14, Wired::Varint(1)) => return Ok(Weight::External),
            (9, Wired::Until(until)) => {
                data = Some((wire.at(), until - wire.at()));
                wire.pass(wired)?;
                continue;
            }
            _ => wire.pass(wired)?,
        }
        parts.push(Part::Copied(at, wire.at()));
    }
    let Some((offset, length)) = data.filter(|(_, length)| *length >= least) else {
        return Ok(Weight::Kept);
    };
    let mut fields = Vec::new();
    for (key, value) in [
        ("location", location.to_owned()),
        ("offset", offset.to_string()),
        ("length", length.to_string()),
    ] {
        let mut entry = Vec::new();
        push_bytes(&mut entry, 1, key.as_bytes());
        push_bytes(&mut entry, 2, value.as_bytes());
        push_bytes(&mut fields, 13, &entry);
    }
    push_number(&mut fields, 14, 1);
    parts.push(Part::New(fields));
    Ok(Weight::Moved(parts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest_of;

    fn fixture(name: &str) -> std::path::PathBuf {
        let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models");
        Path::new(models).join(name)
    }

    fn small(name: &str, least: u64) -> Option<Vec<u8>> {
        let model = fixture(name);
        outside(&model, File::open(&model).unwrap(), name, least).unwrap()
    }

    /// For all code that reads it here, the graph without its weights is the same model, and far smaller.
    #[test]
    fn large_weights_are_data_of_the_models_own_file() {
        let name = "e_mixed.q8head32.onnx";
        let bytes = small(name, 1_000).unwrap();
        let before = std::fs::read(fixture(name)).unwrap();
        assert!(bytes.len() < before.len() / 4, "{}", bytes.len());
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join(name);
        std::fs::write(&copy, &bytes).unwrap();
        let macs = |path: &Path| manifest_of(path, &[]).unwrap().side_car.nodes;
        assert_eq!(macs(&copy), macs(&fixture(name)));
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("location") && text.contains(name));
        // The weights are external now, so nothing more is moved.
        let again = outside(&copy, File::open(&copy).unwrap(), name, 1_000).unwrap();
        assert_eq!(again, None);
    }

    #[test]
    fn models_without_large_weights_stay_as_they_are() {
        assert_eq!(small("e_mixed.q8head32.onnx", 1 << 30), None);
        let model = fixture("e_mixed.q8head32.onnx");
        assert_eq!(weights_outside(&model, "x").unwrap(), None);
    }
}
