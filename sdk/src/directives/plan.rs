//! The requests of directives for a session, and the directives that were followed.

use epwatch_proto::{Accelerator, Placement, ReasonCode, SelectionPolicy};

use crate::placement;

/// Requests of the operator's directives for the next session of a model.
///
/// Get it from [`Watch::plan`](crate::Watch::plan) before making the builder, and pass it to
/// [`SessionRequest::with_plan`](crate::SessionRequest::with_plan). The SDK changes no builder: if the host does not
/// follow the plan, the session is reported as it really ran.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionPlan {
    pub(crate) npu_off: Option<String>,
    pub(crate) variant: Option<PlannedVariant>,
    pub(crate) is_known: bool,
}

/// A preferred variant and its directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedVariant {
    pub(crate) directive_id: String,
    pub(crate) variant: String,
}

impl SessionPlan {
    /// Whether the session may use the NPU. If not, make it for the CPU only: with `Plugin::session_builder_for` of
    /// feature `qnn`, or without the EP.
    pub fn use_npu(&self) -> bool {
        self.npu_off.is_none()
    }

    /// Returns the variant of the model to load if the app has it, for example `int8-safe`. Report the loaded variant
    /// with [`SessionRequest::with_variant`](crate::SessionRequest::with_variant).
    pub fn preferred_variant(&self) -> Option<&str> {
        self.variant.as_ref().map(|v| v.variant.as_str())
    }

    /// Returns the directive behind the plan (NPU off before variant); `None` if no directive applies.
    pub fn directive_id(&self) -> Option<&str> {
        let variant = self.variant.as_ref().map(|v| v.directive_id.as_str());
        self.npu_off.as_deref().or(variant)
    }

    /// Whether the stored directives have been read. `false` in the first milliseconds of a process, when the plan
    /// changes nothing; [`Watch::plan_within`](crate::Watch::plan_within) waits until it is `true`.
    pub fn is_known(&self) -> bool {
        self.is_known
    }
}

/// A request after the plan is applied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct EffectiveRequest {
    /// EPs in effect.
    pub(crate) requested_eps: Vec<String>,
    npu_off: Option<String>,
    variant: Option<String>,
}

/// Whether a directive that forbids the NPU forbids this EP. GPUs and other accelerators are forbidden with it; kernels
/// for the CPU stay allowed. A policy in a request looks for another device than the CPU.
fn is_off_cpu(ep: &str) -> bool {
    Accelerator::of_ep(ep).is_off_cpu() || SelectionPolicy::of_request(ep).is_some()
}

impl EffectiveRequest {
    pub(crate) fn of(plan: &SessionPlan, requested_eps: &[String], loaded: Option<&str>) -> Self {
        let is_asked = requested_eps.iter().any(|ep| is_off_cpu(ep));
        // Forbidding the NPU does not change a session that does not ask for it.
        let npu_off = plan.npu_off.clone().filter(|_| is_asked);
        let mut in_effect = requested_eps.to_vec();
        if npu_off.is_some() {
            in_effect.retain(|ep| !is_off_cpu(ep));
        }
        let planned = plan.variant.as_ref();
        let followed = planned.filter(|v| Some(v.variant.as_str()) == loaded);
        Self {
            requested_eps: in_effect,
            npu_off,
            variant: followed.map(|v| v.directive_id.clone()),
        }
    }

    /// Corrects a request whose builder used the NPU in spite of the plan.
    pub(crate) fn corrected_by(
        mut self,
        requested_eps: &[String],
        placement: &mut Placement,
    ) -> Self {
        let on_npu = placement.eps.iter().any(|e| is_off_cpu(&e.ep));
        if self.npu_off.is_some() && on_npu {
            self.npu_off = None;
            let with_nodes = placement.eps.iter().map(|share| &share.ep);
            self.requested_eps = placement::chosen(requested_eps, with_nodes).into_owned();
            placement.requested_eps.clone_from(&self.requested_eps);
            placement
                .reasons
                .retain(|reason| *reason != ReasonCode::NpuOffByDirective);
        }
        self
    }

    pub(crate) fn is_npu_off(&self) -> bool {
        self.npu_off.is_some()
    }

    /// The directive that changed the request, or empty.
    pub(crate) fn directive_id(&self) -> String {
        self.directive_ids().next().unwrap_or_default().to_owned()
    }

    /// All directives that were followed.
    pub(crate) fn directive_ids(&self) -> impl Iterator<Item = &str> {
        [&self.npu_off, &self.variant]
            .into_iter()
            .flatten()
            .map(String::as_str)
    }
}
