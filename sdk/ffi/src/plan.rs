//! Plans: the changes that the operator's directives ask of the next session.

use std::{ffi::c_char, time::Duration};

use epwatch_sdk::{ModelInfo, SessionPlan};

use crate::{
    model::{EpwModel, EpwPlan, PLANS, model_info},
    status::{EpwStatus, Failure, guarded},
    text::{self, ResultPlace, copy_out},
    watch::EpwWatch,
};

/// Makes a plan for the next session of a model from the directives. Waits at most the given time until the directives
/// are read, which takes milliseconds at the start of a process. Close the plan after the session was observed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_plan(
    watch: EpwWatch,
    model: *const EpwModel,
    timeout_ms: u64,
    plan: *mut EpwPlan,
) -> EpwStatus {
    // SAFETY: the header's first comment states the caller's duties.
    guarded(|| unsafe {
        let plan = ResultPlace::of(plan)?;
        let model = model_info(&text::read(model)?)?;
        let id = self::plan(watch.id, &model, timeout_ms)?;
        Ok(plan.write(EpwPlan { id }))
    })
}

pub(crate) fn plan(watch: u64, model: &ModelInfo, timeout_ms: u64) -> Result<u64, Failure> {
    let plan = crate::watch::watch(watch)?.plan_within(model, Duration::from_millis(timeout_ms));
    PLANS.insert(plan)
}

/// Writes 1 if the session may use the NPU, 0 if it must be made for the CPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_plan_use_npu(plan: EpwPlan, use_npu: *mut i32) -> EpwStatus {
    guarded(|| {
        // SAFETY: the header's first comment states the caller's duties.
        let use_npu = unsafe { ResultPlace::of(use_npu)? };
        let answer = PLANS.with(plan.id, SessionPlan::use_npu)?;
        Ok(use_npu.write(i32::from(answer)))
    })
}

/// Copies the name of the model's variant that the app should load if it has it; empty for the usual one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_plan_variant(
    plan: EpwPlan,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> EpwStatus {
    guarded(|| {
        let variant = plan_variant(plan.id)?;
        // SAFETY: the header's first comment states the caller's duties.
        unsafe { copy_out(variant.as_bytes(), buffer, capacity, length) }
    })
}

pub(crate) fn plan_variant(plan: u64) -> Result<String, Failure> {
    PLANS.with(plan, |plan| {
        plan.preferred_variant().unwrap_or_default().to_owned()
    })
}

/// Closes a plan.
#[unsafe(no_mangle)]
pub extern "C" fn epw_plan_close(plan: EpwPlan) -> EpwStatus {
    guarded(|| PLANS.close(plan.id, |_| EpwStatus::Ok))
}
