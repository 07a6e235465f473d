package dev.epwatch.workmanager;

import android.content.Context;
import androidx.work.ListenableWorker;
import androidx.work.Worker;
import androidx.work.WorkerParameters;
import dev.epwatch.Epwatch;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** Sends what waits. WorkManager makes it in the app's process, after the app's own {@code Epwatch.start}. */
public final class UploadWorker extends Worker {
    public UploadWorker(Context context, WorkerParameters parameters) {
        super(context, parameters);
    }

    /** Ends when all was tried. What was not sent stays on disk; the next background schedules again. */
    @Override
    public ListenableWorker.Result doWork() {
        CountDownLatch done = new CountDownLatch(1);
        Epwatch.flush(done::countDown);
        try {
            while (!isStopped() && !done.await(1, TimeUnit.SECONDS)) {}
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
        return ListenableWorker.Result.success();
    }
}
