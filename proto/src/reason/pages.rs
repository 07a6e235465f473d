//! The page of each code: what `epwatch explain` prints and `docs/reasons.md` has.

use super::code::ReasonCode::{self, *};

/// All texts of a code.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page {
    pub(super) meaning: &'static str,
    pub(super) fix: &'static str,
    pub(super) about: &'static str,
    /// The likeliest first.
    pub(super) causes: &'static [ReasonCode],
    pub(super) source: &'static str,
}

/// Source of statements that this project measured itself, with ONNX Runtime 1.31.1 and onnxruntime-qnn 2.7.0.
const MEASURED: &str = "measured with onnxruntime 1.31.1 and onnxruntime-qnn 2.7.0";

const fn page_of(
    meaning: &'static str,
    fix: &'static str,
    about: &'static str,
    causes: &'static [ReasonCode],
    source: &'static str,
) -> Page {
    Page {
        meaning,
        fix,
        about,
        causes,
        source,
    }
}

pub(super) fn page(code: ReasonCode) -> Page {
    match code {
        Unknown => page_of(
            "The reason is not known.",
            "Create the session once with ONNX Runtime's log at VERBOSE: QNN's validator gives its reasons there.",
            "ONNX Runtime reports where a node runs and not why. The reason is in the validator's lines, at log severity 0. On a desk, `epwatch inspect MODEL --soc CHIPSET` shows the same lines for a chipset.",
            &[
                DynamicShape,
                Fp16NotSupported,
                OpConfigRejected,
                OpNotSupported,
            ],
            MEASURED,
        ),
        EpNotRequested => page_of(
            "The session did not ask for the QNN EP.",
            "If the device has an NPU, add QNNExecutionProvider to the session's options.",
            "The list of requested EPs in the report has no NPU. A typing error in the EP's name has the same effect, because ONNX Runtime falls back to the CPU with a warning at most.",
            &[],
            "ONNX Runtime's documentation of execution providers",
        ),
        EpNotAvailable => page_of(
            "The session does not have the QNN EP: it is not built into this ONNX Runtime, and no plugin gave it to the session.",
            "Ship onnxruntime-qnn, register its library before the session is created, and give the session the plugin's device.",
            "Errors say that QNN is not supported in this build, or that the provider is not among the available ones. The plain packages onnxruntime and onnxruntime-android have no QNN.",
            &[],
            "onnxruntime/core/session/provider_registration.cc and the Python package's warning",
        ),
        NoEpDevice => page_of(
            "The QNN EP is registered but offers no device here.",
            "Check that the device has a Hexagon NPU and that libQnnHtp.so can be loaded.",
            "The plugin's library was loaded, and GetEpDevices has none of its devices. On a phone without Qualcomm's NPU that is right.",
            &[BackendLibraryMissing, NativeLibraryNotDeclared],
            MEASURED,
        ),
        NpuOffByDirective => page_of(
            "An operator's directive told this device not to use the NPU.",
            "Revoke the directive, or wait until it expires.",
            "The report names the directive, and `epwatch directive` lists those in force.",
            &[],
            "docs/security.md of this project",
        ),
        CpuFallbackForbidden => page_of(
            "The session forbids the CPU (session.disable_cpu_ep_fallback), and nodes were left for it.",
            "Change the nodes that are listed as unsupported, or allow the CPU for them.",
            "With session.disable_cpu_ep_fallback=1 ONNX Runtime refuses the session instead of running nodes on the CPU. The line before, at ERROR, lists the nodes that QNN does not take. If no list is there, the back end did not start, and its error comes before.",
            &[
                DeviceCreationFailed,
                BackendSetupFailed,
                OpConfigRejected,
                OpNotSupported,
            ],
            "microsoft/onnxruntime issues 22819 and 26845",
        ),
        BackendLibraryMissing => page_of(
            "The back end's library was not found.",
            "Put libQnnHtp.so and the skel library for this Hexagon version into the package.",
            "backend_path names a file that the loader does not find. The package needs libQnnHtp.so, libQnnHtpPrepare.so, and libQnnHtpV##Stub.so with libQnnHtpV##Skel.so for each Hexagon version.",
            &[NativeLibrariesNotExtracted],
            MEASURED,
        ),
        BackendSetupFailed => page_of(
            "The back end did not start, so the whole graph runs on the CPU.",
            "Check backend_path, and that the app may reach the DSP.",
            "One line at ERROR says `QNN SetupBackend failed` with a cause. The session itself reports success and runs on the CPU.",
            &[
                BackendLibraryMissing,
                DeviceCreationFailed,
                SkelLibraryMissing,
            ],
            MEASURED,
        ),
        SocModelUnknown => page_of(
            "The back end does not know the given soc_model.",
            "Leave soc_model out, or ship a QNN version that knows the chipset.",
            "QNN replaces a text that it does not know by its default chipset, with a warning. A number that it does not know ends in device_creation_failed. On a phone soc_model is not needed.",
            &[],
            MEASURED,
        ),
        EpTooOldForOrt => page_of(
            "The plugin was built for an older ONNX Runtime.",
            "Update onnxruntime-qnn to the release that matches this ONNX Runtime.",
            "The plugin refuses to register, with `Invalid ort_version_supported`.",
            &[],
            MEASURED,
        ),
        DspRestarted => page_of(
            "The DSP subsystem restarted while the session was alive.",
            "Create the session again; if it happens often, look for crashes in the DSP's log.",
            "A run fails with `SSR detected`, with status ENGINE_ERROR, or with ORT_DEVICE_RESET since ONNX Runtime 1.28. All runs of the session fail from then on, so that only a new session helps.",
            &[],
            "microsoft/onnxruntime pull requests 20579 and 26549",
        ),
        DeviceCreationFailed => page_of(
            "The NPU's device could not be opened (QNN error 14001), so the whole graph runs on the CPU.",
            "Go through the causes in this order; the lines before the error often name one.",
            "QNN reports `QNN_DEVICE_ERROR_INVALID_CONFIG: Invalid config values`, 14001 in older releases. The name misleads: in public reports the usual cause was a library that the DSP did not find, and rarely an option. Other reported causes are an app that may only use an unsigned process of the DSP, and a missing htp_arch next to soc_model.",
            &[
                SkelLibraryMissing,
                NativeLibraryNotDeclared,
                QnnVersionsDiffer,
                SocModelUnknown,
            ],
            "microsoft/onnxruntime issues 22288 and 31353, onnxruntime-qnn issue 715, qualcomm/ai-hub-apps issue 158",
        ),
        SkelLibraryMissing => page_of(
            "The DSP did not find or load the skel library (libQnnHtpV##Skel.so).",
            "Ship libQnnHtpV##Skel.so of this Hexagon version, and put its folder into ADSP_LIBRARY_PATH.",
            "QNN's lines say `Failed to load skel, error: 4000` or `Unable to load Skel Library`. The file must exist on disk, its V number must be the chipset's, and ADSP_LIBRARY_PATH must name its folder before the back end is loaded.",
            &[
                NativeLibrariesNotExtracted,
                AdspLibraryPathUnset,
                AdspLibraryPathSeparator,
                NativeLibraryNotDeclared,
                QnnVersionsDiffer,
            ],
            "qualcomm/ai-hub-apps issue 158, qualcomm/qidk issue 7",
        ),
        QnnVersionsDiffer => page_of(
            "The QNN libraries on this device are of two QAIRT versions.",
            "Take libQnnHtp, its Prepare, Stub and Skel library and libQnnSystem from one QAIRT release.",
            "A stub and a skel of two releases do not open a device. Lines name two build ids, or say that versions mismatch. Libraries of the vendor partition may be found before the app's own.",
            &[],
            "qualcomm/ai-hub-apps issue 158",
        ),
        DynamicShape => page_of(
            "An input has a dimension that is not fixed, which the HTP cannot compile.",
            "Export the model with fixed shapes, or set the free dimensions when creating the session.",
            "The validator says `Cannot get shape` at VERBOSE and nothing at a lower severity. The whole graph runs on the CPU, and the session reports success.",
            &[],
            MEASURED,
        ),
        OpNotSupported => page_of(
            "The HTP does not support this op.",
            "Replace the op by supported ones, or move it out of the model.",
            "docs/ops.md has the ops that were measured by chipset, with forms that are taken instead. `epwatch gate fix` applies those that are proven equal.",
            &[],
            MEASURED,
        ),
        OpConfigRejected => page_of(
            "The HTP supports this op, but not with these types, shapes or attributes.",
            "Read the validator's sentence, and change type, shape or attribute.",
            "The validator's sentence is in the report and in `epwatch inspect`. Error 3110 alone means that the back end's op check refused the combination.",
            &[],
            MEASURED,
        ),
        Fp16NotSupported => page_of(
            "This chipset's HTP has no FP16, so float nodes cannot run on it.",
            "Quantise these nodes too, or ship a fully quantised variant for this chipset.",
            "Only a few chipsets lack FP16, for example SM8635. The same model runs wholly on others. A float node between quantised ones is often an op that the quantiser left out: docs/ops.md names the quantiser that does not.",
            &[],
            MEASURED,
        ),
        LayoutNotSelected => page_of(
            "A node was moved to the NPU's layout and then not taken.",
            "Quantise the model, or keep it from this chipset: its HTP refuses the float node.",
            "ONNX Runtime changes Conv and its like to channels-last for the NPU before the op check. It gives up the session if the check then refuses. The node's name ends in `_token_N` in the error.",
            &[Fp16NotSupported, OpConfigRejected],
            "microsoft/onnxruntime issue 21848",
        ),
        PrepareFailed => page_of(
            "The HTP accepted the nodes one by one but could not prepare the graph.",
            "Split the graph, or quantise the ops that need the most memory.",
            "QNN reports 1002, QNN_COMMON_ERROR_MEM_ALLOC, when it finalises the graph. On SM8350 single float ops end so too.",
            &[],
            "microsoft/onnxruntime issue 24876",
        ),
        EdgeQuantization => page_of(
            "Quantising the input and dequantising the output is left to the CPU on purpose.",
            "Nothing is wrong.",
            "The plugin leaves QuantizeLinear of the graph's inputs and DequantizeLinear of its outputs to the CPU. The tensors are smaller on the way to the NPU.",
            &[],
            MEASURED,
        ),
        RunFailed => page_of(
            "A partition on the NPU failed when it ran.",
            "Create the session again; if it fails again, keep this model off the NPU of this chipset.",
            "Lines at ERROR say `QNN graph execute error` with QNN's number. 6001 was seen after a crash of the DSP's process, 1100 with several sessions. 6031 was seen with an op that the EP accepts and QNN cannot run (DynamicQuantizeLinear). A context binary of the same model ran in some of these reports.",
            &[DspRestarted, OpNotSupported, PrepareFailed],
            "microsoft/onnxruntime issues 25334, 25335, 25422, 21832 and 22645",
        ),
        EpcontextWithoutEp => page_of(
            "The model is precompiled for an EP that this session does not have.",
            "Request that EP, or ship the model that it was compiled from.",
            "A node EPContext holds a compiled graph, and only its EP can run it.",
            &[],
            MEASURED,
        ),
        EpcontextIncompatible => page_of(
            "The precompiled graph is for another runtime or chipset.",
            "Compile it again for this chipset and QNN version.",
            "QNN refuses the context binary when the session is made. A binary holds for its chipset and for QNN versions that are not older.",
            &[],
            MEASURED,
        ),
        EpcontextForAnother => page_of(
            "The precompiled graph was made for another chipset or runtime, so it may be refused here, or be slower.",
            "Compile it again for this chipset and runtime, or ship the model that it was compiled from.",
            "The chipset in the graph's metadata is another one than the device's, or the EP answers that it would rather compile again (`GetModelCompatibilityForEpDevices`). The SDK says so before the session is made.",
            &[],
            MEASURED,
        ),
        NativeLibraryNotDeclared => page_of(
            "The app's manifest does not declare libcdsprpc.so, so Android hides it.",
            "Add <uses-native-library android:name=\"libcdsprpc.so\" android:required=\"false\"/>.",
            "Since Android 12 an app opens a vendor's public library only if its manifest names it. Without FastRPC no device can be opened. The SDK's preflight checks it.",
            &[],
            "Android's documentation of uses-native-library",
        ),
        AdspLibraryPathUnset => page_of(
            "ADSP_LIBRARY_PATH is not set, so the DSP does not find its skel library.",
            "Set it to the app's native library folder before the session is created.",
            "The DSP looks for skel libraries in the folders of this variable of the app's process. The SDK's preflight checks it.",
            &[],
            "Qualcomm's documentation of the HTP back end",
        ),
        AdspLibraryPathSeparator => page_of(
            "ADSP_LIBRARY_PATH separates folders by ':', and the DSP expects ';'.",
            "Separate them by ';'.",
            "With ':' the DSP looks for one folder with that long name. The SDK's preflight checks it.",
            &[],
            "Qualcomm's documentation of the HTP back end",
        ),
        NativeLibrariesNotExtracted => page_of(
            "Native libraries stay inside the APK, so the skel library is not on disk.",
            "Set useLegacyPackaging = true for jniLibs.",
            "The DSP opens files, and cannot read a library within an APK. The SDK's preflight checks it.",
            &[],
            "Android's documentation of packaging",
        ),
        RuntimeOlderThanModel => page_of(
            "The QNN runtime is older than the one that the model was exported with.",
            "Ship at least the QNN version of the export.",
            "The app gives both versions to the SDK's preflight, which compares them.",
            &[],
            MEASURED,
        ),
        AssignmentApiUnavailable => page_of(
            "This ONNX Runtime is older than 1.24 and does not tell where nodes run.",
            "Update ONNX Runtime to 1.24 or later, or, in Rust, use the SDK's log capture.",
            "The placement is then known from the session's log alone, or not at all.",
            &[],
            MEASURED,
        ),
        AssignmentNotRecorded => page_of(
            "The session was created without session.record_ep_graph_assignment_info=1.",
            "Set that option, or let the SDK create the session.",
            "ONNX Runtime keeps the assignment only if the option is set before the session is made. It has never all nodes of WebGPU and XNNPACK, whose kernels take nodes in another layout: there only the log shows the placement.",
            &[],
            MEASURED,
        ),
        RuntimeNotKnown => page_of(
            "epwatch was given no ONNX Runtime and no placement, so it does not know where nodes run.",
            "Pass the runtime and the session where it is observed; if it is not ONNX Runtime's, pass its placement.",
            "In C, `epw_observe` takes the OrtApi and the OrtSession of the app, and `epw_observe_assignment` a placement. Runs are recorded all the same; only the placement is missing.",
            &[],
            "the SDK's own look for a runtime: sdk/src/host",
        ),
    }
}
