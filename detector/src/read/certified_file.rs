//! Certified placements from a file: JSON lines with the columns of `certified_placements_v1`, so that
//! `SELECT * FROM certified_placements_v1 FORMAT JSONEachRow` is one. A later line counts before an
//! earlier one.
//!
//! Needed are `model_id`, `model_version`, `chipset`, `fingerprint_algorithm`, `n_nodes` and
//! `npu_nodes`; app and environment are `*` where they are missing, the graph is `jit` and the source
//! `assignment_api`. Other columns are passed over.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use epwatch_proto::Chipset;
use epwatch_proto::device::runtime_name;
use serde::{Deserialize, Deserializer};

use crate::cohort::ModelKey;
use crate::placement::{NodeCounts, PlacementMethod};

use super::certified::{ANY, Certified, CertifiedPlacement};

/// Labs certify by hand: a larger file is another one.
const MAX_BYTES: u64 = 64 << 20;

/// Why a file of certified placements could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertifiedError {
    /// It cannot be opened or read, or is no text.
    #[error("failed to read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is larger than 64 MiB.
    #[error("failed to read {} as certified placements: more than {MAX_BYTES} bytes", path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
    },
    /// A line is no certified placement.
    #[error("failed to read line {line} of {} as a certified placement", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

#[derive(Debug, Deserialize)]
struct Row {
    #[serde(default = "any")]
    app_id: String,
    #[serde(default = "any")]
    environment: String,
    model_id: String,
    model_version: String,
    chipset: String,
    #[serde(default = "jit")]
    graph_kind: String,
    #[serde(default = "assignment_api")]
    placement_source: String,
    fingerprint_algorithm: u32,
    #[serde(default, deserialize_with = "number_or_text")]
    fingerprint_normalised: u64,
    #[serde(default)]
    ort_version: String,
    #[serde(default)]
    ep_version: String,
    n_nodes: u32,
    npu_nodes: u32,
    #[serde(default)]
    cpu_nodes: u32,
    #[serde(default)]
    cpu_benign_nodes: u32,
    #[serde(default)]
    npu_macs_share: Option<f32>,
    #[serde(default)]
    macs_attributed: Option<f32>,
}

fn any() -> String {
    ANY.to_owned()
}

fn jit() -> String {
    "jit".to_owned()
}

fn assignment_api() -> String {
    "assignment_api".to_owned()
}

/// Some settings of the store write 64 bits as text, since JavaScript has 53.
fn number_or_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u64),
        Text(String),
    }
    match Either::deserialize(deserializer)? {
        Either::Number(number) => Ok(number),
        Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

impl Certified {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, is too large, or a line is no certified placement.
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
            let row = serde_json::from_str(&line).and_then(Row::checked);
            rows.push(row.map_err(|source| CertifiedError::Line {
                path: path.to_owned(),
                line: at + 1,
                source,
            })?);
        }
        let mut certified = Certified::default();
        for row in rows.into_iter().rev() {
            row.add_to(&mut certified);
        }
        Ok(certified)
    }
}

impl Row {
    fn checked(self) -> Result<Row, serde_json::Error> {
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
        Ok(self)
    }

    fn add_to(self, certified: &mut Certified) {
        // Reports are compared by the normalised code.
        let chipset = if self.chipset.starts_with("other:") {
            self.chipset
        } else {
            Chipset::normalise(&self.chipset, "", "")
                .as_str()
                .to_owned()
        };
        let method = PlacementMethod {
            graph_kind: self.graph_kind,
            source: self.placement_source,
            fingerprint_algorithm: self.fingerprint_algorithm,
        };
        let counts = NodeCounts {
            n_nodes: self.n_nodes,
            npu_nodes: self.npu_nodes,
            cpu_nodes: self.cpu_nodes,
            cpu_benign_nodes: self.cpu_benign_nodes,
            npu_macs_share: self.npu_macs_share,
            macs_attributed: self.macs_attributed,
        };
        let runtime = runtime_name(&self.ort_version, &self.ep_version);
        let placement = counts.placement(method, self.fingerprint_normalised, runtime);
        let model = ModelKey {
            app_id: self.app_id,
            environment: self.environment,
            model_id: self.model_id,
        };
        let certification = CertifiedPlacement {
            model_version: self.model_version,
            chipset,
            placement,
        };
        certified.push(model, certification);
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
        let nodes: Vec<u32> = found.iter().map(|one| one.placement.n_nodes).collect();
        assert_eq!(nodes, [43, 42]);
        let first = &found[0];
        assert_eq!(first.placement.fingerprint, u64::MAX);
        assert_eq!(first.placement.cpu_nodes, 0);
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
    }
}
