//! The message `ModelManifest`, decoded by hand to bound memory. A node takes two bytes on the wire and fifty-six in
//! memory, so a manifest of empty nodes would take twenty-eight times its size. Nodes beyond the contract's bound are
//! skipped, except for one, which makes the parser refuse the manifest.

use bytes::{Buf, BufMut};
use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, message, skip_field, uint32, uint64};

use crate::v1;

/// Maximum number of nodes with MACs.
pub const MAX_MANIFEST_NODES: usize = 100_000;

/// MACs per node of one model file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BoundedManifest {
    /// Version of the counting rules.
    pub algorithm: u32,
    /// Sum over all nodes, named or not.
    pub total_macs: u64,
    /// Nodes with MACs. If there are more than [`MAX_MANIFEST_NODES`], decoding keeps one more than that.
    pub nodes: Vec<v1::NodeMacs>,
}

impl prost::Message for BoundedManifest {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        if self.algorithm != 0 {
            uint32::encode(1, &self.algorithm, buf);
        }
        if self.total_macs != 0 {
            uint64::encode(2, &self.total_macs, buf);
        }
        message::encode_repeated(3, &self.nodes, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            1 => uint32::merge(wire_type, &mut self.algorithm, buf, ctx),
            2 => uint64::merge(wire_type, &mut self.total_macs, buf, ctx),
            3 if self.nodes.len() <= MAX_MANIFEST_NODES => {
                message::merge_repeated(wire_type, &mut self.nodes, buf, ctx)
            }
            _ => skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        let algorithm = match self.algorithm {
            0 => 0,
            _ => uint32::encoded_len(1, &self.algorithm),
        };
        let total_macs = match self.total_macs {
            0 => 0,
            _ => uint64::encoded_len(2, &self.total_macs),
        };
        algorithm + total_macs + message::encoded_len_repeated(3, &self.nodes)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::ModelManifest as Parsed;

    #[test]
    fn nodes_beyond_the_bound_take_no_memory_and_are_refused() {
        let sound = BoundedManifest {
            algorithm: 1,
            total_macs: 7,
            nodes: vec![v1::NodeMacs::default()],
        };
        let mut bytes = sound.encode_to_vec();
        assert_eq!(bytes.len(), sound.encoded_len());
        assert_eq!(BoundedManifest::decode(&bytes[..]), Ok(sound));
        bytes.extend([3_u8 << 3 | 2, 0].repeat(2 << 20));
        let manifest = BoundedManifest::decode(&bytes[..]).unwrap();
        assert_eq!(manifest.nodes.len(), MAX_MANIFEST_NODES + 1);
        assert!(manifest.nodes.capacity() <= 2 * MAX_MANIFEST_NODES);
        let error = Parsed::try_from(manifest).unwrap_err();
        assert_eq!(error.field(), "nodes");
        assert!(error.detail().contains("100000"), "{}", error.detail());
    }
}
