//! The words that show a reason in a log or an error. Each entry has a line with these words, and the line's source.

use super::code::ReasonCode;

/// The subject of a sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignScope {
    /// A node, in a sentence of QNN's validator.
    Node,
    /// The back end, the whole graph or a run.
    Whole,
}

/// Words that show a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sign {
    /// The words to look for, in lower-case ASCII.
    pub words: &'static str,
    /// The code that they show.
    pub reason: ReasonCode,
    /// The subject of the signs.
    pub scope: SignScope,
    /// A line with these words, or the middle of such a line.
    pub line: &'static str,
    /// Where the line was seen.
    pub source: &'static str,
}

/// The reason in the validator's words about a node, if one is known. The first match counts.
pub fn node_sign(words: &str) -> Option<&'static Sign> {
    first(SignScope::Node, words)
}

/// The failure of the back end, the graph or a run that a message reports, if any. The first match counts.
pub fn whole_sign(message: &str) -> Option<&'static Sign> {
    first(SignScope::Whole, message)
}

/// Words that show a code.
pub fn signs_of(code: ReasonCode) -> impl Iterator<Item = &'static Sign> {
    SIGNS.iter().filter(move |sign| sign.reason == code)
}

fn first(scope: SignScope, words: &str) -> Option<&'static Sign> {
    let words = words.to_ascii_lowercase();
    let mut signs = SIGNS.iter().filter(|sign| sign.scope == scope);
    signs.find(|sign| words.contains(sign.words))
}

/// Lines of the plugin and of the emulator.
const HERE: &str = "onnxruntime-qnn 2.7.0, recorded";

/// Words of the EP's own sentences for which no log was available.
const UNSEEN: &str = "the op builders of ONNX Runtime's QNN EP; no log has it";

const fn node(
    words: &'static str,
    reason: ReasonCode,
    line: &'static str,
    source: &'static str,
) -> Sign {
    Sign {
        words,
        reason,
        scope: SignScope::Node,
        line,
        source,
    }
}

const fn whole(
    words: &'static str,
    reason: ReasonCode,
    line: &'static str,
    source: &'static str,
) -> Sign {
    Sign {
        scope: SignScope::Whole,
        ..node(words, reason, line, source)
    }
}

/// All signs, in the order in which they are tried: a cause comes before the error that it leads to.
#[rustfmt::skip]
static SIGNS: &[Sign] = &[
    node("configured to not take q nodes", ReasonCode::EdgeQuantization, "QNN EP is configured to not take Q nodes", HERE),
    node("configured to not take dq nodes", ReasonCode::EdgeQuantization, "QNN EP is configured to not take DQ nodes", HERE),
    node("cannot get shape", ReasonCode::DynamicShape, "Cannot get shape", HERE),
    node("dynamic shape", ReasonCode::DynamicShape, "Dynamic shape is not supported yet, for output: y", "qnn_model_wrapper.cc of ONNX Runtime"),
    node("unable to get shape", ReasonCode::DynamicShape, "Unable to get shape", UNSEEN),
    node("are not supported by qnn ep", ReasonCode::OpNotSupported, "Operators of type `Hardmax` are not supported by QNN EP.", "qnn_execution_provider.cc of ONNX Runtime 1.16 to 1.18"),
    node("operators are not supported on htp", ReasonCode::OpNotSupported, "QNN EP: Erf operators are not supported on HTP", HERE),
    node("3110", ReasonCode::OpConfigRejected, "QNN.backendValidateOpConfig() failed with error code 3110", "microsoft/onnxruntime issues 22820 and 22532"),
    node("failed to add node", ReasonCode::OpConfigRejected, "base_op_builder.cc:162 ProcessOutputs Failed to add node.", HERE),
    node("backendvalidateopconfig", ReasonCode::OpConfigRejected, "QNN.backendValidateOpConfig() failed for node `n`", "microsoft/onnxruntime issue 22532"),
    node("not support", ReasonCode::OpConfigRejected, "QNN EP does not support it", UNSEEN),
    node("n't support", ReasonCode::OpConfigRejected, "QNN BatchNorm doesn't support dynamic scale.", "microsoft/onnxruntime issue 22820"),
    node("unsupported", ReasonCode::OpConfigRejected, "Einsum unsupported equation: bij,jk->bik", HERE),
    node("only support", ReasonCode::OpConfigRejected, "QNN LayerNorm only supports normalization along the last axis", HERE),
    node("must be", ReasonCode::OpConfigRejected, "QNN EP: Rank must be 4", UNSEEN),
    node("invalid", ReasonCode::OpConfigRejected, "QNN EP: Invalid attribute", UNSEEN),

    whole("ssr detected", ReasonCode::DspRestarted, "NPU crashed. SSR detected. Caused QNN graph execute error. Error code: 1007", "microsoft/onnxruntime pull request 26549"),
    whole("library \"libqnnhtp", ReasonCode::BackendLibraryMissing, "Failed in loading stub: dlopen failed: library \"libQnnHtpV81Stub.so\" not found", "hherb/primer pull request 217"),
    whole("unable to load remote symbols", ReasonCode::NativeLibraryNotDeclared, "<E> Unable to load Remote symbols 4000", "UbiquitousLearning/mllm issue 341"),
    whole("library \"libcdsprpc.so\" not found", ReasonCode::NativeLibraryNotDeclared, "dlopen failed: library \"libcdsprpc.so\" not found", "the QnnDsp lines of an app without uses-native-library (Kokoro, LiteRT)"),
    whole("failed to load skel", ReasonCode::SkelLibraryMissing, "<E> Failed to load skel, error: 4000", "microsoft/onnxruntime issue 22288, UbiquitousLearning/mllm issue 341"),
    whole("unable to load skel", ReasonCode::SkelLibraryMissing, "<E> Unable to load Skel Library. transportStatus: 9", "chraac/llama.cpp issue 40"),
    whole("unrecognized soc_model", ReasonCode::SocModelUnknown, "Unrecognized soc_model: snapdragon", HERE),
    whole("qnn_device_error_invalid_config", ReasonCode::DeviceCreationFailed, "QNN SetupBackend failed Failed to create device. Error: QNN_DEVICE_ERROR_INVALID_CONFIG: Invalid config values", "microsoft/onnxruntime issues 22288 and 31353, onnxruntime-qnn issue 715"),
    whole("failed to create device. error: 14001", ReasonCode::DeviceCreationFailed, "QNN SetupBackend failed Failed to create device. Error: 14001", "microsoft/onnxruntime pull request 21458"),
    whole("unable to load backend", ReasonCode::BackendLibraryMissing, "Unable to load backend, error: libQnnHtp.so: cannot open shared object file", HERE),
    whole("qnn setupbackend failed", ReasonCode::BackendSetupFailed, "QNN SetupBackend failed ...", HERE),
    whole("invalid ort_version_supported", ReasonCode::EpTooOldForOrt, "Invalid ort_version_supported field", HERE),
    whole("qnn execution provider is not supported in this build", ReasonCode::EpNotAvailable, "QNN execution provider is not supported in this build.", "provider_registration.cc of ONNX Runtime"),
    whole("'qnnexecutionprovider' is not in available provider names", ReasonCode::EpNotAvailable, "Specified provider 'QNNExecutionProvider' is not in available provider names.", "onnxruntime_inference_collection.py of ONNX Runtime"),
    whole("fallback to cpu ep has been explicitly disabled", ReasonCode::CpuFallbackForbidden, "This session contains graph nodes that are assigned to the default CPU EP, but fallback to CPU EP has been explicitly disabled by the user.", "microsoft/onnxruntime issues 22819 and 26845"),
    whole("was inserted using the nhwc format", ReasonCode::LayoutNotSelected, "Node 'Conv' OpType:Conv with domain:com.ms.internal.nhwc was inserted using the NHWC format as requested by QNNExecutionProvider, but was not selected by that EP.", "microsoft/onnxruntime issue 21848"),
    whole("qnn_common_error_mem_alloc", ReasonCode::PrepareFailed, "QNN_COMMON_ERROR_MEM_ALLOC", HERE),
    whole("failed to finalize qnn graph", ReasonCode::PrepareFailed, "Failed to finalize QNN graph. Error code: 1002", "microsoft/onnxruntime issue 24876"),
    whole("error code: 1002", ReasonCode::PrepareFailed, "Failed to finalize QNN graph. Error code: 1002", "microsoft/onnxruntime issue 24876"),
    whole("qnn graph execute error", ReasonCode::RunFailed, "Status Message: QNN graph execute error. Error code: 6031", "microsoft/onnxruntime issues 25334, 25335, 25422 and 21832"),
    whole("epcontext node generated by", ReasonCode::EpcontextWithoutEp, "EPContext node generated by 'QNN' is not compatible with any execution provider added to the session.", HERE),
    whole("failed to find kernel for com.microsoft.epcontext", ReasonCode::EpcontextWithoutEp, "Failed to find kernel for com.microsoft.EPContext(1)", HERE),
    whole("failed to create context from binary", ReasonCode::EpcontextIncompatible, "Failed to create context from binary. Error code: 5000", HERE),
    whole("failed to load from epcontext model", ReasonCode::EpcontextIncompatible, "Failed to load from EpContext model.", HERE),
    whole("qnn_context_error_binary", ReasonCode::EpcontextIncompatible, "QNN_CONTEXT_ERROR_BINARY_VERSION", HERE),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// A sign that an earlier one hides would never be found.
    #[test]
    fn each_row_is_found_by_its_own_line() {
        for sign in SIGNS {
            assert_eq!(sign.words, sign.words.to_ascii_lowercase());
            assert!(
                sign.line.to_ascii_lowercase().contains(sign.words),
                "{sign:?}"
            );
            assert!(sign.source.len() > 8, "{sign:?}");
            let found = first(sign.scope, sign.line).unwrap();
            assert_eq!(found.reason, sign.reason, "{sign:?}");
        }
    }
}
