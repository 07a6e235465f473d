//! Reasons for nodes, sessions and runs that the NPU did not get.

use std::fmt;

use epwatch_proto as proto;

/// Why the NPU was not used, as one code of the list in `docs/reasons.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReasonCode(proto::ReasonCode);

impl ReasonCode {
    /// No reason is known.
    pub const UNKNOWN: Self = Self(proto::ReasonCode::Unknown);
    /// The plugin of the EP is registered, and has no device.
    pub const NO_EP_DEVICE: Self = Self(proto::ReasonCode::NoEpDevice);
    /// The session cannot use the EP: it is not built in, and no plugin has it.
    pub const EP_NOT_AVAILABLE: Self = Self(proto::ReasonCode::EpNotAvailable);

    /// The code of that name, for example `no_ep_device`.
    pub fn from_name(name: &str) -> Option<Self> {
        proto::ReasonCode::from_name(name).map(Self)
    }

    /// The name in SQL, metrics and JSON.
    pub fn as_str(self) -> &'static str {
        self.0.as_str()
    }

    /// Returns one sentence on the cause.
    pub fn meaning(self) -> &'static str {
        self.0.meaning()
    }

    /// Returns one sentence on the fix.
    pub fn fix(self) -> &'static str {
        self.0.fix()
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[doc(hidden)]
impl From<proto::ReasonCode> for ReasonCode {
    fn from(code: proto::ReasonCode) -> Self {
        Self(code)
    }
}

#[doc(hidden)]
impl From<ReasonCode> for proto::ReasonCode {
    fn from(code: ReasonCode) -> Self {
        code.0
    }
}
