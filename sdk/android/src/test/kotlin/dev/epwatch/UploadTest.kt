package dev.epwatch

import android.app.Application
import android.app.job.JobParameters
import android.content.Context
import android.content.Intent
import android.os.Bundle
import android.os.Looper
import android.os.Process
import java.time.Duration
import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicInteger
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config
import org.robolectric.shadow.api.Shadow
import org.robolectric.shadows.ShadowSystemClock

/** Uploads in the background, without the native library: the schedulers hear that another try changes nothing. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [24, 31, 35])
class UploadTest {
    private val app: Application = RuntimeEnvironment.getApplication()

    private fun settle() = shadowOf(Looper.getMainLooper()).idle()

    @Test
    fun theJobIsNotRescheduledForNothingAndIsWhenItIsStopped() {
        val job = Robolectric.buildService(UploadJob::class.java).create().get()
        val parameters = Shadow.newInstanceOf(JobParameters::class.java)
        assertTrue(job.onStartJob(parameters))
        val until = System.nanoTime() + TimeUnit.MINUTES.toNanos(5)
        while (!shadowOf(job).isJobFinished) {
            assertTrue("the job does not end", System.nanoTime() < until)
            Thread.sleep(5)
        }
        assertEquals(false, shadowOf(job).isRescheduleNeeded)
        assertTrue(job.onStopJob(parameters))
    }

    /** WorkManager's classes are not on the compiler's class path. */
    @Test
    fun theWorkerTellsWorkManagerTheTruth() {
        val type = Class.forName("dev.epwatch.workmanager.UploadWorker")
        val ofParameters = Class.forName("androidx.work.WorkerParameters")
        // The tested worker uses none of these parameters.
        val parameters = ofParameters.constructors.single().let { constructor ->
            val none = constructor.parameterTypes.map {
                when (it) {
                    Int::class.javaPrimitiveType -> 0
                    Collection::class.java -> emptySet<String>()
                    else -> null
                }
            }
            constructor.newInstance(*none.toTypedArray())
        }
        val worker = type.getConstructor(Context::class.java, ofParameters).newInstance(app, parameters)
        assertEquals("Failure", type.getMethod("doWork").invoke(worker).javaClass.simpleName)
        val resultOf = type.getDeclaredMethod("resultOf", UploadOutcome::class.java).apply { isAccessible = true }
        val results = (UploadOutcome.entries + null).map { resultOf.invoke(null, it).javaClass.simpleName }
        assertEquals(listOf("Success", "Retry", "Failure", "Retry"), results)
    }

    @Test
    fun theUploadOfOneProcessAsksTheOthers() {
        val asked = AtomicInteger()
        BackgroundUpload.listen(app) { asked.incrementAndGet() }
        // Its own process sends already.
        BackgroundUpload.run(app) {}
        settle()
        assertEquals(0, asked.get())
        val sent = shadowOf(app).broadcastIntents.single { it.action == "dev.epwatch.action.UPLOAD" }
        assertEquals(app.packageName, sent.`package`)
        assertEquals(Process.myPid(), sent.getIntExtra("dev.epwatch.extra.PID", 0))
        // The intent as another process would send it. A second one right after it comes from somebody else.
        val ofAnother = Intent(sent).putExtra("dev.epwatch.extra.PID", Process.myPid() + 1)
        repeat(2) { app.sendBroadcast(ofAnother) }
        settle()
        assertEquals(1, asked.get())
        ShadowSystemClock.advanceBy(Duration.ofMinutes(2))
        app.sendBroadcast(ofAnother)
        settle()
        assertEquals(2, asked.get())
    }

    @Test
    fun theManifestConfiguresAStart() {
        val found = Bundle().apply {
            putString("dev.epwatch.ENDPOINT", "https://collector.example/")
            // Android reads a value of digits as a number.
            putInt("dev.epwatch.APP_KEY", 12345)
            putString("dev.epwatch.ENVIRONMENT", "staging")
        }
        val info = shadowOf(app.packageManager).getInternalMutablePackageInfo(app.packageName)
        info.versionName = "3.2.1"
        info.applicationInfo!!.metaData = found
        val type = Class.forName("dev.epwatch.startup.EpwatchInitializer")
        val configOf = type.getDeclaredMethod("configOf", Context::class.java, Bundle::class.java).apply { isAccessible = true }
        val metaData = type.getDeclaredMethod("metaData", Context::class.java).apply { isAccessible = true }
        val config = configOf.invoke(null, app, metaData.invoke(null, app)) as EpwatchConfig
        assertEquals(app.packageName, config.appId)
        assertEquals("https://collector.example", config.endpoint)
        assertEquals("12345", config.appKey)
        assertEquals("staging", config.environment)
        assertEquals("3.2.1", config.appVersion)
        assertEquals(false, config.hasConsent)
    }
}
