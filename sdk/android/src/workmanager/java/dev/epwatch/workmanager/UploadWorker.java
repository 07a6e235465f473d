package dev.epwatch.workmanager;

import android.content.Context;
import androidx.work.ListenableWorker;
import androidx.work.Worker;
import androidx.work.WorkerParameters;
import dev.epwatch.BackgroundUpload;
import dev.epwatch.UploadOutcome;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

/** Sends what waits. WorkManager makes it in the app's process, after the app's own {@code Epwatch.start}. */
public final class UploadWorker extends Worker {
    public UploadWorker(Context context, WorkerParameters parameters) {
        super(context, parameters);
    }

    /**
     * Success if nothing waits any more. If something does, WorkManager tries again after its backoff. Failure if another try
     * changes nothing: the SDK does not run, or the collector refuses the app's key. What was not sent stays on disk, and the
     * next background schedules again.
     */
    @Override
    public ListenableWorker.Result doWork() {
        AtomicReference<UploadOutcome> outcome = new AtomicReference<>();
        CountDownLatch done = new CountDownLatch(1);
        BackgroundUpload.run(getApplicationContext(), found -> {
            outcome.set(found);
            done.countDown();
        });
        try {
            while (!isStopped() && !done.await(1, TimeUnit.SECONDS)) {}
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
        return resultOf(outcome.get());
    }

    /** Without an outcome the work was stopped; WorkManager ignores the result then. */
    private static ListenableWorker.Result resultOf(UploadOutcome outcome) {
        if (outcome == UploadOutcome.SENT) return ListenableWorker.Result.success();
        if (outcome == UploadOutcome.FAILED) return ListenableWorker.Result.failure();
        return ListenableWorker.Result.retry();
    }
}
