//! A cohort as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::table::{head, table};
use crate::histogram::Latencies;
use crate::read::cohort::CohortPage;
use crate::read::evidence::PlottedEvidence;
use crate::read::windows::Slower;
use crate::text::name::{visible, visible_sentence};
use crate::text::number;
use crate::text::words;

/// Returns latency, placement and devices of a cohort, next to the version before.
pub(super) fn cohort(page: &CohortPage) -> String {
    let (query, of) = (&page.query, &page.cohort);
    let mut text = format!(
        "{} {} on {} {}\n{}; {} of {} devices hit, median {}, {} slower, {} of the work {}\n",
        visible(&query.model),
        visible(&query.version),
        visible(&query.chipset),
        words::chipset_name(&query.chipset),
        words::verdict(&of.verdict),
        number::count(of.hit),
        number::count(of.devices),
        number::ms(of.p50_us),
        number::times(of.latency_ratio),
        number::share(of.npu_share),
        words::of_accelerator(&query.chipset, "on the NPU"),
    );
    for reason in &of.reasons {
        _ = writeln!(text, "- {}", visible_sentence(reason));
    }
    let before = page.before.as_ref().map(|row| &*row.version);
    let own = page.evidence.as_ref().and_then(|of| of.latencies.as_ref());
    let sides = [
        (Some(&*query.version), own, &page.placement),
        (
            before,
            page.latencies_before.as_ref(),
            &page.placement_before,
        ),
    ];
    let [nodes_on, macs_on] =
        ["NODES ON NPU", "MACS ON NPU"].map(|text| words::of_accelerator(&query.chipset, text));
    let mut rows = vec![head(&[
        "VERSION", "P10", "P50", "P90", "RUNS", &nodes_on, &macs_on,
    ])];
    for (version, latencies, placement) in sides {
        let Some(version) = version else { continue };
        let quantiles = latencies.map(|latencies| latencies.quantiles);
        rows.push(vec![
            visible(version),
            number::ms(quantiles.map(|q| q.p10_us)),
            number::ms(quantiles.map(|q| q.p50_us)),
            number::ms(quantiles.map(|q| q.p90_us)),
            latencies.map_or_else(String::new, |of| number::count(of.runs)),
            placement.as_ref().map_or_else(String::new, |of| {
                format!("{} of {}", of.npu_nodes, of.n_nodes)
            }),
            number::share(placement.as_ref().and_then(|of| of.npu_macs_share)),
        ]);
    }
    text.push('\n');
    text.push_str(&table(&rows));
    text.push_str(&distribution(own, page.latencies_before.as_ref()));
    if let Some(evidence) = &page.evidence {
        text.push_str(&evidence_lines(evidence, page.slower, &query.chipset));
    }
    let nodes: Vec<_> = page.cpu_nodes.iter().filter(|node| !node.benign).collect();
    if !nodes.is_empty() {
        let mut rows = vec![head(&["ON THE CPU", "OP", "REASON"])];
        let row =
            |name: &str, op: &str, reason: &str| vec![visible(name), visible(op), visible(reason)];
        rows.extend(
            nodes
                .iter()
                .map(|node| row(&node.name, &node.op_type, &node.reason)),
        );
        text.push('\n');
        text.push_str(&table(&rows));
        if page.cpu_nodes_cut {
            text.push_str("cheaper nodes are left out\n");
        }
    }
    if !page.changes.is_empty() {
        text.push_str("\nwhat changed\n");
    }
    for change in &page.changes {
        _ = writeln!(text, "- {:.0} {}", change.at, change.text);
    }
    if let Some(incident) = &page.incident {
        _ = write!(text, "\nepwatch incident {}\n", visible(&incident.incident));
    }
    text
}

/// Returns the devices by ratio to their own past, a line of marks for each bin, and the two modes.
fn evidence_lines(evidence: &PlottedEvidence, slower: Option<Slower>, chipset: &str) -> String {
    const WIDTH: usize = 40;
    let mut text = String::new();
    let mut rows = vec![head(&["TIMES ITS OWN PAST", "DEVICES", ""])];
    let most = evidence.ratios.bins().map(|(_, npu, cpu)| npu + cpu).max();
    for (ratio, npu, cpu) in evidence.ratios.bins().filter(|(_, npu, cpu)| npu + cpu > 0) {
        let width = |n: u32| marks(f64::from(n) / f64::from(most.unwrap_or(1)), WIDTH);
        rows.push(vec![
            format!("{ratio:.2}"),
            number::count(npu + cpu),
            "N".repeat(width(npu)) + &"C".repeat(width(cpu)),
        ]);
    }
    if rows.len() > 1 {
        text.push('\n');
        text.push_str(&table(&rows));
        let on_npu = words::of_accelerator(chipset, "on the NPU");
        _ = writeln!(text, "N: wholly {on_npu}; C: with work on the CPU");
        _ = writeln!(text, "{}", evidence.ratio_words(slower));
    }
    if let Some(modes) = &evidence.modes {
        _ = writeln!(
            text,
            "two modes: {} and {}",
            number::ms(Some(modes.fast_us)),
            number::ms(Some(modes.slow_us))
        );
    }
    text
}

/// Number of bins in an octave of the text.
const BINS_PER_OCTAVE: f64 = 4.0;

/// Returns the shares of the runs in bins of a quarter octave, now and before.
fn distribution(now: Option<&Latencies>, before: Option<&Latencies>) -> String {
    const WIDTH: usize = 30;
    let bins = |latencies: Option<&Latencies>| {
        let mut bins: BTreeMap<i32, f64> = BTreeMap::new();
        let points = latencies.into_iter().flat_map(|of| of.density.points());
        for (us, share) in points.filter(|(_, share)| *share > 0.0) {
            #[expect(clippy::cast_possible_truncation, reason = "1 us to 60 s")]
            let bin = (us.log2() * BINS_PER_OCTAVE).floor() as i32;
            *bins.entry(bin).or_default() += share;
        }
        bins
    };
    let (now, before) = (bins(now), bins(before));
    let all = || now.keys().chain(before.keys());
    let (Some(first), Some(last)) = (all().min(), all().max()) else {
        return String::new();
    };
    let most = now
        .values()
        .chain(before.values())
        .copied()
        .fold(0.0, f64::max);
    let mut rows = vec![head(&["LATENCY FROM", "RUNS NOW", "RUNS BEFORE"])];
    for bin in *first..=*last {
        let side = |bins: &BTreeMap<i32, f64>, mark: &str| {
            let share = bins.get(&bin).copied().unwrap_or(0.0);
            mark.repeat(marks(share / most, WIDTH))
        };
        let from = (f64::from(bin) / BINS_PER_OCTAVE).exp2();
        rows.push(vec![
            number::ms(Some(from)),
            side(&now, "#"),
            side(&before, "-"),
        ]);
    }
    format!("\n{}", table(&rows))
}

/// Returns the length of a bar. A share above zero gets at least one mark.
fn marks(share: f64, width: usize) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a width"
    )]
    let marks = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    if share > 0.0 { marks.max(1) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 900 runs at 65 ms now, 100 at 230 ms; all at 16 ms before.
    #[test]
    fn the_distribution_has_a_row_for_each_quarter_of_an_octave() {
        let of = |first, runs: &[u64]| Latencies::of_bins(first, runs);
        let mut runs = vec![0; 30];
        (runs[0], runs[29]) = (900, 100);
        let text = distribution(of(16 * 16, &runs).as_ref(), of(14 * 16, &[500]).as_ref());
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(rows.len(), 16, "{text}");
        assert!(rows[0].ends_with(&"-".repeat(30)), "{text}");
        assert_eq!(rows[8].matches('#').count(), 27, "{text}");
        assert_eq!(rows[15].matches('#').count(), 3, "{text}");
        let marks = text.matches(['#', '-']).count();
        assert_eq!(marks, 60, "{text}");
        assert_eq!(distribution(None, None), "");
    }
}
