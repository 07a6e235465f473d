//! Makes the reasons of a verdict from the results of the signals.

use crate::judge::signals::{
    CertificateDrift, CompiledForAnother, Control, CrossChipset, CvIncrease, OutputMinority,
    OutputsBeyond, PlacementChange, Shift, SlowerAndMoved, SlowerGroup, StartFailures,
    UncertifiedRuntime, UnseenHeat,
};

use epwatch_model::Reason;

pub(crate) fn placement(change: &PlacementChange) -> Reason {
    Reason::Placement {
        hits: change.signal.hits,
        devices: change.n_compared(),
        npu_share: change.hit_npu_share,
        reference_npu_share: change.reference_npu_share,
        unit: change.unit,
        origin: change.origin,
        p: change.signal.p,
    }
}

pub(crate) fn alternating(change: &PlacementChange) -> Option<Reason> {
    change.alternates().then_some(Reason::Alternating {
        devices: change.alternating,
        hits: change.signal.hits,
    })
}

pub(crate) fn on_runtime(change: &PlacementChange) -> Reason {
    Reason::OnRuntime {
        runtimes: change.new_runtimes.clone(),
    }
}

pub(crate) fn slower(change: &PlacementChange, joined: &SlowerAndMoved) -> Reason {
    Reason::Slower {
        slower: joined.signal.hits,
        hits: change.signal.hits,
        compared: joined.signal.devices,
        p50_us: joined.hit_p50_us,
        reference_p50_us: joined.reference_p50_us,
        reference: joined.reference,
    }
}

pub(crate) fn not_slower(joined: &SlowerAndMoved) -> Reason {
    Reason::NotSlower {
        slower: joined.signal.hits,
        compared: joined.signal.devices,
    }
}

pub(crate) fn certificate(drift: &CertificateDrift) -> Reason {
    let change = &drift.change;
    Reason::Certificate {
        certified_by: drift.certified_by.clone(),
        firmware: drift.firmware.clone(),
        hits: change.signal.hits,
        devices: change.n_compared(),
        npu_share: change.hit_npu_share,
        certified_npu_share: change.reference_npu_share,
        unit: change.unit,
        p: change.signal.p,
    }
}

pub(crate) fn uncertified(found: &UncertifiedRuntime) -> Reason {
    Reason::UncertifiedRuntime {
        certified_by: found.certified_by.clone(),
        certified: found.certified.clone(),
        runtimes: found.runtimes.clone(),
        devices: found.devices,
    }
}

pub(crate) fn shift(shift: &Shift) -> Reason {
    Reason::Shift {
        hits: shift.signal.hits,
        devices: shift.signal.devices,
        beyond: shift.signal.threshold,
        p: shift.signal.p,
    }
}

pub(crate) fn control(control: Control) -> Option<Reason> {
    let slowed = control.vetoes();
    match control {
        Control::Absent => None,
        Control::PreviousSteady(share) | Control::PreviousSlowed(share) => {
            Some(Reason::PreviousVersionControl { share, slowed })
        }
        Control::PeersSteady(share) | Control::PeersSlowed(share) => {
            Some(Reason::PeerControl { share, slowed })
        }
        Control::CohortSlowed(share) => Some(Reason::CohortControl { share }),
        Control::CohortUnsure(share) => Some(Reason::CohortUnsure { share }),
        Control::UnseenHeat(UnseenHeat { of_hit, of_all }) => {
            Some(Reason::UnseenHeat { of_hit, of_all })
        }
    }
}

pub(crate) fn slower_make(found: &SlowerGroup) -> Reason {
    Reason::SlowerMake {
        device_models: found.device_models.clone(),
        firmware: found.firmware.clone(),
        hits: found.own.hits,
        devices: found.own.devices,
        others: found.others,
        ratio: found.ratio,
        p: found.p,
    }
}

pub(crate) fn compiled_for_another(found: &CompiledForAnother) -> Reason {
    Reason::CompiledForAnother {
        hits: found.tally.hits,
        devices: found.tally.devices,
        p: found.p,
    }
}

pub(crate) fn everywhere(others: CrossChipset, new_runtimes: Vec<String>) -> Reason {
    Reason::Everywhere {
        chipsets: others.chipsets,
        share: others.share,
        ratio: others.ratio,
        new_runtimes,
    }
}

pub(crate) fn spared(others: CrossChipset) -> Reason {
    Reason::Spared {
        chipsets: others.chipsets,
        share: others.share,
    }
}

pub(crate) fn backend(change: &PlacementChange) -> Option<Reason> {
    let (code, devices) = change.backend_code()?;
    let code = code.as_str().to_owned();
    Some(Reason::Backend { code, devices })
}

pub(crate) fn starts(starts: &StartFailures) -> Reason {
    Reason::NpuStart {
        hits: starts.signal.hits,
        devices: starts.n_counted,
        failed: starts.failed_devices,
        codes: starts.codes.clone(),
        is_unheard_of: starts.is_unheard_of,
        p: starts.signal.p,
    }
}

pub(crate) fn wrong_outputs(beyond: &OutputsBeyond) -> Reason {
    Reason::WrongOutputs {
        hits: beyond.signal.hits,
        devices: beyond.signal.devices,
        max_abs: beyond.max_abs,
        tolerance: beyond.tolerance,
        cosine: beyond.cosine,
        top1_share: beyond.top1_share,
        p: beyond.signal.p,
    }
}

pub(crate) fn different_outputs(minority: &OutputMinority) -> Reason {
    Reason::DifferentOutputs {
        hits: minority.signal.hits,
        devices: minority.signal.devices,
        outputs: minority.outputs,
        firmware: minority.firmware.clone(),
        is_rounding: minority.is_rounding,
        p: minority.signal.p,
    }
}

pub(crate) fn varies(spread: &CvIncrease) -> Reason {
    Reason::Varies {
        hits: spread.signal.hits,
        devices: spread.signal.devices,
        cv: spread.cv,
        earlier_cv: spread.earlier_cv,
        p: spread.signal.p,
    }
}
