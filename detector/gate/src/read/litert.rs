//! The output of LiteRT's (TensorFlow Lite's) `benchmark_model`, from a terminal or a logcat.

use std::io::BufRead;

use super::input::{ReadError, lines, malformed, micros};
use crate::{
    layers::Layers,
    mistakes::Mistake,
    run::{Run, RunTarget},
};

const KIND: &str = "benchmark_model";

pub(super) fn read(input: impl BufRead) -> Result<Run, ReadError> {
    let mut run = Run {
        source: "litert_benchmark",
        warmup: Some(0),
        ..Run::default()
    };
    let mut average = None;
    lines(KIND, input, |_, line| {
        if let Some(rest) = after(line, "Graph: [") {
            rest.trim_end_matches(']').clone_into(&mut run.target.row);
        }
        // The first line of this kind is from the warm-up, so a later line replaces its time.
        if line.contains("count=") {
            let median = number(line, "median=");
            run.time_us = median.or_else(|| number(line, "avg=")).or(run.time_us);
        }
        average = average.or(number(line, "Inference (avg): "));
        if let Some(rest) = after(line, "Replacing ") {
            let mut counts = rest.split(' ').filter_map(|word| word.parse::<u32>().ok());
            if let (Some(taken), Some(all)) = (counts.next(), counts.next()) {
                let is_gpu = rest.to_ascii_lowercase().contains("gpu");
                let (npu, gpu) = if is_gpu { (0, taken) } else { (taken, 0) };
                let cpu = all.saturating_sub(taken);
                let is_xnnpack = rest.to_ascii_lowercase().contains("xnnpack");
                // XNNPACK takes only what another delegate has left, so the other delegate's counts stay.
                if is_xnnpack && run.layers.is_some() {
                    return Ok(());
                }
                run.layers = Some(Layers { npu, gpu, cpu });
                run.partitions = number(rest, "yielding ").map(|n| {
                    #[expect(clippy::cast_possible_truncation, reason = "saturates")]
                    #[expect(clippy::cast_sign_loss, reason = "saturates")]
                    let n = n as u32;
                    n
                });
                if is_xnnpack {
                    run.layers = Some(Layers {
                        npu: 0,
                        gpu: 0,
                        cpu: all,
                    });
                    run.mistakes
                        .push(Mistake::cpu_latency("the XNNPACK delegate"));
                }
            }
        }
        Ok(())
    })?;
    run.time_us = run.time_us.or(average).filter(|us| micros(*us).is_some());
    if run.time_us.is_none() {
        return Err(malformed(
            KIND,
            "no run time",
            "its line `count=.. avg=..` or `Inference timings in us`; the benchmark ends with it",
        ));
    }
    run.target = RunTarget {
        row: run
            .target
            .row
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned(),
        ..RunTarget::default()
    };
    Ok(run)
}

fn after<'a>(line: &'a str, words: &str) -> Option<&'a str> {
    line.split_once(words).map(|(_, rest)| rest)
}

fn number(line: &str, words: &str) -> Option<f64> {
    let rest = after(line, words)?;
    let end = rest.find(|c: char| !c.is_ascii_digit() && !".e+-".contains(c));
    rest[..end.unwrap_or(rest.len())].parse().ok()
}

#[cfg(test)]
mod tests {
    use crate::{
        layers::Layers,
        read::{ReadOptions, read, tests::only},
    };

    #[test]
    fn the_last_statistics_count_and_delegated_nodes_are_layers() {
        let run = only(
            "STARTING!\nGraph: [/data/local/tmp/m.tflite]\nINFO: Replacing 69 out of 71 node(s) with delegate \
             (TfLiteQnnDelegate) node, yielding 2 partitions for the whole graph.\nINFO: count=1 curr=3512391\n\
             INFO: count=50 first=2990275 curr=2913402 min=2727568 max=3189954 avg=2.95034e+06 std=109798\n\
             INFO: Inference timings in us: Init: 17187, First inference: 3512391, Warmup (avg): 3.51239e+06, Inference \
             (avg): 2.95034e+06\n",
        );
        assert_eq!(run.time_us, Some(2_950_340.0));
        let layers = Layers {
            npu: 69,
            gpu: 0,
            cpu: 2,
        };
        assert_eq!((run.layers, run.partitions), (Some(layers), Some(2)));
        assert_eq!(run.target.row, "m.tflite");
        let with_median = only("INFO: count=50 avg=9000 std=1 p5=1 median=8000 p95=9\n");
        assert_eq!(with_median.time_us, Some(8_000.0));
    }

    #[test]
    fn xnnpack_is_the_cpu_and_an_unfinished_output_is_none() {
        let run = only(
            "Replacing 71 out of 71 node(s) with delegate (TfLiteXNNPackDelegate) node, yielding 1 partitions\ncount=50 avg=9000",
        );
        assert_eq!(run.mistakes[0].id, "cpu_latency");
        assert_eq!(run.layers.unwrap().npu, 0);
        let rest = only(
            "Replacing 69 out of 71 node(s) with delegate (TfLiteQnnDelegate) node, yielding 2 partitions\n\
             Replacing 2 out of 3 node(s) with delegate (TfLiteXNNPackDelegate) node, yielding 1 partitions\n\
             count=50 avg=9000",
        );
        assert_eq!((rest.layers.unwrap().npu, rest.mistakes.len()), (69, 0));
        let cut = read(
            &b"STARTING!\nMin num runs: [50]\n"[..],
            ReadOptions::default(),
        );
        assert!(cut.unwrap_err().to_string().contains("ends with it"));
    }
}
