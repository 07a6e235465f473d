//! Entry points for the fuzz targets and a test of this crate, for files from strangers. A finding is a panic or too
//! much memory.

use crate::{
    dsse::Envelope,
    evidence::Statement,
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
    // The same launch on both sides would be refused.
    let arm = |sha256: &str, later: u64| -> Vec<MeasuredFile> {
        let file = GatedFile {
            path: "a".to_owned(),
            sha256: sha256.to_owned(),
        };
        let each = runs.iter().take(100).map(|run| {
            let mut run = run.clone();
            for us in &mut run.runs_us {
                *us = us.saturating_add(later);
            }
            run.target.model_sha256 = None;
            run.started_unix_ms = run
                .started_unix_ms
                .map(|ms| ms.wrapping_add_unsigned(later));
            MeasuredFile {
                file: file.clone(),
                run,
            }
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
            is_on_cpu: false,
            policy: &policy,
            model: None,
            before: None,
            macs,
            chipset: None,
        };
        if let Ok(found) = judged(arm("a", 0), arm("b", 1), by) {
            let verdict = Verdict::new("0", None, found.not_checked, found.targets);
            report::table::table(&verdict, Some(80));
            report::markdown::markdown(&verdict);
            report::junit::junit(&verdict);
            report::sarif::sarif(&verdict);
        }
    }
}

/// Opens evidence, whoever signed it, and reads its claims.
pub fn evidence(bytes: &[u8]) {
    if let Ok(envelope) = serde_json::from_slice::<Envelope>(bytes)
        && let Some(statement) = envelope.opened(|_, _| true)
        && let Ok(statement) = serde_json::from_slice::<Statement>(&statement)
        && let Ok(claims) = statement.claims()
    {
        assert!(!claims.predicate_type.is_empty());
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
        if let Ok(own) = policy.for_model("models/detect.onnx") {
            own.placement_on("SM8650");
        }
    }
}

#[cfg(test)]
#[path = "../../../tests/fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_of_a_stranger_breaks_the_gate() {
        seeds::check("gate_read", 400, read);
        seeds::check("gate_evidence", 400, evidence);
        seeds::check("gate_policy", 400, policy);
    }
}
