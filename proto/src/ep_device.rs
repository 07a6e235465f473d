//! The processor behind an EP: which kind it is, and ONNX Runtime's description of it.

use std::fmt;

use crate::{
    message::{Enum, Message, Name, Text, message},
    v1,
    wire_enum::wire_enum,
};

/// Longest EP name, op type or domain, in bytes.
pub const MAX_EP_NAME_BYTES: usize = 64;

/// Longest name of a vendor.
const MAX_VENDOR_BYTES: usize = 64;

/// Most devices of a session.
pub const MAX_EP_DEVICES: usize = 8;

wire_enum! {
    /// Kind of processor behind an EP.
    #[derive(Default)]
    #[expect(missing_docs, reason = "the names say it")]
    pub enum DeviceType: DeviceType {
        #[default]
        Unknown = Unknown "unknown",
        Npu = Npu "npu",
        Gpu = Gpu "gpu",
        Cpu = Cpu "cpu",
    }
}

impl DeviceType {
    /// Returns its name in texts and in the names of cohorts; `None` if it is unknown.
    pub fn label(self) -> Option<&'static str> {
        match self {
            Self::Unknown => None,
            Self::Npu => Some("NPU"),
            Self::Gpu => Some("GPU"),
            Self::Cpu => Some("CPU"),
        }
    }

    /// Returns the type that an app names, for example by OpenVINO's option `device_type`: `NPU`, `GPU.1`. Case does not
    /// matter. A choice among several devices (`AUTO:GPU,CPU`) is unknown. An empty text names none.
    pub fn of_text(text: &str) -> Option<Self> {
        let text = text.trim();
        let (name, ordinal) = text.split_once('.').unwrap_or((text, ""));
        let is_one = ordinal.chars().all(|c| c.is_ascii_digit());
        let named = Self::from_name(&name.to_ascii_lowercase()).filter(|_| is_one);
        (!text.is_empty()).then(|| named.unwrap_or_default())
    }
}

/// A device of an EP, as ONNX Runtime describes it (`OrtEpDevice`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct EpDevice {
    pub ep: String,
    pub device_type: DeviceType,
    pub vendor: String,
}

/// The text in the store and in `explain()`, for example `OpenVINOExecutionProvider on GPU (Intel)`.
impl fmt::Display for EpDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device_type.label().unwrap_or("an unknown device");
        write!(f, "{} on {device}", self.ep)?;
        match self.vendor.is_empty() {
            true => Ok(()),
            false => write!(f, " ({})", self.vendor),
        }
    }
}

impl EpDevice {
    /// Clips texts to the lengths of a report.
    #[must_use]
    pub fn normalised(mut self) -> Self {
        self.fit();
        self
    }
}

message! {
    mod ep_device_fields: EpDevice = v1::EpDevice {
        1 ep: Name<MAX_EP_NAME_BYTES>,
        2 device_type: Enum<DeviceType>,
        3 vendor: Text<MAX_VENDOR_BYTES>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_by_the_text_of_an_option() {
        let of = DeviceType::of_text;
        for (text, expected) in [
            ("NPU", DeviceType::Npu),
            (" gpu", DeviceType::Gpu),
            ("GPU.1", DeviceType::Gpu),
            ("CPU", DeviceType::Cpu),
            ("AUTO:GPU,CPU", DeviceType::Unknown),
            ("HETERO:NPU,CPU", DeviceType::Unknown),
            ("GPU.x", DeviceType::Unknown),
            ("TPU", DeviceType::Unknown),
        ] {
            assert_eq!(of(text), Some(expected), "{text}");
        }
        assert_eq!(of(""), None);
    }
}
