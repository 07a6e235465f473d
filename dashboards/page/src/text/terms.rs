//! Terms of the pages, each with a line of explanation: the foot of every page lists them.

/// A term as pages write it, and what it means.
pub(crate) const TERMS: [(&str, &str); 14] = [
    (
        "cohort",
        "the devices that run one version of a model on one chipset",
    ),
    (
        "window",
        "the time that one verdict is about; it is judged once, after its end",
    ),
    (
        "page, ticket",
        "a page needs someone now, a ticket in working hours; a note is neither",
    ),
    (
        "held, mitigated",
        "a directive took the devices off the NPU; the fault itself is not repaired",
    ),
    (
        "MACs",
        "multiplications with an addition, the measure of a model's work",
    ),
    (
        "belongs there",
        "a node that the CPU runs by design, such as the conversion of inputs and outputs (edge_quantization)",
    ),
    (
        "p10, median",
        "one in ten runs, or half of them, are at least as fast",
    ),
    (
        "CV",
        "coefficient of variation: the standard deviation of latencies over their mean; 0.05 is steady",
    ),
    (
        "dip",
        "how far latencies are from a single hump; a small chance means two groups of runs",
    ),
    (
        "chance",
        "how often a healthy cohort looks like this; a small one is what makes a verdict sure",
    ),
    (
        "placement_change",
        "more work on the CPU than before; slower_with_placement_change: on devices that are also slower",
    ),
    (
        "slower_than_1.6x",
        "devices that are slower than their own past by this ratio; median_ratio is of all devices",
    ),
    (
        "missing",
        "recorded on a device, and neither stored, dropped nor refused: lost, or on its way",
    ),
    (
        "conflict",
        "two different reports with one key; the first one counts",
    ),
];
