package dev.epwatch

import android.app.job.JobInfo
import android.app.job.JobParameters
import android.app.job.JobScheduler
import android.app.job.JobService
import android.content.ComponentName
import android.content.Context

/** Who runs an upload after the app went out of sight. The default is JobScheduler; `dev.epwatch.workmanager` has WorkManager. */
public fun interface UploadSchedule {
    /** Schedules one upload, on the app's main thread. */
    public fun schedule(context: Context)
}

/**
 * Sends what waits once the device has a network, also if the app's process ended in between: Android starts it again,
 * and the app's own `Epwatch.start` comes before this job.
 */
public class UploadJob : JobService() {
    override fun onStartJob(parameters: JobParameters): Boolean {
        Epwatch.flush { jobFinished(parameters, false) }
        return true
    }

    /** The system takes the network back. What was not sent stays on disk; the next background schedules again. */
    override fun onStopJob(parameters: JobParameters): Boolean = false

    internal companion object : UploadSchedule {
        /** The letters "epw": an app's own jobs rarely have it. */
        private const val ID = 0x657077

        /** Schedules one upload; an earlier one that still waits is replaced. */
        override fun schedule(context: Context) {
            val scheduler = context.getSystemService(Context.JOB_SCHEDULER_SERVICE) as? JobScheduler ?: return
            // Whether a metered network may be used is decided by the SDK, by bytes a day.
            val job = JobInfo.Builder(ID, ComponentName(context, UploadJob::class.java))
                .setRequiredNetworkType(JobInfo.NETWORK_TYPE_ANY)
                .build()
            try {
                scheduler.schedule(job)
            } catch (_: IllegalArgumentException) {
                // The app removed the service from its manifest: uploads happen while it runs.
            }
        }
    }
}
