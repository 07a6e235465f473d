//! What the fuzz targets and a test of this crate run over files of strangers. Finds are panics and memory.

use crate::{
    launches::{JudgedBy, MeasuredFile, judged},
    macs::ModelMacs,
    policy::Policy,
    read::{ReadOptions, read as read_file},
    report,
    verdict::{GatedFile, Verdict},
};

/// Reads a file of any kind, judges it against itself, and writes each report.
pub fn read(bytes: &[u8]) {
    let options = ReadOptions {
        hdr_unit: "us".parse().ok(),
    };
    let Ok(runs) = read_file(bytes, options) else {
        return;
    };
    let arm = |sha256: &str| -> Vec<MeasuredFile> {
        let file = GatedFile {
            path: "a".to_owned(),
            sha256: sha256.to_owned(),
        };
        let each = runs.iter().take(100).map(|run| MeasuredFile {
            file: file.clone(),
            run: run.clone(),
        });
        each.collect()
    };
    let policy = Policy::parse("[latency]\nmedian_ms = 10\ncv_max = 0.08\ndeadline_ms = 33")
        .unwrap_or_default();
    let macs = ModelMacs {
        total: 1_000,
        by_name: [("a".to_owned(), 10)].into(),
        ..ModelMacs::default()
    };
    for macs in [None, Some(&macs)] {
        let by = JudgedBy {
            policy: &policy,
            model: None,
            macs,
            chipset: None,
            is_npu_ep: |ep| ep == "QNNExecutionProvider",
        };
        if let Ok(found) = judged(arm("a"), arm("b"), by) {
            let verdict = Verdict::new("0", None, found.not_checked, found.targets);
            report::table::table(&verdict);
            report::markdown::markdown(&verdict);
            report::junit::junit(&verdict);
            report::sarif::sarif(&verdict);
        }
    }
}

/// Reads a policy.
pub fn policy(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(policy) = Policy::parse(text)
    {
        let chipsets: Vec<&str> = policy.chipsets().collect();
        for chipset in chipsets {
            policy.placement_on(chipset);
        }
    }
}
