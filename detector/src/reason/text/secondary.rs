//! Sentences about failed starts, outputs and the coefficient of variation.

use std::fmt;

use crate::reason::percent;

/// Codes that a sentence names; the rest is counted.
const MAX_CODES: usize = 3;

pub(super) fn npu_start(
    f: &mut fmt::Formatter<'_>,
    (hits, devices, failed): (u64, u64, u64),
    codes: &[(String, u64)],
    is_unheard_of: bool,
) -> fmt::Result {
    write!(f, "the NPU does not start on {hits} of {devices} devices")?;
    if failed >= hits {
        f.write_str(", where no session on it could be made")?;
    } else if failed > 0 {
        write!(f, ", on {failed} of them no session on it could be made")?;
    }
    for (at, (code, devices)) in codes.iter().take(MAX_CODES).enumerate() {
        let before = if at == 0 { ": " } else { ", " };
        write!(f, "{before}{code} on {devices}")?;
    }
    let more = codes.len().saturating_sub(MAX_CODES);
    if more > 0 {
        write!(f, " and {more} more codes")?;
    }
    if is_unheard_of {
        f.write_str("; nothing shows that it ever starts on this chipset, which may have none")?;
    }
    Ok(())
}

pub(super) fn wrong_outputs(
    f: &mut fmt::Formatter<'_>,
    (hits, devices): (u64, u64),
    (max_abs, tolerance): (f64, f64),
    cosine: Option<f64>,
    top1_share: Option<f64>,
) -> fmt::Result {
    write!(
        f,
        "on {hits} of {devices} tested devices the NPU's output is off by more than accepted: at the \
         median the largest difference from the same device's CPU is {}, accepted is {}",
        difference(max_abs),
        difference(tolerance)
    )?;
    if let Some(cosine) = cosine {
        write!(f, "; cosine of the two outputs {cosine:.4}")?;
    }
    if let Some(share) = top1_share {
        let share = percent(share);
        write!(f, "; the largest element is the same on {share} of them")?;
    }
    Ok(())
}

/// A difference of outputs, in the model's own unit: three digits.
fn difference(value: f64) -> String {
    if value == 0.0 || (0.001..1_000.0).contains(&value.abs()) {
        format!("{value:.3}")
    } else {
        format!("{value:.2e}")
    }
}

pub(super) fn different_outputs(
    f: &mut fmt::Formatter<'_>,
    (hits, devices, outputs): (u64, u64, u64),
    firmware: Option<&str>,
) -> fmt::Result {
    write!(
        f,
        "the same input gives {outputs} different outputs on {devices} tested devices, and {hits} of \
         them leave the commonest one: the model does not behave the same on every phone"
    )?;
    match firmware {
        Some(firmware) => write!(
            f,
            "; all of those have firmware {firmware}, the others do not"
        ),
        None => Ok(()),
    }
}

pub(super) fn varies(
    f: &mut fmt::Formatter<'_>,
    (hits, devices): (u64, u64),
    cvs: Option<(f64, f64)>,
) -> fmt::Result {
    write!(
        f,
        "on {hits} of {devices} devices latency varies at least twice as much as it did there before"
    )?;
    match cvs {
        Some((now, before)) => write!(
            f,
            ": median coefficient of variation {} instead of {}",
            percent(now),
            percent(before)
        ),
        None => Ok(()),
    }
}

pub(super) fn cv_rule(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    cv: f64,
    limit: Option<f64>,
    baseline: Option<f64>,
) -> fmt::Result {
    let cv = percent(cv);
    write!(f, "your rule {name}: coefficient of variation {cv}")?;
    if let Some(limit) = limit {
        write!(f, ", above {}", percent(limit))?;
    }
    if let Some(baseline) = baseline {
        write!(f, ", {} in earlier windows", percent(baseline))?;
    }
    f.write_str("; such rules fire on healthy devices too")
}
