//! The text of ExecuTorch's `coreml_compute_plan.py`: operations by the device that Core ML prefers.

use std::io::BufRead;

use super::input::{ReadError, lines, malformed};
use crate::{
    layers::Layers,
    run::{Run, RunNode, RunTarget, Unit},
};

const KIND: &str = "coreml_compute_plan";
/// Maximum number of op types of a report.
const MOST_OPS: usize = 10_000;

pub(super) fn read(input: impl BufRead) -> Result<Run, ReadError> {
    let mut layers = Layers {
        npu: 0,
        gpu: 0,
        cpu: 0,
    };
    let (mut label, mut nodes, mut parts) = (String::new(), Vec::new(), 0_u32);
    lines(KIND, input, |at, line| {
        let line = line.trim();
        if let Some(name) = line
            .strip_prefix("=== ")
            .and_then(|l| l.strip_suffix(" ==="))
        {
            parts = parts.saturating_add(1);
            name.clone_into(&mut label);
            return Ok(());
        }
        let Some((first, rest)) = line.split_once(|c: char| c == ':' || c.is_whitespace()) else {
            return Ok(());
        };
        let wrong = || {
            malformed(
                KIND,
                format!("line {at}: {rest:?}"),
                "for example `ANE:   12 / 20 ( 60.0%)`",
            )
        };
        let unit = match first {
            "ANE" => &mut layers.npu,
            "GPU" => &mut layers.gpu,
            "CPU" | "unknown" => &mut layers.cpu,
            count => {
                if let Ok(events) = count.parse()
                    && nodes.len() < MOST_OPS
                {
                    nodes.push(RunNode {
                        name: String::new(),
                        op_type: rest.trim().to_owned(),
                        unit: Unit::Unknown,
                        events,
                        macs_by_shapes: None,
                    });
                }
                return Ok(());
            }
        };
        let count = rest.split('/').next().unwrap_or_default().trim();
        let count: u32 = count.parse().map_err(|_| wrong())?;
        *unit = unit.saturating_add(count);
        Ok(())
    })?;
    if layers.npu_share().is_none() {
        return Err(malformed(
            KIND,
            "no operation",
            "a line for each device, as the script prints it",
        ));
    }
    Ok(Run {
        source: "coreml_compute_plan",
        target: RunTarget {
            row: label,
            ..RunTarget::default()
        },
        partitions: Some(parts),
        layers: Some(layers),
        nodes,
        ..Run::default()
    })
}

#[cfg(test)]
mod tests {
    use crate::{
        layers::Layers,
        read::{ReadOptions, read, tests::only},
    };

    #[test]
    fn operations_are_counted_by_device() {
        let run = only(
            "\n=== m.mlpackage ===\n  ANE:   118 /   130 ( 90.8%)\n  CPU:    12 /   130 (  9.2%)\n\n  Non-ANE op types:\n       \
             12  ios17.gather\n",
        );
        let expected = Layers {
            npu: 118,
            gpu: 0,
            cpu: 12,
        };
        assert_eq!(run.layers, Some(expected));
        assert_eq!(
            (&*run.target.row, &*run.nodes[0].op_type),
            ("m.mlpackage", "ios17.gather")
        );
        for text in ["=== a ===\n  ANE: x / 3\n", "=== CPU: ===\n"] {
            assert!(
                read(text.as_bytes(), ReadOptions::default()).is_err(),
                "{text}"
            );
        }
    }
}
