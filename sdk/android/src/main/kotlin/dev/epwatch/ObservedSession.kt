package dev.epwatch

import ai.onnxruntime.OnnxTensorLike
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtSession
import ai.onnxruntime.TensorInfo
import java.util.concurrent.Callable

/**
 * A session of the app whose runs are measured. The session stays the app's: closing this ends the record only. Every
 * call works after [close] and without the native library; then nothing is recorded.
 */
public class ObservedSession internal constructor(
    public val session: OrtSession,
    internal val handle: Long,
) : AutoCloseable {
    /** Names of the inputs, in ONNX Runtime's order; `null` if each has one shape. */
    private val inputsWithShapes: List<String>? = namesOfFreeInputs(session)

    /** As [OrtSession.run], measured. */
    @Throws(OrtException::class)
    public fun run(inputs: Map<String, OnnxTensorLike>): OrtSession.Result =
        measured(inputs) { session.run(inputs) }

    /** As [OrtSession.run], measured. */
    @Throws(OrtException::class)
    public fun run(inputs: Map<String, OnnxTensorLike>, requestedOutputs: Set<String>): OrtSession.Result =
        measured(inputs) { session.run(inputs, requestedOutputs) }

    /** As [OrtSession.run], measured. */
    @Throws(OrtException::class)
    public fun run(inputs: Map<String, OnnxTensorLike>, options: OrtSession.RunOptions): OrtSession.Result =
        measured(inputs) { session.run(inputs, options) }

    /** Measures a run that the app makes by itself. An exception is passed on; ONNX Runtime's counts as a failed run. */
    @Throws(Exception::class)
    public fun <T> measure(run: Callable<T>): T = measured(null) { run.call() }

    /** Returns the time for [end]. */
    public fun begin(): Long = System.nanoTime()

    /** Records a run that began at the time of [begin], for a model whose inputs have one shape. */
    public fun end(began: Long) {
        val latency = System.nanoTime() - began
        if (handle > 0) Native.record(handle, began, latency)
    }

    /** Records runs: pairs of beginning ([System.nanoTime]) and nanoseconds, `n` of them. */
    public fun recordAll(runs: LongArray, n: Int) {
        if (handle > 0) Native.recordAll(handle, runs, n)
    }

    /** Counts a run that failed. */
    public fun failed(error: OrtException) {
        if (handle > 0) Native.recordError(handle, codeOf(error))
    }

    /** Returns where the session runs and why, as one JSON object. */
    public fun explain(): String = if (handle > 0) utf8(Native.explainSession(handle)) else "{}"

    override fun close() {
        if (handle > 0) Native.closeSession(handle)
    }

    private inline fun <T> measured(inputs: Map<String, OnnxTensorLike>?, run: () -> T): T {
        val began = System.nanoTime()
        val result = try {
            run()
        } catch (error: OrtException) {
            failed(error)
            throw error
        }
        val latency = System.nanoTime() - began
        when {
            handle <= 0 -> {}
            inputs == null || inputsWithShapes == null -> Native.record(handle, began, latency)
            else -> Native.recordShape(handle, began, latency, shapeKey(inputsWithShapes, inputs))
        }
        return result
    }
}

/** ONNX Runtime's number of an error. Its Java class hides it: the first constant is -1. */
internal fun codeOf(error: OrtException): Int = error.code.ordinal - 1

private fun namesOfFreeInputs(session: OrtSession): List<String>? = try {
    val inputs = session.inputInfo
    val isFree = inputs.values.any { node -> (node.info as? TensorInfo)?.shape?.any { it < 0 } ?: true }
    if (isFree) inputs.keys.toList() else null
} catch (_: OrtException) {
    null
} catch (_: IllegalStateException) {
    null
}

/** For example `ids:1x77,mask:1x77`; empty if it is too long. */
private fun shapeKey(names: List<String>, inputs: Map<String, OnnxTensorLike>): ByteArray {
    val key = StringBuilder()
    for (name in names) {
        val input = inputs[name] ?: continue
        if (key.isNotEmpty()) key.append(',')
        key.append(name).append(':')
        input.info.shape.joinTo(key, "x")
    }
    val bytes = key.toString().toByteArray(Charsets.UTF_8)
    return if (bytes.size <= MAX_SHAPE_BYTES) bytes else ByteArray(0)
}

private const val MAX_SHAPE_BYTES = 128
