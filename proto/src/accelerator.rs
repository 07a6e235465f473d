//! Accelerators: one table from the name of an EP to what computes behind it. SDK, collector, detector, page and gate
//! read it.
//!
//! An app may register a plugin under any name, so the runtime's own answer counts first. This answer is the vendor and
//! the type of the EP's device, which ONNX Runtime 1.22 and later lists. Without it the name decides. A name that is
//! not in the table is [`Accelerator::Unknown`]; it never counts as the CPU. Delegates of LiteRT and back ends of
//! ExecuTorch are in the table, too.

use std::borrow::Cow;

use crate::{device::EpBackend, ep_device::DeviceType};

/// ORT's name of the QNN EP, built in or plugin.
pub const QNN_EP: &str = "QNNExecutionProvider";
/// ORT's name of the CPU EP.
pub const CPU_EP: &str = "CPUExecutionProvider";

/// The hardware or back end that a session can ask for, whatever name its EP has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the table names them")]
pub enum Accelerator {
    /// The EP's name is not in the table. Never counts as the CPU.
    Unknown,
    /// ONNX Runtime's own kernels.
    Cpu,
    QnnHtp,
    QnnGpu,
    QnnCpu,
    Nnapi,
    CoreMl,
    TensorRt,
    NvTensorRtRtx,
    Cuda,
    OpenVino,
    VitisAi,
    DirectMl,
    WebGpu,
    Xnnpack,
    OneDnn,
    Acl,
    MiGraphX,
    Cann,
    /// An NPU by the device type, or by the app's name for it.
    Npu,
    /// A GPU by the device type alone.
    Gpu,
}

/// One accelerator.
#[derive(Debug, Clone, Copy)]
pub struct AcceleratorRow {
    /// Its key.
    pub accelerator: Accelerator,
    /// Name in texts and in the names of cohorts.
    pub label: &'static str,
    /// Kind of the processor; `Unknown` if the EP's options choose among several kinds.
    pub device: DeviceType,
    /// Names of the EP in lower case, without `executionprovider`, `delegate` and other affixes.
    pub names: &'static [&'static str],
    /// Source of the names and of the device.
    pub source: &'static str,
}

const fn row(
    accelerator: Accelerator,
    label: &'static str,
    device: DeviceType,
    names: &'static [&'static str],
    source: &'static str,
) -> AcceleratorRow {
    AcceleratorRow {
        accelerator,
        label,
        device,
        names,
        source,
    }
}

const CONSTANTS: &str = "onnxruntime include/onnxruntime/core/graph/constants.h";
const QNN_BACKENDS: &str = "onnxruntime docs, QNN EP: option backend_type = htp, gpu, cpu";

/// Affixes that a name may have around the accelerator: `QNNExecutionProvider`, LiteRT's `TfLiteGpuDelegateV2`,
/// ExecuTorch's `QnnBackend`.
const AFFIXES: (&str, [&str; 4]) = (
    "tflite",
    ["executionprovider", "delegate", "delegatev", "backend"],
);

/// All accelerators but [`Accelerator::Unknown`]. A name may have digits at its end (`npu0`, `cuda:1`).
#[rustfmt::skip]
pub const ACCELERATORS: [AcceleratorRow; 20] = {
    use Accelerator as A;
    use DeviceType as D;
    [
        // Azure's EP takes its own remote ops only, and is in every build for desktops.
        row(A::Cpu, "CPU", D::Cpu, &["cpu", "azure"], CONSTANTS),
        row(A::QnnHtp, "QNN HTP", D::Npu, &["qnn"], QNN_BACKENDS),
        row(A::QnnGpu, "QNN GPU", D::Gpu, &["qnngpu", "qnn_gpu"], QNN_BACKENDS),
        row(A::QnnCpu, "QNN CPU", D::Cpu, &["qnncpu", "qnn_cpu"], QNN_BACKENDS),
        row(A::Nnapi, "NNAPI", D::Unknown, &["nnapi"], "Android NDK, Neural Networks API: the driver chooses the device"),
        row(A::CoreMl, "Core ML", D::Unknown, &["coreml"], "onnxruntime docs, CoreML EP: option MLComputeUnits"),
        row(A::TensorRt, "TensorRT", D::Gpu, &["tensorrt", "trt"], CONSTANTS),
        row(A::NvTensorRtRtx, "TensorRT RTX", D::Gpu, &["nvtensorrtrtx", "nv_tensorrt_rtx"], "NVIDIA's samples of TensorRT RTX: registered as nv_tensorrt_rtx"),
        row(A::Cuda, "CUDA", D::Gpu, &["cuda"], CONSTANTS),
        row(A::OpenVino, "OpenVINO", D::Unknown, &["openvino"], "onnxruntime docs, OpenVINO EP: option device_type = CPU, GPU, NPU, AUTO"),
        row(A::VitisAi, "Vitis AI", D::Npu, &["vitisai"], "onnxruntime docs, Vitis AI EP: AMD's XDNA NPU"),
        row(A::DirectMl, "DirectML", D::Gpu, &["dml", "directml"], CONSTANTS),
        row(A::WebGpu, "WebGPU", D::Gpu, &["webgpu"], "onnxruntime docs, WebGPU EP"),
        row(A::Xnnpack, "XNNPACK", D::Cpu, &["xnnpack"], "onnxruntime docs, XNNPACK EP: kernels for Arm and x86 CPUs"),
        row(A::OneDnn, "oneDNN", D::Cpu, &["dnnl"], CONSTANTS),
        row(A::Acl, "Arm Compute Library", D::Cpu, &["acl", "armnn"], CONSTANTS),
        row(A::MiGraphX, "MIGraphX", D::Gpu, &["migraphx", "rocm"], CONSTANTS),
        row(A::Cann, "CANN", D::Npu, &["cann"], "onnxruntime docs, CANN EP: Huawei's Ascend NPU"),
        row(A::Npu, "NPU", D::Npu, &["npu", "rknpu", "vsinpu", "snpe", "neuron", "neuropilot", "enn", "ethosu", "neutron"], "OrtHardwareDeviceType_NPU; public apps register plugins as npu0; ExecuTorch's back ends of MediaTek, Samsung, Arm and NXP"),
        row(A::Gpu, "GPU", D::Gpu, &["gpu", "vulkan", "mps", "metal", "mlx"], "OrtHardwareDeviceType_GPU; LiteRT's GPU delegate; ExecuTorch's Vulkan, MPS, Metal and MLX back ends"),
    ]
};

/// The runtime's description of an EP's device (`OrtEpDevice`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuntimesWord<'a> {
    /// Vendor of the EP, for example `Qualcomm`; may be empty.
    pub vendor: &'a str,
    /// Type of its device; `Unknown` if it has devices of several types.
    pub device: DeviceType,
}

impl Accelerator {
    /// Returns the accelerator of an EP of this name, without the runtime's description.
    pub fn of_ep(name: &str) -> Self {
        // A fast path for nearly all names in a fleet.
        match name {
            QNN_EP => return Self::QnnHtp,
            CPU_EP => return Self::Cpu,
            _ => {}
        }
        let name = name.to_ascii_lowercase();
        let (before, after) = AFFIXES;
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == ':');
        let stem = stem.strip_prefix(before).unwrap_or(stem);
        let after = after.iter().find_map(|after| stem.strip_suffix(after));
        let stem = after.unwrap_or(stem);
        let stem = stem.trim_end_matches(|c: char| c.is_ascii_digit() || c == ':');
        let is_its = |row: &&AcceleratorRow| row.names.contains(&stem);
        match ACCELERATORS.iter().find(is_its) {
            Some(row) => row.accelerator,
            // Apps name Qualcomm's plugin QnnHtp, qnn_ep and so on.
            None if stem.starts_with("qnn") => Self::QnnHtp,
            None => Self::Unknown,
        }
    }

    /// Returns the accelerator of an EP by the runtime's description, or by the EP's name if the description does not
    /// decide.
    ///
    /// A device of type CPU proves nothing: QNN's emulator of the HTP has one on a Linux host, and OpenVINO lists the
    /// CPU too.
    pub fn of_device(name: &str, word: RuntimesWord<'_>) -> Self {
        let by_name = Self::of_ep(name);
        let vendor = word.vendor.to_ascii_lowercase();
        let is_qualcomm = vendor.contains("qualcomm") || vendor.contains("qti");
        match (by_name, word.device) {
            (Self::QnnHtp, DeviceType::Gpu) => Self::QnnGpu,
            (Self::Unknown, DeviceType::Gpu) if is_qualcomm => Self::QnnGpu,
            (Self::Unknown | Self::Npu, _) if is_qualcomm => Self::QnnHtp,
            (Self::Unknown, DeviceType::Npu) => Self::Npu,
            (Self::Unknown, DeviceType::Gpu) => Self::Gpu,
            (by_name, _) => by_name,
        }
    }

    /// Returns QNN's accelerator behind a back end. Other accelerators have none.
    #[must_use]
    pub fn with_backend(self, backend: EpBackend) -> Self {
        match (self, backend) {
            (Self::QnnHtp, EpBackend::Gpu) => Self::QnnGpu,
            (Self::QnnHtp, EpBackend::Cpu) => Self::QnnCpu,
            (accelerator, _) => accelerator,
        }
    }

    /// Returns its row of the table; `None` for [`Self::Unknown`].
    pub fn row(self) -> Option<&'static AcceleratorRow> {
        ACCELERATORS.iter().find(|row| row.accelerator == self)
    }

    /// Whether its cohorts are named by the device, too, if that is another type than the table's. OpenVINO is one EP for
    /// NPU, GPU and CPU. QNN's back ends have names of their own, and its emulator runs on a CPU.
    pub fn is_named_by_device(self) -> bool {
        let is_qnn = matches!(self, Self::QnnHtp | Self::QnnGpu | Self::QnnCpu);
        self.is_known() && !is_qnn && !matches!(self, Self::Npu | Self::Gpu)
    }

    /// Returns its name in the names of cohorts, for example `OpenVINO GPU`. The name is [`Self::label`] alone if the table has
    /// this device, or if the device is not known.
    pub fn label_on(self, device: DeviceType) -> Cow<'static, str> {
        let other = device.label().filter(|_| device != self.device());
        match other.filter(|_| self.is_named_by_device()) {
            Some(device) => Cow::Owned(format!("{} {device}", self.label())),
            None => Cow::Borrowed(self.label()),
        }
    }

    /// Returns its name in texts.
    pub fn label(self) -> &'static str {
        self.row().map_or("an unknown EP", |row| row.label)
    }

    /// Returns the kind of its device.
    pub fn device(self) -> DeviceType {
        self.row().map_or(DeviceType::Unknown, |row| row.device)
    }

    /// Whether it is in the table and not the plain CPU.
    pub fn is_known(self) -> bool {
        !matches!(self, Self::Unknown | Self::Cpu)
    }

    /// Whether an operator's `npu-off` takes it away. Kernels for the CPU stay.
    pub fn is_off_cpu(self) -> bool {
        self.is_known() && self.device() != DeviceType::Cpu
    }

    /// Whether cohorts on it are named by the chipset alone: Qualcomm's HTP, or an NPU that only a name shows.
    pub fn is_plain_npu(self) -> bool {
        matches!(self, Self::QnnHtp | Self::Npu)
    }

    /// Whether ONNX Runtime's assignment has all of its nodes. An EP that runs kernels in the layout NHWC gets its nodes in a
    /// first pass. ONNX Runtime records only what a second pass adds (1.24 to 1.31).
    #[must_use]
    pub fn is_recorded(self) -> bool {
        !matches!(self, Self::WebGpu | Self::Xnnpack)
    }

    /// Whether nodes on `other` are nodes on this one.
    pub fn is_same(self, other: Self) -> bool {
        self == other || (self.is_plain_npu() && other.is_plain_npu())
    }

    /// Returns the noun of sentences, for example `the NPU`, `the GPU` or `OpenVINO`.
    ///
    /// TensorRT has its own name: what it refuses runs on CUDA, which is the same GPU.
    pub fn noun(self) -> &'static str {
        match (self, self.device()) {
            (Self::TensorRt | Self::NvTensorRtRtx, _) => self.label(),
            (_, DeviceType::Npu) => "the NPU",
            (_, DeviceType::Gpu) => "the GPU",
            (Self::Unknown, _) => "the accelerator",
            _ => self.label(),
        }
    }

    /// Turns a text about the NPU into a text about this accelerator. No other code replaces the word.
    pub fn in_words(self, text: &str) -> Cow<'_, str> {
        let noun = self.noun();
        if noun == "the NPU" || !text.contains("NPU") {
            return Cow::Borrowed(text);
        }
        let bare = noun.strip_prefix("the ").unwrap_or(noun);
        let first = bare.chars().next().map(|c| c.to_ascii_uppercase());
        let capital = match bare == noun {
            true => first.into_iter().chain(bare.chars().skip(1)).collect(),
            false => format!("The {bare}"),
        };
        let text = text.replace("the NPU", noun).replace("The NPU", &capital);
        Cow::Owned(text.replace("NPU", bare))
    }
}

/// Returns the name that reports give an EP: the app's name, or the table's name if the runtime describes another
/// accelerator.
pub fn own_name<'a>(name: &'a str, word: RuntimesWord<'_>) -> &'a str {
    let accelerator = Accelerator::of_device(name, word);
    if accelerator == Accelerator::of_ep(name) {
        return name;
    }
    if accelerator == Accelerator::QnnHtp {
        return QNN_EP;
    }
    let names = accelerator.row().map_or(&[][..], |row| row.names);
    names.first().copied().unwrap_or(name)
}

/// The accelerator that a session asked for, with the EP's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked<'a> {
    /// What it is.
    pub accelerator: Accelerator,
    /// The EP as the app names it.
    pub ep: &'a str,
}

impl<'a> Asked<'a> {
    /// Returns the accelerator that was asked for, among EPs in the order of the request. The first EP of the table
    /// that leaves the CPU counts. The first name that is not in the table follows, then kernels for the CPU. `None`
    /// means the CPU.
    pub fn among(eps: impl Iterator<Item = Self> + Clone) -> Option<Self> {
        let first = |wanted: fn(Accelerator) -> bool| {
            let mut eps = eps.clone();
            eps.find(|ep| wanted(ep.accelerator))
        };
        first(Accelerator::is_off_cpu)
            .or_else(|| first(|accelerator| accelerator == Accelerator::Unknown))
            .or_else(|| first(Accelerator::is_known))
    }

    /// Decides as [`Self::among`] does, for names without the runtime's description.
    pub fn by_names(eps: &'a [String]) -> Option<Self> {
        let eps = eps.iter().filter(|ep| !ep.is_empty());
        Self::among(eps.map(|ep| Self {
            accelerator: Accelerator::of_ep(ep),
            ep,
        }))
    }

    /// Returns the request with QNN's back end.
    #[must_use]
    pub fn with_backend(self, backend: EpBackend) -> Self {
        Self {
            accelerator: self.accelerator.with_backend(backend),
            ..self
        }
    }
}

/// Returns the chipset that a cohort is named by. An accelerator other than the chipset's NPU is added in brackets, for
/// example `SM8650 [CUDA]` or, with the device of an EP that has several, `other:Core Ultra 7 [OpenVINO GPU]`. So devices, baselines
/// and incidents of two accelerators never mix.
pub fn cohort_chipset(chipset: &str, asked: Option<Asked<'_>>, device: DeviceType) -> String {
    // A platform's own text must not read as an accelerator.
    let chipset = match chipset.ends_with(']') {
        true => chipset.replace('[', "(").replace(']', ")"),
        false => chipset.to_owned(),
    };
    match asked {
        None => chipset,
        Some(asked) if asked.accelerator.is_plain_npu() => chipset,
        Some(Asked {
            accelerator: Accelerator::Unknown,
            ep,
        }) => {
            let ep = ep.replace(['[', ']'], "");
            format!("{chipset} [{ep}?]")
        }
        Some(Asked { accelerator, .. }) => {
            format!("{chipset} [{}]", accelerator.label_on(device))
        }
    }
}

/// Splits the chipset of a cohort into the chipset and the accelerator in brackets.
pub fn split_cohort(chipset: &str) -> (&str, Option<&str>) {
    let inner = chipset.strip_suffix(']');
    match inner.and_then(|inner| inner.rsplit_once(" [")) {
        Some((chipset, label)) => (chipset, Some(label)),
        None => (chipset, None),
    }
}

/// Returns the accelerator of a cohort, by its chipset.
pub fn of_cohort(chipset: &str) -> Accelerator {
    let Some(label) = split_cohort(chipset).1 else {
        return Accelerator::Npu;
    };
    let of_label = |label| ACCELERATORS.iter().find(|row| row.label == label);
    let found = of_label(label).or_else(|| {
        let (label, device) = label.rsplit_once(' ')?;
        of_label(label).filter(|_| ["NPU", "GPU", "CPU"].contains(&device))
    });
    found.map_or(Accelerator::Unknown, |row| row.accelerator)
}

/// Whether the cohorts of two chipsets have the same accelerator. Placements and latencies of different accelerators do
/// not compare.
pub fn is_same_accelerator(chipset: &str, other: &str) -> bool {
    split_cohort(chipset).1 == split_cohort(other).1
}

/// Returns the EP's name of a cohort whose accelerator is not known.
pub fn unknown_ep(chipset: &str) -> Option<&str> {
    split_cohort(chipset).1?.strip_suffix('?')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_app_registers_a_plugin_under_a_name_of_its_own() {
        for (name, expected) in [
            (QNN_EP, Accelerator::QnnHtp),
            ("QNN", Accelerator::QnnHtp),
            ("qnn", Accelerator::QnnHtp),
            ("QnnHtp", Accelerator::QnnHtp),
            ("qnn_gpu", Accelerator::QnnGpu),
            ("npu", Accelerator::Npu),
            ("NPU12", Accelerator::Npu),
            ("CPU", Accelerator::Cpu),
            (CPU_EP, Accelerator::Cpu),
            ("AzureExecutionProvider", Accelerator::Cpu),
            ("XnnpackExecutionProvider", Accelerator::Xnnpack),
            ("TensorrtExecutionProvider", Accelerator::TensorRt),
            ("NvTensorRTRTXExecutionProvider", Accelerator::NvTensorRtRtx),
            ("nv_tensorrt_rtx", Accelerator::NvTensorRtRtx),
            ("DmlExecutionProvider", Accelerator::DirectMl),
            ("cuda:1", Accelerator::Cuda),
            ("TfLiteXNNPackDelegate", Accelerator::Xnnpack),
            ("TfLiteGpuDelegateV2", Accelerator::Gpu),
            ("TfLiteQnnDelegate", Accelerator::QnnHtp),
            ("NnApiDelegate", Accelerator::Nnapi),
            ("QnnBackend", Accelerator::QnnHtp),
            ("VulkanBackend", Accelerator::Gpu),
            ("CoreMLBackend", Accelerator::CoreMl),
            ("NeuropilotBackend", Accelerator::Npu),
            ("TfLite", Accelerator::Unknown),
            ("Delegate", Accelerator::Unknown),
            ("", Accelerator::Unknown),
            ("npux", Accelerator::Unknown),
            ("MyEp", Accelerator::Unknown),
            ("ExecutionProvider", Accelerator::Unknown),
        ] {
            assert_eq!(Accelerator::of_ep(name), expected, "{name}");
        }
    }

    #[test]
    fn every_row_is_found_by_its_names_and_its_label() {
        for row in &ACCELERATORS {
            for name in row.names {
                assert_eq!(Accelerator::of_ep(name), row.accelerator, "{name}");
            }
            let asked = Asked {
                accelerator: row.accelerator,
                ep: "any",
            };
            for device in DeviceType::ALL {
                let cohort = cohort_chipset("other:x [CUDA]", Some(asked), *device);
                let found = of_cohort(&cohort);
                assert!(found.is_same(row.accelerator), "{cohort}");
                assert_eq!(split_cohort(&cohort).0, "other:x (CUDA)");
            }
            assert!(!row.source.is_empty());
        }
    }

    #[test]
    fn the_runtimes_word_comes_before_the_name() {
        let of =
            |name, vendor, device| Accelerator::of_device(name, RuntimesWord { vendor, device });
        assert_eq!(of("mine", "Qualcomm", DeviceType::Npu), Accelerator::QnnHtp);
        assert_eq!(of("npu0", "Qualcomm", DeviceType::Npu), Accelerator::QnnHtp);
        assert_eq!(of("mine", "Qualcomm", DeviceType::Gpu), Accelerator::QnnGpu);
        assert_eq!(of("QNN", "Qualcomm", DeviceType::Gpu), Accelerator::QnnGpu);
        // The emulator of the HTP.
        assert_eq!(of("QNN", "Qualcomm", DeviceType::Cpu), Accelerator::QnnHtp);
        let both = DeviceType::Unknown;
        assert_eq!(of("mine", "Qualcomm", both), Accelerator::QnnHtp);
        assert_eq!(of("mine", "Acme", DeviceType::Npu), Accelerator::Npu);
        assert_eq!(of("mine", "Acme", DeviceType::Gpu), Accelerator::Gpu);
        assert_eq!(of("mine", "Acme", DeviceType::Cpu), Accelerator::Unknown);
        let openvino = of("OpenVINOExecutionProvider", "Intel", DeviceType::Gpu);
        assert_eq!(openvino, Accelerator::OpenVino);
    }

    #[test]
    fn the_first_accelerator_of_a_request_is_what_was_asked_for() {
        let asked = |eps: &[&str]| {
            let eps: Vec<String> = eps.iter().map(|ep| (*ep).to_owned()).collect();
            Asked::by_names(&eps).map(|asked| (asked.accelerator, asked.ep.to_owned()))
        };
        let trt = "TensorrtExecutionProvider";
        let found = asked(&[trt, "CUDAExecutionProvider", CPU_EP]);
        assert_eq!(found, Some((Accelerator::TensorRt, trt.into())));
        let found = asked(&["XNNPACK", "qnn"]);
        assert_eq!(found, Some((Accelerator::QnnHtp, "qnn".into())));
        let found = asked(&["XNNPACK", "MyEp"]);
        assert_eq!(found, Some((Accelerator::Unknown, "MyEp".into())));
        assert_eq!(asked(&["XNNPACK"]).unwrap().0, Accelerator::Xnnpack);
        assert_eq!(asked(&[CPU_EP, ""]), None);
    }

    #[test]
    fn a_cohort_of_another_accelerator_has_it_in_its_name() {
        let name = |ep: &str| {
            let eps = [ep.to_owned()];
            cohort_chipset("SM8650", Asked::by_names(&eps), DeviceType::Unknown)
        };
        for ep in [QNN_EP, "QNN", "npu0", CPU_EP] {
            assert_eq!(name(ep), "SM8650");
        }
        assert_eq!(name("CUDAExecutionProvider"), "SM8650 [CUDA]");
        assert_eq!(name("My[Ep]"), "SM8650 [MyEp?]");
        assert_eq!(unknown_ep("SM8650 [MyEp?]"), Some("MyEp"));
        assert_eq!(of_cohort("SM8650 [MyEp?]"), Accelerator::Unknown);
        assert_eq!(of_cohort("SM8650"), Accelerator::Npu);
        let eps = [QNN_EP.to_owned()];
        let asked = Asked::by_names(&eps).map(|asked| asked.with_backend(EpBackend::Gpu));
        let cohort = cohort_chipset("SM8650", asked, DeviceType::Gpu);
        assert_eq!(cohort, "SM8650 [QNN GPU]");
    }

    #[test]
    fn an_ep_of_several_devices_has_the_device_in_the_name() {
        use DeviceType as D;
        for (ep, device, expected) in [
            ("OpenVINOExecutionProvider", D::Gpu, "x [OpenVINO GPU]"),
            ("OpenVINOExecutionProvider", D::Unknown, "x [OpenVINO]"),
            ("CoreML", D::Npu, "x [Core ML NPU]"),
            ("Dml", D::Gpu, "x [DirectML]"),
            ("Dml", D::Npu, "x [DirectML NPU]"),
            ("VitisAI", D::Npu, "x [Vitis AI]"),
            ("WebGpu", D::Cpu, "x [WebGPU CPU]"),
            ("Xnnpack", D::Cpu, "x [XNNPACK]"),
            // The emulator of the HTP, and names that no table has.
            (QNN_EP, D::Cpu, "x"),
            ("npu0", D::Gpu, "x"),
            ("MyEp", D::Npu, "x [MyEp?]"),
            (CPU_EP, D::Cpu, "x"),
        ] {
            let eps = [ep.to_owned()];
            let cohort = cohort_chipset("x", Asked::by_names(&eps), device);
            assert_eq!(cohort, expected);
        }
        let [gpu, npu] = ["x [OpenVINO GPU]", "x [OpenVINO NPU]"];
        assert!(!is_same_accelerator(gpu, npu) && !is_same_accelerator(gpu, "x [OpenVINO]"));
        assert_eq!([gpu, npu].map(of_cohort), [Accelerator::OpenVino; 2]);
        assert_eq!(of_cohort("x [OpenVINO TPU]"), Accelerator::Unknown);
    }

    #[test]
    fn the_word_npu_is_said_of_npus_only() {
        let text = "The NPU does not start; 3 nodes are on the NPU. If it has no NPU";
        let said = |accelerator: Accelerator| accelerator.in_words(text).into_owned();
        assert_eq!(said(Accelerator::QnnHtp), text);
        assert_eq!(
            said(Accelerator::Cuda),
            "The GPU does not start; 3 nodes are on the GPU. If it has no GPU"
        );
        assert_eq!(
            said(Accelerator::OpenVino),
            "OpenVINO does not start; 3 nodes are on OpenVINO. If it has no OpenVINO"
        );
    }
}
