package dev.epwatch

/**
 * The calls of `libepwatch.so` (`sdk/ffi/src/jni`). Texts are UTF-8 bytes; handles are positive, a negative one is a
 * status. Nothing here calls back.
 */
internal object Native {
    @JvmStatic external fun lastError(): ByteArray?

    @JvmStatic external fun disableRuntimeTelemetry(): Int

    @JvmStatic external fun start(texts: Array<ByteArray>, numbers: LongArray): Long

    @JvmStatic external fun stop(watch: Long, timeoutMs: Long): Int

    @JvmStatic external fun setConsent(watch: Long, isGiven: Boolean): Int

    @JvmStatic external fun setConditions(watch: Long, thermal: Int, powerSave: Int): Int

    @JvmStatic external fun setNetwork(watch: Long, network: Int): Int

    @JvmStatic external fun seal(watch: Long): Int

    @JvmStatic external fun explain(watch: Long): ByteArray?

    @JvmStatic external fun preflight(watch: Long, texts: Array<ByteArray>, declaresRpcLibrary: Int): Int

    @JvmStatic external fun plan(watch: Long, texts: Array<ByteArray>, numbers: LongArray, timeoutMs: Long): Long

    @JvmStatic external fun planUsesNpu(plan: Long): Boolean

    @JvmStatic external fun planVariant(plan: Long): ByteArray?

    @JvmStatic external fun closePlan(plan: Long): Int

    @JvmStatic external fun observe(watch: Long, session: Any?, texts: Array<ByteArray>, numbers: LongArray): Long

    @JvmStatic external fun sessionOf(
        watch: Long,
        texts: Array<ByteArray>,
        numbers: LongArray,
        runtime: ByteArray,
        nodes: Array<ByteArray>?,
        partitions: LongArray,
    ): Long

    @JvmStatic external fun compatibility(watch: Long, texts: Array<ByteArray>, numbers: LongArray): Long

    @JvmStatic external fun startFailed(
        watch: Long,
        texts: Array<ByteArray>,
        numbers: LongArray,
        code: Int,
        message: ByteArray,
    ): Int

    @JvmStatic external fun record(session: Long, beganNanos: Long, latencyNanos: Long): Int

    @JvmStatic external fun recordShape(session: Long, beganNanos: Long, latencyNanos: Long, shape: ByteArray): Int

    @JvmStatic external fun recordAll(session: Long, runs: LongArray, n: Int): Int

    @JvmStatic external fun recordError(session: Long, code: Int): Int

    @JvmStatic external fun explainSession(session: Long): ByteArray?

    @JvmStatic external fun closeSession(session: Long): Int

    @JvmStatic external fun beginSelfTest(session: Long, bytes: Array<ByteArray>, numbers: LongArray): Long

    @JvmStatic external fun endSelfTest(test: Long, bytes: Array<ByteArray>, numbers: LongArray): ByteArray?

    @JvmStatic external fun nextUpload(watch: Long): Long

    @JvmStatic external fun uploadPath(upload: Long): ByteArray?

    @JvmStatic external fun uploadBody(upload: Long): ByteArray?

    @JvmStatic external fun uploadAnswer(upload: Long, answer: ByteArray): Int

    @JvmStatic external fun uploadFailed(
        upload: Long,
        httpStatus: Int,
        retryAfterMs: Long,
        message: ByteArray,
    ): Int
}

internal fun utf8(bytes: ByteArray?): String = if (bytes == null) "" else String(bytes, Charsets.UTF_8)

internal fun texts(vararg texts: String): Array<ByteArray> = Array(texts.size) { texts[it].toByteArray(Charsets.UTF_8) }

internal fun number(flag: Boolean): Long = if (flag) 1 else 0
