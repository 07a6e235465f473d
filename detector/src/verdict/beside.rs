//! Findings beside placement and latency: the NPU does not start, its outputs are wrong or differ,
//! runs vary more than they did.

use crate::reason::Reason;
use crate::signals::{Control, Evidence};

use super::judge::{Finding, MIN_PAGE_SHARE};
use super::{Severity, VerdictClass};

/// Too few of the devices wake nobody, and must not hide what would.
fn severity(is_page: bool, share: f64) -> Severity {
    if is_page && share >= MIN_PAGE_SHARE {
        Severity::Page
    } else {
        Severity::Ticket
    }
}

/// S: the NPU does not start.
pub(super) fn start_failure(evidence: &Evidence) -> Option<Finding> {
    let starts = evidence.starts.as_ref()?;
    let signal = &starts.signal;
    signal.fires.then(|| Finding {
        class: VerdictClass::NpuStartFailure,
        severity: severity(starts.is_page, signal.value),
        reasons: vec![Reason::starts(starts)],
        hits: signal.hits,
        eligible: signal.devices,
        p: signal.p,
    })
}

/// O: outputs beyond what the model's owner accepts.
pub(super) fn wrong_outputs(evidence: &Evidence) -> Option<Finding> {
    let beyond = evidence.outputs.as_ref()?.beyond.as_ref()?;
    let signal = &beyond.signal;
    signal.fires.then(|| Finding {
        class: VerdictClass::WrongOutputs,
        severity: severity(beyond.is_page, signal.value),
        reasons: vec![Reason::wrong_outputs(beyond)],
        hits: signal.hits,
        eligible: signal.devices,
        p: signal.p,
    })
}

/// OH: outputs that differ between devices, but not beyond that.
pub(super) fn different_outputs(evidence: &Evidence) -> Option<Finding> {
    let minority = evidence.outputs.as_ref()?.minority.as_ref()?;
    let signal = &minority.signal;
    signal.fires.then(|| Finding {
        class: VerdictClass::WrongOutputs,
        severity: Severity::Ticket,
        reasons: vec![Reason::different_outputs(minority)],
        hits: signal.hits,
        eligible: signal.devices,
        p: signal.p,
    })
}

/// CV: runs vary more than they did. Never a page: in healthy fleets contention and governors do the
/// same, and what is worth waking for fires C or M as well.
pub(super) fn cv_spike(evidence: &Evidence) -> Option<Finding> {
    let spread = evidence.spread.as_ref()?;
    let signal = &spread.signal;
    if !signal.fires {
        return None;
    }
    let mut reasons = vec![Reason::varies(spread)];
    let (class, severity) = match spread.control {
        Control::PreviousSlowed(share) => {
            reasons.insert(0, Reason::PreviousVaries { share });
            (VerdictClass::ThermalOrLoad, Severity::Info)
        }
        _ => (VerdictClass::CvSpike, Severity::Ticket),
    };
    Some(Finding {
        class,
        severity,
        reasons,
        hits: signal.hits,
        eligible: signal.devices,
        p: signal.p,
    })
}

/// Names what else was found, where another finding leads.
pub(super) fn mention(found: &mut Finding, evidence: &Evidence) {
    if found.severity < Severity::Ticket {
        return;
    }
    let starts = evidence.starts.as_ref().filter(|s| s.signal.fires);
    if let Some(starts) = starts.filter(|_| found.class != VerdictClass::NpuStartFailure) {
        found.reasons.push(Reason::starts(starts));
    }
    let beyond = evidence.outputs.as_ref().and_then(|o| o.beyond.as_ref());
    let beyond = beyond.filter(|beyond| beyond.signal.fires);
    if let Some(beyond) = beyond.filter(|_| found.class != VerdictClass::WrongOutputs) {
        found.reasons.push(Reason::wrong_outputs(beyond));
    }
}
