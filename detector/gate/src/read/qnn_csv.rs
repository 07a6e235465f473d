//! QNN's CSV of ONNX Runtime's option `profiling_file_path`: ops that ran on the HTP, by name. A run begins with its back
//! end's rows and ends with `QNN (execute) time`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::BufRead,
};

use super::{
    csv::cells,
    input::{ReadError, lines, malformed, micros},
    ort_profile::plain_name,
};
use crate::{
    mistakes::Mistake,
    run::{Run, RunNode, Unit},
};

const KIND: &str = "QNN's CSV";
/// Maximum number of ops of a graph.
const MOST_OPS: usize = 100_000;
/// Maximum number of runs of a launch.
const MOST_RUNS: usize = 1_000_000;

pub(super) fn read(input: impl BufRead) -> Result<Run, ReadError> {
    let (mut runs_us, mut ops): (Vec<u64>, BTreeMap<String, u64>) = (Vec::new(), BTreeMap::new());
    let mut columns: Option<[usize; 4]> = None;
    let mut has_open_ops = false;
    lines(KIND, input, |at, line| {
        if line.is_empty() {
            return Ok(());
        }
        let cells = cells(line);
        let wrong = |what: &str| {
            malformed(
                KIND,
                format!("line {at}: {what}"),
                "a row as QNN's header names its columns",
            )
        };
        let Some(columns) = columns else {
            let names = ["Message", "Time", "Unit of Measurement", "Event Identifier"];
            let found = names.map(|name| cells.iter().position(|cell| cell == name));
            let [Some(message), Some(time), Some(unit), Some(id)] = found else {
                return Err(wrong("a column is missing"));
            };
            columns = Some([message, time, unit, id]);
            return Ok(());
        };
        let cell = |at: usize| cells.get(columns[at]).map(|cell| cell.trim());
        let [Some(message), Some(time), Some(unit), Some(id)] = [0, 1, 2, 3].map(cell) else {
            return Err(wrong("a cell is missing: the file is cut off"));
        };
        let number: f64 = time.parse().map_err(|_| wrong(&format!("time {time:?}")))?;
        match (message, unit) {
            ("NODE", "CYCLES") if ops.len() < MOST_OPS => {
                let name = id.split(":OpId_").next().unwrap_or(id);
                let is_edge = name.starts_with("Input OpId") || name.starts_with("Output OpId");
                has_open_ops = true;
                if !is_edge {
                    *ops.entry(plain_name(name).to_owned()).or_default() += 1;
                }
            }
            ("EXECUTE", "US") => {
                if runs_us.len() >= MOST_RUNS {
                    return Err(wrong("more than 1,000,000 runs"));
                }
                runs_us.push(micros(number).ok_or_else(|| wrong(&format!("a run of {time} us")))?);
                has_open_ops = false;
            }
            _ => {}
        }
        Ok(())
    })?;
    if runs_us.is_empty() || has_open_ops {
        return Err(malformed(
            KIND,
            "the last run has no row `QNN (execute) time`",
            "a file that is whole: end the session before you copy it",
        ));
    }
    Ok(Run {
        source: "qnn_csv",
        runs_us,
        eps: Some(BTreeSet::from(["QNNExecutionProvider".to_owned()])),
        nodes: ops
            .into_iter()
            .map(|(name, events)| RunNode {
                name,
                op_type: String::new(),
                unit: Unit::Npu,
                events,
                macs_by_shapes: None,
            })
            .collect(),
        mistakes: vec![Mistake::npu_alone()],
        ..Run::default()
    })
}

#[cfg(test)]
mod tests {
    use crate::read::{ReadOptions, read, tests::only};

    const RECORDED: &str =
        include_str!("../../tests/fixtures/profiles/e_mixed.q8head32.SM8635.csv");

    #[test]
    fn runs_and_ops_of_the_htp_are_read() {
        let run = only(RECORDED);
        assert_eq!(run.runs_us.len(), 2);
        let names: Vec<&str> = run.nodes.iter().map(|node| &*node.name).collect();
        for name in ["conv0", "conv1", "conv2", "flatten"] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert!(!names.contains(&"head_fc1"), "{names:?}");
    }

    #[test]
    fn a_cut_file_is_refused() {
        let rows: Vec<&str> = RECORDED.lines().collect();
        let last = rows.iter().rposition(|row| row.contains("NODE")).unwrap();
        for text in [
            rows[..=last].join("\n"),
            rows[0].to_owned(),
            RECORDED.replacen("Event Identifier", "Event", 1),
            RECORDED.replacen("705553", "x", 1),
            format!("{RECORDED}0,NODE"),
        ] {
            let error = read(text.as_bytes(), ReadOptions::default())
                .unwrap_err()
                .to_string();
            assert!(error.contains("QNN's CSV"), "{error}");
        }
    }
}
