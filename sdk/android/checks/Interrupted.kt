package checks

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import dev.epwatch.Epwatch
import dev.epwatch.JvmPlatform
import dev.epwatch.ModelInfo
import java.io.File
import java.util.concurrent.CountDownLatch

/** Calls on an interrupted thread, as of a cancelled worker: ENDPOINT KEY FOLDER MODEL */
public object InterruptedApp {
    @JvmStatic
    public fun main(args: Array<String>) {
        val (endpoint, key, folder, model) = args
        val isLetThrough = CountDownLatch(1)
        start(SlowPlatform(JvmPlatform(File(folder)), isLetThrough), endpoint, key)
        val env = OrtEnvironment.getEnvironment()
        val info = ModelInfo("segmenter", "3")
        val make = { Epwatch.createSession(env, model, OrtSession.SessionOptions(), info) }
        val first = make()
        val input = OnnxTensor.createTensor(env, Array(1) { Array(3) { Array(32) { FloatArray(32) } } })
        val inputs = mapOf(first.session.inputNames.first() to input)
        interrupted("early") {
            first.run(inputs).close()
            Epwatch.plan(info, 600_000).close()
        }
        first.run(inputs).close()
        isLetThrough.countDown()
        loaded()
        interrupted("run") { first.run(inputs).close() }
        println("first ${first.explain()}")
        interrupted("observe") { Epwatch.observe(first.session, info).use { it.run(inputs).close() } }
        interrupted("create") { make().use { it.run(inputs).close() } }
        interrupted("of") { Epwatch.sessionOf(ModelInfo("other", "3"), "LiteRT 2.3.0", null).close() }
        interrupted("compare") { Epwatch.compatibility(ModelInfo("m", "1", listOf("QNNExecutionProvider"), modelFile = model)) }
        interrupted("plan") { Epwatch.plan(info).close() }
        flush()
        interrupted("stop") { Epwatch.stop(300_000) }
        Epwatch.stop(300_000)
    }

    /** Prints whether the thread is still interrupted after the calls, and ends that. */
    private fun interrupted(name: String, calls: () -> Unit) {
        Thread.currentThread().interrupt()
        calls()
        println("$name ${Thread.interrupted()}")
    }
}
