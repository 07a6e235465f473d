package dev.epwatch

import android.annotation.TargetApi
import android.app.Activity
import android.app.ActivityManager
import android.app.Application
import android.content.BroadcastReceiver
import android.content.Context
import android.content.Intent
import android.content.IntentFilter
import android.net.ConnectivityManager
import android.net.Network
import android.net.NetworkCapabilities
import android.os.Build
import android.os.Bundle
import android.os.PowerManager
import androidx.annotation.AnyThread
import java.io.File

/**
 * Starts the SDK in an Android app, for example in `Application.onCreate`. Returns at once; Java calls
 * `Epwatch.start(new AndroidPlatform(context), config)`.
 */
@AnyThread
public fun Epwatch.start(context: Context, config: EpwatchConfig): Unit = start(AndroidPlatform(context), config)

/**
 * An Android app, by the framework alone. The constructor touches neither the disk nor a service.
 *
 * Without the permission `ACCESS_NETWORK_STATE` the network is not known, and the SDK treats it as metered.
 */
public class AndroidPlatform @JvmOverloads constructor(
    context: Context,
    private val uploads: UploadSchedule = UploadJob,
) : Platform {
    private val context = context.applicationContext ?: context

    override fun folder(): File = File(context.noBackupFilesDir, "epwatch")

    override fun facts(): DeviceFacts = DeviceFacts().apply {
        val memory = ActivityManager.MemoryInfo()
        (context.getSystemService(Context.ACTIVITY_SERVICE) as ActivityManager).getMemoryInfo(memory)
        chipset = if (Build.VERSION.SDK_INT >= 31) known(Build.SOC_MODEL) else ""
        if (chipset.isEmpty()) chipset = known(Build.HARDWARE)
        socManufacturer = if (Build.VERSION.SDK_INT >= 31) known(Build.SOC_MANUFACTURER) else ""
        board = known(Build.BOARD)
        abi = Build.SUPPORTED_ABIS.firstOrNull() ?: ""
        manufacturer = known(Build.MANUFACTURER)
        model = known(Build.MODEL)
        os = "android"
        osVersion = known(Build.VERSION.RELEASE)
        securityPatch = Build.VERSION.SECURITY_PATCH
        vendorFingerprint = known(Build.FINGERPRINT)
        ramBytes = memory.totalMem
        apiLevel = Build.VERSION.SDK_INT
        reportsThermal = Build.VERSION.SDK_INT >= 29
        reportsPowerSave = true
    }

    override fun listen(signals: Signals) {
        Conditions(context, signals).listen()
        listenToNetwork(signals)
        (context as? Application)?.registerActivityLifecycleCallbacks(Visibility {
            signals.background()
            uploads.schedule(context)
        })
        BackgroundUpload.listen(context, signals::background)
    }

    private fun listenToNetwork(signals: Signals) {
        val manager = context.getSystemService(Context.CONNECTIVITY_SERVICE) as ConnectivityManager
        val callback = object : ConnectivityManager.NetworkCallback() {
            override fun onCapabilitiesChanged(network: Network, capabilities: NetworkCapabilities) {
                val isUnmetered = capabilities.hasCapability(NetworkCapabilities.NET_CAPABILITY_NOT_METERED)
                signals.network(if (isUnmetered) UNMETERED else METERED)
            }

            override fun onLost(network: Network) = signals.network(OFFLINE)
        }
        try {
            manager.registerDefaultNetworkCallback(callback)
        } catch (_: SecurityException) {
            signals.network(UNKNOWN_NETWORK)
        }
    }
}

/** Thermal status and power save, now and at each change. */
private class Conditions(private val context: Context, private val signals: Signals) : BroadcastReceiver() {
    private val power = context.getSystemService(Context.POWER_SERVICE) as PowerManager

    @Volatile private var thermal = UNKNOWN

    fun listen() {
        if (Build.VERSION.SDK_INT >= 29) listenToHeat()
        context.registerReceiver(this, IntentFilter(PowerManager.ACTION_POWER_SAVE_MODE_CHANGED))
        report()
    }

    override fun onReceive(context: Context, intent: Intent) = report()

    /** Some devices refuse the listener with an exception. A status that would not follow is not known. */
    @TargetApi(29)
    private fun listenToHeat() = try {
        power.addThermalStatusListener { status ->
            thermal = status
            report()
        }
        thermal = power.currentThermalStatus
    } catch (_: RuntimeException) {
        thermal = UNKNOWN
    }

    private fun report() = signals.conditions(thermal, if (power.isPowerSaveMode) 1 else 0)
}

/** Calls [hidden] whenever no activity is visible any more. */
private class Visibility(private val hidden: () -> Unit) : Application.ActivityLifecycleCallbacks {
    private var visible = 0

    override fun onActivityStarted(activity: Activity) {
        visible++
    }

    override fun onActivityStopped(activity: Activity) {
        // An activity that started before the SDK was not counted.
        visible = maxOf(0, visible - 1)
        // When the screen turns, a new instance of the same activity follows at once.
        if (visible == 0 && !activity.isChangingConfigurations) hidden()
    }

    override fun onActivityCreated(activity: Activity, state: Bundle?) {}

    override fun onActivityResumed(activity: Activity) {}

    override fun onActivityPaused(activity: Activity) {}

    override fun onActivitySaveInstanceState(activity: Activity, state: Bundle) {}

    override fun onActivityDestroyed(activity: Activity) {}
}

/** Android says "unknown" where the SDK leaves a fact out. */
private fun known(fact: String?): String = if (fact == null || fact == Build.UNKNOWN) "" else fact

private const val UNKNOWN = -1
private const val UNKNOWN_NETWORK = 0
private const val UNMETERED = 1
private const val METERED = 2
private const val OFFLINE = 3
