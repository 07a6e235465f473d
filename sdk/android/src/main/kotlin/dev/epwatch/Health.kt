package dev.epwatch

import androidx.annotation.WorkerThread

/**
 * Whether the SDK does its work. A [HealthListener] hears each change.
 *
 * @property isRunning the native library is loaded, and the SDK was started.
 * @property consent whether the SDK may record, in words; empty while it does not run.
 * @property hostProblem as [Explanation.hostProblem].
 * @property lastProblem as [Explanation.lastProblem]: an upload that failed, or a folder that cannot be used.
 * @property lostRuns runs that will be in no report.
 * @property internalErrors panics of the native library that were caught.
 */
public data class Health(
    public val isRunning: Boolean,
    public val consent: String,
    public val hostProblem: String?,
    public val lastProblem: String?,
    public val lostRuns: Long,
    public val internalErrors: Long,
) {
    /** Whether it runs without a problem. Without consent it may be so, too. */
    public val isGood: Boolean
        get() = isRunning && hostProblem == null && lastProblem == null

    internal companion object {
        fun of(isRunning: Boolean, known: Explanation): Health = Health(
            isRunning,
            known.consent,
            known.hostProblem,
            known.lastProblem,
            known.hostMissedRuns + known.dropped.values.sumOf { it.runs },
            known.internalErrors,
        )
    }
}

/** Hears changes of the SDK's health: [Epwatch.addHealthListener]. */
public fun interface HealthListener {
    /** The state now, at once after the listener was added, then after each change. Runs on the SDK's thread. */
    @WorkerThread
    public fun onHealth(health: Health)
}

/** The listeners, each with the state that it heard last. */
internal class HealthListeners(private val now: () -> Health) {
    private val heard = LinkedHashMap<HealthListener, Health?>()

    @get:Synchronized
    val isEmpty: Boolean
        get() = heard.isEmpty()

    @Synchronized
    fun add(listener: HealthListener) {
        if (listener !in heard) heard[listener] = null
    }

    @Synchronized
    fun remove(listener: HealthListener) {
        heard.remove(listener)
    }

    /** Calls those that have not heard the present state. On the SDK's thread only. */
    fun check() {
        if (isEmpty) return
        val health = now()
        val behind = synchronized(this) { heard.filterValues { it != health }.keys.toList() }
        for (listener in behind) {
            // The listener may have been removed meanwhile.
            val isNew = synchronized(this) { (listener in heard).also { if (it) heard[listener] = health } }
            if (isNew) call(listener, health)
        }
    }

    private fun call(listener: HealthListener, health: Health) = try {
        listener.onHealth(health)
    } catch (error: Exception) {
        // The app's own mistake must not end the SDK's thread.
        Debug.log { "a health listener failed: $error" }
    }
}
