package dev.epwatch.workmanager;

import android.content.Context;
import androidx.work.Constraints;
import androidx.work.ExistingWorkPolicy;
import androidx.work.NetworkType;
import androidx.work.OneTimeWorkRequest;
import androidx.work.WorkManager;
import dev.epwatch.UploadSchedule;

/** Uploads by the app's WorkManager in place of a job of the SDK's own: {@code new AndroidPlatform(context, new WorkUploads())}. */
public final class WorkUploads implements UploadSchedule {
    private static final String NAME = "dev.epwatch.upload";

    /** Schedules one upload once there is a network; one that still waits is kept. */
    @Override
    public void schedule(Context context) {
        // Whether a metered network may be used is decided by the SDK, by bytes a day.
        Constraints constraints = new Constraints.Builder().setRequiredNetworkType(NetworkType.CONNECTED).build();
        OneTimeWorkRequest work =
                new OneTimeWorkRequest.Builder(UploadWorker.class).setConstraints(constraints).build();
        try {
            WorkManager.getInstance(context).enqueueUniqueWork(NAME, ExistingWorkPolicy.KEEP, work);
        } catch (IllegalStateException notInitialized) {
            // The app turned WorkManager's own start off and has none yet: uploads happen while it runs.
        }
    }
}
