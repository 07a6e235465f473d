//! The codes.

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
        CpuFallbackForbidden = CpuFallbackForbidden "cpu_fallback_forbidden",
        BackendLibraryMissing = BackendLibraryMissing "backend_library_missing",
        BackendSetupFailed = BackendSetupFailed "backend_setup_failed",
        SocModelUnknown = SocModelUnknown "soc_model_unknown",
        EpTooOldForOrt = EpTooOldForOrt "ep_too_old_for_ort",
        DspRestarted = DspRestarted "dsp_restarted",
        DeviceCreationFailed = DeviceCreationFailed "device_creation_failed",
        SkelLibraryMissing = SkelLibraryMissing "skel_library_missing",
        QnnVersionsDiffer = QnnVersionsDiffer "qnn_versions_differ",
        DynamicShape = DynamicShape "dynamic_shape",
        OpNotSupported = OpNotSupported "op_not_supported",
        OpConfigRejected = OpConfigRejected "op_config_rejected",
        Fp16NotSupported = Fp16NotSupported "fp16_not_supported",
        LayoutNotSelected = LayoutNotSelected "layout_not_selected",
        PrepareFailed = PrepareFailed "prepare_failed",
        EdgeQuantization = EdgeQuantization "edge_quantization",
        RunFailed = RunFailed "run_failed",
        EpcontextWithoutEp = EpcontextWithoutEp "epcontext_without_ep",
        EpcontextIncompatible = EpcontextIncompatible "epcontext_incompatible",
        EpcontextForAnother = EpcontextForAnother "epcontext_for_another",
        NativeLibraryNotDeclared = NativeLibraryNotDeclared "native_library_not_declared",
        AdspLibraryPathUnset = AdspLibraryPathUnset "adsp_library_path_unset",
        AdspLibraryPathSeparator = AdspLibraryPathSeparator "adsp_library_path_separator",
        NativeLibrariesNotExtracted = NativeLibrariesNotExtracted
            "native_libraries_not_extracted",
        RuntimeOlderThanModel = RuntimeOlderThanModel "runtime_older_than_model",
        AssignmentApiUnavailable = AssignmentApiUnavailable "assignment_api_unavailable",
        AssignmentNotRecorded = AssignmentNotRecorded "assignment_not_recorded",
        RuntimeNotKnown = RuntimeNotKnown "runtime_not_known",
    }
}
