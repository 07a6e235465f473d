package dev.epwatch

import android.content.Context
import android.content.ContextWrapper
import android.os.StrictMode
import android.util.Log
import java.io.File
import java.util.Collections
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.annotation.Config
import org.robolectric.shadows.ShadowLog

/** A context that notes the thread of every call that may touch the disk or a service. */
private class Watched(context: Context) : ContextWrapper(context) {
    val threads: MutableSet<String> = Collections.synchronizedSet(mutableSetOf<String>())

    private fun noted() = threads.add(Thread.currentThread().name)

    override fun getApplicationContext(): Context = this

    override fun getNoBackupFilesDir(): File {
        noted()
        return super.getNoBackupFilesDir()
    }

    override fun getSystemService(name: String): Any? {
        noted()
        return super.getSystemService(name)
    }
}

/** Without the native library: the app goes on, and the reason is named. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [24, 31, 35])
class StartTest {
    @Test
    fun theCallersThreadDoesNoWorkAndAMissingLibraryIsNamed() {
        val context = Watched(RuntimeEnvironment.getApplication())
        Epwatch.debug = true
        val heard = Collections.synchronizedList(mutableListOf<Health>())
        val listener = HealthListener { heard += it }
        Epwatch.addHealthListener(listener)
        // On a desktop JVM StrictMode sees only reads of the framework itself, so the test's context watches too.
        StrictMode.setThreadPolicy(StrictMode.ThreadPolicy.Builder().detectAll().penaltyDeath().build())
        val config = EpwatchConfig.Builder("com.example.camera", "https://127.0.0.1:1", "key").build()
        Epwatch.start(context, config)
        StrictMode.setThreadPolicy(StrictMode.ThreadPolicy.LAX)
        val isDone = CountDownLatch(1)
        Epwatch.flush { isDone.countDown() }
        assertTrue(isDone.await(300, TimeUnit.SECONDS))
        assertTrue(Epwatch.explain(), "UnsatisfiedLinkError" in Epwatch.explain())
        assertEquals(emptySet<String>(), context.threads - "epwatch-host")
        assertEquals(0, Epwatch.preflight(PreflightFacts()))

        val explained = Epwatch.explanation()
        assertTrue("UnsatisfiedLinkError" in explained.hostProblem!!)
        assertEquals(Explanation(explained.hostProblem, 0), explained)
        assertEquals(Health(false, "", explained.hostProblem, null, 0, 0), heard.last())
        val logged = ShadowLog.getLogsForTag("epwatch").map { it.msg }
        assertTrue(logged.toString(), logged.any { "UnsatisfiedLinkError" in it })
        Debug.isOn = false
        ShadowLog.setLoggable("epwatch", Log.DEBUG)
        Debug.readProperty()
        assertTrue(Epwatch.debug)

        // App Startup's initializer starts the SDK, too.
        val initializer = Class.forName("dev.epwatch.startup.EpwatchInitializer")
        initializer.getMethod("create", Context::class.java).invoke(initializer.getConstructor().newInstance(), context)
        assertTrue("called twice" in Epwatch.explanation().hostProblem!!)
        val isHeard = CountDownLatch(1)
        Epwatch.upload { isHeard.countDown() }
        assertTrue(isHeard.await(300, TimeUnit.SECONDS))
        Epwatch.flush { Epwatch.removeHealthListener(listener) }
        Epwatch.debug = false
    }
}
