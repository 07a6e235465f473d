//! ONNX Runtime sessions: the model, the request, and the placement.

use crate::{
    ep_device::{DeviceType, EpDevice, MAX_EP_DEVICES},
    ids::{MAX_DIRECTIVE_ID_BYTES, ModelHash, SessionUid},
    message::{
        CheckedMessage, Count, Enum, Fields, Inner, InnerOrDefault, Last, List, Maybe, MaybeBytes,
        Message, Name, Text, UnixMs, message, once,
    },
    placement::{EpNames, Placement},
    stratum::MAX_PERFORMANCE_MODE_BYTES,
    v1,
    wire::each_field,
    wire_enum::wire_enum,
};

pub(crate) const MAX_MODEL_ID_BYTES: usize = 128;
pub(crate) const MAX_MODEL_VERSION_BYTES: usize = 64;

/// A model file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct Model {
    pub id: String,
    pub version: String,
    pub sha256: Option<ModelHash>,
    pub source_sha256: Option<ModelHash>,
    pub ep_compatibility: String,
}

/// One ORT session. It spans reports and is repeated in each that refers to it.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct Session {
    pub uid: SessionUid,
    pub model: Model,
    pub requested_eps: Vec<String>,
    pub directive_id: String,
    pub options: SessionOptions,
    pub placement: Placement,
    pub creation_us: Option<u64>,
    pub created_at_unix_ms: i64,
    pub devices: Vec<EpDevice>,
}

/// Session options that change where or how fast a model runs; empty if they are not given.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct SessionOptions {
    pub performance_mode: String,
    pub soc_model: String,
    pub htp_arch: String,
    pub graph_optimization_level: String,
    pub selection_policy: Option<SelectionPolicy>,
    pub device_type: Option<DeviceType>,
}

/// Begins the name of a policy in a request.
const IN_REQUEST: &str = "policy:";

wire_enum! {
    /// The policy that an app gives ONNX Runtime for choosing devices (`OrtExecutionProviderDevicePolicy`).
    #[expect(missing_docs, reason = "the .proto documents the values")]
    pub enum SelectionPolicy: SelectionPolicy {
        Unknown = Unknown "unknown",
        Default = Default "default",
        PreferCpu = PreferCpu "prefer_cpu",
        PreferNpu = PreferNpu "prefer_npu",
        PreferGpu = PreferGpu "prefer_gpu",
        MaxPerformance = MaxPerformance "max_performance",
        MaxEfficiency = MaxEfficiency "max_efficiency",
        MinOverallPower = MinOverallPower "min_overall_power",
    }
}

impl SelectionPolicy {
    /// Returns the policy that a binding of ONNX Runtime names, for example `PREFER_NPU` or
    /// `OrtExecutionProviderDevicePolicy.PREFER_NPU`. Case does not matter. An empty text names none.
    pub fn of_text(text: &str) -> Option<Self> {
        let name = text.rsplit(['.', ':']).next()?.trim().to_ascii_lowercase();
        let prefix = "ortexecutionproviderdevicepolicy_";
        let name = name.strip_prefix(prefix).unwrap_or(&name);
        (!name.is_empty()).then(|| Self::from_name(name).unwrap_or(Self::Unknown))
    }

    /// Returns the name that stands for the EPs in the request of a session without named EPs. No accelerator has it.
    pub fn in_request(self) -> String {
        format!("{IN_REQUEST}{self}")
    }

    /// Returns the policy that this name of [`Self::in_request`] stands for.
    pub fn of_request(ep: &str) -> Option<Self> {
        Self::from_name(ep.strip_prefix(IN_REQUEST)?)
    }

    /// Returns the type of device that ONNX Runtime looks for first (`SelectEpDevices` in its provider_policy_context.cc).
    /// If there is none, it chooses the CPU. `Unknown` if the policy is not known.
    pub fn prefers(self) -> DeviceType {
        match self {
            Self::PreferNpu | Self::MaxEfficiency | Self::MinOverallPower => DeviceType::Npu,
            Self::PreferGpu | Self::MaxPerformance => DeviceType::Gpu,
            Self::Default | Self::PreferCpu => DeviceType::Cpu,
            Self::Unknown => DeviceType::Unknown,
        }
    }
}

/// Returns what a session asked for: its EPs, or its policy in capitals, as ONNX Runtime names it. A policy comes with the
/// EPs for which the session counts, if there are any. `None` without either.
pub fn asked_for(eps: &[String], policy: Option<SelectionPolicy>) -> Option<String> {
    let mut in_request = eps.iter().filter_map(|ep| SelectionPolicy::of_request(ep));
    let policy = policy.or_else(|| in_request.next());
    let eps = eps.iter().map(String::as_str);
    let eps = eps.filter(|ep| SelectionPolicy::of_request(ep).is_none());
    let eps = eps.collect::<Vec<_>>().join(", ");
    let policy = policy.map(|policy| policy.as_str().to_ascii_uppercase());
    match policy {
        None => (!eps.is_empty()).then_some(eps),
        Some(policy) if eps.is_empty() => Some(policy),
        Some(policy) => Some(format!("{policy} ({eps})")),
    }
}

impl SessionOptions {
    /// Clips texts to the lengths of a report.
    pub fn normalised(mut self) -> Self {
        self.fit();
        self
    }
}

message! {
    mod model_fields: Model = v1::Model {
        1 id: Name<MAX_MODEL_ID_BYTES>,
        2 version: Name<MAX_MODEL_VERSION_BYTES>,
        3 sha256: MaybeBytes<ModelHash, 32>,
        4 source_sha256: MaybeBytes<ModelHash, 32>,
        5 ep_compatibility: Text<512>,
    }
}

message! {
    mod options_fields: SessionOptions = v1::SessionOptions {
        1 performance_mode: Text<MAX_PERFORMANCE_MODE_BYTES>,
        2 soc_model: Text<32>,
        3 htp_arch: Text<16>,
        4 graph_optimization_level: Text<16>,
        5 selection_policy: Maybe<Enum<SelectionPolicy>>,
        6 device_type: Maybe<Enum<DeviceType>>,
    }
}

message! {
    mod session_fields: Session = v1::Session {
        1 uid: SessionUid,
        2 model: Inner<Model>,
        3 requested_eps: EpNames,
        4 directive_id: Text<MAX_DIRECTIVE_ID_BYTES>,
        5 options: InnerOrDefault<SessionOptions>,
        6 placement: Inner<Placement>,
        7 creation_us: Maybe<Count>,
        8 created_at_unix_ms: UnixMs,
        9 devices: List<EpDevice, MAX_EP_DEVICES>,
    }
    checked by hand;
}

impl CheckedMessage for Session {
    /// The uid, for the check of references.
    type Kept<'a> = u64;

    #[inline]
    fn check(bytes: &[u8]) -> Option<u64> {
        LastSession::default().check(bytes)
    }
}

/// Valid parts of a session. The session at the same position of the next report is compared with them first.
#[derive(Debug, Default)]
pub(crate) struct LastSession<'a> {
    model: Last<'a, Model>,
    options: Last<'a, SessionOptions>,
    placement: Last<'a, Placement>,
}

impl<'a> LastSession<'a> {
    /// Returns the uid of a session that is surely valid.
    #[inline]
    pub(crate) fn check(&mut self, bytes: &'a [u8]) -> Option<u64> {
        let mut fields = session_fields::Seen::default();
        each_field(bytes, |number, value| match number {
            session_fields::field::model => {
                once(&mut fields.model, self.model.check(value.bytes()?))
            }
            session_fields::field::options => {
                once(&mut fields.options, self.options.check(value.bytes()?))
            }
            session_fields::field::placement => {
                once(&mut fields.placement, self.placement.check(value.bytes()?))
            }
            _ => fields.see(number, value),
        })?;
        fields.is_whole().then_some(fields.uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Accelerator;

    #[test]
    fn a_request_is_named_by_its_policy_before_its_eps() {
        let npu = Some(SelectionPolicy::PreferNpu);
        for (eps, policy, expected) in [
            (&[][..], None, None),
            (&["QNN", "XNNPACK"][..], None, Some("QNN, XNNPACK")),
            (&["QNN"][..], npu, Some("PREFER_NPU (QNN)")),
            (&["policy:prefer_npu"][..], npu, Some("PREFER_NPU")),
            (&["policy:prefer_npu"][..], None, Some("PREFER_NPU")),
            (&[][..], npu, Some("PREFER_NPU")),
        ] {
            let eps: Vec<String> = eps.iter().map(|ep| (*ep).to_owned()).collect();
            assert_eq!(asked_for(&eps, policy).as_deref(), expected);
        }
    }

    #[test]
    fn a_policy_is_known_by_the_name_of_each_binding() {
        use SelectionPolicy as P;
        let of = P::of_text;
        for text in [
            "PREFER_NPU",
            " prefer_npu",
            "OrtExecutionProviderDevicePolicy.PREFER_NPU",
            "OrtExecutionProviderDevicePolicy_PREFER_NPU",
            "OrtExecutionProviderDevicePolicy::OrtExecutionProviderDevicePolicy_PREFER_NPU",
        ] {
            assert_eq!(of(text), Some(P::PreferNpu), "{text}");
        }
        assert_eq!(of("my delegate"), Some(P::Unknown));
        assert_eq!(of(""), None);
        let name = P::PreferNpu.in_request();
        assert_eq!(P::of_request(&name), Some(P::PreferNpu));
        assert_eq!(P::of_request("prefer_npu"), None);
        assert_eq!(Accelerator::of_ep(&name), Accelerator::Unknown);
        let gpu = [P::PreferGpu, P::MaxPerformance];
        assert_eq!(gpu.map(P::prefers), [DeviceType::Gpu; 2]);
        let npu = [P::PreferNpu, P::MaxEfficiency, P::MinOverallPower];
        assert_eq!(npu.map(P::prefers), [DeviceType::Npu; 3]);
    }
}
