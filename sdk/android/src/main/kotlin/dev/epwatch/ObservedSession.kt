package dev.epwatch

import ai.onnxruntime.OnnxTensorLike
import ai.onnxruntime.OnnxValue
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtSession
import ai.onnxruntime.TensorInfo
import androidx.annotation.AnyThread
import androidx.annotation.WorkerThread
import java.util.concurrent.Callable

/**
 * A session of ONNX Runtime whose runs are measured. Runs before the library is loaded are kept: the first call after that reads
 * the placement, on its own thread. Without such a call, or if the app has closed the session by then, the runs are reported
 * without placement. The app may close the session at any time, except during a call of this class on another thread.
 */
@AnyThread
public class ObservedSession internal constructor(
    public val session: OrtSession,
    opened: Long,
    early: EarlyRuns?,
) : MeasuredSession(opened, early) {
    internal override val ownSession: Any get() = session

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

    /** As [OrtSession.run], measured. */
    @Throws(OrtException::class)
    public fun run(
        inputs: Map<String, OnnxTensorLike>,
        requestedOutputs: Set<String>,
        options: OrtSession.RunOptions,
    ): OrtSession.Result = measured(inputs) { session.run(inputs, requestedOutputs, options) }

    /** As [OrtSession.run] with outputs that the app has made, measured. */
    @Throws(OrtException::class)
    public fun run(inputs: Map<String, OnnxTensorLike>, pinnedOutputs: Map<String, OnnxValue>): OrtSession.Result =
        measured(inputs) { session.run(inputs, pinnedOutputs) }

    /** As [OrtSession.run] with outputs that the app has made, measured. */
    @Throws(OrtException::class)
    public fun run(
        inputs: Map<String, OnnxTensorLike>,
        requestedOutputs: Set<String>,
        pinnedOutputs: Map<String, OnnxValue>,
    ): OrtSession.Result = measured(inputs) { session.run(inputs, requestedOutputs, pinnedOutputs) }

    /** As [OrtSession.run] with outputs that the app has made, measured. */
    @Throws(OrtException::class)
    public fun run(
        inputs: Map<String, OnnxTensorLike>,
        requestedOutputs: Set<String>,
        pinnedOutputs: Map<String, OnnxValue>,
        options: OrtSession.RunOptions,
    ): OrtSession.Result = measured(inputs) { session.run(inputs, requestedOutputs, pinnedOutputs, options) }

    /**
     * Measures a run that the app makes by itself with these inputs, whose shapes are told apart. An exception is passed on;
     * ONNX Runtime's counts as a failed run.
     */
    @Throws(Exception::class)
    public fun <T> measure(inputs: Map<String, OnnxTensorLike>, run: Callable<T>): T = measured(inputs) { run.call() }

    /** As [measure] with inputs, for a model whose inputs have one shape. All runs count together. */
    @Throws(Exception::class)
    public fun <T> measure(run: Callable<T>): T = measured(null) { run.call() }

    /** Counts a run that failed. */
    public fun failed(error: OrtException): Unit = recordError(codeOf(error))

    /**
     * Runs a golden input on this session and on a session of the same model on the CPU, and compares the outputs: does the NPU
     * compute what the CPU computes? `null` if there is nothing to do: the test ran before with this model, firmware and
     * runtime, no node is on the NPU, or the SDK does not run. Only then is `cpuSession` called, and its session closed.
     * Reports have hashes and distances, no outputs. The runs are not measured.
     */
    @WorkerThread
    public fun selfTest(golden: GoldenInput, cpuSession: Callable<OrtSession>): SelfTestResult? {
        if (handle == 0L) openIfReady(session)
        return handle.takeIf { it > 0 }?.let { selfTest(it, session, golden, cpuSession) }
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
        val shape = if (inputs == null || inputsWithShapes == null) null else shapeKey(inputsWithShapes, inputs)
        record(began, latency, shape)
        return result
    }
}

/** The session if it is open. The pointer in a closed one leads to memory that ONNX Runtime has freed. */
internal fun ifOpen(session: OrtSession): OrtSession? = try {
    session.numInputs
    session
} catch (_: IllegalStateException) {
    null
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
