package dev.epwatch

/**
 * Runs of a session that was observed before the native library was loaded, until the session is opened there. Bounded:
 * runs beyond [MAX_RUNS] are counted in [missed]. Not synchronised; [MeasuredSession] is.
 */
internal class EarlyRuns(private val open: (Any?) -> Long) {
    private var runs = LongArray(FIRST_RUNS * 2)
    private val shapes = ArrayList<ByteArray?>()
    private val errors = ArrayList<Int>()
    private var missed = 0L

    fun add(began: Long, latency: Long, shape: ByteArray?) {
        val n = shapes.size
        if (n == MAX_RUNS) {
            missed++
            return
        }
        if (2 * n == runs.size) runs = runs.copyOf(2 * runs.size)
        runs[2 * n] = began
        runs[2 * n + 1] = latency
        shapes.add(shape)
    }

    fun addError(code: Int) {
        if (errors.size < MAX_ERRORS) errors.add(code) else missed++
    }

    /** Opens the session and records the runs there. Returns its handle, 0 without success; then all runs are missed. */
    fun openWith(session: Any?): Long {
        val handle = open(session)
        if (handle <= 0) {
            Epwatch.missed(missed + shapes.size + errors.size)
            return 0
        }
        shapes.forEachIndexed { at, shape ->
            val (began, latency) = runs[2 * at] to runs[2 * at + 1]
            if (shape == null) Native.record(handle, began, latency)
            else Native.recordShape(handle, began, latency, shape)
        }
        errors.forEach { Native.recordError(handle, it) }
        Epwatch.missed(missed)
        return handle
    }

    /** The library will not come. */
    fun giveUp() = Epwatch.missed(missed + shapes.size + errors.size)

    private companion object {
        const val FIRST_RUNS = 64

        /** A minute of a model that runs at 17 frames a second; 40 kB. */
        const val MAX_RUNS = 1024
        const val MAX_ERRORS = 64
    }
}
