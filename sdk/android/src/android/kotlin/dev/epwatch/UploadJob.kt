package dev.epwatch

import android.app.job.JobInfo
import android.app.job.JobParameters
import android.app.job.JobScheduler
import android.app.job.JobService
import android.content.ComponentName
import android.content.Context
import androidx.annotation.MainThread

/** Who runs an upload after the app went out of sight. The default is JobScheduler; `dev.epwatch.workmanager` has WorkManager. */
public fun interface UploadSchedule {
    /** Schedules one upload, for example of [BackgroundUpload], on the app's main thread. */
    @MainThread
    public fun schedule(context: Context)
}

/**
 * Sends what waits once the device has a network, also if the app's process ended in between: Android starts it again,
 * and the app's own `Epwatch.start` comes before this job. If something still waits afterwards, Android tries again later.
 */
public class UploadJob : JobService() {
    override fun onStartJob(parameters: JobParameters): Boolean {
        // Android waits 30 s before it starts the job again, then twice as long each time, up to five hours.
        BackgroundUpload.run(this) { outcome -> jobFinished(parameters, outcome == UploadOutcome.WAITING) }
        return true
    }

    /** The system takes the network back: the job starts again once there is one. */
    override fun onStopJob(parameters: JobParameters): Boolean = true

    internal companion object : UploadSchedule {
        /** The letters "epw": an app's own jobs rarely have it. */
        private const val ID = 0x657077

        /** One job for all processes of the app; an earlier one that still waits is replaced. */
        override fun schedule(context: Context) {
            val scheduler = context.getSystemService(Context.JOB_SCHEDULER_SERVICE) as? JobScheduler ?: return
            // The SDK decides by a daily number of bytes whether a metered network may be used.
            val job = JobInfo.Builder(ID, ComponentName(context, UploadJob::class.java))
                .setRequiredNetworkType(JobInfo.NETWORK_TYPE_ANY)
                .build()
            try {
                scheduler.schedule(job)
                Debug.log { "an upload is scheduled" }
            } catch (_: IllegalArgumentException) {
                // The app removed the service from its manifest, so uploads happen only while the app runs.
            }
        }
    }
}
