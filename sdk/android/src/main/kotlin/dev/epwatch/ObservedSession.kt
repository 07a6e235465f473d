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
 * A session of the app whose runs are measured. The session stays the app's: closing this ends the record only. Every
 * call works after [close] and without the native library; then nothing is recorded.
 *
 * While the library is being loaded runs are kept here. The first call after that reads the placement, on its own
 * thread, because the app has the session open then. Without such a call the runs are reported without placement.
 */
@AnyThread
public class ObservedSession internal constructor(
    public val session: OrtSession,
    opened: Long,
    early: EarlyRuns?,
) : AutoCloseable {
    /** 0 before the library is loaded, and if nothing is recorded. */
    @Volatile internal var handle: Long = opened
        private set

    /** Guarded by this. */
    private var early: EarlyRuns? = early

    @Volatile private var isClosed = false

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

    /** Returns the time for [end]. */
    public fun begin(): Long = System.nanoTime()

    /** Records a run that began at the time of [begin], for a model whose inputs have one shape. */
    public fun end(began: Long) {
        record(began, System.nanoTime() - began, null)
    }

    /** As [end], for a model with free dimensions. A shape is for example `x:1x3x224x224`, at most 128 bytes. */
    public fun end(began: Long, shape: String) {
        val latency = System.nanoTime() - began
        record(began, latency, shape.toByteArray(Charsets.UTF_8))
    }

    /** Records runs: pairs of beginning ([System.nanoTime]) and nanoseconds, `n` of them. */
    public fun recordAll(runs: LongArray, n: Int) {
        val opened = handle
        if (opened > 0) {
            Native.recordAll(opened, runs, n)
        } else {
            for (at in 0 until minOf(n, runs.size / 2)) record(runs[2 * at], runs[2 * at + 1], null)
        }
    }

    /** Counts a run that failed. */
    public fun failed(error: OrtException) {
        val opened = handle
        if (opened > 0) Native.recordError(opened, codeOf(error)) else keep { it.addError(codeOf(error)) }
    }

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

    /** Returns where the session runs and why, as one JSON object. */
    public fun explain(): String {
        if (handle == 0L) openIfReady(session)
        val opened = handle
        return if (opened > 0) utf8(Native.explainSession(opened)) else "{}"
    }

    /** As [explain]; `null` if the session is not recorded, or was closed. */
    public fun explanation(): SessionExplanation? {
        val known = explain()
        return try {
            if (known.length > 2) SessionExplanation.of(Json.read(known)) else null
        } catch (_: IllegalArgumentException) {
            null
        }
    }

    override fun close() {
        isClosed = true
        val left = synchronized(this) { early.also { early = null } }
        val opened = handle
        if (opened > 0) Native.closeSession(opened)
        if (left != null) {
            Epwatch.opened(this)
            // The session may be closed by then, so its placement is not read.
            Epwatch.onceLoaded({ Native.closeSession(left.openWith(null)) }, left::giveUp)
        }
    }

    /**
     * Opens the session in the library if that is loaded by now, and hands on what was kept. Without `session` its
     * placement is not read.
     */
    internal fun openIfReady(session: OrtSession?) {
        if (Epwatch.isLoading()) return
        synchronized(this) {
            val kept = early ?: return
            early = null
            if (Epwatch.isLoaded()) handle = kept.openWith(session) else kept.giveUp()
        }
        Epwatch.opened(this)
    }

    /** Keeps something that happens before the library is loaded, and opens the session once it is. */
    private inline fun keep(what: (EarlyRuns) -> Unit) {
        val isKept = synchronized(this) { early?.let(what) != null }
        when {
            isKept -> openIfReady(session)
            // The library has no place for the session.
            Epwatch.isLoaded() && !isClosed -> Epwatch.missed(1)
        }
    }

    private fun record(began: Long, latency: Long, shape: ByteArray?) {
        val opened = handle
        when {
            opened <= 0 -> keep { it.add(began, latency, shape) }
            shape == null -> Native.record(opened, began, latency)
            else -> Native.recordShape(opened, began, latency, shape)
        }
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
