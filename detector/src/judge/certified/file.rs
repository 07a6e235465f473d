//! Certified placements from a file: JSON lines with the columns of `certified_placements_v1`, as
//! `SELECT * FROM certified_placements_v1 FORMAT JSONEachRow` writes them. A later line counts before an
//! earlier one.
//!
//! A line needs `model_id`, `model_version`, `chipset`, `fingerprint_algorithm`, `n_nodes` and `npu_nodes`. If they are
//! missing, app and environment are `*`, the graph is `jit`, and the source is `assignment_api`. Other columns are
//! ignored.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use epwatch_proto::Chipset;
use epwatch_proto::device::{is_vendor_fingerprint_hash, vendor_fingerprint_hash};

use super::placement::{Certified, CertifiedRow};

/// Labs certify by hand, so a larger file is not a file of certificates.
const MAX_BYTES: u64 = 64 << 20;

/// The error of a file of certified placements that could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertifiedError {
    /// The file cannot be opened or read, or is not text.
    #[error("failed to read {}", path.display())]
    Read {
        /// Path as given.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// The file is larger than 64 MiB.
    #[error("failed to read {} as certified placements: more than {MAX_BYTES} bytes", path.display())]
    TooLarge {
        /// Path as given.
        path: PathBuf,
    },
    /// A line is not a certified placement.
    #[error("failed to read line {line} of {} as a certified placement", path.display())]
    Line {
        /// Path as given.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Error of the JSON parser, with the column.
        #[source]
        source: serde_json::Error,
    },
}

impl Certified {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, is too large, or has a line that is not a certified placement.
    pub fn from_file(path: &Path) -> Result<Certified, CertifiedError> {
        let read = |source| CertifiedError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(read)?;
        let mut text = String::new();
        let mut bounded = BufReader::new(file).take(MAX_BYTES + 1);
        bounded.read_to_string(&mut text).map_err(read)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(CertifiedError::TooLarge {
                path: path.to_owned(),
            });
        }
        let mut rows = Vec::new();
        for (at, line) in text.as_bytes().lines().enumerate() {
            let line = line.map_err(read)?;
            if line.trim().is_empty() {
                continue;
            }
            let row = serde_json::from_str(&line).and_then(CertifiedRow::checked);
            rows.push(row.map_err(|source| CertifiedError::Line {
                path: path.to_owned(),
                line: at + 1,
                source,
            })?);
        }
        Ok(Certified::from_rows(rows.into_iter().rev()))
    }
}

impl CertifiedRow {
    fn checked(mut self) -> Result<Self, serde_json::Error> {
        let wrong = |what: String| Err(serde::de::Error::custom(what));
        let working = u64::from(self.npu_nodes) + u64::from(self.cpu_nodes);
        if working > u64::from(self.n_nodes) {
            return wrong(format!(
                "npu_nodes and cpu_nodes: expected at most n_nodes ({}), found {working}",
                self.n_nodes
            ));
        }
        if self.cpu_benign_nodes > self.cpu_nodes {
            return wrong(format!(
                "cpu_benign_nodes: expected at most cpu_nodes ({}), found {}",
                self.cpu_nodes, self.cpu_benign_nodes
            ));
        }
        let shares = [
            ("npu_macs_share", self.npu_macs_share),
            ("macs_attributed", self.macs_attributed),
        ];
        for (name, share) in shares {
            if let Some(share) = share.filter(|share| !(0.0..=1.0).contains(share)) {
                return wrong(format!("{name}: expected 0 to 1, found {share}"));
            }
        }
        if self.latency_p95_us < self.latency_p50_us {
            return wrong(format!(
                "latency_p95_us: expected at least latency_p50_us ({}), found {}",
                self.latency_p50_us, self.latency_p95_us
            ));
        }
        // Reports have the firmware's hash, so a plain fingerprint is hashed here.
        if !is_vendor_fingerprint_hash(&self.firmware) {
            self.firmware = vendor_fingerprint_hash(&self.firmware);
        }
        // Reports have the normalised chipset code, so a name is normalised here.
        if !self.chipset.starts_with("other:") {
            let chipset = Chipset::normalise(&self.chipset, "", "");
            chipset.as_str().clone_into(&mut self.chipset);
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::model;

    fn read(text: &str) -> Result<Certified, CertifiedError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("certified.jsonl");
        std::fs::write(&path, text).unwrap();
        Certified::from_file(&path)
    }

    #[test]
    fn the_last_line_counts_first_and_columns_that_mean_nothing_here_are_passed_over() {
        let row = |nodes: u32, print: &str| {
            format!(
                r#"{{"model_id":"segmenter","model_version":"1","chipset":"SM8650","n_nodes":{nodes},
                "npu_nodes":40,"cpu_nodes":2,"cpu_benign_nodes":2,"fingerprint_algorithm":1,
                "fingerprint_normalised":{print},"certified_by":"ci run 7","ep":["x"]}}"#
            )
            .replace('\n', "")
        };
        let text = format!(
            "{}\n\n{}\n",
            row(42, "7"),
            row(43, r#""18446744073709551615""#)
        );
        let found = read(&text).unwrap().of(&model());
        let nodes: Vec<u32> = found
            .iter()
            .map(|one| one.certificate.placement.n_nodes)
            .collect();
        assert_eq!(nodes, [43, 42]);
        let first = &found[0];
        assert_eq!(first.certificate.certified_by, "ci run 7");
        assert_eq!(first.certificate.placement.fingerprint, u64::MAX);
        // One of the 43 nodes is neither on the NPU nor on the CPU, so it is off the accelerator.
        assert_eq!(first.certificate.placement.cpu_nodes, 1);
        assert_eq!((&*first.model_version, &*first.chipset), ("1", "SM8650"));
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let error = read(text).unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let told = format!("{error}: {}", source.unwrap_or_default());
        assert!(told.contains(expected), "{told}");
    }

    #[test]
    fn a_line_that_cannot_be_is_named_with_its_field() {
        check("{\"model_id\":\"m\"}", "line 1 of");
        check("{\"model_id\":\"m\"}", "model_version");
        let row = |numbers: &str| {
            format!(
                r#"{{"model_id":"m","model_version":"1","chipset":"SM8650","fingerprint_algorithm":1,{numbers}}}"#
            )
        };
        check(&row(r#""n_nodes":3,"npu_nodes":4"#), "npu_nodes");
        check(
            &row(r#""n_nodes":3,"npu_nodes":1,"npu_macs_share":1.5"#),
            "npu_macs_share",
        );
        check(&row(r#""n_nodes":-3,"npu_nodes":1"#), "-3");
        let times = r#""n_nodes":3,"npu_nodes":1,"latency_p50_us":9,"latency_p95_us":8"#;
        check(&row(times), "latency_p95_us");
    }
}
