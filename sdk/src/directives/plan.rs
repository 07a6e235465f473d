//! What directives say about a session that is about to be made.

use epwatch_proto::{Placement, ReasonCode, placement::is_npu_ep};

/// How the operator wants the next session of a model to be made. Asked for with
/// [`Watch::plan`](crate::Watch::plan) before the host makes its builder, and handed to
/// [`SessionRequest::with_plan`](crate::SessionRequest::with_plan) with it.
///
/// It is a wish: the SDK changes no builder. A host that does not follow it is reported as it
/// really ran.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionPlan {
    pub(crate) npu_off: Option<String>,
    pub(crate) variant: Option<PlannedVariant>,
    pub(crate) is_known: bool,
}

/// A variant to prefer, and the directive that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedVariant {
    pub(crate) directive_id: String,
    pub(crate) variant: String,
}

impl SessionPlan {
    /// Whether the session may ask for the NPU. `false`: make it for the CPU alone, with
    /// `Plugin::session_builder_for` of feature `qnn` or by leaving the EP out.
    pub fn use_npu(&self) -> bool {
        self.npu_off.is_none()
    }

    /// The variant of the model to load if the app has it, for example `int8-safe`. Say with
    /// [`SessionRequest::with_variant`](crate::SessionRequest::with_variant) that it was loaded.
    pub fn preferred_variant(&self) -> Option<&str> {
        self.variant.as_ref().map(|v| v.variant.as_str())
    }

    /// The directive that the plan follows, NPU off before variant; `None`: there is none, do as
    /// always.
    pub fn directive_id(&self) -> Option<&str> {
        let variant = self.variant.as_ref().map(|v| v.directive_id.as_str());
        self.npu_off.as_deref().or(variant)
    }

    /// Whether the SDK has read what it holds. `false` in the first milliseconds of a process,
    /// when the plan is to do as always; [`Watch::plan_within`](crate::Watch::plan_within) waits.
    pub fn is_known(&self) -> bool {
        self.is_known
    }
}

/// What a plan means for what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct InEffect {
    /// EPs asked for in effect.
    pub(crate) requested_eps: Vec<String>,
    npu_off: Option<String>,
    variant: Option<String>,
}

impl InEffect {
    pub(crate) fn of(plan: &SessionPlan, requested_eps: &[String], loaded: Option<&str>) -> Self {
        let is_asked = requested_eps.iter().any(|ep| is_npu_ep(ep));
        // An app that does not want the NPU is not changed by one that forbids it.
        let npu_off = plan.npu_off.clone().filter(|_| is_asked);
        let mut in_effect = requested_eps.to_vec();
        if npu_off.is_some() {
            in_effect.retain(|ep| !is_npu_ep(ep));
        }
        let planned = plan.variant.as_ref();
        let followed = planned.filter(|v| Some(v.variant.as_str()) == loaded);
        Self {
            requested_eps: in_effect,
            npu_off,
            variant: followed.map(|v| v.directive_id.clone()),
        }
    }

    /// The host's builder asked for the NPU all the same: then nothing kept it from it.
    pub(crate) fn corrected_by(
        mut self,
        requested_eps: &[String],
        placement: &mut Placement,
    ) -> Self {
        let on_npu = placement.eps.iter().any(|e| is_npu_ep(&e.ep));
        if self.npu_off.is_some() && on_npu {
            self.npu_off = None;
            self.requested_eps = requested_eps.to_vec();
            placement.requested_eps = requested_eps.to_vec();
            placement
                .reasons
                .retain(|reason| *reason != ReasonCode::NpuOffByDirective);
        }
        self
    }

    pub(crate) fn is_npu_off(&self) -> bool {
        self.npu_off.is_some()
    }

    /// The directive that changed the request; empty: none.
    pub(crate) fn directive_id(&self) -> String {
        self.directive_ids().next().unwrap_or_default().to_owned()
    }

    /// Every directive that was followed.
    pub(crate) fn directive_ids(&self) -> impl Iterator<Item = &str> {
        [&self.npu_off, &self.variant]
            .into_iter()
            .flatten()
            .map(String::as_str)
    }
}
