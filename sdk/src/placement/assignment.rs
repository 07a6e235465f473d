//! A session's nodes and EPs as ONNX Runtime lists them.

use epwatch_proto::EpDevice;

use crate::types::DeviceType;

/// ORT's assignment of nodes to EPs, in its order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assignment {
    /// One entry per partition; on the CPU EP, one per node.
    pub subgraphs: Vec<Subgraph>,
}

/// Nodes that one EP took together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subgraph {
    /// For example `QNNExecutionProvider`.
    pub ep: String,
    /// Nodes in ORT's order.
    pub nodes: Vec<AssignedNode>,
}

/// A node after ORT's first optimisations.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AssignedNode {
    /// May be empty.
    pub name: String,
    /// ONNX op type.
    pub op_type: String,
    /// Empty for ONNX's own domain.
    pub domain: String,
}

/// The device to which ONNX Runtime gives an input of a session (`OrtEpDevice`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignedDevice {
    /// The EP's name.
    pub ep: String,
    /// Kind of the processor.
    pub device_type: DeviceType,
    /// Vendor of the hardware; may be empty.
    pub vendor: String,
}

#[doc(hidden)]
impl From<AssignedDevice> for EpDevice {
    fn from(device: AssignedDevice) -> Self {
        Self {
            ep: device.ep,
            device_type: device.device_type.into(),
            vendor: device.vendor,
        }
    }
}
