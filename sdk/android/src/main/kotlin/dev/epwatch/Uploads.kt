package dev.epwatch

import androidx.annotation.WorkerThread

/** What came of an upload. */
public enum class UploadOutcome {
    /** Nothing of this process waits any more. */
    SENT,

    /**
     * Something waits: there is no network, the bytes of the day are used up, or the collector did not take it. A later try
     * may succeed.
     */
    WAITING,

    /** The SDK does not run, or the collector refuses the app's key. Another try changes nothing. */
    FAILED,
}

/** Hears the end of [Epwatch.upload]. */
public fun interface UploadListener {
    /** Runs on the SDK's thread; on the caller's if the SDK was stopped. */
    @WorkerThread
    public fun onDone(outcome: UploadOutcome)
}
