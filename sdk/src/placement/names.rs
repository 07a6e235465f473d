//! Names of EPs, corrected by the runtime's own list. An app may register a plugin under any name; the runtime's list
//! of devices has the vendor and the type of the device behind it.

use epwatch_proto::{DeviceType, EpDevice, accelerator};

use super::{
    Assignment,
    ort::{ListedDevice, ep_devices},
};

/// The devices that the runtime lists when a session is made.
#[derive(Debug)]
pub(crate) struct RuntimeNames(Vec<ListedDevice>);

impl RuntimeNames {
    /// Reads the list of devices. Call it once a session builder exists.
    pub(crate) fn read() -> Self {
        Self(ep_devices())
    }

    /// Whether a device belongs to an EP whose name `is_its` accepts.
    pub(crate) fn any(&self, is_its: impl Fn(&str) -> bool) -> bool {
        self.0
            .iter()
            .any(|device| is_its(&self.own_name(&device.ep)))
    }

    /// Returns ONNX Runtime's names for the EPs of a request.
    pub(crate) fn of_request(&self, eps: &[String]) -> Vec<String> {
        eps.iter().map(|ep| self.own_name(ep)).collect()
    }

    /// Returns ONNX Runtime's name of the only EP that has a device of this type. A policy for the type chooses it. `None` if
    /// several EPs have one, or none.
    pub(crate) fn only_ep_of(&self, device: DeviceType) -> Option<String> {
        let of_type = self.0.iter().filter(|listed| listed.device == device);
        let mut eps = of_type.map(|listed| self.own_name(&listed.ep));
        let first = eps.next()?;
        eps.all(|other| other == first).then_some(first)
    }

    /// Returns the only type of device that the runtime lists for an EP, by ONNX Runtime's name of the EP. `None` if it lists
    /// none, or several types.
    pub(crate) fn only_type_of(&self, ep: &str) -> Option<DeviceType> {
        let its = self
            .0
            .iter()
            .filter(|listed| self.own_name(&listed.ep) == ep);
        let mut types = its.map(|listed| listed.device);
        let first = types.next()?;
        types.all(|other| other == first).then_some(first)
    }

    /// Renames the EPs of a session's devices.
    pub(crate) fn of_devices(&self, mut devices: Vec<EpDevice>) -> Vec<EpDevice> {
        for device in &mut devices {
            device.ep = self.own_name(&device.ep);
        }
        devices
    }

    /// Renames the EPs of an assignment.
    pub(crate) fn of_assignment(&self, mut assignment: Assignment) -> Assignment {
        for subgraph in &mut assignment.subgraphs {
            subgraph.ep = self.own_name(&subgraph.ep);
        }
        assignment
    }

    /// Returns ONNX Runtime's name of an EP.
    pub(crate) fn own_name(&self, ep: &str) -> String {
        let mut devices = self.0.iter().filter(|device| device.ep == ep);
        let Some(first) = devices.next() else {
            return ep.to_owned();
        };
        let word = accelerator::RuntimesWord {
            vendor: &first.vendor,
            device: match devices.all(|other| other.device == first.device) {
                true => first.device,
                false => DeviceType::Unknown,
            },
        };
        accelerator::own_name(ep, word).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use epwatch_proto::placement::{CPU_EP, QNN_EP};

    use super::*;

    #[test]
    fn a_name_of_the_apps_own_gives_way_to_the_runtimes_word() {
        let device = |ep: &str, vendor: &str, device| ListedDevice {
            ep: ep.to_owned(),
            vendor: vendor.to_owned(),
            device,
        };
        let names = RuntimeNames(vec![
            device(CPU_EP, "Microsoft", DeviceType::Cpu),
            device("mine", "Qualcomm", DeviceType::Npu),
            device("mine", "Qualcomm", DeviceType::Gpu),
            device("other", "Acme", DeviceType::Cpu),
        ]);
        let own = |ep: &str| names.own_name(ep);
        assert_eq!(own("mine"), QNN_EP);
        for same in [CPU_EP, QNN_EP, "other", "elsewhere"] {
            assert_eq!(own(same), same);
        }
        assert!(names.any(|ep| ep == QNN_EP));
        let only = |device| names.only_ep_of(device);
        assert_eq!(only(DeviceType::Npu).as_deref(), Some(QNN_EP));
        assert_eq!(only(DeviceType::Cpu), None);
        assert_eq!(names.only_type_of("other"), Some(DeviceType::Cpu));
        assert_eq!(names.only_type_of(QNN_EP), None);
        assert_eq!(names.only_type_of("elsewhere"), None);
    }
}
