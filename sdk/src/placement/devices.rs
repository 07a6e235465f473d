//! Devices of a session's inputs and outputs.

use epwatch_proto::{Accelerator, EpDevice, ep_device::MAX_EP_DEVICES};

/// Returns the devices of a report: each once, in their order, without the CPU EP's.
pub(crate) fn reported(devices: impl IntoIterator<Item = EpDevice>) -> Vec<EpDevice> {
    let mut reported = Vec::new();
    for device in devices.into_iter().map(EpDevice::normalised) {
        let is_cpu = Accelerator::of_ep(&device.ep) == Accelerator::Cpu;
        if is_cpu || device.ep.is_empty() || reported.contains(&device) {
            continue;
        }
        if reported.len() == MAX_EP_DEVICES {
            break;
        }
        reported.push(device);
    }
    reported
}

#[cfg(test)]
mod tests {
    use epwatch_proto::{DeviceType, placement::CPU_EP};

    use super::*;

    #[test]
    fn devices_are_reported_once_in_their_order_and_bounded() {
        let device = |ep: &str, device_type| EpDevice {
            ep: ep.to_owned(),
            device_type,
            vendor: "v".repeat(100),
        };
        let given = [
            device("", DeviceType::Gpu),
            device(CPU_EP, DeviceType::Cpu),
            device("b", DeviceType::Gpu),
            device("a", DeviceType::Npu),
            device("b", DeviceType::Gpu),
            device("b", DeviceType::Npu),
        ];
        let found = reported(given);
        let found: Vec<_> = found.iter().map(|of| (&*of.ep, of.device_type)).collect();
        let expected = [
            ("b", DeviceType::Gpu),
            ("a", DeviceType::Npu),
            ("b", DeviceType::Npu),
        ];
        assert_eq!(found, expected);
        let many = (0..100).map(|at| device(&at.to_string(), DeviceType::Gpu));
        let many = reported(many);
        assert_eq!(many.len(), MAX_EP_DEVICES);
        assert!(many[0].vendor.len() < 100);
    }
}
