package dev.epwatch

import androidx.annotation.AnyThread
import java.util.concurrent.Callable

/**
 * A part of a model as another runtime than ONNX Runtime placed it.
 *
 * @property accelerator for example `GPU`, `XNNPACK` or `TfLiteQnnDelegate`; `CPU` for an op that none took.
 * @property ops types of its ops, in the runtime's order.
 */
public class Partition(public val accelerator: String, public val ops: List<String>)

/** A session of another runtime than ONNX Runtime, for example LiteRT, whose runs are measured: [Epwatch.sessionOf]. */
@AnyThread
public class RuntimeSession internal constructor(opened: Long, early: EarlyRuns?) : MeasuredSession(opened, early) {
    internal override val ownSession: Any? get() = null

    /** Measures a run. An exception is passed on, and counts as a failed run. */
    @Throws(Exception::class)
    public fun <T> measure(run: Callable<T>): T {
        val began = System.nanoTime()
        val result = try {
            run.call()
        } catch (error: Exception) {
            failed()
            throw error
        }
        record(began, System.nanoTime() - began, null)
        return result
    }

    /** Counts a run that failed. */
    public fun failed(): Unit = recordError(FAILED)

    internal companion object {
        /** ORT_FAIL, for a runtime whose errors have other numbers. */
        const val FAILED = 1
    }
}
