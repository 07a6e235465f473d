package checks

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import dev.epwatch.DeviceFacts
import dev.epwatch.Epwatch
import dev.epwatch.GoldenInput
import dev.epwatch.JvmPlatform
import dev.epwatch.ModelInfo
import dev.epwatch.Platform
import dev.epwatch.Signals
import java.io.File
import java.util.concurrent.CountDownLatch

/** Facts that come when the test says so, as on a phone at a cold start. */
internal class SlowPlatform(private val inner: Platform, private val isLetThrough: CountDownLatch) : Platform {
    override fun folder(): File = inner.folder()

    override fun facts(): DeviceFacts {
        isLetThrough.await()
        return inner.facts()
    }

    override fun listen(signals: Signals) = inner.listen(signals)
}

/**
 * Sessions before the library is loaded: one that is used after it, one that is not, and one that is closed before. Of three
 * more only ONNX Runtime's session is closed, and each is then used by another call.
 * ENDPOINT KEY FOLDER MODEL
 */
public object SlowStartApp {
    @JvmStatic
    public fun main(args: Array<String>) {
        val (endpoint, key, folder, model) = args
        val isLetThrough = CountDownLatch(1)
        start(SlowPlatform(JvmPlatform(File(folder)), isLetThrough), endpoint, key)
        val env = OrtEnvironment.getEnvironment()
        val make = { id: String -> Epwatch.createSession(env, model, OrtSession.SessionOptions(), ModelInfo(id, "3")) }
        val (used, idle, closed) = listOf("used", "idle", "closed").map(make)
        val input = OnnxTensor.createTensor(env, Array(1) { Array(3) { Array(32) { FloatArray(32) } } })
        val inputs = mapOf(used.session.inputNames.first() to input)
        repeat(200) { used.run(inputs).close() }
        repeat(30) { idle.run(inputs).close() }
        repeat(7) { closed.run(inputs).close() }
        repeat(1_100) { idle.end(idle.begin()) }
        closed.close()
        closed.session.close()
        val (explained, ended, tested) = listOf("explained", "ended", "tested").map(make)
        listOf(explained, ended, tested).forEach {
            it.run(inputs).close()
            it.session.close()
        }
        println("loading ${Epwatch.explain()}")
        isLetThrough.countDown()
        loaded()
        used.run(inputs).close()
        println("used ${used.explain()}")
        println("explained ${explained.explain()}")
        ended.end(ended.begin())
        println("ended ${ended.explain()}")
        val golden = GoldenInput("zeros", inputs)
        println("tested ${tested.selfTest(golden) { throw IllegalStateException("no node is on the NPU") }}")
        println("late ${Epwatch.observe(ended.session, ModelInfo("late", "3")).explain()}")
        flush()
        println("flushed ${Epwatch.explain()}")
        check(Epwatch.stop(300_000)) { "the SDK did not end" }
    }
}
