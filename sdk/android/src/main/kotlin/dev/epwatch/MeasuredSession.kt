package dev.epwatch

import androidx.annotation.AnyThread

/**
 * A session of the app whose runs are recorded. The session stays the app's: closing this ends the record only. Every
 * call works after [close] and without the native library; then nothing is recorded.
 *
 * While the library is being loaded runs are kept here. The first call after that opens the session there.
 */
@AnyThread
public abstract class MeasuredSession internal constructor(opened: Long, early: EarlyRuns?) : AutoCloseable {
    /** 0 before the library is loaded, and if nothing is recorded. */
    @Volatile internal var handle: Long = opened
        private set

    /** Guarded by this. */
    private var early: EarlyRuns? = early

    @Volatile private var isClosed = false

    /** ONNX Runtime's session, whose placement the library reads; `null` of another runtime. */
    internal abstract val ownSession: Any?

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

    /** Returns where the session runs and why, as one JSON object. */
    public fun explain(): String {
        if (handle == 0L) openIfReady(ownSession)
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
     * Opens the session in the library if that is loaded by now, and hands on what was kept. Without `session` the placement
     * of ONNX Runtime's is not read.
     */
    internal fun openIfReady(session: Any?) {
        if (Epwatch.isLoading()) return
        synchronized(this) {
            val kept = early ?: return
            early = null
            if (Epwatch.isLoaded()) handle = kept.openWith(session) else kept.giveUp()
        }
        Epwatch.opened(this)
    }

    internal fun recordError(code: Int) {
        val opened = handle
        if (opened > 0) Native.recordError(opened, code) else keep { it.addError(code) }
    }

    internal fun record(began: Long, latency: Long, shape: ByteArray?) {
        val opened = handle
        when {
            opened <= 0 -> keep { it.add(began, latency, shape) }
            shape == null -> Native.record(opened, began, latency)
            else -> Native.recordShape(opened, began, latency, shape)
        }
    }

    /** Keeps something that happens before the library is loaded, and opens the session once it is. */
    private inline fun keep(what: (EarlyRuns) -> Unit) {
        val isKept = synchronized(this) { early?.let(what) != null }
        when {
            isKept -> openIfReady(ownSession)
            // The library has no place for the session.
            Epwatch.isLoaded() && !isClosed -> Epwatch.missed(1)
        }
    }
}
