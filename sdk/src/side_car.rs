//! The side-car of a model: the MACs of its nodes, which `epwatch manifest` counts.

use epwatch_proto::SideCar;

use crate::types::ModelManifest;

/// Longest side-car, which holds the most nodes with the longest names.
const MAX_BYTES: usize = 64 << 20;

/// A side-car that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("failed to read the side-car of a model, which `epwatch manifest` writes: {0}")]
pub struct SideCarError(String);

/// Reads a model's side-car, for [`SessionRequest::with_manifest`](crate::SessionRequest::with_manifest).
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let manifest = epwatch_sdk::read_side_car(&std::fs::read("segmenter.macs.json")?)?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// Fails if the bytes are not a side-car as `epwatch manifest` writes it, or are more than 64 MiB.
pub fn read_side_car(json: &[u8]) -> Result<ModelManifest, SideCarError> {
    if json.len() > MAX_BYTES {
        let text = format!("expected at most {MAX_BYTES} bytes, got {}", json.len());
        return Err(SideCarError(text));
    }
    let side_car: SideCar =
        serde_json::from_slice(json).map_err(|error| SideCarError(error.to_string()))?;
    match epwatch_proto::ModelManifest::try_from(side_car) {
        Ok(manifest) => Ok(manifest.into()),
        Err(error) => Err(SideCarError(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_car_is_read_and_a_wrong_one_says_what_is_wrong() {
        let with = |total: &str, hash: &str| {
            format!(r#"{{"model_sha256": "{hash}", "total_macs": {total}, "nodes": {{"a": 7}}}}"#)
        };
        let hash = "ab".repeat(32);
        let read = read_side_car(with("9", &hash).as_bytes()).unwrap();
        assert_eq!((read.total_macs(), read.wire().nodes[0].macs), (9, 7));
        for (wrong, cause) in [
            (with("6", &hash), "at least 7"),
            (with("-1", &hash), "-1"),
            (with("9", "ab"), "64 hexadecimal digits"),
            ("{}".to_owned(), "missing field"),
            ("no JSON".to_owned(), "line 1"),
        ] {
            let error = read_side_car(wrong.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(cause), "{error}");
        }
    }
}
