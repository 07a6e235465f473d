//! Layers by unit, as device farms count them. They are used only if MACs are not available, because a layer may be any
//! share of the work.

/// Layers of a compiled model on each unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Layers {
    pub npu: u32,
    pub gpu: u32,
    pub cpu: u32,
}

impl Layers {
    /// Share of the layers on the NPU, in [0, 1]; `None` without layers.
    pub fn npu_share(&self) -> Option<f64> {
        let off = self.off_npu();
        let all = off + u64::from(self.npu);
        (all > 0).then(|| 1.0 - off as f64 / all as f64)
    }

    /// Whether more layers are off the NPU than before. The share alone also falls where layers are fused.
    pub fn is_worse_than(&self, before: &Self) -> bool {
        self.off_npu() > before.off_npu()
    }

    /// Layers of all units.
    pub fn all(&self) -> u32 {
        self.npu.saturating_add(self.gpu).saturating_add(self.cpu)
    }

    /// Layers on other units.
    pub(crate) fn off_npu(&self) -> u64 {
        u64::from(self.gpu) + u64::from(self.cpu)
    }
}
