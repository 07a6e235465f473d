package dev.epwatch

import android.content.BroadcastReceiver
import android.content.Context
import android.content.Intent
import android.content.IntentFilter
import android.os.Build
import android.os.Process
import android.os.SystemClock
import androidx.annotation.AnyThread

/**
 * One upload of the whole app, for a scheduler of the app's own. `UploadJob` and `dev.epwatch.workmanager` call it, too.
 *
 * The calling process sends its own reports, and the reports of processes that have ended. Processes that still run are asked by a
 * broadcast inside the app, and send their own. Android 14 and later hands it to a cached process when that wakes up or is
 * restarted; if it ends instead, the next upload sends its reports.
 */
public object BackgroundUpload {
    private const val ACTION = "dev.epwatch.action.UPLOAD"
    private const val FROM = "dev.epwatch.extra.PID"

    /** Before Android 13 any app can send the broadcast, so it counts this often at most. */
    private const val PAUSE_MS = 60_000L

    /** Starts the upload; `done` hears of this process's own. */
    @AnyThread
    @JvmStatic
    public fun run(context: Context, done: UploadListener) {
        val ask = Intent(ACTION).setPackage(context.packageName).putExtra(FROM, Process.myPid())
        context.sendBroadcast(ask)
        Epwatch.upload(done)
    }

    /** Calls `asked` whenever another process of the app uploads. */
    internal fun listen(context: Context, asked: () -> Unit) {
        val receiver = Asked(asked)
        val filter = IntentFilter(ACTION)
        if (Build.VERSION.SDK_INT >= 33) {
            context.registerReceiver(receiver, filter, Context.RECEIVER_NOT_EXPORTED)
        } else {
            context.registerReceiver(receiver, filter)
        }
    }

    private class Asked(private val asked: () -> Unit) : BroadcastReceiver() {
        private var lastMs = -PAUSE_MS

        override fun onReceive(context: Context, intent: Intent) {
            val now = SystemClock.elapsedRealtime()
            if (intent.getIntExtra(FROM, 0) == Process.myPid() || now - lastMs < PAUSE_MS) return
            lastMs = now
            Debug.log { "another process of the app uploads" }
            asked()
        }
    }
}
