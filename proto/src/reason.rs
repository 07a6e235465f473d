//! Reasons for which the NPU did not get a node, a graph or a session. Each code has a meaning and a fix.

use crate::wire_enum::wire_enum;

wire_enum! {
    /// Reason for which the NPU did not get a node, a graph or a session.
    #[expect(missing_docs, reason = "`meaning` returns it as text")]
    pub enum ReasonCode: ReasonCode {
        Unknown = Unknown "unknown",
        EpNotRequested = EpNotRequested "ep_not_requested",
        EpNotAvailable = EpNotAvailable "ep_not_available",
        NoEpDevice = NoEpDevice "no_ep_device",
        NpuOffByDirective = NpuOffByDirective "npu_off_by_directive",
        BackendLibraryMissing = BackendLibraryMissing "backend_library_missing",
        BackendSetupFailed = BackendSetupFailed "backend_setup_failed",
        SocModelUnknown = SocModelUnknown "soc_model_unknown",
        EpTooOldForOrt = EpTooOldForOrt "ep_too_old_for_ort",
        DspRestarted = DspRestarted "dsp_restarted",
        DynamicShape = DynamicShape "dynamic_shape",
        OpNotSupported = OpNotSupported "op_not_supported",
        OpConfigRejected = OpConfigRejected "op_config_rejected",
        Fp16NotSupported = Fp16NotSupported "fp16_not_supported",
        LayoutNotSelected = LayoutNotSelected "layout_not_selected",
        PrepareFailed = PrepareFailed "prepare_failed",
        EdgeQuantization = EdgeQuantization "edge_quantization",
        EpcontextWithoutEp = EpcontextWithoutEp "epcontext_without_ep",
        EpcontextIncompatible = EpcontextIncompatible "epcontext_incompatible",
        NativeLibraryNotDeclared = NativeLibraryNotDeclared "native_library_not_declared",
        AdspLibraryPathUnset = AdspLibraryPathUnset "adsp_library_path_unset",
        AdspLibraryPathSeparator = AdspLibraryPathSeparator "adsp_library_path_separator",
        NativeLibrariesNotExtracted = NativeLibrariesNotExtracted
            "native_libraries_not_extracted",
        RuntimeOlderThanModel = RuntimeOlderThanModel "runtime_older_than_model",
        AssignmentApiUnavailable = AssignmentApiUnavailable "assignment_api_unavailable",
        AssignmentNotRecorded = AssignmentNotRecorded "assignment_not_recorded",
    }
}

impl ReasonCode {
    /// Returns the meaning as one sentence.
    pub fn meaning(self) -> &'static str {
        self.texts().0
    }

    /// Returns what to do about it as one sentence.
    pub fn fix(self) -> &'static str {
        self.texts().1
    }

    /// Returns whether the back end failed to start, in contrast to a node that it refused.
    pub fn is_setup_failure(self) -> bool {
        matches!(
            self,
            Self::EpNotAvailable
                | Self::NoEpDevice
                | Self::BackendLibraryMissing
                | Self::BackendSetupFailed
                | Self::SocModelUnknown
                | Self::EpTooOldForOrt
                | Self::DspRestarted
                | Self::NativeLibraryNotDeclared
                | Self::AdspLibraryPathUnset
                | Self::AdspLibraryPathSeparator
                | Self::NativeLibrariesNotExtracted
        )
    }

    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Unknown => (
                "The reason is not known.",
                "Create the session with SessionRequest::with_log_capture once: QNN's validator gives its reasons in the verbose log.",
            ),
            Self::EpNotRequested => (
                "The session did not ask for the QNN EP.",
                "Add QNNExecutionProvider to the session's options.",
            ),
            Self::EpNotAvailable => (
                "The QNN EP is neither built into this ONNX Runtime nor registered as a plugin.",
                "Ship onnxruntime-qnn and register its library before the session is created.",
            ),
            Self::NoEpDevice => (
                "The QNN EP is registered but offers no device here.",
                "Check that the device has a Hexagon NPU and that libQnnHtp.so can be loaded.",
            ),
            Self::NpuOffByDirective => (
                "An operator's directive told this device not to use the NPU.",
                "Revoke the directive, or wait until it expires.",
            ),
            Self::BackendLibraryMissing => (
                "The back end's library was not found.",
                "Put libQnnHtp.so and the skel library for this Hexagon version into the package.",
            ),
            Self::BackendSetupFailed => (
                "The back end did not start, so the whole graph runs on the CPU.",
                "Check backend_path, and that the app may reach the DSP.",
            ),
            Self::SocModelUnknown => (
                "The back end does not know the given soc_model.",
                "Leave soc_model out, or ship a QNN version that knows the chipset.",
            ),
            Self::EpTooOldForOrt => (
                "The plugin was built for an older ONNX Runtime.",
                "Update onnxruntime-qnn to the release that matches this ONNX Runtime.",
            ),
            Self::DspRestarted => (
                "The DSP subsystem restarted while the session was alive.",
                "Create the session again; if it happens often, look for crashes in the DSP's log.",
            ),
            Self::DynamicShape => (
                "An input has a dimension that is not fixed, which the HTP cannot compile.",
                "Export the model with fixed shapes, or set the free dimensions when creating the session.",
            ),
            Self::OpNotSupported => (
                "The HTP does not support this op.",
                "Replace the op by supported ones, or move it out of the model.",
            ),
            Self::OpConfigRejected => (
                "The HTP supports this op, but not with these types, shapes or attributes.",
                "Read the validator's sentence, and change type, shape or attribute.",
            ),
            Self::Fp16NotSupported => (
                "This chipset's HTP has no FP16, so float nodes cannot run on it.",
                "Quantise these nodes too, or ship a fully quantised variant for this chipset.",
            ),
            Self::LayoutNotSelected => (
                "A node was moved to the NPU's layout and then not taken.",
                "Quantise the model, or keep it from this chipset: its HTP refuses the float node.",
            ),
            Self::PrepareFailed => (
                "The HTP accepted the nodes one by one but could not prepare the graph.",
                "Split the graph, or quantise the ops that need the most memory.",
            ),
            Self::EdgeQuantization => (
                "Quantising the input and dequantising the output is left to the CPU on purpose.",
                "Nothing is wrong.",
            ),
            Self::EpcontextWithoutEp => (
                "The model is precompiled for an EP that this session does not have.",
                "Request that EP, or ship the model that it was compiled from.",
            ),
            Self::EpcontextIncompatible => (
                "The precompiled graph is for another runtime or chipset.",
                "Compile it again for this chipset and QNN version.",
            ),
            Self::NativeLibraryNotDeclared => (
                "The app's manifest does not declare libcdsprpc.so, so Android hides it.",
                "Add <uses-native-library android:name=\"libcdsprpc.so\" android:required=\"false\"/>.",
            ),
            Self::AdspLibraryPathUnset => (
                "ADSP_LIBRARY_PATH is not set, so the DSP does not find its skel library.",
                "Set it to the app's native library folder before the session is created.",
            ),
            Self::AdspLibraryPathSeparator => (
                "ADSP_LIBRARY_PATH separates folders by ':', and the DSP expects ';'.",
                "Separate them by ';'.",
            ),
            Self::NativeLibrariesNotExtracted => (
                "Native libraries stay inside the APK, so the skel library is not on disk.",
                "Set useLegacyPackaging = true for jniLibs.",
            ),
            Self::RuntimeOlderThanModel => (
                "The QNN runtime is older than the one that the model was exported with.",
                "Ship at least the QNN version of the export.",
            ),
            Self::AssignmentApiUnavailable => (
                "This ONNX Runtime is older than 1.24 and does not tell where nodes run.",
                "Update ONNX Runtime to 1.24 or later, or use SessionRequest::with_log_capture.",
            ),
            Self::AssignmentNotRecorded => (
                "The session was created without session.record_ep_graph_assignment_info=1.",
                "Set that option, or let the SDK create the session.",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_says_what_and_how_to_fix_in_one_sentence_each() {
        for code in ReasonCode::ALL {
            for text in [code.meaning(), code.fix()] {
                assert!(text.len() > 15 && text.len() < 120, "{code}: {text}");
                assert!(text.ends_with('.'), "{code}: {text}");
            }
        }
    }
}
