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
) {
    internal fun texts(): Array<ByteArray> {
        val facts = listOf(id, version, sha256, performanceMode, socModel, htpArch, variant)
        return texts(*(facts + requested + reasons).toTypedArray())
    }

    internal fun numbers(plan: Long, creationNanos: Long): LongArray =
        longArrayOf(requested.size.toLong(), plan, creationNanos, number(afterRunError))
}

/** What the operator's directives ask of the next session of a model. */
public class SessionPlan internal constructor(
    internal val handle: Long,
    /** `false`: make the session for the CPU only. */
    public val useNpu: Boolean,
    /** The variant to load if the app has it; empty for the usual one. */
    public val variant: String,
)
