package dev.epwatch

import android.app.Activity
import android.app.Application
import android.app.job.JobScheduler
import android.content.Context
import android.content.Intent
import android.net.ConnectivityManager
import android.net.NetworkCapabilities
import android.os.Build
import android.os.Looper
import android.os.PowerManager
import org.junit.Assert.assertEquals
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config
import org.robolectric.shadows.ShadowNetworkCapabilities
import org.robolectric.util.ReflectionHelpers

/** Everything that the platform reported, in order. */
private class Heard : Signals {
    val all = mutableListOf<String>()

    override fun conditions(thermal: Int, powerSave: Int) {
        all += "thermal $thermal power save $powerSave"
    }

    override fun network(kind: Int) {
        all += "network $kind"
    }

    override fun background() {
        all += "background"
    }
}

@RunWith(RobolectricTestRunner::class)
class AndroidPlatformTest {
    private val app: Application = RuntimeEnvironment.getApplication()
    private val platform = AndroidPlatform(app)
    private val heard = Heard()

    private fun <T> service(name: String): T = @Suppress("UNCHECKED_CAST") (app.getSystemService(name) as T)

    private fun settle() = shadowOf(Looper.getMainLooper()).idle()

    @Test
    @Config(sdk = [24])
    fun anOldPhoneHasNoNameOfItsChipsetAndNoThermalStatus() {
        ReflectionHelpers.setStaticField(Build::class.java, "HARDWARE", "qcom")
        ReflectionHelpers.setStaticField(Build::class.java, "BOARD", "msm8998")
        val facts = platform.facts()
        assertEquals("qcom", facts.chipset)
        assertEquals("msm8998", facts.board)
        assertEquals(24, facts.apiLevel)
        assertEquals(false, facts.reportsThermal)
        platform.listen(heard)
        assertEquals("thermal -1 power save 0", heard.all.first())
    }

    @Test
    @Config(sdk = [31, 35])
    fun factsOfAPhone() {
        ReflectionHelpers.setStaticField(Build::class.java, "SOC_MODEL", "SM8650")
        ReflectionHelpers.setStaticField(Build::class.java, "SOC_MANUFACTURER", "QTI")
        ReflectionHelpers.setStaticField(Build::class.java, "BOARD", Build.UNKNOWN)
        val facts = platform.facts()
        assertEquals("SM8650", facts.chipset)
        assertEquals("QTI", facts.socManufacturer)
        assertEquals("", facts.board)
        assertEquals("android", facts.os)
        assertEquals(Build.VERSION.SDK_INT, facts.apiLevel)
        assertEquals(true, facts.reportsThermal)
        assertEquals(app.noBackupFilesDir.path + "/epwatch", platform.folder().path)
    }

    @Test
    @Config(sdk = [31, 35])
    fun heatAndPowerSaveAreReportedAtOnceAndAtEachChange() {
        val power = service<PowerManager>(Context.POWER_SERVICE)
        shadowOf(power).setCurrentThermalStatus(PowerManager.THERMAL_STATUS_LIGHT)
        platform.listen(heard)
        assertEquals("thermal 1 power save 0", heard.all.first())
        shadowOf(power).setCurrentThermalStatus(PowerManager.THERMAL_STATUS_SEVERE)
        settle()
        assertEquals("thermal 3 power save 0", heard.all.last())
        shadowOf(power).setIsPowerSaveMode(true)
        app.sendBroadcast(Intent(PowerManager.ACTION_POWER_SAVE_MODE_CHANGED))
        settle()
        assertEquals("thermal 3 power save 1", heard.all.last())
    }

    @Test
    @Config(sdk = [24, 31, 35])
    fun theNetworkIsUnmeteredMeteredOrAbsent() {
        val manager = service<ConnectivityManager>(Context.CONNECTIVITY_SERVICE)
        platform.listen(heard)
        val callback = shadowOf(manager).networkCallbacks.single()
        val network = manager.activeNetwork!!
        val capabilities = ShadowNetworkCapabilities.newInstance()
        callback.onCapabilitiesChanged(network, capabilities)
        shadowOf(capabilities).addCapability(NetworkCapabilities.NET_CAPABILITY_NOT_METERED)
        callback.onCapabilitiesChanged(network, capabilities)
        callback.onLost(network)
        assertEquals(listOf("network 2", "network 1", "network 3"), heard.all.takeLast(3))
    }

    @Test
    @Config(sdk = [24, 31, 35])
    fun theLastVisibleActivityThatStopsSealsOnceAndSchedulesAnUpload() {
        platform.listen(heard)
        val first = Robolectric.buildActivity(Activity::class.java).create().start()
        val second = Robolectric.buildActivity(Activity::class.java).create().start()
        first.stop()
        assertEquals(false, "background" in heard.all)
        second.stop()
        assertEquals(1, heard.all.count { it == "background" })
        val jobs = service<JobScheduler>(Context.JOB_SCHEDULER_SERVICE).allPendingJobs
        assertEquals(listOf(UploadJob::class.java.name), jobs.map { it.service.className })
    }

    @Test
    @Config(sdk = [24, 35])
    fun anAppSchedulesItsUploadsItself() {
        var scheduled = 0
        AndroidPlatform(app) { scheduled++ }.listen(heard)
        Robolectric.buildActivity(Activity::class.java).create().start().stop()
        assertEquals(1, scheduled)
        assertEquals(0, service<JobScheduler>(Context.JOB_SCHEDULER_SERVICE).allPendingJobs.size)
    }
}
