package sample

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import ai.onnxruntime.TensorInfo
import android.app.job.JobScheduler
import android.content.Context
import android.os.Build
import androidx.test.core.app.ActivityScenario
import androidx.test.ext.junit.runners.AndroidJUnit4
import androidx.test.platform.app.InstrumentationRegistry
import dev.epwatch.Epwatch
import dev.epwatch.Health
import dev.epwatch.HealthListener
import dev.epwatch.ModelInfo
import dev.epwatch.ObservedSession
import dev.epwatch.UploadOutcome
import java.nio.FloatBuffer
import java.util.concurrent.LinkedBlockingQueue
import java.util.concurrent.TimeUnit
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith

/**
 * The library on bionic and ART, in the sample app, which `SampleApp` has started. Without a collector: an upload has to fail
 * and the reports have to stay. Nobody has run this yet.
 */
@RunWith(AndroidJUnit4::class)
class OnADeviceTest {
    private val context: Context = InstrumentationRegistry.getInstrumentation().targetContext

    @Test
    fun aSessionIsPlacedItsRunsAreKeptAndAnUploadWaits() {
        val states = LinkedBlockingQueue<Health>()
        val listener = HealthListener { states.add(it) }
        Epwatch.addHealthListener(listener)
        while (!next(states).isRunning) { /* The library is being loaded. */ }

        val observed = observed()
        val placed = observed.explanation()!!
        assertEquals(placed.toString(), "assignment_api", placed.source)
        assertTrue(placed.toString(), placed.eps.getValue("CPUExecutionProvider").nodes > 0)

        assertEquals(UploadOutcome.WAITING, upload())
        val explained = Epwatch.explanation()
        assertEquals(100, observed.explanation()!!.runs)
        assertTrue(explained.toString(), explained.spoolReports > 0)
        assertTrue(explained.toString(), explained.lastProblem != null)
        assertTrue(explained.chipset.isNotEmpty() || Build.VERSION.SDK_INT < 31)
        Epwatch.removeHealthListener(listener)
        observed.close()
        observed.session.close()
    }

    @Test
    fun anActivityThatStopsSchedulesTheJob() {
        ActivityScenario.launch(SampleActivity::class.java).close()
        val scheduler = context.getSystemService(Context.JOB_SCHEDULER_SERVICE) as JobScheduler
        val isScheduled = { scheduler.allPendingJobs.any { it.service.className == "dev.epwatch.UploadJob" } }
        val until = System.nanoTime() + TimeUnit.MINUTES.toNanos(5)
        while (!isScheduled() && System.nanoTime() < until) Thread.sleep(100)
        assertTrue(isScheduled())
    }

    private fun observed(): ObservedSession {
        val model = context.assets.open("model.onnx").use { it.readBytes() }
        val env = OrtEnvironment.getEnvironment()
        val observed = Epwatch.createSession(env, model, OrtSession.SessionOptions(), ModelInfo("on a device", "1"))
        val (name, node) = observed.session.inputInfo.entries.first()
        val shape = (node.info as TensorInfo).shape.map { if (it < 0) 1 else it }.toLongArray()
        val zeros = FloatBuffer.allocate(shape.fold(1L, Long::times).toInt())
        OnnxTensor.createTensor(env, zeros, shape).use { input ->
            repeat(100) { observed.run(mapOf(name to input)).close() }
        }
        return observed
    }

    private fun upload(): UploadOutcome {
        val outcomes = LinkedBlockingQueue<UploadOutcome>()
        Epwatch.upload(outcomes::add)
        return next(outcomes)
    }

    private fun <T : Any> next(of: LinkedBlockingQueue<T>): T = checkNotNull(of.poll(5, TimeUnit.MINUTES)) { Epwatch.explain() }
}
