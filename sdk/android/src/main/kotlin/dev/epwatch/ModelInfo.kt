package dev.epwatch

/**
 * A model as the app names it, and how its session is made.
 *
 * @property requested the EPs that the app asks for, in order, without the CPU's: ONNX Runtime cannot return them.
 * @property reasons codes of reasons why the NPU will not be used, for example `no_ep_device`.
 */
public class ModelInfo @JvmOverloads constructor(
    public val id: String,
    public val version: String,
    public val requested: List<String> = emptyList(),
    public val reasons: List<String> = emptyList(),
    public val sha256: String = "",
    public val performanceMode: String = "",
    public val socModel: String = "",
    public val htpArch: String = "",
    /** The variant that is loaded, if the plan prefers one. */
    public val variant: String = "",
    /** The session replaces one whose run failed, for example because the DSP restarted. */
    public val afterRunError: Boolean = false,
    /** The model's side-car with the MACs of each node, as `epwatch manifest` writes it: JSON. */
    public val sideCar: String = "",
    /**
     * Path of the model's file, or empty. The SDK's thread computes its SHA-256 if [sha256] is empty. With consent the call
     * that observes the session reads from it whether a compiled model is for this device.
     */
    public val modelFile: String = "",
    /**
     * The policy by which ONNX Runtime chooses devices by itself, for example `PREFER_NPU`, or empty. It counts if [requested]
     * names no EP. A text that `OrtExecutionProviderDevicePolicy` does not have is an unknown policy.
     */
    public val selectionPolicy: String = "",
    /**
     * The device that the EP runs on, if it has several: `NPU`, `GPU` or `CPU`, for example what OpenVINO's option
     * `device_type` is given, or empty. Sessions on different devices are judged apart.
     */
    public val deviceType: String = "",
) {
    /** For Java, which has no named arguments. */
    public class Builder(private val id: String, private val version: String) {
        private var requested = emptyList<String>()
        private var reasons = emptyList<String>()
        private var sha256 = ""
        private var performanceMode = ""
        private var socModel = ""
        private var htpArch = ""
        private var variant = ""
        private var afterRunError = false
        private var sideCar = ""
        private var modelFile = ""
        private var selectionPolicy = ""
        private var deviceType = ""

        public fun setRequested(vararg eps: String): Builder = apply { requested = eps.toList() }

        public fun setReasons(vararg codes: String): Builder = apply { reasons = codes.toList() }

        public fun setSha256(sha256: String): Builder = apply { this.sha256 = sha256 }

        public fun setPerformanceMode(mode: String): Builder = apply { performanceMode = mode }

        public fun setSocModel(socModel: String): Builder = apply { this.socModel = socModel }

        public fun setHtpArch(htpArch: String): Builder = apply { this.htpArch = htpArch }

        public fun setVariant(variant: String): Builder = apply { this.variant = variant }

        public fun setAfterRunError(isAfterRunError: Boolean): Builder = apply { afterRunError = isAfterRunError }

        public fun setSideCar(json: String): Builder = apply { sideCar = json }

        public fun setModelFile(path: String): Builder = apply { modelFile = path }

        public fun setSelectionPolicy(policy: String): Builder = apply { selectionPolicy = policy }

        public fun setDeviceType(device: String): Builder = apply { deviceType = device }

        public fun build(): ModelInfo = ModelInfo(
            id, version, requested, reasons, sha256, performanceMode, socModel, htpArch, variant, afterRunError, sideCar,
            modelFile, selectionPolicy, deviceType,
        )
    }

    /** With this file, unless the app has named one. */
    internal fun ofFile(path: String): ModelInfo = if (modelFile.isNotEmpty()) this else ModelInfo(
        id, version, requested, reasons, sha256, performanceMode, socModel, htpArch, variant, afterRunError, sideCar, path,
        selectionPolicy, deviceType,
    )

    internal fun texts(): Array<ByteArray> {
        val facts = listOf(
            id, version, sha256, performanceMode, socModel, htpArch, variant, sideCar, modelFile, selectionPolicy, deviceType,
        )
        return texts(*(facts + requested + reasons).toTypedArray())
    }

    internal fun numbers(plan: Long, creationNanos: Long): LongArray =
        longArrayOf(requested.size.toLong(), plan, creationNanos, number(afterRunError))
}

/** Whether a compiled model (EPContext) is for this device. In the order of the library's numbers, from 1. */
public enum class Compatibility {
    /** It was made for this device. Only an EP gives this answer, and [Epwatch.compatibility] asks none. */
    OPTIMAL,

    /** It was made for another chipset or runtime: compile it again. It may load. */
    PREFER_RECOMPILATION,

    /** It will not load here. */
    UNSUPPORTED,
}

/** Facts for [Epwatch.preflight]. Empty is not checked. */
public class PreflightFacts {
    /** As passed to the QNN EP. */
    @JvmField public var backendPath: String = ""

    /** As passed to the QNN EP. */
    @JvmField public var socModel: String = ""

    /** Android: `applicationInfo.nativeLibraryDir`. */
    @JvmField public var nativeLibraryDir: String = ""

    /** QAIRT versions of the model's export and of the runtime. */
    @JvmField public var modelQairt: String = ""
    @JvmField public var runtimeQairt: String = ""

    /** Version of the QNN plugin. */
    @JvmField public var pluginVersion: String = ""

    /** Whether the manifest asks for `libcdsprpc.so`; null if that is not known. */
    @JvmField public var rpcLibrary: Boolean? = null

    /** As in C: 1 yes, -1 no, 0 not known. */
    internal fun declaresRpcLibrary(): Int =
        when (rpcLibrary) {
            true -> 1
            false -> -1
            null -> 0
        }

    internal fun texts(): Array<ByteArray> =
        texts(backendPath, socModel, nativeLibraryDir, modelQairt, runtimeQairt, pluginVersion)
}

/** What the operator's directives ask of the next session of a model. Close it once the session is observed. */
public class SessionPlan internal constructor(
    internal val handle: Long,
    /** `false`: make the session for the CPU only. */
    public val useNpu: Boolean,
    /** The variant to load if the app has it; empty for the usual one. */
    public val variant: String,
) : AutoCloseable {
    override fun close() {
        if (handle > 0) Native.closePlan(handle)
    }
}
